"""The program of a phase: its train step and its evaluation, ready to compile for a mesh.

The trainer, the plan, the benchmark and the tests all use the program of `build`. So the step that is planned and
measured is the step that runs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.contracts.execution import REMAT_POLICIES, Execution
from plmjax.errors import UserError, check_choice
from plmjax.experiment import Data, Experiment
from plmjax.layers.attention.backends import BACKENDS
from plmjax.objectives.capabilities import rows_of
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding
from plmjax.parallel.shares import Shares, dtypes
from plmjax.training import constants, optimizers, phases, rows
from plmjax.training.phases import ResolvedPhase
from plmjax.training.state import TrainState
from plmjax.training.step import Forward, Metrics, Update, evaluation_step, train_step
from plmjax.vocabulary import Vocabulary

Shapes = dict[str, jax.ShapeDtypeStruct]
EVALUATION_LENGTH = "--training.evaluation_sequence_length"
GENERATORS = ("auto", "rbg", "threefry2x32")


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """One phase of a run, ready to compile for its mesh.

    train: (state, batch) -> (state, metrics), jitted, the state donated. Metrics are float32 scalars.
    evaluate: (loss_inputs, batch, key) -> (carry, {name: (sum, weight)}, outputs), jitted. A downstream task computes
        its predictions from the outputs.
    initialize: (seed, sources, replaced) -> TrainState, every array created on its devices. Sources are needed if the
        objective has constants. replaced: function from a name (`bert/pooler/kernel`) to true if the parameter is 0
        instead of sampled, for a caller that sets its value; the sampling of such a parameter is not compiled either.
    averaged: (state) -> the parameters that the optimizer has averaged, jitted.
    on_evaluation: (state, loss of an evaluation) -> the state after the optimizer has received the loss, jitted, the
        state donated.
    start_carry, start_evaluation_carry: () -> the first carry of a phase, or of an evaluation.
    state: TrainState of ShapeDtypeStructs with their shardings.
    batch, evaluation_batch: field -> ShapeDtypeStruct with its sharding, of one global batch.
    evaluation_phase: the phase with the batch size and the sequence length of an evaluation.
    copy: ShapeDtypeStructs, with shardings, of the copy of the parameters that a step gathers.
    axes: logical axis names of that copy.
    """

    phase: ResolvedPhase
    evaluation_phase: ResolvedPhase
    mesh: jax.sharding.Mesh
    module: nn.Module
    train: Any
    evaluate: Any
    initialize: Callable[..., TrainState]
    averaged: Callable[[TrainState], Any]
    on_evaluation: Callable[[TrainState, float], TrainState]
    start_carry: Callable[[], Any]
    start_evaluation_carry: Callable[[], Any]
    state: TrainState
    batch: Shapes
    evaluation_batch: Shapes
    copy: Any
    axes: Any

    def loss_inputs(self, state: TrainState) -> LossInputs:
        """Return the inputs of an evaluation, with a new carry.

        The parameters are the averaged ones if the optimizer averages.
        """
        params = self.averaged(state) if optimizers.averages(state.optimizer_state) else state.params
        return state.loss_inputs.replace(params=params, carry=self.start_evaluation_carry())


def execution(experiment: Experiment, platform: str) -> Execution:
    """Return the execution of the experiment's model on a platform ("cpu", "gpu" or "tpu").

    Raises:
        UserError: an unknown dtype, remat policy or attention backend.
    """
    training = experiment.training
    known = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
    dtype = training.dtype if training.dtype != "auto" else "float32" if platform == "cpu" else "bfloat16"
    check_choice("--training.dtype", training.dtype, [*known, "auto"])
    check_choice("--training.gradient_dtype", training.gradient_dtype, known)
    check_choice("--training.remat", training.remat, REMAT_POLICIES)
    check_choice("--training.attention", training.attention, BACKENDS)
    # XLA for CPU runs straight code about an eighth faster than a loop; elsewhere the loop compiles many times faster.
    unroll = training.unroll or (experiment.model.depth if platform == "cpu" and experiment.model else 1)
    return Execution(known[dtype], unroll, training.remat, training.attention)


def dropout_generator(experiment: Experiment, mesh: jax.sharding.Mesh) -> str:
    """Return the name of the random number generator of dropout (see `plmjax.layers.dropout`)."""
    name = experiment.training.dropout_generator
    check_generator(name)
    return name if name != "auto" else "rbg" if mesh.devices.flat[0].platform == "tpu" else "threefry2x32"


def check_generator(name: str) -> None:
    """Raise UserError unless `name` is a generator for dropout, or "auto"."""
    check_choice("--training.dropout_generator", name, GENERATORS)


def build(
    experiment: Experiment,
    phase: ResolvedPhase,
    mesh: jax.sharding.Mesh,
    vocabulary: Vocabulary,
    shapes: Callable[[ResolvedPhase], Shapes],
    unigram: jax.Array | None = None,
) -> Program:
    """Return the program of one phase on a mesh; nothing is computed or stored yet.

    shapes: function from a phase to a dict from field to shape and dtype of its global batch.
    unigram: nats [V] of the training text's tokens, for evaluation.

    Raises:
        UserError: the batch is not divisible, or the vocabulary or the length does not fit the model.
    """
    evaluation_phase = phases.evaluation(experiment, phase)
    meshes.check_batch(phase.batch_size, phase.accumulation, mesh)
    if evaluation_phase.batch_size % meshes.batch_shards(mesh):
        raise UserError(
            f"Expected --training.evaluation_batch_size to divide by {meshes.batch_shards(mesh)} devices that share "
            f"a batch, found {evaluation_phase.batch_size}; change it."
        )
    check_model(experiment, phase, vocabulary)
    objective, config = experiment.objective, experiment.model
    how = execution(experiment, mesh.devices.flat[0].platform)
    module = objective.module(config, how)
    batch, evaluation_batch = shapes(phase), shapes(evaluation_phase)
    init = initial_variables(experiment, phase, module, vocabulary, batch)

    def carry() -> Any:
        return objective.initial_carry(config, phase.batch_size, phase.sequence_length)

    def evaluation_carry() -> Any:
        return objective.evaluation_carry(config, evaluation_phase.batch_size, evaluation_phase.sequence_length)

    boxed = jax.eval_shape(sharding.scoped(init, mesh), jax.random.key(0))
    boxed_params = boxed["params"]
    boxed_carry, boxed_evaluation_carry = jax.eval_shape(carry), jax.eval_shape(evaluation_carry)
    boxed_constants = constants.shapes(objective, config, vocabulary)
    optimizer = optax.identity()  # for a model that is evaluated and never trained
    if experiment.optimizer is not None:
        groups = objective.parameter_groups(config)
        optimizer = experiment.optimizer.build(experiment.training.steps, boxed_params, groups)

    def first_state(variables: dict[str, Any], key: jax.Array) -> TrainState:
        collections = nn.meta.unbox(variables)
        params = collections.pop("params")
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            collections=collections,
            optimizer_state=optimizer.init(params),
            carry=nn.meta.unbox(carry()),
            key=jax.random.key_data(jax.random.fold_in(key, 1)),
        )

    def initialize(key: jax.Array, zero: frozenset[str]) -> TrainState:
        state = first_state(init(jax.random.fold_in(key, 0)), key)
        flat = flax.traverse_util.flatten_dict(state.params, sep="/")
        flat |= {name: jnp.zeros_like(flat[name]) for name in zero}
        return state.replace(params=flax.traverse_util.unflatten_dict(flat, sep="/"))

    abstract = jax.eval_shape(first_state, boxed, jax.random.key(0))
    exchanged = jnp.dtype(experiment.training.gradient_dtype)
    shares = Shares.of(boxed_params, mesh, how.dtype, exchanged, zero=experiment.mesh.zero)
    batch_shardings, evaluation_batch_shardings = sharding.batch(batch, mesh), sharding.batch(evaluation_batch, mesh)
    corrupted, _ = jax.eval_shape(lambda key: corrupted_zeros(experiment, vocabulary, batch, key), jax.random.key(0))
    tables = rows.Tables.of(
        shares.owned,
        jax.eval_shape(lambda batch: rows_of(objective, batch), corrupted),
        next(iter(batch_shardings.values())),
        by_rows=experiment.optimizer is not None and experiment.optimizer.by_rows,
    )
    boxed_rest, _ = tables.split(boxed_params)
    copied = Shares.of(boxed_rest, mesh, how.dtype, exchanged, zero=experiment.mesh.zero)
    # Only gradients may be rounded before they are sent over the network; an evaluation has none.
    evaluated = dataclasses.replace(copied, dtypes=dtypes(boxed_rest, how.dtype, jnp.dtype(jnp.float32)))
    whole = NamedSharding(mesh, PartitionSpec())
    shardings = TrainState(
        step=whole,
        params=shares.owned,
        collections=sharding.boxed({name: tree for name, tree in boxed.items() if name != "params"}, mesh),
        optimizer_state=sharding.optimizer_state(abstract.optimizer_state, abstract.params, shares.owned, mesh),
        carry=sharding.boxed(boxed_carry, mesh),
        key=whole,
    )
    begin = jax.jit(sharding.scoped(initialize, mesh), static_argnums=1, out_shardings=shardings)
    shardings = shardings.replace(constants=sharding.boxed(boxed_constants, mesh))
    abstract = jax.tree.map(_shape, abstract.replace(constants=nn.meta.unbox(boxed_constants)), shardings)
    evaluation_shardings = shardings.loss_inputs.replace(carry=sharding.boxed(boxed_evaluation_carry, mesh))

    def start(
        seed: int, sources: ConstantSources | None = None, replaced: Callable[[str], bool] = lambda name: False
    ) -> TrainState:
        names = flax.traverse_util.flatten_dict(abstract.params, sep="/")
        state = begin(jax.random.key(seed), frozenset(filter(replaced, names)))
        if not jax.tree.leaves(boxed_constants):
            return state
        if sources is None:
            raise ValueError(f"Expected sources for the constants of {type(objective).__name__}, found none.")
        made = nn.meta.unbox(objective.constants(config, sources))
        return state.replace(constants=placed(made, abstract.constants))

    training = Forward(
        objective,
        module,
        vocabulary,
        tables,
        copied,
        initial_carry=lambda: nn.meta.unbox(carry()),
        carry_axes=sharding.logical_axes(boxed_carry),
    )
    held_out = dataclasses.replace(
        training,
        shares=evaluated,
        initial_carry=lambda: nn.meta.unbox(evaluation_carry()),
        carry_axes=sharding.logical_axes(boxed_evaluation_carry),
    )
    update = Update(
        optimizer,
        lambda optimizer_state, step: optimizers.learning_rate(
            experiment.optimizer, optimizer_state, experiment.training.steps, step
        ),
        phase.accumulation,
        shards=mesh.shape["data"],
        generator=dropout_generator(experiment, mesh),
    )

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        return train_step(state, batch, training, update)

    def evaluate(loss_inputs: LossInputs, batch: Batch, key: jax.Array) -> Any:
        return evaluation_step(loss_inputs, batch, key, held_out, unigram)

    def starter(carry: Callable[[], Any], place: Any) -> Callable[[], Any]:
        return jax.jit(sharding.scoped(lambda: nn.meta.unbox(carry()), mesh), out_shardings=place)

    return Program(
        phase=phase,
        evaluation_phase=evaluation_phase,
        mesh=mesh,
        module=module,
        train=jax.jit(
            sharding.scoped(step, mesh),
            in_shardings=(shardings, batch_shardings),
            out_shardings=(shardings, whole),
            donate_argnums=0,
        ),
        evaluate=jax.jit(
            sharding.scoped(evaluate, mesh),
            in_shardings=(evaluation_shardings, evaluation_batch_shardings, whole),
            out_shardings=(evaluation_shardings.carry, whole, whole),
        ),
        initialize=start,
        averaged=jax.jit(
            lambda state: optimizers.evaluated(state.optimizer_state, state.params),
            in_shardings=(shardings,),
            out_shardings=shardings.params,
        ),
        on_evaluation=jax.jit(
            lambda state, loss: state.replace(
                optimizer_state=optimizers.on_evaluation(experiment.optimizer, state.optimizer_state, loss)
            ),
            in_shardings=(shardings, whole),
            out_shardings=shardings,
            donate_argnums=0,
        ),
        start_carry=starter(carry, shardings.carry),
        start_evaluation_carry=starter(evaluation_carry, evaluation_shardings.carry),
        state=abstract,
        batch=jax.tree.map(_shape, batch, batch_shardings),
        evaluation_batch=jax.tree.map(_shape, evaluation_batch, evaluation_batch_shardings),
        copy=copied.copy(tables.split(abstract.params)[0]),
        axes=sharding.logical_axes(boxed_rest),
    )


def initial_variables(
    experiment: Experiment,
    phase: ResolvedPhase,
    module: nn.Module,
    vocabulary: Vocabulary,
    batch: Shapes,
) -> Callable[[jax.Array], dict[str, Any]]:
    """Return a function from a key to the variables of the phase's module, boxed with logical axes."""
    objective, config = experiment.objective, experiment.model

    def init(key: jax.Array) -> dict[str, Any]:
        corrupted, constant_zeros = corrupted_zeros(experiment, vocabulary, batch, key)
        carry = nn.meta.unbox(objective.initial_carry(config, phase.batch_size, phase.sequence_length))
        variables = dict(objective.init(module, key, corrupted, constant_zeros, carry))
        variables.pop("intermediates", None)  # outputs for inspection, not variables
        return variables

    return init


def corrupted_zeros(experiment: Experiment, vocabulary: Vocabulary, batch: Shapes, key: jax.Array) -> tuple[Batch, Any]:
    """Return (a batch of zeros after the objective's corruption, constants of zeros)."""
    objective = experiment.objective
    constant_zeros = nn.meta.unbox(constants.shapes(objective, experiment.model, vocabulary))
    zeros, constant_zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (batch, constant_zeros))
    return objective.corrupt(zeros, key, vocabulary, constant_zeros), constant_zeros


def placed(tree: Any, abstract: Any) -> Any:
    """Return host arrays as global arrays with the shardings of `abstract`; each device gets its own shard.

    Raises:
        ValueError: a tree, shape or dtype differs from `abstract`.
    """
    chex.assert_trees_all_equal_shapes_and_dtypes(tree, abstract, exception_type=ValueError)

    def place(x: Any, described: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.make_array_from_callback(described.shape, described.sharding, np.asarray(x).__getitem__)

    return jax.tree.map(place, tree, abstract)


def check_model(experiment: Experiment, phase: ResolvedPhase, vocabulary: Vocabulary) -> None:
    """Raise UserError if the tokenizer has more tokens, or a row more positions, than the model."""
    size = experiment.model.vocab_size
    if vocabulary.size > size:
        or_model = f" or set --model.vocab_size {vocabulary.size}" if isinstance(experiment.data, Data) else ""
        raise UserError(
            f"Expected a tokenizer of at most the model's {size} tokens, found {vocabulary.size}; take another one"
            f"{or_model}."
        )
    check_length(experiment, phase.sequence_length)
    check_length(experiment, phases.evaluation(experiment, phase).sequence_length, EVALUATION_LENGTH)


def check_length(experiment: Experiment, length: int, option: str = "") -> None:
    """Raise UserError if rows have more positions than the model; fine-tuning cannot change the model.

    option: the option that sets the length; by default the one of training.
    """
    longest, read = experiment.model.longest, experiment.objective.longest(length)
    if longest is not None and read > longest:
        or_model = f" or raise {experiment.model.option('longest')}" if isinstance(experiment.data, Data) else ""
        option = option or ("--phases.N.sequence_length" if experiment.phases else "--data.sequence_length")
        found = f"a sequence length of {length}" + (f", of which rows of {read} are made" if read != length else "")
        raise UserError(
            f"Expected rows of at most the model's {longest} positions, found {found}; shorten {option}{or_model}."
        )


def _shape(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
