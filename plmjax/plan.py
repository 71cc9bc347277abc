"""The plan of a run on a TPU slice that is not here: does it fit, what does it communicate, how fast, how long.

The very train step of the trainer (`plmjax.training.step.build`) is compiled by libtpu for the slice, once a phase.
What is read from the compiled program is exact (memory, communication); every time is an estimate and is called one:

    compute       model FLOPs / (chips x peak)
    HBM           bytes the program moves to and from HBM, loops multiplied / HBM bandwidth
    interconnect  sum over collectives of count x sent bytes / links, where a chip sends for an array of b bytes on c
                  chips: all-reduce 2 b (c-1)/c; all-gather, reduce-scatter and all-to-all b (c-1)/c; permute b on one
                  link. A group of less than the whole slice has the links of one axis. What goes from slice to
                  slice has a chip's share of its host's network.
    roofline      the largest of the three: no program is faster
    cycles        the compiler's own estimate of everything but communication / clock
    step          cycles + interconnect, as if neither hid the other; the roofline where there are no cycles

MFU is model FLOPs / (step x chips x peak).
"""

import dataclasses
import importlib.metadata
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Data, Experiment
from plmjax.parallel import hlo, sharding, topologies
from plmjax.parallel import mesh as meshes
from plmjax.training import checks, phases, placement, step
from plmjax.training.metrics import compact
from plmjax.training.phases import ResolvedPhase
from plmjax.vocabulary import Vocabulary


class DoesNotFit(Exception):
    """The compiler found too little HBM: bytes `needed` and `available` on a device."""

    def __init__(self, needed: float, available: float) -> None:
        super().__init__(f"{needed:.0f} of {available:.0f} bytes")
        self.needed, self.available = needed, available


@dataclasses.dataclass(frozen=True)
class Compilation:
    """The train step of one phase, compiled. `text` is the optimised program as the compiler wrote it down."""

    program: step.Program
    memory: Any
    text: str
    seconds: float

    @property
    def total(self) -> int:
        """HBM of a device, bytes: arguments and results (donated ones once), temporaries and code."""
        memory = self.memory
        held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        return held + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes


def plan(experiment: Experiment, topology: str, prices: dict[str, float] | None = None) -> dict[str, Any]:
    """Everything `plmjax plan` prints, as JSON data; bytes, seconds and FLOPs where a name does not say otherwise.

    prices: generation (or "" for every other) -> price of a chip-hour, in any currency.

    Raises:
        UserError: an unknown topology, no libtpu, a batch that does not divide by the mesh, or one that does not fit
            (the message then names what does).
    """
    from plmjax import plan_search

    part = topologies.parse(topology)
    check(experiment, part)
    placed = place(experiment, part)
    mesh, parts = placed.mesh, []
    devices = list(mesh.devices.flat)
    for phase in phases.resolve(experiment):
        print(f"phase {phase.index}: compiling the train step for {part.name} ...", file=sys.stderr, flush=True)
        try:
            compilation = compile_phase(experiment, phase, mesh)
        except DoesNotFit as error:
            raise UserError(plan_search.what_fits(experiment, phase, mesh, part, error)) from None
        parts.append(describe(experiment, compilation, part))
    price = price_of(part, prices)
    seconds = sum(made["steps"] * made["estimate"]["step_seconds"] for made in parts)
    bound = sum(made["steps"] * made["estimate"]["roofline_seconds"] for made in parts)
    return {
        "topology": part.name,
        "device_kind": devices[0].device_kind,
        "chips": part.chips,
        "cores": part.chips * part.chip.cores,
        "devices": len(devices),
        "hosts": len({device.process_index for device in devices}),
        "mesh": dict(mesh.shape),
        "mesh_reason": placed.reason,
        "compiler": f"libtpu {importlib.metadata.version('libtpu')}, jax {jax.__version__}",
        "model": type(experiment.model).__name__,
        "parameters": parts[0]["parameters"],
        "steps": experiment.training.steps,
        "phases": parts,
        "estimate": {
            "hours": seconds / 3600,
            "chip_hours": seconds / 3600 * part.chips,
            "cost": None if price is None else price * seconds / 3600 * part.chips,
            "roofline_hours": bound / 3600,
            "model_flops": sum(made["steps"] * made["model_flops"] for made in parts),
        },
    }


def plan_or_error(experiment: Experiment, topology: str, prices: dict[str, float]) -> dict[str, Any]:
    """A plan; of a slice that the run does not fit, the topology and the sentence that says so."""
    topologies.parse(topology)  # a misspelt slice is no result
    try:
        return plan(experiment, topology, prices)
    except UserError as error:
        return {"topology": topology, "error": str(error)}


def prices(options: Sequence[str]) -> dict[str, float]:
    """`1.2` and `v5e=1.2` -> {"": 1.2, "v5e": 1.2}.

    Raises:
        UserError: no price, or one of no generation.
    """
    found = {}
    for option in options:
        generation, _, price = option.rpartition("=")
        if generation and generation not in topologies.CHIPS:
            raise UserError(
                f"{quoted(generation)} in --price is no TPU generation; {nearest(generation, topologies.CHIPS)}"
            )
        try:
            found[generation] = float(price)
        except ValueError:
            found[generation] = math.nan
        if not 0 <= found[generation] < math.inf:
            raise UserError(
                f"Expected --price to be a number or v5e=1.2, found {quoted(option)}; give a chip-hour's price."
            )
    return found


def check(experiment: Experiment, part: topologies.Slice) -> None:
    """Raises UserError for an experiment that cannot be planned on a slice."""
    if not isinstance(experiment.data, Data):
        raise UserError(f"Expected an experiment on text to plan, found one on {type(experiment.data).__name__}.")
    if part.slices > 1 and not part.chip.network:
        raise UserError(
            f"Expected a generation whose network between slices is known, found {part.name}; plan one slice of it."
        )
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")  # only the compiler is asked, no accelerator of this machine
    # JAX decides at its first program whether programs are kept, and could not read those of the slice back.
    jax.config.update("jax_enable_compilation_cache", False)
    checks.pretraining(experiment, part.chips * part.chip.devices, part.slices)


def price_of(part: topologies.Slice, prices: dict[str, float] | None) -> float | None:
    """The price of a chip-hour of the slice, of its own generation or of every other; None where none is given."""
    prices = prices or {}
    return prices.get(part.chip.name, prices.get(""))


def place(experiment: Experiment, part: topologies.Slice) -> placement.Placement:
    """The mesh of an experiment on a slice that is not here."""
    vocabulary = Vocabulary.placeholder(experiment.model.vocab_size)
    return placement.place(experiment, part.devices(), vocabulary, placement.of_layout(experiment))


def compile_phase(experiment: Experiment, phase: ResolvedPhase, mesh: jax.sharding.Mesh) -> Compilation:
    """Compiles a phase's train step for the mesh's devices.

    Raises:
        DoesNotFit: it needs more HBM than a device has.
    """
    start = time.perf_counter()
    vocabulary = Vocabulary.placeholder(experiment.model.vocab_size)
    shapes = experiment.data.layout.batch(phase.batch_size, phase.sequence_length)
    program = step.build(experiment, phase, mesh, vocabulary, shapes)
    lowered = program.train.lower(program.state, program.batch)
    with tempfile.TemporaryDirectory() as folder:
        try:
            # jaxlib cannot read back every program of the newest chips (`as_text` fails); the compiler's dump is whole.
            compiled = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        except jax.errors.JaxRuntimeError as error:
            too_large = out_of_memory(str(error))
            if too_large is None:
                raise
            raise too_large from None
        written = [*Path(folder).glob("*after_codegen.txt"), *Path(folder).glob("*.after_optimizations.txt")]
        text = written[0].read_text(encoding="utf-8")
    return Compilation(program, compiled.memory_analysis(), text, time.perf_counter() - start)


def out_of_memory(message: str) -> DoesNotFit | None:
    """What the compiler said about HBM, in either of its two ways; None for an error of another kind."""
    sizes = r"([\d.]+)([KMGT])"
    ways = (rf"Used {sizes} of {sizes} hbm", rf"\({sizes}\) exceeds available HBM \({sizes}\)")
    found = next(filter(None, (re.search(way, message) for way in ways)), None)
    if "RESOURCE_EXHAUSTED" not in message or found is None:
        return None
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return DoesNotFit(*(float(found[i]) * units[found[i + 1]] for i in (1, 3)))


def interconnect_seconds(collectives: list[hlo.Collective], part: topologies.Slice) -> float:
    """Estimate of the time a step's communication takes on the slice's links when nothing else disturbs it."""
    seconds = 0.0
    for one in collectives:
        if one.kind == "send":
            seconds += one.count * one.bytes / (part.chip.network / part.chip.devices)
            continue
        whole = one.group == part.chips * part.chip.devices // part.slices
        chips = part.chips // part.slices if whole else one.group
        links = part.link_bandwidth if whole else part.chip.link
        if chips == 1:
            continue
        sent = one.bytes * (chips - 1) / chips
        if one.kind == "all-reduce":
            sent *= 2
        if one.kind == "collective-permute":
            sent, links = one.bytes, part.chip.link
        seconds += one.count * sent / links
    return seconds


def findings(program: hlo.Program, compilation: Compilation, experiment: Experiment) -> list[str]:
    """What a good train step does not do, one sentence each; an empty list is what to expect.

    Looked for: matrix products on float32 where bfloat16 was asked for; gradients sent over the network more than once
    a step (a sum that the compiler spreads over a ring of permutes is not seen); scores of the vocabulary at more
    positions than the objective predicts; parameters gathered in pure data parallelism more than once a step (which
    ZeRO does after its update).
    """
    found = [f"The trips of the loop {name} are not known, they are counted once." for name in program.unknown_loops]
    built, phase = compilation.program, compilation.program.phase
    if step.execution(experiment, "tpu").dtype == jax.numpy.bfloat16:
        products = program.matmuls()
        single = [product for product in products if set(product.dtypes) == {"f32"}]
        mixed = [product for product in products if "f32" in product.dtypes and product not in single]
        for kind, these in (("float32", single), ("float32 and bfloat16", mixed)):
            if these:
                largest = max(these, key=lambda product: math.prod(map(math.prod, product.shapes)))
                found.append(
                    f"{sum(p.count for p in these)} of {sum(p.count for p in products)} matrix products a step take "
                    f"{kind} operands, the largest {' x '.join(str(list(shape)) for shape in largest.shapes)}."
                )
    sizes = [math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(built.state.params)]
    collectives = program.collectives()
    floats = [one for one in collectives if one.dtype in ("f32", "bf16")]
    reduced = sum(one.elements * one.count for one in floats if one.kind in ("all-reduce", "reduce-scatter"))
    if reduced > 1.02 * sum(sizes):
        found.append(f"{compact(reduced)} elements are reduced a step, the gradient has {compact(sum(sizes))}.")
    if built.mesh.shape["data"] == built.mesh.size:
        gathered = sum(one.elements * one.count for one in floats if one.kind == "all-gather")
        allowed = sum(sizes) if experiment.mesh.zero else 0
        if meshes.slices(list(built.mesh.devices.flat)) > 1:
            allowed += sum(sizes)  # there a sum is a reduce-scatter, an exchange between slices and an all-gather
        if gathered > 1.02 * allowed:
            found.append(f"{compact(gathered)} elements are gathered a step, the parameters are {compact(allowed)}.")
    scores = program.largest(experiment.model.vocab_size)
    limit = predicted(experiment, built) * experiment.model.vocab_size // meshes.batch_shards(built.mesh)
    if scores is not None and scores.size > max(1.02 * limit / phase.accumulation, max(sizes)):
        found.append(f"An array over the vocabulary is {list(scores.shape)}, {limit} elements are asked for.")
    return found


def predicted(experiment: Experiment, program: step.Program) -> int:
    """Positions of a global batch that the objective asks a model about."""

    def targets(batch: Any) -> Any:
        vocabulary = Vocabulary.placeholder(experiment.model.vocab_size)
        corrupted = experiment.objective.corrupt(batch, jax.random.key(0), vocabulary)
        return experiment.objective.targets(corrupted)[0]

    plain = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in program.batch.items()}
    return math.prod(jax.eval_shape(targets, plain).shape)


def describe(experiment: Experiment, compilation: Compilation, part: topologies.Slice) -> dict[str, Any]:
    program, memory, phase = compilation.program, compilation.memory, compilation.program.phase
    state, chip = program.state, part.chip
    read = hlo.Program(compilation.text)
    shards = meshes.batch_shards(program.mesh)
    flops = experiment.objective.train_flops(experiment.model, program.batch)
    collectives = read.collectives()
    compute = flops / (part.chips * chip.peak)
    hbm = read.hbm_bytes() / (chip.bandwidth / chip.devices)
    interconnect = interconnect_seconds(collectives, part)
    cycles = read.cycles()
    own = cycles / chip.clock if cycles and chip.clock else None
    roofline = max(compute, hbm, interconnect)
    seconds = roofline if own is None else own + interconnect
    parameters, optimizer = sharding.bytes_on_device(state.params), sharding.bytes_on_device(state.optimizer_state)
    rest = sharding.bytes_on_device((state.carry, state.key, state.step, program.batch))
    tokens = phase.batch_size * phase.sequence_length
    return {
        "phase": phase.index,
        "steps": phase.steps,
        "sequence_length": phase.sequence_length,
        "rows_per_device": phase.batch_size // (shards * phase.accumulation),
        "shards": shards,
        "accumulation": phase.accumulation,
        "batch_size": phase.batch_size,
        "tokens_per_step": tokens,
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)),
        "memory": {
            "parameters": parameters,
            "optimizer": optimizer,
            "carry_and_batch": rest,
            "layout_padding": memory.argument_size_in_bytes - parameters - optimizer - rest,
            "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
            "activations": memory.temp_size_in_bytes,
            "code": memory.generated_code_size_in_bytes,
            "total": compilation.total,
            "device": part.device_memory,
        },
        "collectives": [dataclasses.asdict(one) for one in collectives],
        "model_flops": flops,
        "estimate": {
            "compute_seconds": compute,
            "hbm_seconds": hbm,
            "interconnect_seconds": interconnect,
            "roofline_seconds": roofline,
            "cycles": cycles or None,
            "cycles_seconds": own,
            "step_seconds": seconds,
            "mfu": compute / seconds,
            "tokens_per_second": tokens / seconds,
            "hours": phase.steps * seconds / 3600,
            "chip_hours": phase.steps * seconds / 3600 * part.chips,
        },
        "bound_by": max((compute, "compute"), (hbm, "hbm"), (interconnect, "interconnect"))[1],
        "findings": findings(read, compilation, experiment),
        "compile_seconds": compilation.seconds,
    }
