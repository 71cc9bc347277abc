"""The state before the first step of a phase: its shapes with their shardings, and the program that creates it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.objectives.objective import Batch, ConstantSources, Objective
from plmjax.parallel import sharding
from plmjax.training import constants
from plmjax.training.optimizers.layer_rates import scale_rates
from plmjax.training.state import TrainState

Shapes = dict[str, jax.ShapeDtypeStruct]


@dataclasses.dataclass(frozen=True)
class InitialParameters:
    """The initial parameters of a run; by default they are sampled from the seed.

    from_sampled: function from the sampled parameters to the initial ones; it keeps the shardings.
    replaced: function from a name (`bert/pooler/kernel`) to true if `from_sampled` sets that parameter. Such a
        parameter is not sampled.
    """

    from_sampled: Callable[[Any], Any] = lambda params: params
    replaced: Callable[[str], bool] = lambda name: False


@dataclasses.dataclass(frozen=True, eq=False)
class InitialState:
    """Functions that create the state before the first step of a phase, and the shapes of the state.

    variables: function from a key to the variables of the module, boxed with logical axes.
    boxed: shapes of the variables, boxed. boxed_constants: shapes of the constants, boxed.
    carry: function that returns the first carry of the phase, boxed.
    """

    objective: Objective
    config: ModelConfig
    mesh: jax.sharding.Mesh
    variables: Callable[[jax.Array], dict[str, Any]]
    boxed: dict[str, Any]
    boxed_constants: Any
    carry: Callable[[], Any]
    optimizer: optax.GradientTransformation

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        phase: ResolvedPhase,
        module: nn.Module,
        *,
        dtype: jnp.dtype,
        vocabulary: Vocabulary,
        batch: Shapes,
        mesh: jax.sharding.Mesh,
    ) -> Self:
        """Return the initial state of a phase.

        dtype: dtype of matrix products. batch: shapes of the phase's batches.
        """
        objective, config = experiment.training_objective, experiment.model
        variables = initial_variables(experiment, phase, module, vocabulary=vocabulary, batch=batch)
        boxed = jax.eval_shape(sharding.with_mesh(variables, mesh), jax.random.key(0))
        optimizer = optax.identity()  # for a model that is evaluated and never trained
        if experiment.optimizer is not None:
            groups = objective.parameter_groups(config)
            steps, start = phase.schedule_steps, phase.schedule_start
            optimizer = experiment.optimizer.build(steps, boxed["params"], groups, start=start)
            if experiment.compression is not None:
                optimizer = scale_rates(
                    optimizer, experiment.compression.rate_factors(experiment.optimizer.learning_rate)
                )
        return cls(
            objective,
            config,
            mesh,
            variables,
            boxed,
            constants.shapes(objective, config, vocabulary),
            lambda: objective.initial_carry(config, phase.batch_size, phase.sequence_length, dtype),
            optimizer,
        )

    def from_variables(self, variables: dict[str, Any], key: jax.Array) -> TrainState:
        """Return the state with these variables, without constants."""
        collections = nn.meta.unbox(variables)
        params = collections.pop("params")
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            collections=collections,
            optimizer_state=self.optimizer.init(params),
            carry=nn.meta.unbox(self.carry()),
            key=jax.random.key_data(jax.random.fold_in(key, 1)),
        )

    def abstract_state(self, sharded: Any) -> TrainState:
        """Return the state as ShapeDtypeStructs with their shardings.

        sharded: the shardings of the parameters.
        """
        shapes = jax.eval_shape(self.from_variables, self.boxed, jax.random.key(0))
        whole = NamedSharding(self.mesh, PartitionSpec())
        collections = {name: tree for name, tree in self.boxed.items() if name != "params"}
        shardings = TrainState(
            step=whole,
            params=sharded,
            collections=sharding.shardings_of(collections, self.mesh),
            optimizer_state=sharding.optimizer_state(shapes.optimizer_state, shapes.params, sharded, self.mesh),
            carry=sharding.shardings_of(jax.eval_shape(self.carry), self.mesh),
            key=whole,
            constants=sharding.shardings_of(self.boxed_constants, self.mesh),
        )
        shapes = shapes.replace(constants=nn.meta.unbox(self.boxed_constants))
        return jax.tree.map(with_sharding, shapes, shardings)

    def initializer(self, abstract: TrainState) -> Callable[..., TrainState]:
        """Return the function that creates the state, every array on its devices (see `Program`)."""

        def initialize(key: jax.Array, zero: tuple[str, ...]) -> TrainState:
            state = self.from_variables(self.variables(jax.random.fold_in(key, 0)), key)
            flat = flax.traverse_util.flatten_dict(state.params, sep="/")
            flat |= {name: jnp.zeros_like(flat[name]) for name in zero}
            return state.replace(params=flax.traverse_util.unflatten_dict(flat, sep="/"))

        shardings = shardings_of(abstract.replace(constants=()))
        begin = jax.jit(sharding.with_mesh(initialize, self.mesh), static_argnums=1, out_shardings=shardings)

        def start(
            seed: int, sources: ConstantSources | None = None, replaced: Callable[[str], bool] = lambda name: False
        ) -> TrainState:
            has_constants = bool(jax.tree.leaves(self.boxed_constants))
            if sources is None and has_constants:
                raise ValueError(f"Expected sources for the constants of {type(self.objective).__name__}, found none.")
            # Even an objective without constants checks the sources, so call it before anything is allocated.
            made = () if sources is None else nn.meta.unbox(self.objective.constants(self.config, sources))
            names = flax.traverse_util.flatten_dict(abstract.params, sep="/")
            # In the order of the parameters: the order of a set, and so the program, would differ between hosts.
            state = begin(jax.random.key(seed), tuple(filter(replaced, names)))
            return state.replace(constants=put_on_devices(made, abstract.constants)) if has_constants else state

        return start


def initial_variables(
    experiment: Experiment,
    phase: ResolvedPhase,
    module: nn.Module,
    *,
    vocabulary: Vocabulary,
    batch: Shapes,
) -> Callable[[jax.Array], dict[str, Any]]:
    """Return a function from a key to the variables of the phase's module, boxed with logical axes."""
    objective, config = experiment.training_objective, experiment.model

    def init(key: jax.Array) -> dict[str, Any]:
        corrupted, constant_zeros = corrupt_zeros(experiment, vocabulary, batch, key)
        carry = nn.meta.unbox(objective.initial_carry(config, phase.batch_size, phase.sequence_length))
        variables = dict(objective.init(module, key, corrupted, constants=constant_zeros, carry=carry))
        variables.pop("intermediates", None)  # outputs for inspection, not variables
        return variables

    return init


def corrupt_zeros(experiment: Experiment, vocabulary: Vocabulary, batch: Shapes, key: jax.Array) -> tuple[Batch, Any]:
    """Return (a batch of zeros after the objective's corruption, constants of zeros)."""
    objective = experiment.training_objective
    constant_zeros = nn.meta.unbox(constants.shapes(objective, experiment.model, vocabulary))
    zeros, constant_zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (batch, constant_zeros))
    return objective.corrupt(zeros, key, vocabulary, constant_zeros), constant_zeros


def put_on_devices(tree: Any, abstract: Any) -> Any:
    """Return host arrays as global arrays with the shardings of `abstract`; each device gets its shard.

    Raises:
        ValueError: a tree, shape or dtype differs from `abstract`.
    """
    chex.assert_trees_all_equal_shapes_and_dtypes(tree, abstract, exception_type=ValueError)

    def place(x: Any, described: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.make_array_from_callback(described.shape, described.sharding, np.asarray(x).__getitem__)

    return jax.tree.map(place, tree, abstract)


def with_sharding(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array as a ShapeDtypeStruct with a sharding."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def shardings_of(described: Any) -> Any:
    """Return the shardings of a tree of arrays or ShapeDtypeStructs."""
    return jax.tree.map(lambda leaf: leaf.sharding, described)
