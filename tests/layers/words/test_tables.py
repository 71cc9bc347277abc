"""Tables of words: the cross-entropy in chunks of positions, which holds the scores of a chunk alone, and lookups.

Ids that a table has no row for are an error where they are known, and leave no trace in a compiled program. And the
spelling of words, over which tests/families/recurrent.py has filters.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.layers.words import embeddings, vocabulary_scores
from plmjax.layers.words.characters import CHARACTERS, sentence_marks, spell
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.roberta import RobertaConfig
from plmjax.parallel import sharding
from plmjax.planning.collectives import collectives
from plmjax.planning.hlo import Program
from tests.families.family import SIZES, random_tokens
from tests.systems.modules import random_params

ROWS, LENGTH, FEATURES, VOCABULARY = 3, 7, 5, 11


def problem(*sizes: int, bias: bool = True, dtype: str = "float32") -> tuple[VocabularyScores, jax.Array, jax.Array]:
    """Scores, targets, and weights of both signs; a third of the weights is 0."""
    rows, length, features, vocabulary = sizes or (ROWS, LENGTH, FEATURES, VOCABULARY)
    keys = jax.random.split(jax.random.key(0), 6)
    hidden = jax.random.normal(keys[0], (rows, length, features), dtype)
    table, offset = (jax.random.normal(keys[i], shape) for i, shape in ((1, (vocabulary, features)), (2, vocabulary)))
    targets = jax.random.randint(keys[3], (rows, length), 0, vocabulary)
    weights = jax.random.normal(keys[4], targets.shape) * jax.random.bernoulli(keys[5], 2 / 3, targets.shape)
    return VocabularyScores(hidden, table, offset if bias else None), targets, weights


def at_once(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The plain formula, over all scores."""
    logits = scores.logits()
    nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return jnp.sum(weights * nats), jnp.argmax(logits, axis=-1) == targets


def by_position(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    nats, correct = scores.cross_entropy(targets)
    return jnp.sum(weights * nats), correct


def weighted(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    return scores.weighted_cross_entropy(targets, weights)


SMOOTHING, Z_LOSS = 0.2, 0.03


def smoothed_at_once(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, Any]:
    """Released label smoothing (a share for the target, the rest for all others alike) and T5's z-loss, spelt out."""
    logits = scores.logits()
    size = logits.shape[-1]
    wanted = jnp.where(jax.nn.one_hot(targets, size) == 1, 1 - SMOOTHING, SMOOTHING / (size - 1))
    nats = -jnp.sum(wanted * jax.nn.log_softmax(logits), axis=-1)
    total = jnp.sum(weights * (nats + Z_LOSS * jax.nn.logsumexp(logits, axis=-1) ** 2))
    plain = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return total, (plain, jnp.argmax(logits, axis=-1) == targets)


def smoothed(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, Any]:
    loss, nats, correct = scores.smoothed_cross_entropy(targets, weights, smoothing=SMOOTHING, z_loss=Z_LOSS)
    return loss, (nats, correct)


def differentiated(loss: Callable) -> Callable:
    """-> ((a multiple of the loss, hits), its gradients with respect to scores and weights), to be compiled."""

    def scaled(scores: VocabularyScores, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        total, correct = loss(scores, targets, weights)
        return 0.1 * total, correct

    return jax.jit(jax.value_and_grad(scaled, (0, 2), has_aux=True))


def chunk_of(monkeypatch: pytest.MonkeyPatch, positions: int) -> None:
    monkeypatch.setattr(vocabulary_scores, "CHUNK", positions * ROWS * VOCABULARY)


@pytest.mark.parametrize(("loss", "bias"), [(by_position, True), (weighted, False)])
def test_values_and_gradients_are_those_of_all_scores_at_once(loss, bias, monkeypatch):
    chunk_of(monkeypatch, 3)
    given = problem(bias=bias)
    traced = str(jax.make_jaxpr(differentiated(loss))(*given))
    assert f"f32[1,{ROWS},3,{VOCABULARY}]" in traced
    expected = differentiated(at_once)(*given)
    assert 0 < np.sum(expected[0][1]) < ROWS * LENGTH
    chex.assert_trees_all_close(differentiated(loss)(*given), expected, rtol=1e-6, atol=1e-6)


def test_smoothing_and_z_loss_are_those_of_all_scores_at_once(monkeypatch):
    chunk_of(monkeypatch, 3)
    given = problem()
    expected = differentiated(smoothed_at_once)(*given)
    chex.assert_trees_all_close(differentiated(smoothed)(*given), expected, rtol=1e-6, atol=1e-6)
    of_nats = jax.jit(jax.grad(lambda scores: jnp.sum(smoothed(scores, *given[1:])[1][0])))(given[0])
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_nats)), "no gradient passes through the reported nats"


def test_bfloat16_differs_by_its_rounding_alone(monkeypatch):
    chunk_of(monkeypatch, 3)
    scores, targets, weights = problem(dtype="bfloat16")
    exact = scores.replace(
        hidden=scores.hidden.astype(jnp.float32), table=scores.table.astype(jnp.bfloat16).astype(jnp.float32)
    )
    (total, _), (gradient, _) = differentiated(weighted)(scores, targets, weights)
    (expected, _), (expected_gradient, _) = differentiated(at_once)(exact, targets, weights)
    np.testing.assert_allclose(total, expected, rtol=1e-6)  # the sums of the products are never rounded
    for found, right, given in zip(*map(jax.tree.leaves, (gradient, expected_gradient, scores)), strict=True):
        assert found.dtype == given.dtype
        np.testing.assert_allclose(found.astype(np.float32), right, atol=2e-2 * float(jnp.max(jnp.abs(right))))


def largest_float32(text: str) -> int:
    """Elements of the largest float32 array of a compiled program."""
    return max(math.prod(map(int, shape.split(","))) for shape in re.findall(r"\bf32\[([\d,]+)\]", text))


def test_no_array_has_the_scores_of_all_positions():
    """At a size that is never computed here: two rows of 1,024 positions of GPT-2's vocabulary."""
    shapes = jax.eval_shape(lambda: problem(2, 1024, FEATURES, 50257))
    whole = 2 * 1024 * 50257
    assert largest_float32(differentiated(at_once).lower(*shapes).compile().as_text()) == whole
    for loss in (by_position, weighted, smoothed):
        assert largest_float32(differentiated(loss).lower(*shapes).compile().as_text()) == whole // 2
    assert "while(" not in differentiated(weighted).lower(*problem()).compile().as_text(), "a small problem has no loop"


def test_sharded_equals_unsharded_and_devices_exchange_the_table_once(monkeypatch):
    """Over data, fsdp and tensor; of four chunks on every device."""
    rows, length, features, vocabulary = 8, 12, 6, 64
    of_device = rows // 4 * length * vocabulary // 2
    monkeypatch.setattr(vocabulary_scores, "CHUNK", of_device // 4)
    given = problem(rows, length, features, vocabulary)
    expected = differentiated(at_once)(*given)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    batch, table, bias = (
        NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((("data", "fsdp"),), ("tensor", "fsdp"), ("tensor",))
    )
    placed = jax.device_put(given, (VocabularyScores(batch, table, bias), batch, batch))
    with jax.set_mesh(mesh), nn.logical_axis_rules(sharding.RULES):
        compiled = differentiated(weighted).lower(*placed).compile()
    chex.assert_trees_all_close(compiled(*placed), expected, rtol=1e-6, atol=1e-6)
    assert largest_float32(compiled.as_text()) < of_device
    exchanged = collectives(Program(compiled.as_text()))
    of_table = features * vocabulary // 2
    assert all(one.count == 1 for one in exchanged if one.elements >= of_table // 2), exchanged
    assert 2 * of_table < sum(one.elements * one.count for one in exchanged) < 4 * of_table, exchanged


MISTAKES = [
    ("input_ids", 53, "ids from 0 to 52 for the 53 rows of word_embeddings, found 53; "),
    ("token_type_ids", -2, "the 3 rows of token_type_embeddings, found -2; "),
    ("positions", 19, "rows of position_embeddings, found 21; "),
]


@pytest.mark.parametrize(("field", "value", "sentence"), MISTAKES)
def test_an_id_without_a_row_is_named(field, value, sentence):
    module = RobertaConfig(**SIZES, max_position_embeddings=21).module(Purpose.ENCODING, Execution())
    params = random_params(module)
    batch = random_tokens(module.config)
    batch["positions"] = np.cumsum(np.ones_like(batch["input_ids"]), axis=1) - 1
    batch[field][1, 2] = value
    for array in (np.asarray, jnp.asarray):
        with pytest.raises(UserError, match=sentence):
            module.apply({"params": params}, **{name: array(inputs) for name, inputs in batch.items()})


def test_the_compiled_program_is_that_of_a_lookup_alone():
    """Nothing waits for the ids or compares them: the whole program is the one gather."""
    table = Embedding(7, 4, None, jax.nn.initializers.normal(), name="table")
    params = table.init(jax.random.key(0), jnp.zeros((1,), jnp.int32))
    looked_up = jax.jit(lambda params, ids: table.apply(params, ids))
    ids = jnp.arange(6).reshape(2, 3)
    plain = jax.jit(lambda params, ids: jnp.take(params["params"]["embedding"].value, ids, axis=0, mode="clip"))
    programs = [one.lower(params, ids).as_text() for one in (looked_up, plain)]
    assert programs[0] == programs[1] and "gather" in programs[0] and "callback" not in programs[0]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.usefixtures("platform")
def test_the_gradient_of_a_few_rows_equals_the_sum_row_by_row(dtype):
    """Also where it is a product. Ids without a row count for the nearest one, as in the lookup; sums are float32."""
    rows, ids = jnp.ones((5, 4)), jnp.array([[0, 4, 2, 2], [-3, 9, 2, 1]])
    cotangent = jax.random.normal(jax.random.key(0), (2, 4, 4), dtype)
    table = Embedding(5, 4, None, jax.nn.initializers.normal(), dtype, name="table")
    looked_up = lambda rows, ids: table.apply({"params": {"embedding": rows}}, ids)  # noqa: E731
    plain = lambda rows, ids: jnp.take(rows, ids, axis=0, mode="clip").astype(dtype)  # noqa: E731
    found, expected = (
        jax.jit(lambda rows, ids, one=one: jax.vjp(lambda rows: one(rows, ids), rows)[1](cotangent)[0])(rows, ids)
        for one in (looked_up, plain)
    )
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("rows", [embeddings.FEW, embeddings.FEW + 1])
def test_a_tpu_adds_the_gradients_of_few_rows_by_a_product(platform, rows):
    table = Embedding(rows, 4, None, jax.nn.initializers.normal(), name="table")
    params = table.init(jax.random.key(0), jnp.zeros((1,), jnp.int32))
    gradient = jax.jit(jax.grad(lambda params, ids: table.apply(params, ids).sum()))
    program = gradient.trace(params, jnp.arange(6)).lower(lowering_platforms=(platform,)).as_text()
    multiplied = platform == "tpu" and rows == embeddings.FEW
    assert ("dot_general" in program, "scatter" in program) == (multiplied, not multiplied)


def test_a_word_is_its_bytes_between_two_marks_and_the_marks_of_a_sentence_are_words():
    rows = spell(["cat", "", "é"], 7)
    begin, end, pad = 259, 260, 261
    assert rows.dtype == np.int32
    assert rows.tolist() == [
        [begin, ord("c") + 1, ord("a") + 1, ord("t") + 1, end, pad, pad],
        [begin, end, pad, pad, pad, pad, pad],
        [begin, 0xC3 + 1, 0xA9 + 1, end, pad, pad, pad],
    ]
    assert rows.max() == CHARACTERS
    assert spell(["abcdef", "abcé"], 5).tolist() == [[259, 98, 99, 100, 260]] * 2  # cut within the marks
    assert sentence_marks(4).tolist() == [[259, 257, 260, 261], [259, 258, 260, 261]]
