"""Evaluation of parameters on held-out rows."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError
from plmjax.objectives.objective import Given
from plmjax.training.feed import Source, on_device, places
from plmjax.training.step import Program


class Evaluation(Protocol):
    """An evaluation of a run: the means of its objective, or the metrics of a downstream task."""

    def names(self, program: Program) -> list[str]:
        """Names of its metrics."""

    def __call__(self, program: Program, given: Given, limit: int = 0) -> dict[str, float]:
        """Metric -> value; `given` is from `Program.given`, `limit` is the largest number of batches, 0 for all."""


def unigram_nats(counts: np.ndarray | None, size: int) -> jax.Array | None:
    """-log of every token's share of the training text, float32 [size]; every token counts once more."""
    if counts is None:
        return None
    padded = np.zeros(size, np.float64)
    padded[: len(counts)] = counts
    return jnp.asarray(np.log(np.sum(padded + 1)) - np.log(padded + 1), jnp.float32)


def joint_loss(means: Mapping[str, float], coefficients: Mapping[str, float]) -> float:
    """The sum of the means TERM_loss, each times the coefficient of its term; terms without one count once."""
    terms = [name.removesuffix("_loss") for name in means if name.endswith("_loss")]
    return sum(coefficients.get(term, 1.0) * means[f"{term}_loss"] for term in terms)


def means(program: Program, coefficients: Mapping[str, float]) -> list[str]:
    """Names of the metrics of `HeldOut`, found by tracing the program's evaluation."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    given = program.state.given.replace(carry=jax.eval_shape(program.start_evaluation_carry))
    names = list(jax.eval_shape(program.evaluate, given, program.evaluation_batch, key)[1])
    return [*names, "joint_loss"] if coefficients else names


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Means over the held-out rows of a source: {"loss": ..., "unigram_entropy": ..., ...}.

    coefficients: of an objective that weighs its terms, whose joint loss is then one of the means; those that it leaves
        out count once, as in training.

    The corruption of a batch is drawn from the seed and the batch's number, so every evaluation sees the same targets.
    """

    source: Source
    seed: int
    coefficients: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def names(self, program: Program) -> list[str]:
        """Names of the sums of the evaluation step."""
        return means(program, self.coefficients)

    def __call__(self, program: Program, given: Given, limit: int = 0) -> dict[str, float]:
        """The means; raises UserError where no row is held out."""
        return self.means(self.totals(program, given, limit))

    def totals(self, program: Program, given: Given, limit: int = 0) -> dict[str, np.ndarray]:
        """Name -> float64 [2], the sum and the weight that its mean is made of; raises as a call does."""
        totals: dict[str, np.ndarray] = {}
        key = jax.random.fold_in(jax.random.key(self.seed), 2)
        shapes = program.evaluation_batch
        batches = on_device(self.source.evaluation(program.evaluation_phase, places(shapes)), shapes)
        for number, batch in enumerate(batches):
            if limit and number >= limit:
                break
            carry, sums = program.evaluate(given, batch, jax.random.fold_in(key, number))
            given = given.replace(carry=carry)
            for name, pair in jax.device_get(sums).items():
                totals[name] = totals.get(name, np.zeros(2)) + np.array(pair, np.float64)
        if not totals:
            raise UserError(
                "Expected held-out text to evaluate on, found none that fills a row; give some in --data, or hold "
                "out a larger share when the dataset is prepared."
            )
        return totals

    def means(self, totals: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The means of totals."""
        means = {name: float(total / max(weight, 1e-9)) for name, (total, weight) in totals.items()}
        if self.coefficients:
            means["joint_loss"] = joint_loss(means, self.coefficients)
        return means


class NoEvaluation:
    """The evaluation of a run without held-out text: it has no metrics and computes nothing."""

    def names(self, program: Program) -> list[str]:
        return []

    def __call__(self, program: Program, given: Given, limit: int = 0) -> dict[str, float]:
        return {}
