"""The plan of a run on a TPU slice, made without TPUs: memory, communication, speed and duration.

libtpu compiles the train step (`plmjax.training.program.build`) for the slice, once for each phase. Memory and
communication are read from the compiled program, and are exact. All times are estimates:

    compute       model FLOPs / (chips x peak)
    HBM           bytes that the program reads from and writes to HBM / HBM bandwidth
    interconnect  sum over collectives of count x sent bytes / links, on the busiest axis (`plmjax.planning.links`)
    roofline      the largest of the three: no program is faster
    cycles        the compiler's own estimate of everything but communication / clock. An instruction without one, a
                  gather or a Pallas kernel, has the refined estimate
    step          cycles + interconnect, as if they did not overlap; the roofline if there are no cycles
    refined       from the compiler's scheduled bundles, with overlap (`plmjax.planning.refined`)

MFU is model FLOPs / (step x chips x peak), for the step of either estimate. The compiler's estimate is a pessimistic
bound: it is right for matrix products and random bits, and several times too high for reductions, copies and stores of
stacked arrays. The refined estimate is a range. Its ends assume different fractions of the chip's bandwidths.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Experiment
from plmjax.objectives.capabilities import GeneratesText, rows_of
from plmjax.parallel import mesh as meshes
from plmjax.parallel import sharding, topologies
from plmjax.planning import collectives, hlo, links, refined, traffic
from plmjax.planning.breakdown import breakdown
from plmjax.planning.compilation import Compilation
from plmjax.planning.schedules import Schedule
from plmjax.training import paths
from plmjax.training import program as programs
from plmjax.training.metrics import compact


def prices(options: Sequence[str], used: Collection[str] = topologies.CHIPS) -> dict[str, float]:
    """Parse prices of a chip-hour: `1.2` and `v5e=1.2` -> {"": 1.2, "v5e": 1.2}.

    used: generations whose price is needed.

    Raises:
        UserError: a price is not a number from 0, or a generation is unknown or not in `used`.
    """
    found = {}
    for option in options:
        generation, _, price = option.rpartition("=")
        if generation and generation not in topologies.CHIPS:
            hint = nearest(generation, topologies.CHIPS)
            raise UserError(f"Expected a TPU generation in --price, found {quoted(generation)}; {hint}")
        if generation and generation not in used:
            raise UserError(f"Expected --price for {' or '.join(sorted(used))}, found one for {generation}; change it.")
        try:
            found[generation] = float(price)
        except ValueError:
            found[generation] = math.nan
        if not 0 <= found[generation] < math.inf:
            raise UserError(
                f"Expected --price to be a number or v5e=1.2, found {quoted(option)}; give a chip-hour's price."
            )
    return found


def price_of(part: topologies.Slice, prices: dict[str, float] | None) -> float | None:
    """Return the price of a chip-hour on a slice: that of its generation, else that of "". None without both."""
    prices = prices or {}
    return prices.get(part.chip.name, prices.get(""))


def findings(program: hlo.Program, compilation: Compilation, experiment: Experiment) -> list[str]:
    """Return one sentence for each wasteful part of a train step; an efficient step has none.

    These are: matrix products in float32 although bfloat16 was requested; gradients that are reduced more than once a
    step (a sum that the compiler turns into a ring of permutes is not found); logits at more positions than the
    objective predicts; parameters that are gathered more than once a step in pure data parallelism. Loops whose number
    of trips is not known are listed too.
    """
    found = [f"The trips of the loop {name} are not known, they are counted once." for name in program.unknown_loops]
    built, phase = compilation.program, compilation.program.phase
    if programs.execution(experiment, "tpu").dtype == jax.numpy.bfloat16:
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
    sizes, owned = shard_sizes(built.copy), shard_sizes(built.state.params)
    asked = looked_up_elements(experiment, built)
    tables = {name: owned[name] for name in asked}
    copied = sum(sizes.values())
    updated = copied + sum((asked if experiment.optimizer.by_rows else tables).values())
    communicated = collectives.collectives(program)
    floats = [one for one in communicated if one.dtype in ("f32", "bf16")]
    reductions = [one for one in floats if one.kind in ("all-reduce", "reduce-scatter")]
    reduced = sum((one.elements - one.gathered) * one.count for one in reductions)
    if reduced > 1.02 * updated:
        found.append(f"{compact(reduced)} elements are reduced a step, the gradient has {compact(updated)}.")
    if built.mesh.shape["data"] == built.mesh.size:
        gathered = sum(one.gathered * one.count for one in reductions)
        gathered += sum(one.elements * one.count for one in floats if one.kind == "all-gather")
        allowed = (copied if experiment.mesh.zero else 0) + sum(asked.values())
        if meshes.slices(list(built.mesh.devices.flat)) > 1:
            allowed += copied  # there a sum is a reduce-scatter, an exchange between slices and an all-gather
        if gathered > 1.02 * allowed:
            found.append(f"{compact(gathered)} elements are gathered a step, the parameters are {compact(allowed)}.")
    if experiment.finetuning is not None and not isinstance(experiment.objective, GeneratesText):
        return found  # a task of labels asks for no scores of tokens
    scores = program.largest(experiment.model.vocab_size)
    limit = predicted_positions(experiment, built) * experiment.model.vocab_size // meshes.batch_shards(built.mesh)
    if scores is not None and scores.size > max(1.02 * limit / phase.accumulation, *sizes.values(), *tables.values()):
        found.append(f"An array over the vocabulary is {list(scores.shape)}, {limit} elements are asked for.")
    return found


def predicted_positions(experiment: Experiment, program: programs.Program) -> int:
    """Return the number of positions of a global batch that the objective predicts."""

    def targets(batch: Any, constants: Any) -> Any:
        vocabulary = Vocabulary.placeholder(experiment.model.vocab_size)
        corrupted = experiment.training_objective.corrupt(batch, jax.random.key(0), vocabulary, constants)
        return experiment.training_objective.targets(corrupted)[0]

    return math.prod(_shapes(targets, program).shape)


def _shapes(function: Callable, program: programs.Program) -> Any:
    """Return the output shapes of a function of a global batch and the constants. Nothing is computed."""
    arguments = program.batch, program.state.constants
    return jax.eval_shape(function, *jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments))


def shard_sizes(params: Any) -> dict[str, int]:
    """Return a dict from path to the number of elements of a parameter on one device.

    params: a tree of jax.ShapeDtypeStruct with shardings.
    """
    sizes: dict[str, int] = {}
    paths.map_named(lambda name, leaf: sizes.setdefault(name, math.prod(leaf.sharding.shard_shape(leaf.shape))), params)
    return sizes


def looked_up_elements(experiment: Experiment, program: programs.Program) -> dict[str, int]:
    """Return a dict from a table's path to the number of elements that a global batch looks up, with repetitions."""

    def rows(batch: Any, constants: Any) -> Any:
        vocabulary = Vocabulary.placeholder(experiment.model.vocab_size)
        return rows_of(
            experiment.training_objective,
            experiment.training_objective.corrupt(batch, jax.random.key(0), vocabulary, constants),
        )

    widths: dict[str, int] = {}
    paths.map_named(lambda name, leaf: widths.setdefault(name, leaf.shape[-1]), program.state.params)
    return {name: math.prod(ids.shape) * widths[name] for name, ids in _shapes(rows, program).items()}


def unpriced_calls(costs: refined.Costs) -> list[str]:
    """Return one sentence for each custom call target of unknown time: one without an estimate and a schedule."""
    found = Counter[str]()
    for instruction, times in costs.computing():
        cost = costs[instruction]
        if instruction.target not in ("", *traffic.FREE_CALLS) and (cost.compiler, cost.source) == (None, "none"):
            found[instruction.target] += times
    return [
        f"{count} custom calls of {target} a step have neither an estimate nor a schedule; both estimates count their "
        f"HBM bytes alone."
        for target, count in found.items()
    ]


def costs_of(
    read: hlo.Program, schedules: Mapping[str, Schedule], chip: topologies.Chip
) -> tuple[refined.Costs, refined.Costs] | None:
    """Return the costs of a program on one device, at the fast and the slow end of `refined.RANGE`.

    The result is None if there are no schedules or the clock is not known.
    """
    if not schedules or not chip.clock:
        return None
    cycles = chip.devices * chip.clock  # of all devices of a chip together
    fast, slow = (
        refined.Rates(
            multiply_adds=chip.peak / 2 / cycles,
            bytes=end.hbm * chip.bandwidth / cycles,
            int8=chip.int8_peak / 2 / cycles,
            startup=end.startup * chip.clock,
        )
        for end in refined.RANGE
    )
    costs = refined.Costs(read, schedules, fast)
    return costs, costs.at(slow)


def hbm_seconds(read: hlo.Program, chip: topologies.Chip) -> float:
    """Return the seconds in which a device moves a program's HBM bytes, with its fraction of the chip's bandwidth."""
    return traffic.Traffic(read).total() / (chip.bandwidth / chip.devices)


def describe(
    experiment: Experiment, compilation: Compilation, part: topologies.Slice, with_breakdown: bool = False
) -> dict[str, Any]:
    """Return the plan of one phase; `with_breakdown` adds its cycles by category."""
    program, phase, chip = compilation.program, compilation.program.phase, part.chip
    read = hlo.Program(compilation.text)
    shards = meshes.batch_shards(program.mesh)
    flops = program.experiment.training_objective.train_flops(program.experiment.model, program.batch)
    communicated = collectives.collectives(read)
    compute = flops / (part.chips * chip.peak)
    hbm = hbm_seconds(read, chip)
    places = [device.coords for device in program.mesh.devices.flat]
    interconnect = links.busiest_seconds(read, part, places)
    ends = costs_of(read, compilation.schedules, chip)
    slow = ends[1] if ends else None
    cycles = round(sum(times * slow[one].estimated for one, times in slow.computing())) if slow else read.cycles()
    own = cycles / chip.clock if cycles and chip.clock else None
    roofline = max(compute, hbm, interconnect)
    seconds = roofline if own is None else own + interconnect
    tokens = experiment.data.tokens(phase.batch_size, phase.sequence_length)
    made = {
        "phase": phase.index,
        "steps": phase.steps,
        "sequence_length": phase.sequence_length,
        "rows_per_device": phase.rows_per_device(shards),
        "shards": shards,
        "accumulation": phase.accumulation,
        "batch_size": phase.batch_size,
        "tokens_per_step": tokens,
        "parameters": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(program.state.params)),
        "memory": _memory(compilation) | {"device": part.device_memory},
        "collectives": [dataclasses.asdict(one) for one in communicated],
        "model_flops": flops,
        "estimate": {
            "compute_seconds": compute,
            "hbm_seconds": hbm,
            "interconnect_seconds": interconnect,
            "roofline_seconds": roofline,
            "cycles": cycles or None,
            "cycles_seconds": own,
            **_speed(compute, tokens, seconds),
            "hours": phase.steps * seconds / 3600,
            "chip_hours": phase.steps * seconds / 3600 * part.chips,
        },
        "refined": None,
        "bound_by": max((compute, "compute"), (hbm, "hbm"), (interconnect, "interconnect"))[1],
        "findings": findings(read, compilation, experiment) + (unpriced_calls(slow) if slow else []),
        "compile_seconds": compilation.seconds,
    }
    if with_breakdown:
        made["breakdown"] = None
    if ends:
        communication = [links.transmissions(read, part, places, end.links) for end in refined.RANGE]
        times = [refined.timeline(costs, network) for costs, network in zip(ends, communication, strict=True)]
        made["refined"] = {
            name: {"assumed": dataclasses.asdict(end)}
            | _parts(costs, time, chip.clock)
            | _speed(compute, tokens, time.total / chip.clock)
            for name, end, costs, time in zip(("fast", "slow"), refined.RANGE, ends, times, strict=True)
        }
        made["refined"] |= {
            "unscheduled": [one.name for one, _ in _without_schedule(slow)],
            "open_loops": [
                one.name for one, _ in slow.computing() if slow[one].open_loops and slow[one].compiler is None
            ],
            "hbm_instructions": sum(runs for one, runs in read.top_level if slow[one].hbm_bytes),
        }
        if with_breakdown:
            sent = interconnect * chip.clock
            made["breakdown"] = breakdown(ends, times, sent, _parameter_sizes(program))
    return made


def _memory(compilation: Compilation) -> dict[str, int]:
    """Return the bytes of each part of the memory needed on a device, and their total."""
    program, memory = compilation.program, compilation.memory
    state = program.state
    parameters, optimizer = sharding.bytes_on_device(state.params), sharding.bytes_on_device(state.optimizer_state)
    fixed = sharding.bytes_on_device((state.constants, state.collections))
    rest = sharding.bytes_on_device((state.carry, state.key, state.step, program.batch))
    return {
        "parameters": parameters,
        "optimizer": optimizer,
        "constants": fixed,
        "carry_and_batch": rest,
        "layout_padding": memory.argument_size_in_bytes - parameters - optimizer - fixed - rest,
        "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "activations": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "total": compilation.total,
    }


def _parts(costs: refined.Costs, time: refined.Timeline, clock: float) -> dict[str, float]:
    """Return the parts of a step's refined estimate at one end of its range, in seconds."""
    return {
        "computing_seconds": time.computing / clock,
        "between_seconds": time.between / clock,
        "waiting_hbm_seconds": time.waiting_hbm / clock,
        "waiting_network_seconds": time.waiting_network / clock,
        "hidden_network_seconds": (time.network - time.waiting_network) / clock,
        "unscheduled_seconds": sum(times * costs[one].refined for one, times in _without_schedule(costs)) / clock,
    }


def _speed(compute: float, tokens: int, seconds: float) -> dict[str, float]:
    """Return the speed of a step that takes `seconds`. compute: the seconds of its model FLOPs at peak."""
    return {"step_seconds": seconds, "mfu": compute / seconds, "tokens_per_second": tokens / seconds}


def _without_schedule(costs: refined.Costs) -> list[tuple[hlo.Instruction, int]]:
    return [(one, times) for one, times in costs.computing() if costs[one].source == "compiler"]


def _parameter_sizes(program: programs.Program) -> set[int]:
    """Return the numbers of elements of the parameters and the optimizer state, of whole arrays and of shards."""
    leaves = jax.tree.leaves((program.state.params, program.state.optimizer_state))
    return {math.prod(shape) for leaf in leaves for shape in (leaf.shape, leaf.sharding.shard_shape(leaf.shape))}
