"""The train step, the same for every system, and the program it is compiled into.

The trainer, the plan, the benchmark and the tests all take the step from `build`, so that what is planned and measured
is what runs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Data, Experiment
from plmjax.layers.execution import REMAT_POLICIES, Execution
from plmjax.objectives.objective import Batch, Objective, Sums
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding
from plmjax.training import optimizers, schedules
from plmjax.training.phases import ResolvedPhase
from plmjax.training.state import State
from plmjax.vocabulary import Vocabulary

Metrics = dict[str, jax.Array]
GENERATORS = ("auto", "rbg", "threefry2x32")


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """One phase of a run, ready to compile for its mesh.

    train: (state, batch) -> (state, metrics), jitted, the state donated. Metrics are float32 scalars.
    evaluate: (params, carry, batch, key) -> (carry, {name: (sum, weight)}), jitted.
    initialize: (seed) -> State, jitted, every array created where it lies.
    start_carry: () -> the carry that a phase or an evaluation begins with.
    state: State of ShapeDtypeStructs with their shardings.
    batch: field -> ShapeDtypeStruct with its sharding, of one global batch.
    axes: logical axis names of the parameters.
    """

    phase: ResolvedPhase
    mesh: jax.sharding.Mesh
    module: nn.Module
    train: Any
    evaluate: Any
    initialize: Callable[[int], State]
    start_carry: Callable[[], Any]
    state: State
    batch: dict[str, jax.ShapeDtypeStruct]
    axes: Any


def execution(experiment: Experiment, platform: str) -> Execution:
    """How the experiment's model is computed on a platform ("cpu", "gpu" or "tpu").

    Raises:
        UserError: an unknown dtype or remat policy.
    """
    training = experiment.training
    dtypes = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
    dtype = training.dtype if training.dtype != "auto" else "float32" if platform == "cpu" else "bfloat16"
    if dtype not in dtypes:
        raise UserError(f"Unknown --training.dtype {quoted(dtype)}; {nearest(dtype, [*dtypes, 'auto'])}")
    if training.gradient_dtype not in dtypes:
        found = training.gradient_dtype
        raise UserError(f"Unknown --training.gradient_dtype {quoted(found)}; {nearest(found, dtypes)}")
    if training.remat not in REMAT_POLICIES:
        raise UserError(f"Unknown --training.remat {quoted(training.remat)}; {nearest(training.remat, REMAT_POLICIES)}")
    # XLA for CPU runs straight code about an eighth faster than a loop; elsewhere the loop compiles many times faster.
    layers = getattr(experiment.model, "num_hidden_layers", 1)
    unroll = training.unroll or (layers if platform == "cpu" else 1)
    return Execution(dtype=dtypes[dtype], unroll=unroll, remat=training.remat)


def dropout_generator(experiment: Experiment, mesh: jax.sharding.Mesh) -> str:
    """Name of the generator of dropout's bits.

    rbg is the TPU's own and nearly free, but the compiler cannot divide it: every device draws the bits of the whole
    batch. Planned for v3:8x8, a step of BERT-Large at length 512 so moves 96 GB a device; with threefry,
    computed where its bits are used, 29 GB for 2 % more cycles.
    """
    name = experiment.training.dropout_generator
    alone_on_tpu = mesh.size == 1 and mesh.devices.flat[0].platform == "tpu"
    check_generator(name)
    return name if name != "auto" else "rbg" if alone_on_tpu else "threefry2x32"


def check_generator(name: str) -> None:
    """Raises UserError unless it is a generator of dropout's bits, or auto."""
    if name not in GENERATORS:
        raise UserError(f"Unknown --training.dropout_generator {quoted(name)}; {nearest(name, GENERATORS)}")


def total_loss(objective: Objective, sums: dict[str, jax.Array], weights: dict[str, jax.Array]) -> jax.Array:
    """Sum over terms of coefficient x global sum / global weight."""
    coefficients = objective.coefficients()
    return sum(coefficients.get(term, 1.0) * sums[term] / weights[term] for term in weights)


def train_step(
    state: State,
    batch: Batch,
    *,
    objective: Objective,
    module: nn.Module,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    vocabulary: Vocabulary,
    accumulation: int,
    carry_axes: Any,
    shards: int,
    add_shards: Callable[[Any], Any],
    gradient_dtype: jnp.dtype,
    generator: str,
) -> tuple[State, Metrics]:
    """One optimizer step on one global batch."""
    corruption, dropout = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step))
    batch = objective.corrupt(batch, corruption, vocabulary)
    weights = objective.weights(batch)
    # Differentiated with respect to the cast parameters, gradients are summed over devices in that dtype.
    params = jax.tree.map(lambda p: p.astype(gradient_dtype), state.params)

    def microstep(carry: Any, microbatch: Batch, key: jax.Array) -> tuple[Any, Sums]:
        def loss(params: Any) -> tuple[jax.Array, Sums]:
            sums = objective.sums(module, params, carry, microbatch, _generator_key(key, generator))
            return total_loss(objective, sums.losses, weights), sums

        gradient, sums = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda g: g.astype(jnp.float32), gradient), sums

    gradient, sums = accumulate(microstep, state.carry, carry_axes, batch, dropout, accumulation, shards, add_shards)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
    metrics = {"loss": total_loss(objective, sums.losses, weights), "learning_rate": schedule(state.step)}
    metrics |= {name: total / jnp.maximum(weight, 1e-9) for name, (total, weight) in sums.metrics.items()}
    metrics["gradient_norm"] = optimizers.gradient_norm(optimizer_state)
    return state.replace(
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        optimizer_state=optimizer_state,
        carry=sums.carry,
    ), metrics


def accumulate(
    microstep: Callable[[Any, Batch, jax.Array], tuple[Any, Sums]],
    carry: Any,
    carry_axes: Any,
    batch: Batch,
    key: jax.Array,
    accumulation: int,
    shards: int = 1,
    add_shards: Callable[[Any], Any] | None = None,
) -> tuple[Any, Sums]:
    """Gradient and sums of a batch taken in so many microbatches.

    Microbatch i holds the rows i, i + accumulation, ...: with contiguous rows on every device no row has to move. Carry
    leaves with a "batch" axis are cut alike; others go from microbatch to microbatch.

    Each of the `shards` along the mesh's data axis adds up the gradient of its own rows and drops out by a key of its
    own; `add_shards` sums gradients [shards ...] once, after the last microbatch. Only where a leaf of the carry has no
    rows, and so belongs to all shards, is the gradient summed for every microbatch.
    """
    if accumulation == 1:
        return microstep(carry, batch, key)
    structure = jax.tree.structure(carry)
    axes = [names.index("batch") if "batch" in names else None for names in structure.flatten_up_to(carry_axes)]
    shards = 1 if None in axes else shards

    def split(x: jax.Array, axis: int = 0) -> jax.Array:  # [.. B ..] -> [accumulation, shards, .. B / both ..]
        shape = (*x.shape[:axis], shards, x.shape[axis] // (shards * accumulation), accumulation, *x.shape[axis + 1 :])
        return jnp.moveaxis(x.reshape(shape), (axis + 2, axis), (0, 1))

    def join(x: jax.Array, axis: int) -> jax.Array:
        x = jnp.moveaxis(x, (0, 1), (axis + 2, axis))
        return x.reshape((*x.shape[:axis], -1, *x.shape[axis + 3 :]))

    def merge(rows: list[jax.Array], others: list[jax.Array]) -> Any:
        rows, others = iter(rows), iter(others)
        return structure.unflatten([next(others) if axis is None else next(rows) for axis in axes])

    def parts(tree: Any) -> tuple[list[jax.Array], list[jax.Array]]:
        pairs = list(zip(structure.flatten_up_to(tree), axes, strict=True))
        return [leaf for leaf, axis in pairs if axis is not None], [leaf for leaf, axis in pairs if axis is None]

    def every_shard(rows: list[jax.Array], others: list[jax.Array], microbatch: Batch, key: jax.Array) -> tuple:
        """(gradient, losses, metrics) of every shard, its rows of the carry; the carry's leaves without rows."""

        def shard(rows: list[jax.Array], microbatch: Batch, key: jax.Array) -> tuple:
            gradient, sums = microstep(merge(rows, others), microbatch, key)
            after, shared = parts(sums.carry)
            return ((gradient, sums.losses, sums.metrics), after), shared

        if shards == 1:
            made, shared = shard(*jax.tree.map(lambda x: x[0], (rows, microbatch)), key)
            return *jax.tree.map(lambda x: x[None], made), shared
        with nn.logical_axis_rules(sharding.RULES_WITHIN_DATA):
            made, shared = jax.vmap(shard, spmd_axis_name="data")(rows, microbatch, jax.random.split(key, shards))
        return *made, shared

    def body(scanned: Any, slices: Any) -> tuple[Any, list[jax.Array]]:
        total, others = scanned
        rows, microbatch, key = slices
        made, rows, others = every_shard(rows, others, microbatch, key)
        return (jax.tree.map(jnp.add, total, made), others), rows

    rows, others = parts(carry)
    rows = [split(leaf, axis) for leaf, axis in zip(rows, [axis for axis in axes if axis is not None], strict=True)]
    slices = (rows, jax.tree.map(split, batch), jax.random.split(key, accumulation))
    first = jax.tree.map(lambda x: x[0], slices)
    shapes = jax.eval_shape(every_shard, first[0], others, *first[1:])[0]
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (total, others), rows = jax.lax.scan(body, (zeros, others), slices)
    gradient = add_shards(total[0]) if shards > 1 else jax.tree.map(lambda g: g[0], total[0])
    losses, metrics = jax.tree.map(lambda x: jnp.sum(x, axis=0), total[1:])
    rows = [join(leaf, axis) for leaf, axis in zip(rows, [axis for axis in axes if axis is not None], strict=True)]
    return gradient, Sums(losses=losses, metrics=metrics, carry=merge(rows, others))


def evaluation_step(
    params: Any,
    carry: Any,
    batch: Batch,
    key: jax.Array,
    *,
    objective: Objective,
    module: nn.Module,
    vocabulary: Vocabulary,
    unigram: jax.Array | None,
) -> tuple[Any, dict[str, tuple[jax.Array, jax.Array]]]:
    """Sums and weights of one held-out batch, corrupted by `key` and computed without dropout.

    `loss` is the term that counts nats a target; `unigram_entropy` is what a model that knows only how often each token
    occurs in the training text (`unigram`, nats [V]) would lose on the same targets.
    """
    batch = objective.corrupt(batch, key, vocabulary)
    weights = objective.weights(batch)
    sums = objective.sums(module, params, carry, batch, None)
    term = objective.target_term(batch)
    totals = {"loss": (sums.losses[term], weights[term])}
    totals |= {f"{name}_loss": (sums.losses[name], weights[name]) for name in weights if len(weights) > 1}
    totals |= sums.metrics
    if unigram is not None:
        ids, target_weights = objective.targets(batch)
        totals["unigram_entropy"] = (jnp.sum(unigram[ids] * target_weights), jnp.sum(target_weights))
    return sums.carry, totals


def build(
    experiment: Experiment,
    phase: ResolvedPhase,
    mesh: jax.sharding.Mesh,
    vocabulary: Vocabulary,
    batch: dict[str, jax.ShapeDtypeStruct],
    unigram: jax.Array | None = None,
) -> Program:
    """The program of one phase on a mesh; nothing is computed or stored yet.

    batch: field -> shape and dtype of the phase's global batch.
    unigram: nats [V] of the training text's tokens, for evaluation.

    Raises:
        UserError: the batch does not divide, or the vocabulary or the length does not fit the model.
    """
    meshes.check_batch(phase.batch_size, phase.accumulation, mesh)
    check_model(experiment, phase, vocabulary)
    platform = mesh.devices.flat[0].platform
    objective = experiment.objective
    module = objective.module(experiment.model, execution(experiment, platform))
    schedule = schedules.schedule(experiment.optimizer, experiment.training.steps)

    init = initial_parameters(experiment, phase, module, vocabulary, batch)

    def carry() -> Any:
        return objective.initial_carry(experiment.model, phase.batch_size, phase.sequence_length)

    boxed_params = jax.eval_shape(_scoped(init, mesh), jax.random.key(0))
    boxed_carry = jax.eval_shape(carry)
    optimizer = optimizers.build(experiment.optimizer, experiment.training.steps, boxed_params)

    def initialize(key: jax.Array) -> State:
        params = nn.meta.unbox(init(jax.random.fold_in(key, 0)))
        return State(
            step=jnp.zeros((), jnp.int32),
            params=params,
            optimizer_state=optimizer.init(params),
            carry=nn.meta.unbox(carry()),
            key=jax.random.key_data(jax.random.fold_in(key, 1)),
        )

    abstract = jax.eval_shape(_scoped(initialize, mesh), jax.random.key(0))
    params_shardings = sharding.boxed(boxed_params, mesh)
    gradient_dtype, gradient_shardings = jnp.dtype(experiment.training.gradient_dtype), params_shardings
    if experiment.mesh.zero:
        gradient_shardings = sharding.over_data(boxed_params, params_shardings, mesh)
    whole = NamedSharding(mesh, PartitionSpec())
    shardings = State(
        step=whole,
        params=params_shardings,
        optimizer_state=sharding.optimizer_state(abstract.optimizer_state, abstract.params, gradient_shardings, mesh),
        carry=sharding.boxed(boxed_carry, mesh),
        key=whole,
    )
    batch_shardings = sharding.batch(batch, mesh)

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        return train_step(
            state,
            batch,
            objective=objective,
            module=module,
            optimizer=optimizer,
            schedule=schedule,
            vocabulary=vocabulary,
            accumulation=phase.accumulation,
            carry_axes=sharding.logical_axes(boxed_carry),
            shards=mesh.shape["data"],
            add_shards=lambda gradient: sharding.sum_over_data(gradient, gradient_shardings, gradient_dtype),
            gradient_dtype=gradient_dtype,
            generator=dropout_generator(experiment, mesh),
        )

    def evaluate(params: Any, carry: Any, batch: Batch, key: jax.Array) -> Any:
        return evaluation_step(
            params, carry, batch, key, objective=objective, module=module, vocabulary=vocabulary, unigram=unigram
        )

    begin = jax.jit(_scoped(initialize, mesh), out_shardings=shardings)
    return Program(
        phase=phase,
        mesh=mesh,
        module=module,
        train=jax.jit(
            _scoped(step, mesh),
            in_shardings=(shardings, batch_shardings),
            out_shardings=(shardings, whole),
            donate_argnums=0,
        ),
        evaluate=jax.jit(
            _scoped(evaluate, mesh),
            in_shardings=(shardings.params, shardings.carry, batch_shardings, whole),
            out_shardings=(shardings.carry, whole),
        ),
        initialize=lambda seed: begin(jax.random.key(seed)),
        start_carry=jax.jit(_scoped(lambda: nn.meta.unbox(carry()), mesh), out_shardings=shardings.carry),
        state=jax.tree.map(_place, abstract, shardings),
        batch=jax.tree.map(_place, batch, batch_shardings),
        axes=sharding.logical_axes(boxed_params),
    )


def initial_parameters(
    experiment: Experiment,
    phase: ResolvedPhase,
    module: nn.Module,
    vocabulary: Vocabulary,
    batch: dict[str, jax.ShapeDtypeStruct],
) -> Callable[[jax.Array], Any]:
    """What makes the parameters of the phase's module from a key, boxed with their logical axes."""
    objective = experiment.objective

    def init(key: jax.Array) -> Any:
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), batch)
        carry = nn.meta.unbox(objective.initial_carry(experiment.model, phase.batch_size, phase.sequence_length))
        return objective.init(module, key, objective.corrupt(zeros, key, vocabulary), carry)

    return init


def check_model(experiment: Experiment, phase: ResolvedPhase, vocabulary: Vocabulary) -> None:
    """Raises UserError when the tokenizer has more tokens, or a row more positions, than the model."""
    size = experiment.model.vocab_size
    if vocabulary.size > size:
        or_model = f" or set --model.vocab_size {vocabulary.size}" if isinstance(experiment.data, Data) else ""
        raise UserError(
            f"Expected a tokenizer of at most the model's {size} tokens, found {vocabulary.size}; take another one"
            f"{or_model}."
        )
    check_length(experiment, phase.sequence_length)


def check_length(experiment: Experiment, length: int) -> None:
    """Raises UserError when rows have more positions than the model; fine-tuning takes the model as it is."""
    positions = getattr(experiment.model, "longest", length)
    if length > positions:
        or_model = " or raise --model.max_position_embeddings" if isinstance(experiment.data, Data) else ""
        option = "--phases.N.sequence_length" if experiment.phases else "--data.sequence_length"
        raise UserError(
            f"Expected rows of at most the model's {positions} positions, found a sequence length of {length}; shorten "
            f"{option}{or_model}."
        )


def _scoped(function: Callable, mesh: jax.sharding.Mesh) -> Callable:
    """The function traced with the mesh and the logical axis rules in force, for the model's activation constraints."""

    def scoped(*arguments: Any) -> Any:
        with mesh, nn.logical_axis_rules(sharding.RULES):
            return function(*arguments)

    return scoped


def _place(leaf: Any, place: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


def _generator_key(key: jax.Array, generator: str) -> jax.Array:
    """A key of the named generator made from a threefry key."""
    if generator == "threefry2x32":
        return key
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=generator))).shape
    return jax.random.wrap_key_data(jax.random.bits(key, words, jnp.uint32), impl=generator)
