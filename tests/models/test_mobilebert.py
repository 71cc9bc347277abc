"""Properties of MobileBERT and to its teacher: bottlenecks, neighbors, and a norm without statistics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop.mobilebert import ADAPTER
from plmjax.models import mobilebert
from plmjax.models.mobilebert import (
    MobileBertConfig,
    MobileBertForMaskedLM,
    MobileBertForPreTraining,
    MobileBertModel,
    NoNorm,
    with_neighbors,
)
from tests.families.family import padded_tokens
from tests.families.students import IB_BERT, MOBILEBERT, TINY
from tests.products import step_flops
from tests.systems.comparison import assert_equals_transformers, reference, transformers_reference
from tests.systems.modules import boxed_shapes, outputs, random_params

INPUTS = padded_tokens(MOBILEBERT)
WHOLE = INPUTS | {"attention_mask": np.ones_like(INPUTS["attention_mask"])}
"""The same rows, in which the padding tokens are words."""


def test_each_word_is_joined_with_the_next_and_the_previous() -> None:
    x = jnp.arange(1.0, 6.0)[None, :, None]
    plain = [[2, 1, 0], [3, 2, 1], [4, 3, 2], [5, 4, 3], [0, 5, 4]]
    packed = [[2, 1, 0], [0, 2, 1], [4, 3, 0], [0, 4, 3], [0, 5, 0]]
    np.testing.assert_array_equal(with_neighbors(x, None)[0], plain)
    np.testing.assert_array_equal(with_neighbors(x, jnp.array([[1, 1, 2, 2, 0]]))[0], packed)
    np.testing.assert_array_equal(with_neighbors(x, jnp.array([[1, 1, 0, 0, 0]]))[0, 1], [0, 2, 1])


@pytest.mark.nightly
def test_the_last_word_does_not_read_the_padding() -> None:
    """Deviation: in transformers it does; a row that is full is equal, whatever vector the padding token has."""
    module = MobileBertModel(MOBILEBERT)
    model = reference("MobileBertModel", MOBILEBERT)
    model.get_input_embeddings().padding_idx = None  # a padding token that is read learns, as in test_parity.py
    assert model.get_input_embeddings().weight[MOBILEBERT.pad_token_id].abs().max() > 0.1
    params = assert_equals_transformers(ADAPTER, module, model, WHOLE)
    expected = transformers_reference(ADAPTER, module, model, INPUTS).outputs["hidden_states"][0][1]
    found = module.apply({"params": params}, **INPUTS, output_hidden_states=True).hidden_states[0][1]
    np.testing.assert_allclose(found[:10], expected[:10], rtol=1e-5, atol=1e-5)
    assert np.abs(found[10] - expected[10]).max() > 0.01


def test_no_norm_is_the_affine_part_of_a_norm() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    scale, bias = np.arange(5.0, dtype=np.float32), np.ones(5, np.float32)
    found = NoNorm().apply({"params": {"scale": scale, "bias": bias}}, x)
    np.testing.assert_allclose(found, x * scale + bias, rtol=1e-6)
    assert NoNorm(jnp.bfloat16).apply({"params": {"scale": scale, "bias": bias}}, x).dtype == jnp.bfloat16


def test_attention_reads_what_the_sizes_say() -> None:
    """MobileBERT's queries a second bottleneck and its values x, TINY's all the first one, IB-BERT's all x."""
    expected = {
        MOBILEBERT: (15, 15, 24, {"bottleneck_input", "bottleneck_attention", "bottleneck_output"}),
        dataclasses.replace(MOBILEBERT, **TINY): (15, 15, 15, {"bottleneck_input", "bottleneck_output"}),
        IB_BERT: (24, 24, 24, {"bottleneck_input", "bottleneck_output"}),
    }
    for config, (query, key, value, bottlenecks) in expected.items():
        layers = boxed_shapes(MobileBertModel(config))["encoder"]["layers"]
        found = [layers["attention"][name]["kernel"].value.shape[1] for name in ("query", "key", "value")]
        assert found == [query, key, value]
        assert {name for name in layers if "bottleneck" in name and "norm" not in name} == bottlenecks
        networks = [name for name in layers if name.startswith("feed_forward") and "norm" not in name]
        assert len(networks) == config.num_feedforward_networks


def test_student_and_teacher_have_states_of_one_shape() -> None:
    """One for each layer and the embeddings, which a student can imitate layer by layer."""
    shapes = set()
    for config in (MobileBertConfig.base(), MobileBertConfig.tiny(), MobileBertConfig.ib_bert_large()):
        module = MobileBertModel(config)
        ids = jax.ShapeDtypeStruct((2, 8), jnp.int32)
        params = jax.eval_shape(module.init, jax.random.key(0), ids)
        found = jax.eval_shape(
            lambda params, ids, m=module: m.apply(params, ids, output_hidden_states=True), params, ids
        )
        shapes.add(found.hidden_states.shape)
    assert shapes == {(25, 2, 8, 512)}


def test_the_word_table_scores_with_the_first_features() -> None:
    module = MobileBertForMaskedLM(MOBILEBERT)
    params = random_params(module)
    head = params["masked_language_model"]
    assert head["other_features"]["embedding"].shape == (53, 24 - 7)
    plain = outputs(module, params, WHOLE).logits
    without = dict(params) | {
        "masked_language_model": head | {"other_features": {"embedding": np.zeros((53, 17), np.float32)}}
    }
    only_words = outputs(module, without, WHOLE).logits
    assert np.abs(plain - only_words).max() > 0.1 and np.abs(only_words - head["bias"]).max() > 0.1


def test_a_model_without_activation_has_no_pooler() -> None:
    module = MobileBertForPreTraining(MobileBertConfig.mini())
    assert set(boxed_shapes(module)["mobilebert"]) == {"embeddings", "encoder"}
    module = MobileBertModel(dataclasses.replace(MOBILEBERT, classifier_activation=False))
    found = outputs(module, random_params(module), WHOLE)
    np.testing.assert_array_equal(found.pooler_output, found.last_hidden_state[:, 0])


@pytest.mark.parametrize("config", [MOBILEBERT, dataclasses.replace(MOBILEBERT, **TINY), IB_BERT])
def test_train_flops_are_those_of_the_products(config: MobileBertConfig) -> None:
    module, positions = MobileBertForMaskedLM(config), jnp.zeros((2, 5), jnp.int32)
    found = step_flops(module, input_ids=jnp.zeros((2, 13), jnp.int32), masked_positions=positions)
    assert config.train_flops(2, 13, 5) == found


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="num_feedforward_networks of at least 1, found 0"):
        MobileBertConfig.mini(num_feedforward_networks=0)
    with pytest.raises(UserError, match="embedding_size below the hidden size of 128, found 128"):
        MobileBertConfig.mini(embedding_size=128)
    with pytest.raises(UserError, match="a bottleneck whose size divides by the heads, found 32 and 5 heads"):
        MobileBertConfig.mini(num_attention_heads=5)
    with pytest.raises(UserError, match="found 32 and 0 heads"):
        MobileBertConfig.mini(num_attention_heads=0)
    with pytest.raises(UserError, match="did you mean 'no_norm'"):
        MobileBertConfig.mini(normalization_type="nonorm")
    with pytest.raises(UserError, match=r"at most one of .* found both; set the second to False"):
        MobileBertConfig.mini(use_bottleneck_attention=True)


def test_a_mask_within_packed_sequences_parts_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding is no sequence; without segments, a row is one sequence of all real words."""
    params = {"params": {"embeddings": random_params(MobileBertModel(MOBILEBERT))["embeddings"]}}
    seen = []

    def recorded(x: jax.Array, sequences: jax.Array | None) -> jax.Array:
        seen.append(None if sequences is None else np.asarray(sequences).tolist())
        return with_neighbors(x, sequences)

    monkeypatch.setattr(mobilebert, "with_neighbors", recorded)
    monkeypatch.setattr(mobilebert, "MobileBertEncoder", lambda *_: lambda x, *rest, **named: (x, None))
    module, ids = MobileBertModel(MOBILEBERT, pooling=False), jnp.zeros((1, 5), jnp.int32)
    mask, segments = jnp.asarray([[1, 1, 1, 0, 1]]), jnp.asarray([[1, 2, 2, 2, 3]])
    for masks in ({}, {"attention_mask": mask}, {"segment_ids": segments}):
        module.apply(params, ids, **masks)
    module.apply(params, ids, attention_mask=mask, segment_ids=segments)
    assert seen == [None, [[1, 1, 1, 0, 1]], [[1, 2, 2, 2, 3]], [[1, 2, 2, 0, 3]]]


def test_products_of_scores_are_those_of_the_bottleneck_that_queries_read() -> None:
    """Behind 15 features within a layer of 24, with 11 tokens."""
    configs = MOBILEBERT, dataclasses.replace(MOBILEBERT, **TINY), IB_BERT
    assert [config.queries_bottleneck for config in configs] == ["bottleneck_attention", "bottleneck_input", ""]
    size, inner = 24, 15
    behind = size * inner + 2 * inner * inner + 11 * inner
    wide = 2 * size * IB_BERT.intra_bottleneck_size + 11 * IB_BERT.intra_bottleneck_size
    assert [config.scores_products(11) for config in configs] == [behind, behind, wide]


def test_a_windows_tokens_take_the_place_of_those_of_a_row() -> None:
    whole, windowed = (dataclasses.replace(MOBILEBERT, attention_window=window) for window in (None, 4))
    saved = whole.layers_flops(3, 13) - windowed.layers_flops(3, 13)
    assert saved == 6.0 * 3 * 13 * whole.num_hidden_layers * 2 * (13 - 5) * whole.intra_bottleneck_size
    assert whole.layers_flops(3, 5) == windowed.layers_flops(3, 5)
