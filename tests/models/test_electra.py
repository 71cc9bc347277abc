"""Properties of ELECTRA: two networks that share their embeddings."""

import dataclasses

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.models.electra import (
    ClassificationHead,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForReplacedTokenDetection,
    ElectraForSequenceClassification,
)
from tests.families.encoders import ELECTRA
from tests.families.family import random_tokens
from tests.systems.modules import boxed_shapes, count, outputs, random_params

NOT_PROJECTED = dataclasses.replace(
    ELECTRA, embedding_size=24, generator_hidden_size=24, generator_num_attention_heads=4
)
INPUTS = random_tokens(ELECTRA)


def test_embeddings_are_projected_where_they_have_another_width() -> None:
    for config, projected in ((ELECTRA, True), (NOT_PROJECTED, False)):
        params = boxed_shapes(ElectraForReplacedTokenDetection(config))
        assert ("embeddings_project" in params["electra"]) == projected


def test_the_classifier_has_a_layer_before_the_linear_one() -> None:
    """Deviation named in the module: with the exact GELU, on [CLS] as it is."""
    params = boxed_shapes(ElectraForSequenceClassification(ELECTRA, num_labels=5))
    assert set(params) == {"electra", "classifier"} and set(params["classifier"]) == {"dense", "output"}


def test_the_heads_dropout_is_drawn_twice() -> None:
    """Before and behind its first layer: at a rate of one half a quarter of the numbers is left."""
    config, size = dataclasses.replace(ELECTRA, classifier_dropout=0.5), ELECTRA.hidden_size
    head, ones = ClassificationHead(config, Execution(), size), jnp.ones((200, size))
    params = {name: {"kernel": jnp.eye(size), "bias": jnp.zeros(size)} for name in ("dense", "output")}
    logits = head.apply({"params": params}, ones, False, rngs={"dropout": jax.random.key(0)})
    assert np.mean(logits != 0) == pytest.approx(0.25, abs=0.02)


def test_the_two_networks_share_their_embeddings_and_nothing_else() -> None:
    params = random_params(ElectraForPreTraining(ELECTRA))
    alone = {
        "discriminator": boxed_shapes(ElectraForReplacedTokenDetection(ELECTRA)),
        "generator": boxed_shapes(ElectraForMaskedLM(ELECTRA)),
    }
    paths = {name: set(flax.traverse_util.flatten_dict(tree, sep="/")) for name, tree in alone.items()}
    assert set(flax.traverse_util.flatten_dict(params, sep="/")) == paths["discriminator"] | paths["generator"]
    shared = paths["discriminator"] & paths["generator"]
    assert shared and all(path.startswith("electra/embeddings/") for path in shared)

    generated, scored = outputs(ElectraForPreTraining(ELECTRA), params, INPUTS)
    np.testing.assert_array_equal(generated.logits, outputs(ElectraForMaskedLM(ELECTRA), params, INPUTS).logits)
    alone = outputs(ElectraForReplacedTokenDetection(ELECTRA), params, INPUTS)
    np.testing.assert_array_equal(scored.logits, alone.logits)
    encoder = ELECTRA.module(Purpose.ENCODING, Execution())
    hidden = outputs(encoder, params[encoder.name], INPUTS).last_hidden_state
    np.testing.assert_array_equal(hidden, scored.last_hidden_state)


def test_the_generator_of_a_generator_is_itself() -> None:
    for config in (ELECTRA, NOT_PROJECTED, ElectraConfig(), ElectraConfig.base()):
        assert config.generator.generator == config.generator
        assert count(ElectraForMaskedLM(config)) == count(ElectraForMaskedLM(config.generator))


def test_a_generator_has_a_quarter_of_the_width_a_head_for_64_features_and_whole_matrices() -> None:
    def sizes(**changes: int) -> tuple[int, ...]:
        network = ElectraConfig.base(generator_hidden_size=0, ranks=(3,) * 6, **changes).generator
        return network.hidden_size, network.num_attention_heads, network.intermediate_size, *network.ranks

    assert sizes() == (192, 3, 768)
    assert sizes(hidden_size=120) == (30, 1, 120)
    assert sizes(generator_num_attention_heads=6, generator_intermediate_size=100) == (192, 6, 100)


def test_the_head_of_the_generator_alone_has_always_the_exact_gelu() -> None:
    """Deviation named in the module."""
    module = ElectraForPreTraining(dataclasses.replace(ELECTRA, hidden_act="relu")).bind({})
    heads = module.masked_language_model.config, module.replaced_token_detection.config, module.generator.config
    assert [config.hidden_act for config in heads] == ["gelu", "relu", "relu"]


def test_train_flops() -> None:
    """FLOPs of the products, one by one: a token's through 12 layers, a prediction's through the generator's head."""
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
    with pytest.raises(UserError, match="generator_hidden_size of at least 0"):
        ElectraConfig(generator_hidden_size=-1)
    with pytest.raises(UserError, match=r"generator's width .* found 64 and 5 heads"):
        ElectraConfig(generator_num_attention_heads=5)
    with pytest.raises(UserError, match="at most 19 tokens"):
        jax.eval_shape(ElectraForPreTraining(ELECTRA).init, jax.random.key(0), jnp.zeros((1, 20), jnp.int32))
