"""The program of a phase: its train step and its evaluation, ready to compile for a mesh.

The trainer, the plan, the benchmark and the tests all use the program of `build`. So the step that is planned and
measured is the step that runs.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.contracts.execution import REMAT_POLICIES, Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError, check_choice
from plmjax.experiment import Data, Experiment, in_phase
from plmjax.experiment.phases import ResolvedPhase
from plmjax.layers.attention.backends import BACKENDS
from plmjax.layers.int8 import MATMUL_PRECISIONS, PROJECTIONS
from plmjax.objectives.capabilities import ComparesRows
from plmjax.objectives.objective import Batch, LossInputs
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding, topologies
from plmjax.parallel.rings import Rings
from plmjax.training import carries, optimizers
from plmjax.training.gradients import Gradient
from plmjax.training.initial_state import InitialState, Shapes, shardings_of, with_sharding
from plmjax.training.parameter_layout import ParameterLayout
from plmjax.training.state import TrainState
from plmjax.training.step import Evaluation, EvaluationOutputs, Training, evaluation_step, train_step
from plmjax.training.step_metrics import StepMetrics

EVALUATION_LENGTH = "--training.evaluation_sequence_length"
GENERATORS = ("auto", "rbg", "threefry2x32")


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """One phase of a run, ready to compile for its mesh.

    experiment: the experiment with the changes of the phase.
    train: (state, batch) -> (state, StepMetrics), jitted, the state donated.
    evaluate: (loss_inputs, batch, key) -> EvaluationOutputs, jitted.
    initialize: (seed, sources, replaced) -> TrainState, every array created on its devices. Sources are needed if the
        objective has constants. replaced: function from a name (`bert/pooler/kernel`) to true if the caller sets that
        parameter: it is 0, and its sampling is not compiled.
    averaged: (state) -> the parameters that the optimizer has averaged, jitted.
    on_evaluation: (state, loss of an evaluation) -> the state after the optimizer has received the loss, jitted, the
        state donated.
    start_carry, start_evaluation_carry: () -> the first carry of a phase, or of an evaluation.
    state: TrainState of ShapeDtypeStructs with their shardings.
    batch, evaluation_batch: field -> ShapeDtypeStruct with its sharding, of one global batch.
    evaluation_phase: the phase with the batch size and the sequence length of an evaluation.
    copy: ShapeDtypeStructs, with shardings, of the copy of the parameters that a step gathers.
    axes: logical axis names of that copy.
    rings: the rings along which parameters and gradients travel in the train step, or None.
    """

    phase: ResolvedPhase
    evaluation_phase: ResolvedPhase
    mesh: jax.sharding.Mesh
    experiment: Experiment
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
    rings: Rings | None

    def loss_inputs(self, state: TrainState) -> LossInputs:
        """Return the inputs of an evaluation, with a new carry.

        The parameters are the averaged ones if the optimizer averages.
        """
        params = self.averaged(state) if optimizers.has_average(state.optimizer_state) else state.params
        return state.loss_inputs.replace(params=params, carry=self.start_evaluation_carry())


def execution(experiment: Experiment, platform: str) -> Execution:
    """Return the execution of the experiment's model on a platform ("cpu", "gpu" or "tpu").

    Without a GPU, dense attention replaces cuDNN's attention, so any machine can evaluate the checkpoints of the run.

    Raises:
        UserError: an unknown dtype, remat policy, attention backend or precision of matrix products.
    """
    training = experiment.training
    known = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
    dtype = training.dtype if training.dtype != "auto" else "float32" if platform == "cpu" else "bfloat16"
    check_choice("--training.dtype", training.dtype, [*known, "auto"])
    check_choice("--training.gradient_dtype", training.gradient_dtype, known)
    check_choice("--training.remat", training.remat, REMAT_POLICIES)
    check_choice("--training.attention", training.attention, BACKENDS)
    check_choice("--training.matmul_precision", training.matmul_precision, MATMUL_PRECISIONS)
    # XLA for CPU runs unrolled layers about an eighth faster than a loop; elsewhere a loop compiles many times faster.
    unroll = training.unroll or (experiment.model.depth if platform == "cpu" and experiment.model else 1)
    attention = "dense" if training.attention == "cudnn" and platform != "gpu" else training.attention
    projection = PROJECTIONS[training.matmul_precision]
    return Execution(known[dtype], unroll, training.remat, attention, training.kernels != "off", projection)


def check_cudnn(experiment: Experiment, platform: str) -> None:
    """Raise UserError if the run asks for cuDNN's attention and does not train on a GPU in bfloat16."""
    dtype = jnp.dtype(execution(experiment, platform).dtype).name
    if experiment.training.attention == "cudnn" and (platform, dtype) != ("gpu", "bfloat16"):
        raise UserError(
            f"Expected a GPU and bfloat16 for --training.attention cudnn, found {platform} and {dtype}; take "
            "--training.attention dense or blockwise."
        )


def dropout_prng(experiment: Experiment, mesh: jax.sharding.Mesh) -> str:
    """Return the name of the random number generator of dropout (see `plmjax.layers.dropout`)."""
    name = experiment.training.dropout_prng
    check_prng(name)
    return name if name != "auto" else "rbg" if mesh.devices.flat[0].platform == "tpu" else "threefry2x32"


def check_prng(name: str) -> None:
    """Raise UserError unless `name` is a random number generator for dropout, or "auto"."""
    check_choice("--training.dropout_prng", name, GENERATORS)


def build(
    experiment: Experiment,
    phase: ResolvedPhase,
    mesh: jax.sharding.Mesh,
    *,
    vocabulary: Vocabulary,
    shapes: Callable[[ResolvedPhase], Shapes],
    unigram: jax.Array | None = None,
) -> Program:
    """Return the program of one phase on a mesh; nothing is computed or stored yet.

    shapes: function from a phase to a dict from field to shape and dtype of its global batch.
    unigram: nats [V] of the training text's tokens, for evaluation.

    Raises:
        UserError: a change of the phase is wrong, the batch is not divisible, the vocabulary or the length does not fit
            the model, cuDNN's attention is not for this platform, or the step cannot have the rings that the run asks
            for.
    """
    experiment = in_phase(experiment, phase)
    check_cudnn(experiment, mesh.devices.flat[0].platform)
    evaluation_phase = phase.evaluation
    check_batches(phase, evaluation_phase, mesh)
    check_model(experiment, phase, vocabulary)

    run_on = execution(experiment, mesh.devices.flat[0].platform)
    module = experiment.training_objective.module(experiment.model, run_on)
    batch, evaluation_batch = (sharded_batch(shapes(each), mesh) for each in (phase, evaluation_phase))
    first = InitialState.of(
        experiment, phase, module, dtype=run_on.dtype, vocabulary=vocabulary, batch=batch, mesh=mesh
    )
    rings = choose_rings(experiment, phase, first, mesh)
    layout = ParameterLayout.of(
        experiment, vocabulary, batch, boxed=first.boxed["params"], dtype=run_on.dtype, mesh=mesh, rings=rings
    )
    if experiment.training.rings == "on" and rings is not layout.train.rings:
        raise rings_error("an objective that looks up no rows of tables", type(experiment.objective).__name__)
    rows, length = evaluation_phase.batch_size, evaluation_phase.sequence_length

    def evaluation_carry() -> Any:
        return experiment.evaluation_objective.evaluation_carry(experiment.model, rows, length, run_on.dtype)

    training = training_parts(experiment, phase, vocabulary, module=module, layout=layout, first=first, mesh=mesh)
    evaluation = Evaluation(
        objective=experiment.evaluation_objective,
        module=module,
        vocabulary=vocabulary,
        gather=layout.gradient(
            layout.evaluation, experiment.evaluation_objective, evaluation_carry, phase=phase, mesh=mesh
        ).gather,
        reset_carry=carries.reset(evaluation_carry),
        unigram=unigram,
    )

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        return train_step(state, batch, training)

    def evaluate(loss_inputs: LossInputs, batch: Batch, key: jax.Array) -> EvaluationOutputs:
        return evaluation_step(loss_inputs, batch, key, evaluation)

    state = first.abstract_state(layout.all.sharded)
    replicated, shardings = NamedSharding(mesh, PartitionSpec()), shardings_of(state)
    evaluated = shardings.loss_inputs.replace(carry=sharding.shardings_of(jax.eval_shape(evaluation_carry), mesh))
    return Program(
        phase=phase,
        evaluation_phase=evaluation_phase,
        mesh=mesh,
        experiment=experiment,
        module=module,
        train=jax.jit(
            sharding.with_mesh(step, mesh),
            in_shardings=(shardings, shardings_of(batch)),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
            compiler_options=compiler_options(experiment, mesh, layout.train.rings),
        ),
        evaluate=jax.jit(
            sharding.with_mesh(evaluate, mesh),
            in_shardings=(evaluated, shardings_of(evaluation_batch), replicated),
            out_shardings=EvaluationOutputs(evaluated.carry, replicated, replicated),
        ),
        initialize=first.initializer(state),
        averaged=jax.jit(
            lambda state: optimizers.evaluation_params(state.optimizer_state, state.params),
            in_shardings=(shardings,),
            out_shardings=shardings.params,
        ),
        on_evaluation=jax.jit(
            lambda state, loss: state.replace(
                optimizer_state=optimizers.on_evaluation(experiment.optimizer, state.optimizer_state, loss)
            ),
            in_shardings=(shardings, replicated),
            out_shardings=shardings,
            donate_argnums=0,
        ),
        start_carry=carries.initializer(first.carry, shardings.carry, mesh),
        start_evaluation_carry=carries.initializer(evaluation_carry, evaluated.carry, mesh),
        state=state,
        batch=batch,
        evaluation_batch=evaluation_batch,
        copy=layout.train.copy(layout.tables.split(state.params)[0]),
        axes=layout.axes,
        rings=layout.train.rings,
    )


MICROBATCHES_ON_RINGS = 4
"""Largest number of microbatches for which a run uses rings by default. Communication along rings overlaps the
computation, but writes every shard to its place once per microbatch. Without rings, parameters are sent once per step,
and nothing overlaps. By the estimates of docs/notes/tpu_step.md rings gain with four microbatches, not with sixteen.
"""


def choose_rings(
    experiment: Experiment, phase: ResolvedPhase, first: InitialState, mesh: jax.sharding.Mesh
) -> Rings | None:
    """Return the rings along which the parameters of a train step travel; None if XLA inserts the collectives.

    With more microbatches than `MICROBATCHES_ON_RINGS`, rings are used only if the run asks for them.

    Raises:
        UserError: the run asks for rings, and its step cannot use them.
    """
    wanted = experiment.training.rings
    if mesh.size == 1 or wanted == "off":
        return None
    if wanted == "on":
        if obstacle := missing_for_rings(experiment, first, mesh):
            raise rings_error(*obstacle)
        if (rings := Rings.on(mesh)) is None:
            sizes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
            raise rings_error("all devices of a slice of two or more rows and columns along --mesh.data", sizes)
        return rings
    if phase.accumulation > MICROBATCHES_ON_RINGS or Rings.of(mesh) is None:
        return None
    return None if missing_for_rings(experiment, first, mesh) else Rings.of(mesh)


def rings_error(expected: str, found: str) -> UserError:
    """Return the error for a step that cannot use the rings that a run asks for."""
    return UserError(f"Expected {expected} for --training.rings on, found {found}; change it, or set rings auto.")


def missing_for_rings(experiment: Experiment, first: InitialState, mesh: jax.sharding.Mesh) -> tuple[str, str] | None:
    """Return (a requirement of rings, the value that breaks it), or None if the step can use rings.

    With rings every device computes with its own rows and its own key. So every leaf of the carry must have a batch
    axis. Threefry excludes rings, because its dropout masks are the same on every mesh (`plmjax.layers.dropout`).
    """
    carry = jax.eval_shape(first.carry)
    axes = jax.tree.structure(nn.meta.unbox(carry)).flatten_up_to(sharding.logical_axes(carry))
    if not experiment.mesh.zero:
        return "--mesh.zero True", "False"
    if isinstance(experiment.objective, ComparesRows):
        return "an objective whose loss compares no rows", type(experiment.objective).__name__
    if first.boxed.keys() != {"params"} or not all("batch" in names for names in axes):
        return "a model that carries nothing but states of its rows", type(experiment.model).__name__
    if experiment.compression is not None:  # its losses read whole matrices: masks, teachers, fake quantization
        return "no compression", type(experiment.compression).__name__
    if dropout_prng(experiment, mesh) == "threefry2x32":
        return "--training.dropout_prng rbg", "threefry2x32"
    return None


def compiler_options(experiment: Experiment, mesh: jax.sharding.Mesh, rings: Rings | None) -> dict[str, str | bool]:
    """Return the XLA options of a train step: those for the device, and those that the run sets."""
    known = topologies.compiler_options(mesh.devices.flat[0], rings=rings is not None)
    found = known | dict(option.split("=", 1) for option in experiment.training.compiler_options)
    truth = {"true": True, "false": False}  # XLA's own options take booleans, not this text
    return {name: truth.get(value.lower(), value) for name, value in found.items() if value}


def sharded_batch(batch: Shapes, mesh: jax.sharding.Mesh) -> Shapes:
    """Return the shapes of a global batch with their shardings."""
    return jax.tree.map(with_sharding, batch, sharding.batch(batch, mesh))


def training_parts(
    experiment: Experiment,
    phase: ResolvedPhase,
    vocabulary: Vocabulary,
    *,
    module: nn.Module,
    layout: ParameterLayout,
    first: InitialState,
    mesh: jax.sharding.Mesh,
) -> Training:
    """Return the parts of the train step of a phase."""
    rule, optimizer = experiment.optimizer, first.optimizer
    rates = None if rule is None else rule.rates(phase.schedule_steps, phase.schedule_start)

    def update(gradient: Gradient, optimizer_state: optax.OptState, params: Any) -> tuple[Any, optax.OptState]:
        updates, optimizer_state = optimizer.update(gradient.params, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state

    return Training(
        objective=experiment.training_objective,
        module=module,
        vocabulary=vocabulary,
        gradient=layout.gradient(layout.train, experiment.training_objective, first.carry, phase=phase, mesh=mesh),
        update=functools.partial(layout.tables.update, optimizer) if layout.tables.shardings else update,
        learning_rate=lambda optimizer_state, step: optimizers.learning_rate(rule, optimizer_state, rates, step),
        reset_carry=carries.reset(first.carry),
        dropout_prng=dropout_prng(experiment, mesh),
        microbatches=phase.accumulation,
    )


def check_states(programs: Sequence[Program]) -> None:
    """Raise UserError if a phase changes the shape of a parameter or of the optimizer's state."""

    def shapes(program: Program) -> dict[str, tuple[int, ...]]:
        kept = dataclasses.replace(program.state, carry=(), constants=())
        leaves = jax.tree_util.tree_leaves_with_path(kept)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves}

    first = shapes(programs[0])
    for program in programs[1:]:
        found = shapes(program)
        for name in sorted(first.keys() | found.keys(), key=lambda name: (not name.startswith("params"), name)):
            if first.get(name) != found.get(name):
                raise UserError(
                    f"Expected --phases.{program.phase.declared}.changes that keep parameters and optimizer state, "
                    f"found {name} of shape {found.get(name, 'none')}, before {first.get(name, 'none')}; change other "
                    "options."
                )


def check_batches(phase: ResolvedPhase, evaluation_phase: ResolvedPhase, mesh: jax.sharding.Mesh) -> None:
    """Raise UserError unless the batches of a phase are divisible among the devices of a mesh."""
    meshes.check_batch(phase.batch_size, phase.accumulation, mesh)
    if evaluation_phase.batch_size % meshes.batch_shards(mesh):
        raise UserError(
            f"Expected --training.evaluation_batch_size to divide by {meshes.batch_shards(mesh)} devices that share "
            f"a batch, found {evaluation_phase.batch_size}; change it."
        )


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
    check_length(experiment, phase.evaluation.sequence_length, EVALUATION_LENGTH)


def check_length(experiment: Experiment, length: int, option: str = "") -> None:
    """Raise UserError if rows have more positions than the model.

    The message advises a larger model except in fine-tuning, which cannot change the model.
    option: the option that sets the length; by default the option for training.
    """
    longest, read = experiment.model.longest, experiment.objective.longest(length)
    if longest is not None and read > longest:
        or_model = f" or raise {experiment.model.option('longest')}" if isinstance(experiment.data, Data) else ""
        option = option or ("--phases.N.sequence_length" if experiment.phases else "--data.sequence_length")
        found = f"a sequence length of {length}" + (f", of which rows of {read} are made" if read != length else "")
        raise UserError(
            f"Expected rows of at most the model's {longest} positions, found {found}; shorten {option}{or_model}."
        )
