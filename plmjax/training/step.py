"""The train step and the evaluation step, the same for every system."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.capabilities import rows_of
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective
from plmjax.parallel import sharding
from plmjax.parallel.shares import Shares
from plmjax.training import gradients, optimizers, rows
from plmjax.training.accumulation import added, begin_with
from plmjax.training.state import TrainState
from plmjax.training.step_metrics import StepMetrics

BEGINS = "begins"
"""Field of a batch, int32 [B]: 1 where a row does not continue the same row of the previous batch."""


@dataclasses.dataclass(frozen=True, eq=False)
class Forward:
    """The forward pass of a batch, in training or in evaluation.

    objective, module, vocabulary: these compute the sums of a corrupted batch.
    tables: the parameters whose rows the objective names; the step looks these rows up.
    shares: the shares of all other parameters, from which every step gathers a copy to compute with.
    initial_carry: () -> the carry of rows that do not continue the previous batch. carry_axes: its logical axis names.
    """

    objective: Objective
    module: nn.Module
    vocabulary: Vocabulary
    tables: rows.Tables
    shares: Shares
    initial_carry: Callable[[], Any]
    carry_axes: Any

    def restarted(self, carry: Any, batch: Batch) -> Any:
        """Return the carry of a batch, with its initial value in rows that do not continue the previous batch."""
        return restarted(carry, self.initial_carry(), self.carry_axes, batch)


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """The backward pass of a batch and the update of the parameters.

    learning_rate: (optimizer state, step) -> float32 scalar, for the log.
    accumulation: number of microbatches of a batch. shards: number of shards of a microbatch along the `data` axis.
    generator: name of the random number generator of dropout.
    """

    optimizer: optax.GradientTransformation
    learning_rate: Callable[[optax.OptState, jax.Array], jax.Array]
    accumulation: int
    shards: int
    generator: str


def total_loss(objective: Objective, sums: dict[str, jax.Array], weights: dict[str, jax.Array]) -> jax.Array:
    """Return the sum over terms of coefficient x global sum / global weight."""
    coefficients = objective.coefficients()
    return sum(coefficients.get(term, 1.0) * sums[term] / weights[term] for term in weights)


def train_step(state: TrainState, batch: Batch, forward: Forward, update: Update) -> tuple[TrainState, StepMetrics]:
    """Run one optimizer step on one global batch.

    Every device updates its share of the float32 parameters. The model computes with gathered parameters, and their
    gradient is summed and scattered to the shares (`plmjax.training.gradients`). Only some rows are looked up in the
    tables that the objective names.
    """
    objective, tables, shares = forward.objective, forward.tables, forward.shares
    corruption, dropout = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step))
    batch = objective.corrupt(batch, corruption, forward.vocabulary, state.constants)
    weights = objective.weights(batch)
    rest, whole_tables = tables.split(state.params)
    ids = rows_of(objective, batch)
    looked_up = tables.look_up(whole_tables, ids)
    carry = forward.restarted(state.carry, batch)

    def microstep(
        values: Any, params: Any, carried: Any, microbatch: Batch, key: jax.Array, total: Any
    ) -> tuple[Any, LossSums]:
        weights, whole_tables, constants, number = values
        carry, collections, looked_up = carried

        def loss(params: Any, looked_up: dict[str, jax.Array]) -> tuple[jax.Array, LossSums]:
            whole = rows.joined(params, whole_tables)
            loss_inputs = LossInputs(whole, constants, collections, carry, rows.nested(looked_up), number)
            key_of_dropout = _generator_key(key, update.generator)
            sums = objective.sums(forward.module, loss_inputs, microbatch, key_of_dropout, training=True)
            return begin_with(total_loss(objective, sums.losses, weights), params, total), sums

        (gradient, row_gradients), sums = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, looked_up)
        return added(gradient, total), sums.replace(carry=(sums.carry, sums.collections, row_gradients), collections={})

    # The carry of a microbatch has its looked-up rows at first, and their gradients afterwards.
    axes = (forward.carry_axes, jax.tree.map(lambda _: (), state.collections), dict.fromkeys(looked_up, ("batch",)))
    carried = (carry, state.collections, looked_up)
    values = (weights, whole_tables, state.constants, state.step)
    inputs = gradients.Inputs(values, carried, axes, batch, dropout)
    if shares.rings is None:
        gradient, sums = gradients.of_copy(microstep, shares, rest, inputs, update.accumulation, update.shards)
    else:
        gradient, sums = gradients.of_pieces(microstep, shares, rest, inputs, update.accumulation)
    carry, collections, row_gradients = sums.carry
    params, optimizer_state = tables.update(
        update.optimizer, gradient, row_gradients, ids, state.optimizer_state, state.params
    )
    params = objective.constrain(params)
    metrics = {"loss": total_loss(objective, sums.losses, weights)}
    metrics["learning_rate"] = update.learning_rate(state.optimizer_state, state.step)
    for name, (total, weight) in sums.metrics.items():  # NaN if the batch has no such targets.
        metrics[name] = jnp.where(weight > 0, total / jnp.maximum(weight, 1e-9), jnp.nan)
    metrics["gradient_norm"] = optimizers.gradient_norm(optimizer_state)
    return state.replace(
        step=state.step + 1,
        params=params,
        optimizer_state=optimizer_state,
        carry=carry,
        collections=collections,
    ), StepMetrics.joined(metrics)


def evaluation_step(
    loss_inputs: LossInputs, batch: Batch, key: jax.Array, forward: Forward, unigram: jax.Array | None
) -> tuple[Any, dict[str, tuple[jax.Array, jax.Array]], Any]:
    """Return (carry after one held-out batch, name -> (sum, weight), inputs of a downstream task's predictions).

     The batch is corrupted by `key` and computed without dropout. `loss` is the objective's term of the targets, in
    nats a target. `unigram_entropy` is the loss of a unigram model on the same targets: it predicts each token by its
    frequency in the training text (`unigram`, nats [V]).
    """
    objective = forward.objective
    rest, tables = forward.tables.split(loss_inputs.params)
    params = rows.joined(forward.shares.gather(rest), tables)
    batch = objective.corrupt(batch, key, forward.vocabulary, loss_inputs.constants)
    weights = objective.weights(batch)
    loss_inputs = loss_inputs.replace(
        params=params,
        carry=forward.restarted(loss_inputs.carry, batch),
        rows=rows.nested(forward.tables.look_up(tables, rows_of(objective, batch))),
    )
    sums, outputs = objective.evaluation(forward.module, loss_inputs, batch, jax.random.fold_in(key, 1))
    term = objective.target_term(batch)
    totals = {"loss": (sums.losses[term], weights[term])}
    totals |= {f"{name}_loss": (sums.losses[name], weights[name]) for name in weights if len(weights) > 1}
    totals |= sums.metrics
    if unigram is not None:
        ids, target_weights = objective.targets(batch)
        totals["unigram_entropy"] = (jnp.sum(unigram[ids] * target_weights), jnp.sum(target_weights))
    return sums.carry, totals, outputs


def restarted(carry: Any, initial: Any, axes: Any, batch: Batch) -> Any:
    """Return the carry, with its initial value in the rows that do not continue the previous batch (`BEGINS`).

    axes: logical axis names of the carry's leaves; leaves without a "batch" axis are not changed.
    """
    if BEGINS not in batch:
        return carry

    def restart(names: tuple[str | None, ...], x: jax.Array, first: jax.Array) -> jax.Array:
        if "batch" not in names:
            return x
        shape = [1] * x.ndim
        shape[names.index("batch")] = -1
        return jnp.where(batch[BEGINS].reshape(shape) > 0, first, x)

    return jax.tree.map(restart, axes, carry, initial, is_leaf=sharding.is_axes)


def _generator_key(key: jax.Array, generator: str) -> jax.Array:
    """Return a key of the named generator, derived from a threefry key."""
    if generator == "threefry2x32":
        return key
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=generator))).shape
    return jax.random.wrap_key_data(jax.random.bits(key, words, jnp.uint32), impl=generator)
