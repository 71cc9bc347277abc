"""ELECTRA against transformers, and what must hold whatever the weights are."""

import dataclasses
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop.electra import ADAPTER
from plmjax.layers.execution import Execution
from plmjax.models.electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForReplacedTokenDetection,
    ElectraForSequenceClassification,
    ElectraModel,
)
from tests.models import encoders
from tests.models.encoders import count, random_params

GENERATOR = {"generator_hidden_size": 10, "generator_num_attention_heads": 2, "generator_intermediate_size": 23}
ODD = ElectraConfig(**encoders.SIZES, **GENERATOR, max_position_embeddings=19, embedding_size=14, hidden_act="gelu_new")
SAME = dataclasses.replace(ODD, embedding_size=24, generator_hidden_size=24, generator_num_attention_heads=4)
EVEN = dataclasses.replace(
    ODD,
    vocab_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    embedding_size=16,
    generator_hidden_size=12,
    generator_intermediate_size=20,
)
INPUTS = encoders.inputs(ODD)


@pytest.mark.parametrize(
    ("config", "activation"), [(ODD, "gelu_new"), (ODD, "gelu"), (SAME, "relu")], ids=["tanh", "erf", "not projected"]
)
def test_discriminator_equals_transformers(config: ElectraConfig, activation: str) -> None:
    config = dataclasses.replace(config, hidden_act=activation)
    module, model = ElectraForReplacedTokenDetection(config), encoders.reference("ElectraForPreTraining", config)
    params = encoders.assert_equals_transformers(ADAPTER, module, model, INPUTS, {"logits": "logits"})
    assert ("embeddings_project" in params["electra"]) == (config.embedding_size == 14)


@pytest.mark.parametrize(
    ("config", "activation"), [(ODD, "gelu_new"), (ODD, "gelu"), (SAME, "relu")], ids=["tanh", "erf", "not projected"]
)
def test_generator_equals_transformers(config: ElectraConfig, activation: str) -> None:
    """Whatever the activation: the deviation named in the module is that the head's is the exact GELU."""
    config = dataclasses.replace(config, hidden_act=activation)
    module, model = ElectraForMaskedLM(config), encoders.reference("ElectraForMaskedLM", config.generator)
    encoders.assert_equals_transformers(ADAPTER, module, model, INPUTS, {"logits": "logits"})


def test_encoder_equals_transformers() -> None:
    module, model = ElectraModel(ODD), encoders.reference("ElectraModel", ODD)
    encoders.assert_equals_transformers(ADAPTER, module, model, INPUTS, {"last_hidden_state": "last_hidden_state"})


def test_classifier_equals_transformers() -> None:
    """Deviation named in the module: a layer with the exact GELU stands before the linear one, on [CLS] as it is."""
    module = ElectraForSequenceClassification(ODD, num_labels=5)
    model = encoders.reference("ElectraForSequenceClassification", ODD, num_labels=5)
    params = encoders.assert_equals_transformers(ADAPTER, module, model, INPUTS, {"logits": "logits"})
    assert set(params) == {"electra", "classifier"} and set(params["classifier"]) == {"dense", "output"}


def test_the_heads_dropout_is_drawn_twice() -> None:
    """Before and behind its first layer: with a rate of one half few of the vectors that reach the last are alike."""
    module = ElectraForSequenceClassification(dataclasses.replace(ODD, classifier_dropout=0.5), num_labels=400)
    params = random_params(module)
    logits = [
        module.apply({"params": params}, **INPUTS, deterministic=False, rngs={"dropout": jax.random.key(seed)}).logits
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - logits[2]).min() > 0


def test_the_two_networks_share_their_embeddings_and_nothing_else() -> None:
    params = random_params(ElectraForPreTraining(ODD))
    alone = {
        "discriminator": random_params(ElectraForReplacedTokenDetection(ODD)),
        "generator": random_params(ElectraForMaskedLM(ODD)),
    }
    paths = {name: set(flax.traverse_util.flatten_dict(tree, sep="/")) for name, tree in alone.items()}
    assert set(flax.traverse_util.flatten_dict(params, sep="/")) == paths["discriminator"] | paths["generator"]
    shared = paths["discriminator"] & paths["generator"]
    assert shared and all(path.startswith("electra/embeddings/") for path in shared)

    def logits(module: nn.Module, params: Any) -> Any:
        return module.apply({"params": params}, **INPUTS)

    generated, scored = logits(ElectraForPreTraining(ODD), params)
    np.testing.assert_array_equal(generated.logits, logits(ElectraForMaskedLM(ODD), params).logits)
    np.testing.assert_array_equal(scored.logits, logits(ElectraForReplacedTokenDetection(ODD), params).logits)
    encoder = ODD.encoder(Execution())
    hidden = encoder.apply({"params": params[encoder.name]}, **INPUTS).last_hidden_state
    np.testing.assert_array_equal(hidden, scored.last_hidden_state)


def test_the_generator_of_a_generator_is_itself() -> None:
    for config in (ODD, SAME, ElectraConfig(), ElectraConfig.base()):
        assert config.generator.generator == config.generator
        assert count(ElectraForMaskedLM(config)) == count(ElectraForMaskedLM(config.generator))


@pytest.mark.parametrize("module", [ElectraForReplacedTokenDetection, ElectraForMaskedLM])
def test_padding_changes_nothing(module: type[nn.Module]) -> None:
    encoders.assert_padding_changes_nothing(module(ODD), INPUTS)


@pytest.mark.parametrize("module", [ElectraForReplacedTokenDetection, ElectraForMaskedLM])
def test_packed_equals_unpacked(module: type[nn.Module]) -> None:
    """Deviation named in the module: a row may hold several sequences, and each is as if it stood alone."""
    encoders.assert_packed_equals_unpacked(module(ODD), INPUTS)


def test_packed_sequences_are_classified_as_unpacked_ones() -> None:
    module = ElectraForSequenceClassification(ODD, num_labels=5)
    encoders.assert_packed_equals_unpacked(module, INPUTS, "pooler_output", "logits")


def test_packed_sequences_do_not_leak() -> None:
    encoders.assert_packed_sequences_do_not_leak(ElectraModel(ODD))


def test_logits_at_masked_positions_are_those_of_all_positions() -> None:
    encoders.assert_logits_at_masked_positions_are_those_of_all(ElectraForMaskedLM(ODD), INPUTS)


class Both(ElectraForPreTraining):
    """Both networks in one output: what the discriminator says beside what the generator does."""

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> Any:
        generated, scored = super().__call__(input_ids, **inputs)
        return generated.replace(pooler_output=scored.logits)


@encoders.every_execution
def test_execution_changes_nothing(execution: Execution) -> None:
    module = Both(dataclasses.replace(ODD, **encoders.DROPOUT))
    encoders.assert_execution_changes_nothing(module, execution, "pooler_output")


def test_sharded_equals_unsharded() -> None:
    module = Both(dataclasses.replace(EVEN, **encoders.DROPOUT))
    placed = encoders.assert_sharded_equals_unsharded(module, "pooler_output")
    kernel = placed["generator"]["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 6, 1, 6)


@pytest.mark.parametrize("module", [ElectraForReplacedTokenDetection, ElectraForMaskedLM])
def test_bfloat16_computes_close_by_with_float32_parameters(module: type[nn.Module]) -> None:
    encoders.assert_bfloat16_is_close(module(ODD), INPUTS)


@pytest.mark.parametrize(
    ("config", "encoder", "discriminator", "generator", "whole"),
    [
        (ElectraConfig.small(), 13_483_008, 13_549_057, 4_620_026, 14_196_219),
        (ElectraConfig(), 13_483_008, 13_549_057, 4_620_026, 14_196_219),
        (ElectraConfig.base(), 108_891_648, 109_483_009, 33_740_602, 119_386_427),
        (ElectraConfig.large(), 334_092_288, 335_142_913, 51_295_290, 354_655_291),
    ],
    ids=["small", "default", "base", "large"],
)
def test_published_parameter_counts(
    config: ElectraConfig, encoder: int, discriminator: int, generator: int, whole: int
) -> None:
    assert count(ElectraModel(config)) == encoder
    assert count(ElectraForReplacedTokenDetection(config)) == discriminator
    assert count(ElectraForMaskedLM(config)) == generator
    assert count(ElectraForPreTraining(config)) == whole


def test_initial_values() -> None:
    for name, value in encoders.initial_weights(ElectraForPreTraining(ElectraConfig.tiny(vocab_size=2000))):
        assert np.abs(value).max() <= 0.04, f"{name} is cut at two standard deviations"
        if value.size > 10_000:
            assert abs(value.std() / 0.02 - 0.8796) < 0.02, f"{name}: the cut is not made up for"


def test_train_flops() -> None:
    """Of the products, told one by one: a token's through 12 layers, a prediction's through the generator's head."""
    base, rows, length, predictions = ElectraConfig.base(), 2, 128, 19
    discriminator = 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 128 * 768)
    assert base.train_flops(rows, length, 0) == 6 * rows * length * discriminator
    generator = 12 * (4 * 256**2 + 2 * 256 * 1024 + 2 * 128 * 256) + 768 * 256
    head = 256 * 768 + 768 * 30522
    expected = 6 * rows * (length * generator + predictions * head)
    assert base.train_flops(rows, length, predictions) == expected == base.generator.train_flops(rows, length, 19)


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="embedding_size of at least 1, found 0"):
        ElectraConfig(embedding_size=0)
    with pytest.raises(UserError, match="generator_hidden_size of 0"):
        ElectraConfig(generator_hidden_size=-1)
    with pytest.raises(UserError, match=r"generator's width .* found 64 and 5 heads"):
        ElectraConfig(generator_num_attention_heads=5)
    with pytest.raises(UserError, match="at most 19 tokens"):
        jax.eval_shape(ElectraForPreTraining(ODD).init, jax.random.key(0), jnp.zeros((1, 20), jnp.int32))
