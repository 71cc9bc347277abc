"""Properties of BERT."""

import numpy as np
import pytest

from plmjax.models.bert import BertConfig, BertForPreTraining
from plmjax.models.compressed.configs import CompressedBertConfig
from tests.systems.modules import initial_params


@pytest.mark.nightly
def test_every_layer_is_drawn_for_itself() -> None:
    params = initial_params(BertForPreTraining(BertConfig.mini(vocab_size=2000)))
    kernel = params["bert"]["encoder"]["layers"]["feed_forward"]["output"]["kernel"]
    assert len({layer.tobytes() for layer in np.asarray(kernel)}) == 4


def test_groups_of_layers_that_differ_are_stacks_of_one_layer_each() -> None:
    """From the bottom to the top: the embeddings, each layer, and the pooler with all that is left."""
    alike, unlike = BertConfig.tiny(), CompressedBertConfig.tiny(layer_heads=(1, 2), layer_widths=(3, 4))
    found = [[(group.prefixes, group.index) for group in config.parameter_groups] for config in (alike, unlike)]
    ends = (("bert/embeddings",), None), (("bert",), None)
    assert found[0] == [ends[0], (("bert/encoder/layers",), 0), (("bert/encoder/layers",), 1), ends[1]]
    assert found[1] == [ends[0], (("bert/encoder/layer_0",), 0), (("bert/encoder/layer_1",), 0), ends[1]]
    assert unlike.layer_sizes == ((1, 3), (2, 4)) and CompressedBertConfig.tiny().layer_sizes == ((2, 512),) * 2
