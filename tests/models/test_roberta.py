"""RoBERTa against transformers, and what must hold whatever the weights are."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop.roberta import ADAPTER
from plmjax.models.bert import BertConfig
from plmjax.models.roberta import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
)
from tests.models import encoders
from tests.models.encoders import count

ODD = RobertaConfig(**encoders.SIZES, max_position_embeddings=encoders.LENGTH + 4, pad_token_id=3)
MODULES = [
    RobertaModel(ODD, pooling=True),
    RobertaForMaskedLM(ODD),
    RobertaForSequenceClassification(ODD, num_labels=5),
]
HEADED = MODULES[1:]


def inputs(padding_token: bool = True) -> dict[str, np.ndarray]:
    """As every encoder's; padding holds the padding token, from which positions know it, or any other."""
    batch = encoders.inputs(ODD)
    if padding_token:
        batch["input_ids"] = np.where(batch["attention_mask"] == 1, batch["input_ids"], ODD.pad_token_id)
    return batch


@pytest.mark.parametrize("padding_token", [True, False])
@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_outputs_and_gradients_equal_transformers(module: nn.Module, padding_token: bool) -> None:
    name = type(module).__name__
    model = encoders.reference(name, ODD, **({"num_labels": 5} if hasattr(module, "num_labels") else {}))
    outputs = ADAPTER.architectures[name].outputs
    encoders.assert_equals_transformers(ADAPTER, module, model, inputs(padding_token), outputs)


@pytest.mark.parametrize("activation", ["gelu_new", "relu"])
def test_other_activations_equal_transformers(activation: str) -> None:
    """In the layers alone: the deviation named in the module is that the head always has the exact GELU."""
    config = dataclasses.replace(ODD, hidden_act=activation)
    module, model = RobertaForMaskedLM(config), encoders.reference("RobertaForMaskedLM", config)
    encoders.assert_equals_transformers(ADAPTER, module, model, inputs(), {"logits": "logits"})


def test_gelu_and_the_norms_epsilon_are_not_those_of_bert() -> None:
    """The exact GELU and 1e-5 by default, where BERT's code has the tanh form and 1e-12."""
    config, bert = RobertaConfig.base(), BertConfig.base()
    assert (config.hidden_act, config.layer_norm_eps) == ("gelu", 1e-5)
    assert (bert.hidden_act, bert.layer_norm_eps) == ("gelu_new", 1e-12)
    params = encoders.random_params(RobertaForMaskedLM(ODD))
    exact, tanh = (
        RobertaForMaskedLM(dataclasses.replace(ODD, hidden_act=name)).apply({"params": params}, **inputs()).logits
        for name in ("gelu", "gelu_new")
    )
    assert np.abs(exact - tanh).max() > 1e-4


def test_positions_are_counted_from_behind_the_padding_token() -> None:
    """As published: the k-th real token takes row k + padding id, padding the row of that id, wherever it stands."""
    ids = jnp.array([[3, 3, 9, 8, 3, 7], [5, 6, 7, 8, 9, 3]])
    published = [[3, 3, 4, 5, 3, 6], [4, 5, 6, 7, 8, 3]]
    given = jnp.array([[0, 0, 0, 1, 0, 2], [0, 1, 2, 0, 1, 0]])
    packed = [[3, 3, 4, 5, 3, 6], [4, 5, 6, 4, 5, 3]]
    model = RobertaModel(ODD)
    np.testing.assert_array_equal(model.position_rows(ids, None), published)
    np.testing.assert_array_equal(model.position_rows(ids, given), packed)


def test_padding_changes_nothing() -> None:
    encoders.assert_padding_changes_nothing(RobertaForMaskedLM(ODD), inputs())
    encoders.assert_padding_changes_nothing(RobertaForSequenceClassification(ODD), inputs(), "logits")


def test_packed_equals_unpacked() -> None:
    """Deviation named in the module: a row may hold several sequences, and each is as if it stood alone."""
    encoders.assert_packed_equals_unpacked(RobertaForMaskedLM(ODD), inputs())
    encoders.assert_packed_equals_unpacked(RobertaForSequenceClassification(ODD), inputs(), "logits")


def test_packed_sequences_do_not_leak() -> None:
    encoders.assert_packed_sequences_do_not_leak(RobertaModel(dataclasses.replace(ODD, pad_token_id=1)))


def test_logits_at_masked_positions_are_those_of_all_positions() -> None:
    encoders.assert_logits_at_masked_positions_are_those_of_all(RobertaForMaskedLM(ODD), inputs())


@pytest.mark.parametrize("module", HEADED, ids=lambda module: type(module).__name__)
def test_bfloat16_computes_close_by_with_float32_parameters(module: nn.Module) -> None:
    encoders.assert_bfloat16_is_close(module, inputs())


def test_the_heads_dropout_is_drawn_twice() -> None:
    """Before and behind its first layer: with a rate of one half few of the vectors that reach the last are alike."""
    config = dataclasses.replace(ODD, hidden_dropout_prob=0.5)
    module = RobertaForSequenceClassification(config, num_labels=400)
    params = encoders.random_params(module)
    logits = [
        module.apply({"params": params}, **inputs(), deterministic=False, rngs={"dropout": jax.random.key(seed)}).logits
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - logits[2]).min() > 0


@pytest.mark.parametrize(
    ("config", "with_pooler", "masked_language_model"),
    [(RobertaConfig.base(), 124_645_632, 124_697_433), (RobertaConfig.large(), 355_359_744, 355_412_057)],
    ids=["base", "large"],
)
def test_published_parameter_counts(config: RobertaConfig, with_pooler: int, masked_language_model: int) -> None:
    assert count(RobertaModel(config, pooling=True)) == with_pooler
    assert count(RobertaModel(config)) == with_pooler - config.hidden_size * (config.hidden_size + 1)
    assert count(RobertaForMaskedLM(config)) == masked_language_model


def test_initial_values() -> None:
    """Normal, not cut: one weight in twenty lies beyond two standard deviations."""
    module = RobertaForMaskedLM(RobertaConfig.tiny(vocab_size=2000))
    for name, value in encoders.initial_weights(module):
        if value.size > 10_000:
            assert abs(value.std() / 0.02 - 1) < 0.02, name
            assert abs((np.abs(value) > 0.04).mean() - 0.0455) < 0.01, name


def test_a_new_head_is_all_of_the_part_that_transfer_draws_anew() -> None:
    params = encoders.initial_params(RobertaForSequenceClassification(ODD))
    assert set(params) == {"roberta", "classifier"} and set(params["classifier"]) == {"dense", "output"}
    assert set(params["roberta"]) == {"embeddings", "encoder"}


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
    longest = jax.eval_shape(RobertaModel(ODD).init, jax.random.key(0), jnp.zeros((1, 17), jnp.int32))
    assert longest
    with pytest.raises(UserError, match="at most 17 tokens"):
        jax.eval_shape(RobertaModel(ODD).init, jax.random.key(0), jnp.zeros((1, 18), jnp.int32))
