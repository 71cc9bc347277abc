"""How good parameters are on what was held out."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError
from plmjax.training.feed import Source, on_device, places
from plmjax.training.step import Program


class Evaluation(Protocol):
    """What a run is judged by: the means of its objective, or the metrics of a downstream task."""

    def names(self, program: Program) -> list[str]:
        """The metrics that it gives."""

    def __call__(self, program: Program, params: Any, limit: int = 0) -> dict[str, float]:
        """Metric -> value of parameters; `limit` is how many batches are taken, 0 takes all."""


def unigram_nats(counts: np.ndarray | None, size: int) -> jax.Array | None:
    """-log of every token's share of the training text, float32 [size]; every token is given one occurrence more."""
    if counts is None:
        return None
    padded = np.zeros(size, np.float64)
    padded[: len(counts)] = counts
    return jnp.asarray(np.log(np.sum(padded + 1)) - np.log(padded + 1), jnp.float32)


def means(program: Program, coefficients: Mapping[str, float]) -> list[str]:
    """The metrics of `HeldOut`, found by tracing the program's evaluation."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = program.state
    names = list(jax.eval_shape(program.evaluate, state.params, state.carry, program.batch, key)[1])
    return [*names, "joint_loss"] if coefficients else names


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Means over the held-out rows of a source: {"loss": ..., "unigram_entropy": ..., ...}.

    coefficients: of an objective that weighs its terms, whose joint loss is then one of the means.

    The corruption of a batch is drawn from the seed and the batch's number, so every evaluation sees the same targets.
    """

    source: Source
    seed: int
    coefficients: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def names(self, program: Program) -> list[str]:
        """Whatever the evaluation step adds up."""
        return means(program, self.coefficients)

    def __call__(self, program: Program, params: Any, limit: int = 0) -> dict[str, float]:
        """The means; UserError where nothing is held out."""
        totals: dict[str, np.ndarray] = {}
        carry = program.start_carry()
        key = jax.random.fold_in(jax.random.key(self.seed), 2)
        for number, batch in enumerate(on_device(self.source.evaluation(program.phase, places(program)), program)):
            if limit and number >= limit:
                break
            carry, sums = program.evaluate(params, carry, batch, jax.random.fold_in(key, number))
            for name, pair in jax.device_get(sums).items():
                totals[name] = totals.get(name, np.zeros(2)) + np.array(pair, np.float64)
        if not totals:
            raise UserError(
                "Expected held-out text to evaluate on, found none that fills a row; give some in --data, or hold "
                "out a larger share when the dataset is prepared."
            )
        means = {name: float(total / max(weight, 1e-9)) for name, (total, weight) in totals.items()}
        if self.coefficients:
            means["joint_loss"] = sum(factor * means[f"{term}_loss"] for term, factor in self.coefficients.items())
        return means


class Unjudged:
    """Of a run without held-out text: no metric, and nothing is computed."""

    def names(self, program: Program) -> list[str]:
        return []

    def __call__(self, program: Program, params: Any, limit: int = 0) -> dict[str, float]:
        return {}
