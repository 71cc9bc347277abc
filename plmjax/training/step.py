"""The train step and the evaluation step, the same for every system."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.capabilities import ComparesRows
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective
from plmjax.training import optimizers
from plmjax.training.gradients import Gradient, GradientOf, Weights
from plmjax.training.state import TrainState
from plmjax.training.step_metrics import StepMetrics


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """The parts of a train step.

    gradient: chosen when the program is built, see `plmjax.training.gradients`.
    update: (gradient, optimizer state, parameters) -> the parameters and the optimizer state after the step.
    learning_rate: (optimizer state, step) -> float32 scalar, for the log.
    reset_carry: (carry, batch) -> the carry, with its initial value where a row does not continue the previous batch.
    dropout_prng: name of the random number generator of dropout.
    microbatches: number of microbatches in which an objective that `ComparesRows` encodes the batch.
    """

    objective: Objective
    module: nn.Module
    vocabulary: Vocabulary
    gradient: GradientOf
    update: Callable[[Gradient, optax.OptState, Any], tuple[Any, optax.OptState]]
    learning_rate: Callable[[optax.OptState, jax.Array], jax.Array]
    reset_carry: Callable[[Any, Batch], Any]
    dropout_prng: str
    microbatches: int = 1


def train_step(state: TrainState, batch: Batch, training: Training) -> tuple[TrainState, StepMetrics]:
    """Run one optimizer step on one global batch: corrupt, weigh, differentiate, update, measure."""
    objective = training.objective
    corruption, dropout = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step))
    batch = objective.corrupt(batch, corruption, training.vocabulary, state.constants)
    weights = objective.weights(batch)

    def loss(inputs: LossInputs, weights: Weights, batch: Batch, key: jax.Array) -> tuple[jax.Array, LossSums]:
        key = _key_of(training.dropout_prng, key)
        if isinstance(objective, ComparesRows):
            sums = objective.sums_in_microbatches(
                training.module, inputs, batch, key, microbatches=training.microbatches
            )
        else:
            sums = objective.sums(training.module, inputs, batch, key, training=True)
        return total_loss(objective, sums.losses, weights), sums

    inputs = state.loss_inputs.replace(carry=training.reset_carry(state.carry, batch))
    gradient, sums = training.gradient(loss, inputs, weights, batch=batch, key=dropout)
    params, optimizer_state = training.update(gradient, state.optimizer_state, state.params)
    params = objective.constrain(params)
    metrics = {"loss": total_loss(objective, sums.losses, weights)}
    metrics["learning_rate"] = training.learning_rate(state.optimizer_state, state.step)
    for name, (total, weight) in sums.metrics.items():  # NaN if the batch has no such targets.
        metrics[name] = jnp.where(weight > 0, total / jnp.maximum(weight, 1e-9), jnp.nan)
    metrics["gradient_norm"] = optimizers.gradient_norm(optimizer_state)
    return state.replace(
        step=state.step + 1,
        params=params,
        optimizer_state=optimizer_state,
        carry=sums.carry,
        collections=sums.collections,
    ), StepMetrics.join(metrics)


def total_loss(objective: Objective, sums: dict[str, jax.Array], weights: Weights) -> jax.Array:
    """Return the sum over terms of coefficient x global sum / global weight."""
    coefficients = objective.coefficients()
    return sum(coefficients.get(term, 1.0) * sums[term] / weights[term] for term in weights)


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """The parts of an evaluation step.

    gather: (inputs, corrupted batch) -> the inputs with gathered parameters.
    unigram: nats [V] of each token by its frequency in the training text, or None.
    """

    objective: Objective
    module: nn.Module
    vocabulary: Vocabulary
    gather: Callable[[LossInputs, Batch], LossInputs]
    reset_carry: Callable[[Any, Batch], Any]
    unigram: jax.Array | None


class EvaluationOutputs(NamedTuple):
    """The result of an evaluation step.

    carry: the carry after the batch. totals: name -> (sum, weight).
    outputs: inputs of a downstream task's predictions.
    """

    carry: Any
    totals: dict[str, tuple[jax.Array, jax.Array]]
    outputs: Any


def evaluation_step(loss_inputs: LossInputs, batch: Batch, key: jax.Array, evaluation: Evaluation) -> EvaluationOutputs:
    """Evaluate one held-out batch.

    The batch is corrupted with `key` and computed without dropout. `loss` is the objective's loss of the targets, in
    nats per target. `unigram_entropy` is the loss of a unigram model on the same targets.
    """
    objective, unigram = evaluation.objective, evaluation.unigram
    batch = objective.corrupt(batch, key, evaluation.vocabulary, loss_inputs.constants)
    weights = objective.weights(batch)
    inputs = evaluation.gather(loss_inputs, batch)
    inputs = inputs.replace(carry=evaluation.reset_carry(loss_inputs.carry, batch))
    sums, outputs = objective.evaluation(evaluation.module, inputs, batch, jax.random.fold_in(key, 1))
    term = objective.target_term(batch)
    totals = {"loss": (sums.losses[term], weights[term])}
    totals |= {f"{name}_loss": (sums.losses[name], weights[name]) for name in weights if len(weights) > 1}
    totals |= sums.metrics
    if unigram is not None:
        ids, target_weights = objective.targets(batch)
        totals["unigram_entropy"] = (jnp.sum(unigram[ids] * target_weights), jnp.sum(target_weights))
    return EvaluationOutputs(sums.carry, totals, outputs)


def _key_of(prng: str, key: jax.Array) -> jax.Array:
    """Derive a key of the named random number generator from a threefry key."""
    if prng == "threefry2x32":
        return key
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=prng))).shape
    return jax.random.wrap_key_data(jax.random.bits(key, words, jnp.uint32), impl=prng)
