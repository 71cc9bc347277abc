"""Properties of BERT."""

import dataclasses

import numpy as np
import pytest

from plmjax.models.bert import BertConfig, BertForPreTraining, BertForSequenceClassification
from tests.families.encoders import BERT
from tests.families.family import random_tokens
from tests.systems.modules import dropped, initial_params, outputs, random_params

INPUTS = random_tokens(BERT)


def test_a_head_may_have_a_dropout_of_its_own() -> None:
    """Without one it is that of the layers; the layers never have the head's."""
    assert dataclasses.replace(BERT, hidden_dropout_prob=0.3).head_dropout == 0.3
    config = dataclasses.replace(BERT, classifier_dropout=0.5)
    assert (config.head_dropout, config.hidden_dropout_prob) == (0.5, 0.0)
    assert dataclasses.replace(BERT, hidden_dropout_prob=0.3, classifier_dropout=0.0).head_dropout == 0.0
    module = BertForSequenceClassification(config, num_labels=5)
    params = random_params(module)
    plain, random = outputs(module, params, INPUTS), dropped(module, params, INPUTS)
    np.testing.assert_array_equal(plain.pooler_output, random.pooler_output)
    assert np.abs(plain.logits - random.logits).max() > 0.01


@pytest.mark.nightly
def test_every_layer_is_drawn_for_itself() -> None:
    params = initial_params(BertForPreTraining(BertConfig.mini(vocab_size=2000)))
    kernel = params["bert"]["encoder"]["layers"]["feed_forward"]["output"]["kernel"]
    assert len({layer.tobytes() for layer in np.asarray(kernel)}) == 4


def test_train_flops() -> None:
    """6 (L (4 D^2 + 2 D F + 2 T D) + (D^2 + D V) P / T) a token: 0.546 GFLOP for Base at 128 with 20 predictions."""
    assert BertConfig.base().train_flops(1, 128, 20) == pytest.approx(69.9e9, rel=1e-3)
    assert BertConfig.large().train_flops(2, 512, 76) == pytest.approx(2 * 1019.8e9, rel=1e-3)


def test_groups_of_layers_that_differ_are_stacks_of_one_layer_each() -> None:
    """From the bottom to the top: the embeddings, each layer, and the pooler with all that is left."""
    alike, unlike = BertConfig.tiny(), BertConfig.tiny(layer_heads=(1, 2), layer_widths=(3, 4))
    found = [[(group.prefixes, group.index) for group in config.parameter_groups] for config in (alike, unlike)]
    ends = (("bert/embeddings",), None), (("bert",), None)
    assert found[0] == [ends[0], (("bert/encoder/layers",), 0), (("bert/encoder/layers",), 1), ends[1]]
    assert found[1] == [ends[0], (("bert/encoder/layer_0",), 0), (("bert/encoder/layer_1",), 0), ends[1]]
    assert unlike.layer_sizes == ((1, 3), (2, 4)) and alike.layer_sizes == ((2, 512),) * 2
