"""Evaluation of parameters on held-out rows."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.objectives.objective import LossInputs
from plmjax.parallel import hosts
from plmjax.training.feed import BatchSource, local_rows, on_device
from plmjax.training.program import Program

Pair = tuple[np.ndarray, np.ndarray]
"""(sum, weight); their quotient is a mean."""


class Evaluation(Protocol):
    """An evaluation of a run: the mean losses of its objective, or the metrics of a downstream task."""

    def names(self, program: Program) -> list[str]:
        """Return the names of its metrics."""

    def __call__(self, program: Program, loss_inputs: LossInputs, limit: int = 0) -> dict[str, float]:
        """Return a dict from metric to value.

        loss_inputs: from `Program.loss_inputs`. limit: maximum number of batches; 0 takes all.
        """


def unigram_nats(counts: np.ndarray | None, size: int) -> jax.Array | None:
    """Return -log of every token's frequency in the training text, with 1 added to each count: float32 [size]."""
    if counts is None:
        return None
    padded = np.zeros(size, np.float64)
    padded[: len(counts)] = counts
    return jnp.asarray(np.log(np.sum(padded + 1)) - np.log(padded + 1), jnp.float32)


def joint_loss(means: Mapping[str, float], coefficients: Mapping[str, float]) -> float:
    """Return the sum of the means TERM_loss, each times the coefficient of its term, which is 1 by default."""
    terms = [name.removesuffix("_loss") for name in means if name.endswith("_loss")]
    return sum(coefficients.get(term, 1.0) * means[f"{term}_loss"] for term in terms)


def means(program: Program, coefficients: Mapping[str, float]) -> list[str]:
    """Return the names of the metrics of `HeldOut`, found by tracing the evaluation of the program."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    loss_inputs = program.state.loss_inputs.replace(carry=jax.eval_shape(program.start_evaluation_carry))
    names = list(jax.eval_shape(program.evaluate, loss_inputs, program.evaluation_batch, key)[1])
    return [*names, "joint_loss"] if coefficients else names


def batches(
    program: Program, loss_inputs: LossInputs, source: BatchSource, *, seed: int, limit: int = 0
) -> Iterator[tuple[dict[str, Pair], Any]]:
    """Yield (name -> (sum, weight), outputs of a downstream task) for every held-out batch, as host arrays.

    The corruption of a batch is sampled from the seed and the number of the batch, so every evaluation has the same
    targets.

    Args:
        loss_inputs: from `Program.loss_inputs`, with the carry of the first batch.
        limit: maximum number of batches; 0 takes all.
    """
    key = jax.random.fold_in(jax.random.key(seed), 2)
    shapes = program.evaluation_batch
    held_out = on_device(source.evaluation(program.evaluation_phase, local_rows(shapes)), shapes)
    for number, batch in enumerate(held_out):
        if limit and number >= limit:
            break
        carry, sums, outputs = program.evaluate(loss_inputs, batch, jax.random.fold_in(key, number))
        loss_inputs = loss_inputs.replace(carry=carry)
        hosts.still_here()
        yield jax.device_get((sums, outputs))


class Totals(dict[str, np.ndarray]):
    """A dict from name to float64 [2]: the sum and the weight of a mean."""

    def add(self, sums: Mapping[str, Pair]) -> None:
        """Add the sums and weights of one batch."""
        for name, pair in sums.items():
            self[name] = self.get(name, np.zeros(2)) + np.array(pair, np.float64)


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Means over the held-out rows of a source: {"loss": ..., "unigram_entropy": ..., ...}.

    Attributes:
        coefficients: term -> coefficient, for an objective with weighted terms; their joint loss is added to the means.
            A term without a coefficient has 1, as in training.
        seed: seed of the corruption of the batches.
        multiples: name -> factor, for metrics that are the loss in another unit.
    """

    source: BatchSource
    seed: int
    coefficients: Mapping[str, float] = dataclasses.field(default_factory=dict)
    multiples: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, run: Experiment, source: BatchSource) -> "HeldOut":
        """Return the evaluation of a run. For a byte-level model, the loss is also reported in bits."""
        of_bytes = run.objective.perplexity and source.vocabulary.bytes
        bits = {"bits_per_byte": 1 / math.log(2)} if of_bytes else {}
        return cls(source, run.training.seed, run.objective.coefficients(), bits)

    def names(self, program: Program) -> list[str]:
        return [*means(program, self.coefficients), *self.multiples]

    def __call__(self, program: Program, loss_inputs: LossInputs, limit: int = 0) -> dict[str, float]:
        """Return the means.

        Raises:
            UserError: no row is held out.
        """
        own = self
        if self.coefficients:  # which a phase may change
            own = dataclasses.replace(self, coefficients=program.experiment.objective.coefficients())
        return own.means(self.totals(program, loss_inputs, limit))

    def totals(self, program: Program, loss_inputs: LossInputs, limit: int = 0) -> dict[str, np.ndarray]:
        """Return a dict from name to float64 [2], the sum and the weight of its mean.

        Raises:
            UserError: no row is held out.
        """
        totals = Totals()
        for sums, _ in batches(program, loss_inputs, self.source, seed=self.seed, limit=limit):
            totals.add(sums)
        if not totals:
            raise UserError(
                "Expected held-out text to evaluate on, found none that fills a row; give some in --data, or hold "
                "out a larger share when the dataset is prepared."
            )
        return totals

    def means(self, totals: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean of each name: its sum divided by its weight."""
        means = {name: float(total / max(weight, 1e-9)) for name, (total, weight) in totals.items()}
        if self.coefficients:
            means["joint_loss"] = joint_loss(means, self.coefficients)
        return means | {name: factor * means["loss"] for name, factor in self.multiples.items()}


class NoEvaluation:
    """The evaluation of a run without held-out text: it has no metrics and computes nothing."""

    def names(self, program: Program) -> list[str]:
        return []

    def __call__(self, program: Program, loss_inputs: LossInputs, limit: int = 0) -> dict[str, float]:
        return {}
