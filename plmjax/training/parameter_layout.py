"""The layout of a program's parameters on its devices, and the way to compute their gradient that follows from it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.objectives.capabilities import rows_of
from plmjax.objectives.objective import Objective
from plmjax.parallel import sharding
from plmjax.parallel.parameter_shards import ParameterShards, dtypes
from plmjax.parallel.rings import Rings
from plmjax.training.gradients.all_gather import AllGather
from plmjax.training.gradients.looked_up_rows import LookedUpRows, Tables
from plmjax.training.gradients.rings import RingExchange
from plmjax.training.initial_state import Shapes, corrupted_zeros


@dataclasses.dataclass(frozen=True, eq=False)
class ParameterLayout:
    """The division of the parameters among the devices, and the copies that a step gathers.

    all: all parameters, as devices own and update them.
    tables: the parameters whose rows the objective names; the rows are looked up where they are stored.
    trained: all other parameters, from which a train step gathers its copy. evaluated: the same for an evaluation.
    axes: logical axis names of that copy.
    """

    all: ParameterShards
    tables: Tables
    trained: ParameterShards
    evaluated: ParameterShards
    axes: Any

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        vocabulary: Vocabulary,
        batch: Shapes,
        boxed: Any,
        dtype: jnp.dtype,
        mesh: jax.sharding.Mesh,
        rings: Rings | None,
    ) -> Self:
        """Return the layout of boxed parameters; the objective names the rows of tables for `batch`.

        rings: used if the objective names no rows.
        """
        exchanged, zero = jnp.dtype(experiment.training.gradient_dtype), experiment.mesh.zero
        shards = ParameterShards.of(boxed, mesh, dtype, exchanged, zero=zero)
        corrupted, _ = jax.eval_shape(
            lambda key: corrupted_zeros(experiment, vocabulary, batch, key), jax.random.key(0)
        )
        tables = Tables.of(
            shards.owned,
            jax.eval_shape(lambda batch: rows_of(experiment.trained, batch), corrupted),
            next(iter(batch.values())).sharding,
            by_rows=experiment.optimizer is not None and experiment.optimizer.by_rows,
        )
        rest, _ = tables.split(boxed)
        trained = ParameterShards.of(rest, mesh, dtype, exchanged, zero=zero, rings=None if tables.owned else rings)
        # Only gradients may be rounded before they are sent over the network; an evaluation has none.
        evaluated = dataclasses.replace(trained, dtypes=dtypes(rest, dtype, jnp.dtype(jnp.float32)), rings=None)
        return cls(shards, tables, trained, evaluated, sharding.logical_axes(rest))

    def gradient(
        self,
        shards: ParameterShards,
        objective: Objective,
        carry: Callable[[], Any],
        phase: ResolvedPhase,
        mesh: jax.sharding.Mesh,
    ) -> AllGather | RingExchange | LookedUpRows:
        """Return the way to gather parameters and to compute their gradient.

        shards: `trained` or `evaluated`. carry: function that returns the first carry, boxed with logical axes.
        """
        axes = sharding.logical_axes(jax.eval_shape(carry))
        if shards.rings is not None:
            return RingExchange(shards, axes, phase.accumulation)
        gathered = AllGather(shards, axes, phase.accumulation, mesh.shape["data"])
        if not self.tables.owned:
            return gathered
        return LookedUpRows(self.tables, functools.partial(rows_of, objective), gathered)
