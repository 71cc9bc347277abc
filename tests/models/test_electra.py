"""Properties of ELECTRA: two networks that share their embeddings."""

import dataclasses

import flax.traverse_util
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models.compressed.configs import CompressedElectraConfig
from plmjax.models.electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForReplacedTokenDetection,
)
from tests.families.encoders import ELECTRA
from tests.families.family import random_tokens
from tests.systems.modules import boxed_shapes, count, outputs, random_params

NOT_PROJECTED = dataclasses.replace(
    ELECTRA, embedding_size=24, generator_hidden_size=24, generator_num_attention_heads=4
)
INPUTS = random_tokens(ELECTRA)


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
    for config in (ELECTRA, NOT_PROJECTED):
        assert config.generator.generator == config.generator
        assert count(ElectraForMaskedLM(config)) == count(ElectraForMaskedLM(config.generator))


def test_a_generator_has_a_quarter_of_the_width_a_head_for_64_features_and_whole_matrices() -> None:
    def sizes(**changes: int) -> tuple[int, ...]:
        network = CompressedElectraConfig.base(generator_hidden_size=0, ranks=(3,) * 6, **changes).generator
        assert type(network) is ElectraConfig
        return network.hidden_size, network.num_attention_heads, network.intermediate_size

    assert sizes() == (192, 3, 768)
    assert sizes(hidden_size=120) == (30, 1, 120)
    assert sizes(generator_num_attention_heads=6, generator_intermediate_size=100) == (192, 6, 100)


def test_the_head_of_the_generator_alone_has_always_the_exact_gelu() -> None:
    """Deviation named in the module."""
    module = ElectraForPreTraining(dataclasses.replace(ELECTRA, hidden_act="relu")).bind({})
    heads = module.masked_language_model.config, module.replaced_token_detection.config, module.generator.config
    assert [config.hidden_act for config in heads] == ["gelu", "relu", "relu"]
