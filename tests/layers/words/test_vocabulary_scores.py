"""The cross-entropy in chunks of positions is that of all scores at once, and holds the scores of a chunk alone."""

import math
import re
from collections.abc import Callable

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.layers.words import vocabulary_scores
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.parallel import sharding, topologies
from plmjax.planning.collectives import collectives
from plmjax.planning.hlo import Program
from tests.products import equations

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


def smoothed_at_once(
    scores: VocabularyScores, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Released label smoothing (a share for the target, the rest for all others alike) and T5's z-loss, spelt out."""
    logits = scores.logits()
    size = logits.shape[-1]
    wanted = jnp.where(jax.nn.one_hot(targets, size) == 1, 1 - SMOOTHING, SMOOTHING / (size - 1))
    nats = -jnp.sum(wanted * jax.nn.log_softmax(logits), axis=-1)
    total = jnp.sum(weights * (nats + Z_LOSS * jax.nn.logsumexp(logits, axis=-1) ** 2))
    plain = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return total, (plain, jnp.argmax(logits, axis=-1) == targets)


def smoothed(
    scores: VocabularyScores, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
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


@pytest.mark.parametrize("loss", [by_position, weighted])
@pytest.mark.parametrize(
    ("positions", "bias"),
    [(3, True), *(pytest.param(*one, marks=pytest.mark.nightly) for one in ((3, False), (1, True), (7, True)))],
)
def test_values_and_gradients_are_those_of_all_scores_at_once(loss, positions, bias, monkeypatch):
    chunk_of(monkeypatch, positions)
    given = problem(bias=bias)
    traced = str(jax.make_jaxpr(differentiated(loss))(*given))
    assert f"f32[1,{ROWS},{math.ceil(LENGTH / math.ceil(LENGTH / positions))},{VOCABULARY}]" in traced
    expected = differentiated(at_once)(*given)
    assert 0 < np.sum(expected[0][1]) < ROWS * LENGTH
    chex.assert_trees_all_close(differentiated(loss)(*given), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("positions", [pytest.param(3, marks=pytest.mark.nightly), 7])
def test_smoothing_and_z_loss_are_those_of_all_scores_at_once(positions, monkeypatch):
    chunk_of(monkeypatch, positions)
    given = problem()
    expected = differentiated(smoothed_at_once)(*given)
    chex.assert_trees_all_close(differentiated(smoothed)(*given), expected, rtol=1e-6, atol=1e-6)
    found, expected = jax.jit(lambda *given: (smoothed(*given), smoothed_at_once(*given)))(*given)
    chex.assert_trees_all_close(found, expected, rtol=1e-6, atol=1e-6)


def test_no_gradient_passes_through_the_reported_nats():
    scores, targets, weights = problem()
    of_nats = jax.jit(jax.grad(lambda scores: jnp.sum(smoothed(scores, targets, weights)[1][0])))(scores)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_nats))


def test_without_differentiation_the_values_are_the_same(monkeypatch):
    chunk_of(monkeypatch, 2)
    given = problem()
    found, expected = jax.jit(lambda *given: ([by_position(*given), weighted(*given)], at_once(*given)))(*given)
    for one in found:
        chex.assert_trees_all_close(one, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", [weighted, pytest.param(by_position, marks=pytest.mark.nightly)])
def test_bfloat16_differs_by_its_rounding_alone(loss, monkeypatch):
    chunk_of(monkeypatch, 3)
    scores, targets, weights = problem(dtype="bfloat16")
    exact = scores.replace(
        hidden=scores.hidden.astype(jnp.float32), table=scores.table.astype(jnp.bfloat16).astype(jnp.float32)
    )
    (total, _), (gradient, _) = differentiated(loss)(scores, targets, weights)
    (expected, _), (expected_gradient, _) = differentiated(at_once)(exact, targets, weights)
    np.testing.assert_allclose(total, expected, rtol=1e-6)  # the sums of the products are never rounded
    for found, right, given in zip(*map(jax.tree.leaves, (gradient, expected_gradient, scores)), strict=True):
        assert found.dtype == given.dtype
        np.testing.assert_allclose(found.astype(np.float32), right, atol=2e-2 * float(jnp.max(jnp.abs(right))))


SUMS = {
    "BTD,VD": "float32", "BTV,VD": "bfloat16", "BTV,GBTD": "float32",
    "BTD,BTD": "float32", "BTD,SD": "float32",
}  # fmt: skip
"""Begin of a product's axes -> dtype of its sums: logits, the gradient of the hidden states, and that of the table."""


@pytest.mark.parametrize(
    ("loss", "asked"),
    [
        (by_position, {"BTD,VD", "BTV,VD", "BTV,GBTD"}),
        (weighted, {"BTD,VD", "BTV,VD", "BTV,GBTD"}),
        (lambda scores, targets, weights: (jnp.sum(weights * scores.target_logits(targets)), 0), {"BTD,BTD"}),
        (lambda scores, targets, weights: (jnp.sum(jnp.sin(scores.token_logits(targets[0]))), 0), {"BTD,SD"}),
        (lambda scores, targets, weights: (jnp.sum(jnp.sin(scores.logits())), 0), {"BTD,VD"}),
    ],
    ids=["by position", "weighted", "targets", "tokens", "all"],
)
def test_factors_are_bfloat16_and_logits_float32(loss: Callable, asked: set[str]) -> None:
    """Nothing but products, and the copy of the gradient that devices exchange, is computed in bfloat16."""
    traced = jax.make_jaxpr(differentiated(loss))(*problem(dtype="bfloat16"))
    found: dict[str, set[str]] = {}
    for place, equation in equations(traced.jaxpr):
        dtypes = {each.aval.dtype.name for each in equation.invars if each.aval.shape}
        if equation.primitive.name == "dot_general":
            assert dtypes == {"bfloat16"}, place
            for name in SUMS:
                if f"/{name}->" in place.replace("/G", "/"):
                    found.setdefault(name, set()).add(equation.outvars[0].aval.dtype.name)
        assert equation.primitive.name not in ("exp", "log", "reduce_max", "sub") or "bfloat16" not in dtypes
    assert found == {name: {SUMS[name]} for name in asked}


def test_several_problems_at_once(monkeypatch):
    chunk_of(monkeypatch, 3)
    given = problem()
    two = jax.tree.map(lambda x: jnp.stack([x, jnp.roll(x, 1, axis=0)]), given)
    found = jax.vmap(differentiated(weighted))(*two)
    for place in range(2):
        own = jax.tree.map(lambda x, place=place: x[place], (two, found))
        chex.assert_trees_all_close(own[1], differentiated(at_once)(*own[0]), rtol=1e-6, atol=1e-6)


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


def test_a_small_problem_has_no_loop():
    given = problem()
    for loss in (by_position, weighted):
        assert "while(" not in differentiated(loss).lower(*given).compile().as_text()


@pytest.mark.parametrize("loss", [weighted, pytest.param(by_position, marks=pytest.mark.nightly)])
def test_sharded_equals_unsharded_and_devices_exchange_the_table_once(loss, monkeypatch):
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
        compiled = differentiated(loss).lower(*placed).compile()
    chex.assert_trees_all_close(compiled(*placed), expected, rtol=1e-6, atol=1e-6)
    assert largest_float32(compiled.as_text()) < of_device
    exchanged = collectives(Program(compiled.as_text()))
    of_table = features * vocabulary // 2
    assert all(one.count == 1 for one in exchanged if one.elements >= of_table // 2), exchanged
    assert 2 * of_table < sum(one.elements * one.count for one in exchanged) < 4 * of_table, exchanged


@pytest.mark.parametrize("kind", ["TPU v3", "TPU v5e", "TPU v6 lite", "cpu", None])
def test_chunks_are_larger_where_products_are_fast(kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three positions, or six; none of the kinds is told in a program without a mesh."""
    assert vocabulary_scores.FAST_CHUNK == 2 * vocabulary_scores.CHUNK
    chunk_of(monkeypatch, 3)
    monkeypatch.setattr(vocabulary_scores, "FAST_CHUNK", 2 * vocabulary_scores.CHUNK)
    given = problem(ROWS, 12, FEATURES, VOCABULARY)  # arrays, which a mesh without devices could not compute
    traced = lambda: str(jax.make_jaxpr(differentiated(weighted))(*given))  # noqa: E731
    if kind is None:
        text, fast = traced(), False
    else:
        chip, device = topologies.chip_of(kind), jax.sharding.AbstractDevice(kind, 1, "tpu")
        fast = chip is not None and chip.name in ("v5e", "v6e")
        mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
        with jax.sharding.use_abstract_mesh(mesh):
            text = traced()
    assert (f"f32[1,{ROWS},6,{VOCABULARY}]" in text, f"f32[1,{ROWS},3,{VOCABULARY}]" in text) == (fast, not fast)


@pytest.mark.parametrize("changed", ["float targets", "fewer targets"])
def test_targets_that_do_not_fit_are_refused(changed: str) -> None:
    scores, targets, weights = problem()
    targets, weights = (targets * 1.0, weights) if changed == "float targets" else (targets[:, 1:], weights[:, 1:])
    with pytest.raises(AssertionError):
        scores.smoothed_cross_entropy(targets, weights, smoothing=0.1, z_loss=0.0)
    with pytest.raises(AssertionError):
        scores.cross_entropy(targets)
