"""The mesh of a run: from its settings, or chosen for the model and the devices.

Data parallelism is preferred. Parameters and optimizer state are sharded over the devices, and each device computes
with a copy of all parameters (ZeRO). If a device has too little memory for that, the copy is sharded as well (fsdp).
The copy is also sharded if a large table, whose rows the objective names, has no dimension that the number of devices
divides: otherwise each device would store the complete table and add up a gradient of its size.
Heads and feed-forward are sharded (tensor) if the batch has fewer rows than there are devices, or if nothing else fits.
The memory is estimated from shapes, without compilation:

    state + gradient + rows x residuals of a row + residuals that do not depend on rows

Residuals are the arrays that the backward pass needs, including the copy of the parameters. They are counted in the
traced model itself, for every model, remat policy and dtype. For BERT-Large on v5e:8x8 the estimate is within 1 % of
the memory that the compiler reports.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment, in_phase
from plmjax.experiment.phases import ResolvedPhase
from plmjax.objectives.objective import LossInputs
from plmjax.parallel import mesh as meshes
from plmjax.parallel import parameter_shards as shares
from plmjax.parallel import sharding, topologies
from plmjax.training import constants, initial_state, step
from plmjax.training import program as programs

USABLE = 0.9
"""Fraction of a device's memory that an estimate may fill. The program, padding and fragmentation need the rest."""

LARGE_TABLE = 64 * 2**20
"""Bytes of looked-up tables from which another mesh is chosen, to shard them. The gradient of smaller tables takes less
time than another mesh would cost."""

Sizes = tuple[int, int, int]
Shapes = Callable[[ResolvedPhase], dict[str, jax.ShapeDtypeStruct]]


def text_batch_shapes(run: Experiment) -> Shapes:
    """Return a function from a phase to the shapes of its batches, for an experiment on text."""
    layout_of = functools.cache(lambda phase: in_phase(run, phase).data.layout)
    return lambda phase: layout_of(phase).batch(phase.batch_size, phase.sequence_length)


@dataclasses.dataclass(frozen=True)
class MeshChoice:
    """A mesh over the devices of a run, and the reason for it as text."""

    mesh: jax.sharding.Mesh
    reason: str


class StateBytes(NamedTuple):
    """Memory on a device that does not depend on the rows, in bytes.

    Attributes:
        kept: the state without its carry.
        copy: the gathered copy of the parameters.
        table: the largest parameter of that copy outside of the layers.
        rings: true if parameters and gradients travel along rings (`plmjax.parallel.rings`).
        whole_tables: the looked-up tables (`gradients.looked_up_rows`) that no axis of the mesh divides.
    """

    kept: int
    copy: int
    table: int
    rings: bool
    whole_tables: int


def choose_mesh(run: Experiment, devices: Sequence[jax.Device], vocabulary: Vocabulary, shapes: Shapes) -> MeshChoice:
    """Return the mesh of a run.

    shapes: function from a phase to a dict from field to shape and dtype of its global batch.

    Raises:
        UserError: the size of the mesh is not the number of devices.
    """
    resolved = run.resolved_phases
    every = meshes.candidates(run.mesh, len(devices), meshes.slices(devices))
    if len(every) == 1:
        return MeshChoice(
            meshes.make(run.mesh, devices, run.training.rings),
            "one device" if len(devices) == 1 else "as the run sets it",
        )
    possible = even_meshes(run, every, vocabulary, shapes)
    rows = _rows(resolved)
    few_rows = rows < len(devices)
    if not possible:
        # No mesh gives every device the same rows; the error of `programs.build` names batch sizes that fit.
        return MeshChoice(meshes.make(run.mesh, devices, run.training.rings), "all devices share the batch")
    why = [f"the batch has {rows} rows for {len(devices)} devices"] if few_rows else ["all devices share the batch"]
    memory = topologies.device_memory(devices[0])
    if memory is None:
        chosen = possible[0]
        why += ["the memory of a device is not known"]
    else:
        row_residuals = residuals_of_rows(run, resolved, devices[0].platform, vocabulary=vocabulary, shapes=shapes)
        bytes_of: dict[Sizes, float] = {}
        tables_of: dict[Sizes, int] = {}
        for sizes in possible:
            state = state_bytes(run, resolved[0], sizes, devices=devices, vocabulary=vocabulary, shapes=shapes)
            bytes_of[sizes] = max(
                bytes_needed(phase, sizes, state, one) for phase, one in zip(resolved, row_residuals, strict=True)
            )
            tables_of[sizes] = state.whole_tables
            if bytes_of[sizes] <= USABLE * memory and state.whole_tables < LARGE_TABLE:
                break
        fitting = [sizes for sizes in bytes_of if bytes_of[sizes] <= USABLE * memory]
        chosen = min(fitting, key=tables_of.get) if fitting else min(bytes_of, key=bytes_of.get)
        if chosen != possible[0]:
            why += [_reason_against(possible[0], bytes_of[possible[0]], tables_of[possible[0]], USABLE * memory)]
        fits = "" if fitting else "no mesh is likely to fit, the best "
        why += [f"{fits}needs about {bytes_of[chosen] / 2**30:.1f} of the {memory / 2**30:.1f} GiB of a device"]
    named = dataclasses.replace(run.mesh, **dict(zip(meshes.AXES, chosen, strict=True)))
    return MeshChoice(meshes.make(named, devices, run.training.rings), "; ".join(why))


def _reason_against(sizes: Sizes, needed: float, tables: int, usable: float) -> str:
    """Return the reason against a mesh: its memory, or tables that it does not shard."""
    if needed > usable:
        return f"{mesh_text(sizes)} would need about {needed / 2**30:.1f} GiB a device"
    return f"{mesh_text(sizes)} would leave tables of {tables / 2**30:.1f} GiB whole on every device"


def even_meshes(run: Experiment, every: Sequence[Sizes], vocabulary: Vocabulary, shapes: Shapes) -> list[Sizes]:
    """Return the meshes that give every device the same number of rows and divide the parameters evenly."""
    resolved = run.resolved_phases
    divided = any(sizes[1:] != (1, 1) for sizes in every)
    cut = _cut_dimensions(run, resolved[0], vocabulary, shapes) if divided else {}
    found = [sizes for sizes in every if _divides(sizes, resolved, cut)]
    # With enough rows for every device, an odd batch size is no reason to shard the layers.
    return [] if found and found[0][2] > every[0][2] and _rows(resolved) >= math.prod(every[0]) else found


def _rows(resolved: Sequence[ResolvedPhase]) -> int:
    return min(phase.batch_size // phase.accumulation for phase in resolved)


def mesh_text(sizes: Iterable[int]) -> str:
    """Return the sizes of a mesh as text: `data 8 x fsdp 2 x tensor 1`."""
    return " x ".join(f"{axis} {size}" for axis, size in zip(meshes.AXES, sizes, strict=True))


def _cut_dimensions(
    run: Experiment, phase: ResolvedPhase, vocabulary: Vocabulary, shapes: Shapes
) -> dict[str, set[int]]:
    """Return a dict from mesh axis to the sizes of the parameter dimensions that the axis must divide."""
    module = run.training_objective.module(run.model, programs.execution(run, "cpu"))
    init = initial_state.initial_variables(run, phase, module, vocabulary=vocabulary, batch=shapes(phase))
    found: dict[str, set[int]] = {"fsdp": set(), "tensor": set()}
    of = {"embed": "fsdp", "heads": "tensor", "mlp": "tensor"}
    boxes = jax.tree.leaves(
        jax.eval_shape(init, jax.random.key(0))["params"],
        is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned),
    )
    for box in (box for box in boxes if isinstance(box, nn.LogicallyPartitioned)):
        for name, size in zip(box.names, box.value.shape, strict=True):
            if name in of:
                found[of[name]].add(size)
    return found


def _divides(sizes: Sizes, resolved: list[ResolvedPhase], cut: dict[str, set[int]]) -> bool:
    data, fsdp, tensor = sizes
    shards = {"fsdp": fsdp, "tensor": tensor}
    return all(phase.batch_size % (data * fsdp * phase.accumulation) == 0 for phase in resolved) and all(
        size % shards[axis] == 0 for axis, dimensions in cut.items() for size in dimensions
    )


def state_bytes(
    run: Experiment,
    phase: ResolvedPhase,
    sizes: Sizes,
    *,
    devices: Sequence[jax.Device],
    vocabulary: Vocabulary,
    shapes: Shapes,
) -> StateBytes:
    """Return the bytes that do not depend on the rows, on a device of a mesh of these sizes."""
    named = dataclasses.replace(run.mesh, **dict(zip(meshes.AXES, sizes, strict=True)))
    grid = meshes.make(named, devices, run.training.rings)
    program = programs.build(run, phase, grid, vocabulary=vocabulary, shapes=shapes)
    state = program.state
    kept = (state.params, state.optimizer_state, state.collections, state.constants)
    axes = jax.tree.structure(program.copy).flatten_up_to(program.axes)
    single = [one for one, names in zip(jax.tree.leaves(program.copy), axes, strict=True) if "layers" not in names]
    largest = max(map(sharding.bytes_on_device, single), default=0)
    params, copied = (flax.traverse_util.flatten_dict(tree, sep="/") for tree in (state.params, program.copy))
    tables = [params[name] for name in params if name not in copied]
    whole = [table for table in tables if table.sharding.is_fully_replicated]
    return StateBytes(
        kept=sharding.bytes_on_device(kept),
        copy=sharding.bytes_on_device(program.copy),
        table=largest,
        rings=program.rings is not None,
        whole_tables=sharding.bytes_on_device(whole),
    )


def bytes_needed(phase: ResolvedPhase, sizes: Sizes, state: StateBytes, residuals: tuple[int, int]) -> float:
    """Return the bytes that a phase needs on a device of a mesh of these sizes.

    state: result of `state_bytes`. residuals: results of `residuals` for one row and for two rows.
    """
    data, fsdp, tensor = sizes
    rows = phase.batch_size // (data * fsdp * phase.accumulation)
    # The gradient of a single microbatch is sharded as soon as it is computed, layer by layer. Only the gradient of the
    # largest table exists twice, before and after it is summed; with rings also a third time, in the order of the
    # rings. The gradients of several microbatches are first added in float32.
    gradients = (3 if state.rings else 2) * state.table if phase.accumulation == 1 else 3 * state.copy
    one, two = residuals
    return state.kept + gradients + rows * (two - one) + (2 * one - two) / (fsdp * tensor)


def residuals_of_rows(
    run: Experiment, resolved: Sequence[ResolvedPhase], platform: str, *, vocabulary: Vocabulary, shapes: Shapes
) -> list[tuple[int, int]]:
    """Measure `residuals` for one row and for two rows of every phase; the difference is the cost of a row."""
    return [
        tuple(residuals(run, phase, rows, platform=platform, vocabulary=vocabulary, shapes=shapes) for rows in (1, 2))
        for phase in resolved
    ]


def residuals(
    run: Experiment, phase: ResolvedPhase, rows: int, *, platform: str, vocabulary: Vocabulary, shapes: Shapes
) -> int:
    """Return the bytes that the forward pass of `rows` rows saves for the backward pass.

    They include the copy of the parameters. Nothing is computed: the forward pass is traced, and the arrays that its
    transpose closes over are counted.
    """
    few = dataclasses.replace(phase, batch_size=rows, accumulation=1)
    batch = shapes(few)
    objective, how = run.training_objective, programs.execution(run, platform)
    module, dtype = objective.module(run.model, how), how.dtype
    init = initial_state.initial_variables(run, few, module, vocabulary=vocabulary, batch=batch)
    boxed = jax.eval_shape(init, jax.random.key(0))
    exchanged = jnp.dtype(run.training.gradient_dtype)
    dtypes = shares.dtypes(boxed["params"], dtype, exchanged)
    fixed = nn.meta.unbox(constants.shapes(objective, run.model, vocabulary))

    def backward(variables: dict[str, object], key: jax.Array) -> jax.tree_util.Partial:
        zeros, constant_zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (batch, fixed))
        carry = nn.meta.unbox(objective.initial_carry(run.model, rows, phase.sequence_length, dtype))
        corrupted = objective.corrupt(zeros, key, vocabulary, constant_zeros)
        loss_inputs = LossInputs(
            jax.tree.map(jnp.astype, variables.pop("params"), dtypes), constant_zeros, variables, carry
        )
        weights = objective.weights(corrupted)

        def loss(params: object) -> jax.Array:
            sums = objective.sums(module, loss_inputs.replace(params=params), corrupted, key, training=True)
            return step.total_loss(objective, sums.losses, weights)

        return jax.vjp(loss, loss_inputs.params)[1]

    leaves = jax.tree.leaves(jax.eval_shape(backward, nn.meta.unbox(boxed), jax.random.key(0)))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
