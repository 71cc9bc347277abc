"""Masks, the schedule and importances of kernels that are given, against NumPy: no model is computed."""

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.compression.pruning.heads import importance
from plmjax.compression.pruning.masks import above, top_fraction
from plmjax.compression.pruning.one_shot import by_magnitude, by_pattern, ticket
from plmjax.compression.pruning.pruned import GradualPruning, TicketTraining
from plmjax.compression.pruning.schedule import Cubic
from plmjax.models.bert import BertConfig
from plmjax.objectives.objective import LossInputs, LossSums, Objective

VALUES = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32)


def test_the_largest_of_each_matrix_are_kept() -> None:
    for share, kept in ((0.3, 12), (0.999, 39), (0.0, 1)):
        mask = np.asarray(top_fraction(VALUES, share, stacked=True))
        for values, own in zip(VALUES, mask, strict=True):
            assert own.sum() == kept and values[own].min() > values[~own].max(initial=-np.inf)
        assert np.asarray(top_fraction(VALUES, share, stacked=False)).sum() == max(int(share * 120), 1)
    # Deviation: the released code breaks ties by a sort.
    assert np.asarray(top_fraction(np.zeros((2, 4), np.float32), 0.5, stacked=True)).all()


def test_a_few_stay_above_a_threshold_that_none_reaches() -> None:
    values = np.arange(1000, dtype=np.float32).reshape(1, 1000)
    assert np.asarray(above(values, 2000.0, stacked=True)).sum() == 5
    assert np.asarray(above(values, 899.0, stacked=True)).sum() == 100  # the value at the threshold is not above it


@pytest.mark.parametrize("step", [0, 100, 350, 800, 1000])
def test_the_schedule_is_the_released_one(step: int) -> None:
    """`schedule_threshold` of masked_run_glue.py, with a warm-up of 100 steps: 1 of them before, 2 of them after."""
    initial, final, warmup, before, after, total = 1.0, 0.15, 100, 1, 2, 1000
    if step <= before * warmup:
        expected = initial
    elif step > total - after * warmup:
        expected = final
    else:
        left = 1 - (step - before * warmup) / (total - (before + after) * warmup)
        expected = final + (initial - final) * left**3
    found = Cubic(initial, final, begin=0.1, end=0.8).at(step, total)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert [float(Cubic(1.0, 0.5, 0.0, 1.0).at(place, 10)) for place in (0, 10)] == [1.0, 0.5]


QUERY = "bert/encoder/layers/attention/query/kernel"
KERNEL = jnp.array([1.0, -4.0, 3.0, 2.0]).reshape(1, 2, 1, 2)
MODULE = types.SimpleNamespace(config=BertConfig())


@dataclasses.dataclass(frozen=True)
class Seen(Objective):
    """Remembers the parameters that it is computed with."""

    seen: list[Any] = dataclasses.field(default_factory=list)

    def weights(self, batch: Any) -> dict[str, Any]:
        return {"own": 2.0, "other": 5.0}

    def sums(self, module: Any, loss_inputs: LossInputs, batch: Any, key: Any, *, training: bool) -> LossSums:
        self.seen.append(loss_inputs.params)
        return LossSums({"own": jnp.float32(6)}, {})

    def evaluation(self, module: Any, loss_inputs: LossInputs, batch: Any, key: Any) -> tuple[LossSums, Any]:
        return self.sums(module, loss_inputs, batch, key, training=False), "outputs"


def nested(leaf: Any) -> dict[str, Any]:
    for name in reversed(QUERY.split("/")):
        leaf = {name: leaf}
    return leaf


@pytest.mark.parametrize(
    ("pruning", "step", "kept"),
    [
        (GradualPruning(sparsity=0.5, begin=0.0, end=0.5), 5, [0, -4, 3, 0]),
        (TicketTraining(), 0, [1, -4, 3, 2]),
    ],
    ids=["the end", "a ticket"],
)
def test_an_evaluation_is_computed_with_the_masks_of_its_step(pruning: Any, step: int, kept: list[int]) -> None:
    inner = Seen()
    objective, given = pruning.evaluation_objective(inner, 10), LossInputs(nested(KERNEL), step=jnp.asarray(step))
    found, outputs = objective.evaluation(MODULE, given, {}, jax.random.key(0))
    trained = pruning.training_objective(inner, 10).sums(MODULE, given, {}, jax.random.key(0), training=True)
    for params in inner.seen:
        assert jax.tree.leaves(params)[0].ravel().tolist() == kept
    assert outputs == "outputs" and found.losses.keys() == {"own"} == trained.losses.keys()
    for sums in (found, trained):
        assert list(map(float, sums.metrics["density"])) == [np.count_nonzero(kept) / 4, 1]


def stacks() -> dict[str, np.ndarray]:
    """Two layers of a BERT: inputs are the first axis, but for the last projection of attention its first two."""
    draws, layers = np.random.default_rng(0), "bert/encoder/layers"
    shapes = {
        QUERY: (2, 8, 2, 3),
        f"{layers}/attention/output/kernel": (2, 2, 4, 5),
        f"{layers}/feed_forward/output/kernel": (2, 12, 8),
        f"{layers}/feed_forward/output/bias": (2, 8),
        "bert/pooler/kernel": (8, 8),
        "bert/embeddings/word_embeddings/embedding": (9, 8),
        "next_sentence/kernel": (8, 2),
    }
    return {path: draws.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}


def test_two_of_four_inputs_of_every_output_of_the_layers_are_kept() -> None:
    before = stacks()
    after = by_pattern(before, BertConfig())
    for path, kernel in before.items():
        if "/layers/" not in path or not path.endswith("/kernel"):
            np.testing.assert_array_equal(after[path], kernel)
            continue
        inputs = 8 if "/attention/" in path else 12
        groups, found = (one.reshape(2, inputs // 4, 4, -1) for one in (kernel, after[path]))
        assert ((found != 0).sum(axis=2) == 2).all()
        np.testing.assert_array_equal(
            np.sort(np.abs(groups), axis=2)[:, :, 2:], np.sort(np.abs(found), axis=2)[:, :, 2:]
        )


def test_the_smallest_weights_of_each_layer_become_0() -> None:
    before = stacks()
    after = by_magnitude(before, BertConfig(), 0.25)
    for path, kernel in before.items():
        pruned = "/layers/" in path and path.endswith("/kernel")
        for own, found in zip(kernel, after[path], strict=True):
            zeros = own.size // 4 if pruned else 0
            kept = np.abs(own) >= np.sort(np.abs(own), axis=None)[zeros]
            np.testing.assert_array_equal(found, np.where(kept, own, 0))


def test_a_ticket_has_earlier_values_where_the_last_ones_are_large() -> None:
    """A part that the earlier checkpoint lacks, such as a head, keeps its last values."""
    last = stacks()
    before = {path: value + 100 for path, value in last.items() if path != "next_sentence/kernel"}
    found = ticket(last, before, BertConfig(), 0.25)
    pruned = by_magnitude(last, BertConfig(), 0.25)
    assert found.keys() == last.keys()
    for path, value in found.items():
        kernel = "/layers/" in path and path.endswith("/kernel")
        expected = np.where(pruned[path] == 0, 0, before[path]) if kernel else before.get(path, last[path])
        np.testing.assert_array_equal(value, expected)


@dataclasses.dataclass(frozen=True)
class Linear(Objective):
    """A loss whose gradient of each kernel is the row's own number; it is corrupted by a random sign."""

    def module(self, config: Any, execution: Any) -> Any:
        return None

    def corrupt(self, batch: Any, key: jax.Array, vocabulary: Any, constants: Any = ()) -> Any:
        return batch | {"sign": jnp.where(jax.random.uniform(key) < 0.5, -1.0, 1.0)}

    def weights(self, batch: Any) -> dict[str, Any]:
        return {"own": 2.0}

    def sums(self, module: Any, loss_inputs: LossInputs, batch: Any, key: Any, *, training: bool) -> LossSums:
        assert not training
        kernels = [layer["attention"]["output"]["kernel"] for layer in loss_inputs.params["bert"].values()]
        return LossSums({"own": batch["sign"] * sum(jnp.sum(batch["slope"] * kernel) for kernel in kernels)}, {})


def test_importances_are_means_of_magnitudes_in_the_order_of_the_layers() -> None:
    """|sum(W)| of each head, in every row whatever its sign, divided by their norm; layer 10 comes after layer 2.

    Weights of a head that oppose each other cancel out.
    """
    heads, draws = {"layer_2": [3.0, -4.0], "layer_10": [0.0, 5.0]}, np.random.default_rng(0)
    params = {}
    for layer, sums in heads.items():
        kernel = draws.normal(size=(1, 2, 2, 3))
        kernel += (np.reshape(sums, (1, 2, 1, 1)) - kernel.sum(axis=(2, 3), keepdims=True)) / 6
        params[f"bert/{layer}/attention/output/kernel"] = kernel.astype(np.float32)
    run = types.SimpleNamespace(objective=Linear(), training=types.SimpleNamespace(seed=0))
    rows = iter([{"slope": jnp.float32(slope)} for slope in (1, 2, 1, 1, 2)])
    found = importance(params, BertConfig(), run, vocabulary=None, batches=rows)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 1.0]], rtol=1e-5, atol=1e-6)
