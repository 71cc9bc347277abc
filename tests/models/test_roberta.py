"""Properties of RoBERTa."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.models.bert import BertConfig
from plmjax.models.roberta import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
)
from tests.families.encoders import ROBERTA
from tests.families.family import padded_tokens
from tests.systems.modules import boxed_shapes, dropped, outputs, random_params

INPUTS = padded_tokens(ROBERTA)


def test_gelu_and_the_norms_epsilon_are_not_those_of_bert() -> None:
    """The exact GELU and 1e-5 by default, where BERT's code has the tanh form and 1e-12."""
    config, bert = RobertaConfig.base(), BertConfig.base()
    assert (config.hidden_act, config.layer_norm_eps) == ("gelu", 1e-5)
    assert (bert.hidden_act, bert.layer_norm_eps) == ("gelu_new", 1e-12)
    params = random_params(RobertaForMaskedLM(ROBERTA))
    exact, tanh = (
        outputs(RobertaForMaskedLM(dataclasses.replace(ROBERTA, hidden_act=name)), params, INPUTS).logits
        for name in ("gelu", "gelu_new")
    )
    assert np.abs(exact - tanh).max() > 1e-4


def test_positions_are_counted_from_behind_the_padding_token() -> None:
    """As published: the k-th real token takes row k + padding id, padding the row of that id, wherever it stands."""
    ids = jnp.array([[3, 3, 9, 8, 3, 7], [5, 6, 7, 8, 9, 3]])
    published = [[3, 3, 4, 5, 3, 6], [4, 5, 6, 7, 8, 3]]
    given = jnp.array([[0, 0, 0, 1, 0, 2], [0, 1, 2, 0, 1, 0]])
    packed = [[3, 3, 4, 5, 3, 6], [4, 5, 6, 4, 5, 3]]
    model = RobertaModel(ROBERTA)
    np.testing.assert_array_equal(model.position_rows(ids, None), published)
    np.testing.assert_array_equal(model.position_rows(ids, given), packed)


def test_the_heads_dropout_is_drawn_twice() -> None:
    """Before and behind its first layer: with a rate of one half few of the vectors that reach the last are alike."""
    config = dataclasses.replace(ROBERTA, hidden_dropout_prob=0.5)
    module = RobertaForSequenceClassification(config, num_labels=400)
    params = random_params(module)
    logits = [dropped(module, params, INPUTS, seed).logits for seed in (0, 0, 1)]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - logits[2]).min() > 0


def test_a_new_head_is_all_of_the_part_that_transfer_draws_anew() -> None:
    params = boxed_shapes(RobertaForSequenceClassification(ROBERTA))
    assert set(params) == {"roberta", "classifier"} and set(params["classifier"]) == {"dense", "output"}
    assert set(params["roberta"]) == {"embeddings", "encoder"}


def test_the_masked_language_models_head_has_always_the_exact_gelu() -> None:
    """Deviation named in the module."""
    module = RobertaForMaskedLM(dataclasses.replace(ROBERTA, hidden_act="relu")).bind({})
    assert (module.masked_language_model.config.hidden_act, module.encoder.config.hidden_act) == ("gelu", "relu")


def test_train_flops() -> None:
    """6 (L (4 D^2 + 2 D F + 2 T D) + (D^2 + D V) P / T) a token, as BERT's."""
    size, head = 768, 768**2 + 768 * 50265
    layers = 12 * (12 * size**2 + 2 * 512 * size)
    assert RobertaConfig.base().train_flops(3, 512, 77) == 6.0 * 3 * (512 * layers + 77 * head)


def test_mistakes_are_named() -> None:
    assert RobertaConfig.base().longest == 512
    with pytest.raises(UserError, match="pad_token_id from 0, below the 50265 tokens"):
        RobertaConfig.base(pad_token_id=-1)
    with pytest.raises(UserError, match="in a table of 2, found 1"):
        RobertaConfig.tiny(max_position_embeddings=2)
    with pytest.raises(UserError, match="vocab_size of at least 1, found 0"):
        RobertaConfig.tiny(vocab_size=0)
    longest = jax.eval_shape(RobertaModel(ROBERTA).init, jax.random.key(0), jnp.zeros((1, 17), jnp.int32))
    assert longest
    with pytest.raises(UserError, match="at most 17 tokens"):
        jax.eval_shape(RobertaModel(ROBERTA).init, jax.random.key(0), jnp.zeros((1, 18), jnp.int32))
