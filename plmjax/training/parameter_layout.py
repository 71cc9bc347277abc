"""The layout of a program's parameters on its devices, and the method to compute their gradient."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.objectives.capabilities import ComparesRows, rows_of
from plmjax.objectives.objective import Objective
from plmjax.parallel import sharding
from plmjax.parallel.parameter_shards import ParameterShards, dtypes
from plmjax.parallel.rings import Rings
from plmjax.training.gradients.all_gather import AllGather
from plmjax.training.gradients.looked_up_rows import LookedUpRows, Tables
from plmjax.training.gradients.rings import RingExchange
from plmjax.training.initial_state import Shapes, corrupt_zeros


@dataclasses.dataclass(frozen=True, eq=False)
class ParameterLayout:
    """The sharding of the parameters over the devices, and the copies that a step gathers.

    all: all parameters, as devices store and update them.
    tables: the tables whose rows the objective names; rows are looked up where they are stored.
    train: all other parameters, as a train step gathers them. evaluation: the same for an evaluation.
    axes: logical axis names of the gathered copy.
    """

    all: ParameterShards
    tables: Tables
    train: ParameterShards
    evaluation: ParameterShards
    axes: Any

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        vocabulary: Vocabulary,
        batch: Shapes,
        *,
        boxed: Any,
        dtype: jnp.dtype,
        mesh: jax.sharding.Mesh,
        rings: Rings | None,
    ) -> Self:
        """Return the layout of boxed parameters. The objective names the rows of tables for `batch`.

        rings: used if the objective names no rows.
        """
        reduce_dtype, zero = jnp.dtype(experiment.training.gradient_dtype), experiment.mesh.zero
        shards = ParameterShards.of(boxed, mesh, dtype, reduce_dtype, zero=zero)
        corrupted, _ = jax.eval_shape(lambda key: corrupt_zeros(experiment, vocabulary, batch, key), jax.random.key(0))
        tables = Tables.of(
            shards.sharded,
            jax.eval_shape(lambda batch: rows_of(experiment.training_objective, batch), corrupted),
            next(iter(batch.values())).sharding,
            by_rows=experiment.optimizer is not None and experiment.optimizer.by_rows,
        )
        rest, _ = tables.split(boxed)
        train = ParameterShards.of(
            rest, mesh, dtype, reduce_dtype, zero=zero, rings=None if tables.shardings else rings
        )
        # Only gradients may be rounded before they are sent over the network; an evaluation has none.
        evaluation = dataclasses.replace(train, dtypes=dtypes(rest, dtype, jnp.dtype(jnp.float32)), rings=None)
        return cls(shards, tables, train, evaluation, sharding.logical_axes(rest))

    def gradient(
        self,
        shards: ParameterShards,
        objective: Objective,
        carry: Callable[[], Any],
        *,
        phase: ResolvedPhase,
        mesh: jax.sharding.Mesh,
    ) -> AllGather | RingExchange | LookedUpRows:
        """Return the object that gathers the parameters and computes their gradient.

        shards: `train` or `evaluation`. carry: function that returns the first carry, boxed with logical axes.
        """
        axes = sharding.logical_axes(jax.eval_shape(carry))
        if shards.rings is not None:
            return RingExchange(shards, axes, phase.accumulation)
        microbatches = 1 if isinstance(objective, ComparesRows) else phase.accumulation
        gathered = AllGather(shards, axes, microbatches, mesh.shape["data"])
        if not self.tables.shardings:
            return gathered
        return LookedUpRows(self.tables, functools.partial(rows_of, objective), gathered)
