"""BERT against transformers, and what must hold whatever the weights are."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop.bert import ADAPTER
from plmjax.layers.execution import Execution
from plmjax.models.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)
from tests.models import encoders
from tests.models.encoders import count

ODD = BertConfig(**encoders.SIZES, max_position_embeddings=19)
EVEN = dataclasses.replace(ODD, vocab_size=56, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
INPUTS = encoders.inputs(ODD)
PAIRS = "seq_relationship_logits"


def test_a_head_may_have_a_dropout_of_its_own() -> None:
    """Without one it is that of the layers; the layers never have the head's."""
    assert dataclasses.replace(ODD, hidden_dropout_prob=0.3).head_dropout == 0.3
    config = dataclasses.replace(ODD, classifier_dropout=0.5)
    assert (config.head_dropout, config.hidden_dropout_prob) == (0.5, 0.0)
    assert dataclasses.replace(ODD, hidden_dropout_prob=0.3, classifier_dropout=0.0).head_dropout == 0.0
    module = BertForSequenceClassification(config, num_labels=5)
    params = encoders.random_params(module)
    plain = module.apply({"params": params}, **INPUTS)
    dropped = module.apply({"params": params}, **INPUTS, deterministic=False, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_array_equal(plain.pooler_output, dropped.pooler_output)
    assert np.abs(plain.logits - dropped.logits).max() > 0.01
    with pytest.raises(UserError, match="classifier_dropout from 0 to below 1, found 1"):
        BertConfig.tiny(classifier_dropout=1.0)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu", "relu"])
def test_pretraining_outputs_and_gradients_equal_transformers(activation: str) -> None:
    """With "gelu" this also shows the deviation named in the module: the two forms of GELU differ by far more."""
    config = dataclasses.replace(ODD, hidden_act=activation)
    module, model = BertForPreTraining(config), encoders.reference("BertForPreTraining", config)
    outputs = {"logits": "prediction_logits", PAIRS: PAIRS}
    params = encoders.assert_equals_transformers(ADAPTER, module, model, INPUTS, outputs)
    if activation == "gelu":
        exact, tanh = (one.apply({"params": params}, **INPUTS).logits for one in (module, BertForPreTraining(ODD)))
        assert np.abs(tanh - exact).max() > 1e-4


@pytest.mark.parametrize(
    "module",
    [BertModel(ODD), BertForMaskedLM(ODD), BertForSequenceClassification(ODD, num_labels=5)],
    ids=lambda module: type(module).__name__,
)
def test_other_heads_equal_transformers(module: nn.Module) -> None:
    name = type(module).__name__
    model = encoders.reference(name, ODD, **({"num_labels": 5} if hasattr(module, "num_labels") else {}))
    encoders.assert_equals_transformers(ADAPTER, module, model, INPUTS, ADAPTER.architectures[name].outputs)


def test_padding_changes_nothing() -> None:
    encoders.assert_padding_changes_nothing(BertForPreTraining(ODD), INPUTS, PAIRS)


def test_packed_equals_unpacked() -> None:
    """Deviation named in the module: a row may hold several sequences, and each is as if it stood alone."""
    encoders.assert_packed_equals_unpacked(BertForPreTraining(ODD), INPUTS, "pooler_output", PAIRS)


def test_packed_sequences_do_not_leak() -> None:
    encoders.assert_packed_sequences_do_not_leak(BertModel(ODD))


@pytest.mark.parametrize("module", [BertForPreTraining(ODD), BertForMaskedLM(ODD)], ids=lambda x: type(x).__name__)
def test_logits_at_masked_positions_are_those_of_all_positions(module: nn.Module) -> None:
    encoders.assert_logits_at_masked_positions_are_those_of_all(module, INPUTS)


@encoders.every_execution
def test_execution_changes_nothing(execution: Execution) -> None:
    module = BertForPreTraining(dataclasses.replace(ODD, **encoders.DROPOUT))
    encoders.assert_execution_changes_nothing(module, execution, PAIRS)


def test_sharded_equals_unsharded() -> None:
    module = BertForPreTraining(dataclasses.replace(EVEN, **encoders.DROPOUT))
    placed = encoders.assert_sharded_equals_unsharded(module, PAIRS)
    kernel = placed["bert"]["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 12, 2, 6)


def test_bfloat16_computes_close_by_with_float32_parameters() -> None:
    encoders.assert_bfloat16_is_close(BertForPreTraining(ODD), INPUTS)


@pytest.mark.parametrize(
    ("config", "encoder", "pretraining"),
    [
        (BertConfig.base(), 109_482_240, 110_106_428),
        (BertConfig.large(), 335_141_888, 336_226_108),
        (BertConfig.base_cased(), 108_310_272, 108_932_934),
        (BertConfig.large_cased(), 333_579_264, 334_661_958),
        (BertConfig.base_chinese(), 109_482_240 - (30522 - 21128) * 768, 110_106_428 - (30522 - 21128) * 769),
        (BertConfig.tiny(), 4_385_920, None),
        (BertConfig.mini(), 11_170_560, None),
        (BertConfig.small(), 28_763_648, None),
        (BertConfig.medium(), 41_373_184, None),
    ],
    ids=["base", "large", "base_cased", "large_cased", "base_chinese", "tiny", "mini", "small", "medium"],
)
def test_published_parameter_counts(config: BertConfig, encoder: int, pretraining: int | None) -> None:
    assert count(BertModel(config)) == encoder
    if pretraining:
        assert count(BertForPreTraining(config)) == pretraining


def test_initial_values() -> None:
    module = BertForPreTraining(BertConfig.mini(vocab_size=2000))
    for name, value in encoders.initial_weights(module):
        assert np.abs(value).max() <= 0.04, f"{name} is cut at two standard deviations"
        if value.size > 10_000:
            assert abs(value.std() / 0.02 - 0.8796) < 0.02, f"{name}: the cut is not made up for"
    kernel = encoders.initial_params(module)["bert"]["encoder"]["layers"]["feed_forward"]["output"]["kernel"]
    assert len({layer.tobytes() for layer in np.asarray(kernel)}) == 4, "every layer is drawn for itself"


def test_train_flops() -> None:
    """6 (L (4 D^2 + 2 D F + 2 T D) + (D^2 + D V) P / T) a token: 0.546 GFLOP for Base at 128 with 20 predictions."""
    assert BertConfig.base().train_flops(1, 128, 20) == pytest.approx(69.9e9, rel=1e-3)
    assert BertConfig.large().train_flops(2, 512, 76) == pytest.approx(2 * 1019.8e9, rel=1e-3)


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="type_vocab_size of at least 1, found 0"):
        BertConfig.tiny(type_vocab_size=0)
    with pytest.raises(UserError, match="hidden_dropout_prob from 0 to below 1, found 1"):
        BertConfig.tiny(hidden_dropout_prob=1.0)
    with pytest.raises(UserError, match="divides by the heads"):
        BertConfig.base(num_attention_heads=7)
    with pytest.raises(UserError, match="did you mean 'gelu_new'"):
        BertConfig.base(hidden_act="gelu_nwe")
    with pytest.raises(UserError, match="at most 19 tokens"):
        jax.eval_shape(BertModel(ODD).init, jax.random.key(0), jnp.zeros((1, 20), jnp.int32))
    with pytest.raises(ValueError, match=r"shape \[B T\]"):
        jax.eval_shape(BertModel(ODD).init, jax.random.key(0), jnp.zeros((1, 9), jnp.int32), jnp.ones((1, 8)))
