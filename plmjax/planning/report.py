"""Plans as text: a page for one slice, a table for several slices, and the results of a search."""

import io
from collections.abc import Callable, Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from plmjax.training.metrics import compact
from plmjax.training.placement import mesh_text

WIDTH = 120
KINDS = "The compiler's is a pessimistic bound; the ends of the refined one differ in the bandwidths that are reached."
"""Explanation of the two estimates."""
TABLE_WIDTH = 160  # enough for all columns


def page(made: dict[str, Any]) -> str:
    """Return the plan of one slice for a terminal or a log: memory, hours and cost, then a row per phase.

    If the plan has a breakdown, all other values follow.
    """
    console, out = _console()
    _answer(console, made)
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("phase", "steps", "length x rows", "HBM GiB", "step ms", "MFU"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("bound by", no_wrap=True)
    for phase in made["phases"]:
        shown.add_row(*_row(phase))
    console.print(shown)
    console.print(
        f"{made['chips']} chips, {made['cores']} cores, {made['devices']} devices ({made['device_kind']}), "
        f"{made['hosts']} hosts\n"
        f"mesh {mesh_text(made['mesh'].values())}: {made['mesh_reason']}\n"
        f"{made['model']}, {made['parameters']:,} parameters; compiled by {made['compiler']}",
        soft_wrap=True,
    )
    if "breakdown" in made["phases"][0]:
        _details(console, made)
    _findings(console, made, made["phases"])
    more = "" if "breakdown" in made["phases"][0] else " --breakdown shows memory, collectives and cycles of phases."
    kinds = "" if made["estimate"]["refined_hours"] is None else f" {KINDS}"
    console.print(f"All times are estimates, of train steps alone.{kinds}{more}", soft_wrap=True)
    return out.getvalue().rstrip()


def _answer(console: Console, made: dict[str, Any]) -> None:
    """Print the memory that the run needs, the tokens that it reads, and its hours and cost from low to high."""
    total, fullest = made["estimate"], max(made["phases"], key=lambda phase: phase["memory"]["total"])
    used, whole = (fullest["memory"][name] / 2**30 for name in ("total", "device"))
    in_phase = f" in phase {fullest['phase']}" if len(made["phases"]) > 1 else ""
    console.print(
        f"{made['topology']}: fits, with {used:.1f} of {whole:.0f} GiB of a device{in_phase}\n"
        f"reads {total['tokens']:,} tokens in {made['steps']:,} steps, {total['model_flops']:.3g} model FLOPs\n"
    )
    hours = {"estimate": total["hours"]}
    if total["refined_hours"] is not None:
        hours = {f"refined, {end}": total["refined_hours"][end] for end in ("fast", "slow")}
        hours["compiler's bound"] = total["hours"]
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    shown.add_column("")
    for name in hours:
        shown.add_column(name, justify="right", no_wrap=True)
    chips, price = made["chips"], total["price"]
    shown.add_row("hours", *(f"{each:,.1f}" for each in hours.values()))
    shown.add_row("chip-hours", *(f"{each * chips:,.0f}" for each in hours.values()))
    if price is not None:
        shown.add_row("cost", *(f"{each * chips * price:,.0f}" for each in hours.values()))
    console.print(shown)
    if price is None:
        console.print("cost: add --price, the price of a chip-hour in your currency, such as --price v5e=1.2")
    else:
        console.print(f"cost: at {price:g} a chip-hour, in the currency of --price")


def _row(phase: dict[str, Any]) -> list[str]:
    """Return a phase as the cells of a row. Step and MFU are those of the refined estimate if it is known."""
    estimate, memory, refined = phase["estimate"], phase["memory"], phase["refined"]
    step, mfu = f"{1e3 * estimate['step_seconds']:.1f}", f"{estimate['mfu']:.0%}"
    if refined:
        step = _range(refined, lambda end: f"{1e3 * end['step_seconds']:.1f}")
        mfu = _range(refined, lambda end: f"{end['mfu']:.0%}", slow_first=True)
    used = f"{memory['total'] / 2**30:.1f}"
    bound = {"hbm": "HBM"}.get(phase["bound_by"], phase["bound_by"])
    return [f"{phase['phase']}", f"{phase['steps']:,}", _size(phase), used, step, mfu, bound]


def _details(console: Console, made: dict[str, Any]) -> None:
    """Print memory, collectives, estimates and cycles of every phase."""
    for phase in made["phases"]:
        table = Table(show_header=False, title=f"phase {phase['phase']}: {phase['steps']:,} steps")
        for section in _rows(phase):
            for name, value in section:
                table.add_row(name, value)
            table.add_section()
        console.print(table)
        _breakdown(console, phase)
    console.print(f"by the roofline at least {made['estimate']['roofline_hours']:.1f} h")


def table(plans: list[dict[str, Any]]) -> str:
    """Return a table of several slices, one row per phase. A slice without a plan has its error below the table."""
    console, out = _console(TABLE_WIDTH)
    first = next((made for made in plans if "phases" in made), None)
    if first:
        console.print(f"{first['model']}, {first['parameters']:,} parameters; compiled by {first['compiler']}")
    names, rows = columns(plans)
    caption = (
        "Every time is an estimate. A step is bound by the largest of compute, HBM and interconnect (network). " + KINDS
    )
    shown = Table(caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    for name in names:
        header = name.replace(" ms", "\nms").replace(" MFU", "\nMFU").replace("refined hours", "refined\nhours")
        shown.add_column(header, justify="left" if name in ("slice", "bound by") else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*row, end_section=bool(row[-2] or row[-1]))
    console.print(shown)
    for made in plans:
        if "phases" in made:
            console.print(f"{made['topology']}: mesh {mesh_text(made['mesh'].values())}: {made['mesh_reason']}")
            for phase in made["phases"]:
                _breakdown(console, phase, f"{made['topology']}, ")
            _findings(console, made, made["phases"])
        else:
            console.print(f"{made['topology']}: {made['error']}", soft_wrap=True)
    return out.getvalue().rstrip()


def columns(plans: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return (header, rows) of the table of several slices: one row per phase, the last with the totals of the run."""
    priced = any(made.get("estimate", {}).get("cost") is not None for made in plans)
    names = ["slice", "length x rows", "HBM GiB", "compute ms", "HBM ms", "network ms", "bound by"]
    names += ["compiler ms", "step ms", "MFU", "refined ms", "refined MFU"]
    names += ["hours", "refined hours", "chip-hours", *(["cost"] if priced else [])]
    rows = []
    for made in (made for made in plans if "phases" in made):
        hours = made["estimate"]["refined_hours"]
        for phase in made["phases"]:
            estimate, memory, last = phase["estimate"], phase["memory"], phase is made["phases"][-1]
            cycles, refined = estimate["cycles_seconds"], phase["refined"]
            row = [
                made["topology"] if phase is made["phases"][0] else "",
                _size(phase),
                f"{memory['total'] / 2**30:.1f} of {memory['device'] / 2**30:.0f}",
                *(f"{1e3 * estimate[f'{name}_seconds']:.1f}" for name in ("compute", "hbm", "interconnect")),
                {"compute": "compute", "hbm": "HBM", "interconnect": "interconnect"}[phase["bound_by"]],
                f"{1e3 * cycles:.1f}" if cycles else "-",
                f"{1e3 * estimate['step_seconds']:.1f}",
                f"{estimate['mfu']:.0%}",
                _range(refined, lambda end: f"{1e3 * end['step_seconds']:.1f}") if refined else "-",
                _range(refined, lambda end: f"{end['mfu']:.0%}", slow_first=True) if refined else "-",
                f"{made['estimate']['hours']:.1f}" if last else "",
                _range(hours, lambda end: f"{end:.1f}") if last and hours else "",
                f"{made['estimate']['chip_hours']:,.0f}" if last else "",
            ]
            cost = made["estimate"]["cost"]
            rows.append(row + ([f"{cost:,.0f}" if last and cost is not None else ""] if priced else []))
    return names, rows


def _range(ends: dict[str, Any], shown: Callable[[Any], str], slow_first: bool = False) -> str:
    """Return both ends of a range as `48 to 53`, or a single number if both have the same text."""
    first, last = (shown(ends[name]) for name in (("slow", "fast") if slow_first else ("fast", "slow")))
    return first if first == last else f"{first.removesuffix('%')} to {last}"


def _size(phase: dict[str, Any]) -> str:
    microbatches = f" / {phase['accumulation']}" if phase["accumulation"] > 1 else ""
    return f"{phase['sequence_length']} x {phase['batch_size']}{microbatches}"


def search(found: dict[str, Any]) -> str:
    """Return the results of a search as text, the fastest first, then the options of the fastest."""
    console, out = _console()
    console.print(f"{found['topology']}: mesh {mesh_text(found['mesh'].values())}: {found['mesh_reason']}")
    shown = Table()
    names = ["batch", "remat", "phase", "rows x microbatches", "HBM GiB", "step ms", "tokens/s", "hours", "chip-hours"]
    priced = any(tried.get("cost") is not None for tried in found["tried"])
    for name in [*names, *(["cost"] if priced else [])]:
        shown.add_column(name, justify="right")
    for tried in found["tried"]:
        for phase in tried["phases"]:
            fits = "step_seconds" in phase
            whole = phase is tried["phases"][-1] and "hours" in tried
            shown.add_row(
                f"{phase['batch_size']}",
                tried["remat"],
                f"{phase['phase']}",
                f"{phase['rows_per_device']} x {phase['accumulation']}",
                f"{phase['memory'] / 2**30:.1f}" if fits else f"{phase['memory'] / 2**30:.1f}, too much",
                f"{1e3 * phase['step_seconds']:.1f}" if fits else "",
                f"{phase['tokens_per_second']:,.0f}" if fits else "",
                f"{tried['hours']:.1f}" if whole else "",
                f"{tried['chip_hours']:,.0f}" if whole else "",
                *([f"{tried['cost']:,.0f}" if whole else ""] if priced else []),
            )
        shown.add_section()
    console.print(shown)
    for sentence in found["left_out"]:
        console.print(sentence, soft_wrap=True)
    if found["overrides"] is None:
        console.print("None of these fits; take a larger slice or a smaller batch.")
    else:
        console.print(f"fastest: {' '.join(found['overrides']) or 'the run without changes'}", soft_wrap=True)
    return out.getvalue().rstrip()


def _console(width: int = WIDTH) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    on_terminal = Console().is_terminal
    return Console(file=out, width=width, highlight=False, force_terminal=on_terminal), out


def _findings(console: Console, made: dict[str, Any], phases: list[dict[str, Any]]) -> None:
    for phase in phases:
        for sentence in phase["findings"]:
            where = f"{made['topology']}, phase {phase['phase']}"
            console.print(f"finding ({where}): {sentence}", style="red", soft_wrap=True, markup=False)


def _refined(refined: dict[str, Any] | None, known_chip: bool) -> Iterator[tuple[str, str]]:
    if refined is None:
        yield "refined estimate", "not known: libtpu wrote no schedules" if known_chip else "not known for this chip"
        return
    unscheduled, open_loops = len(refined["unscheduled"]), len(refined["open_loops"])

    def times(name: str) -> str:
        return _range(refined, lambda end: f"{1e3 * end[f'{name}_seconds']:.2f}") + " ms"

    def assumed(name: str, form: str, scale: float = 1.0) -> str:
        return _range(refined, lambda end: form.format(scale * end["assumed"][name]))

    yield (
        "refined estimate: assumed",
        f"{assumed('hbm', '{:.0%}')} of the HBM's bandwidth, {assumed('links', '{:.0%}')} of the links'",
    )
    yield (
        "refined estimate: assumed",
        f"{assumed('startup', '{:g}', 1e6)} us to start each of {refined['hbm_instructions']:,} instructions that use "
        "the HBM",
    )
    yield (
        "refined estimate: compute and HBM",
        times("computing")
        + (f", {times('unscheduled')} of {unscheduled} as the compiler says" if unscheduled else "")
        + (f", {open_loops} have loops of unknown trips" if open_loops else ""),
    )
    yield "refined estimate: between instructions", f"{times('between')} of it, mainly the targets of permutes"
    yield "refined estimate: waiting for transfers", times("waiting_hbm")
    yield "refined estimate: waiting for the network", f"{times('waiting_network')}, {times('hidden_network')} hidden"
    tokens = _range(refined, lambda end: f"{end['tokens_per_second']:,.0f}", slow_first=True)
    yield "refined estimate: step", f"{times('step')}, {tokens} tokens/s"
    mfu = _range(refined, lambda end: f"{end['mfu']:.1%}", slow_first=True)
    yield "refined estimate: MFU", f"{mfu}, without dispatch by the host"


def _breakdown(console: Console, phase: dict[str, Any], where: str = "") -> None:
    if "breakdown" not in phase:
        return
    if phase["breakdown"] is None:
        console.print(f"{where}phase {phase['phase']}: no breakdown, as the refined estimate is not known")
        return
    rows = phase["breakdown"]["cycles"]
    total = {column: sum(row[column] for row in rows.values()) for column in ("compiler", "fast", "slow", "hbm_bytes")}
    shown = Table(title=f"{where}phase {phase['phase']}: Mcycles of a device, a step", box=box.SIMPLE_HEAD)
    for name, justify in (("category", "left"), ("compiler", "right"), ("refined", "right"), ("HBM GB", "right")):
        shown.add_column(name, justify=justify)
    for name, row in (rows | {"total": total}).items():
        compiler = f"{row['compiler'] / 1e6:.2f} ({row['compiler'] / total['compiler']:.0%})"
        mega = _range(row, lambda cycles: f"{cycles / 1e6:.2f}")
        refined = f"{mega} ({_range({end: row[end] / total[end] for end in ('fast', 'slow')}, '{:.0%}'.format)})"
        shown.add_row(name, compiler, refined, f"{row['hbm_bytes'] / 1e9:.2f}")
    console.print(shown)
    for one in phase["breakdown"]["largest_of_other"]:
        where = f" ({one['scope']})" if one["scope"] else ""
        console.print(f"other: {one['cycles'] / 1e6:.3f} {one['name']}{where}", soft_wrap=True, markup=False)


def _rows(phase: dict[str, Any]) -> Iterator[list[tuple[str, str]]]:
    memory, estimate = phase["memory"], phase["estimate"]
    yield [
        (
            "batch",
            f"{phase['rows_per_device']} rows x {phase['shards']} shards x {phase['accumulation']} microbatches = "
            f"{phase['batch_size']} rows of {phase['sequence_length']} = {phase['tokens_per_step']:,} tokens a step",
        )
    ]
    names = (
        "parameters",
        "optimizer",
        "constants",
        "carry_and_batch",
        "layout_padding",
        "results",
        "activations",
        "code",
    )
    yield [(f"HBM a device: {name.replace('_', ' ')}", f"{memory[name] / 2**20:10.1f} MiB") for name in names] + [
        (
            "HBM a device: total",
            f"{memory['total'] / 2**20:10.1f} MiB of {memory['device'] / 2**20:.0f} "
            f"({memory['total'] / memory['device']:.0%})",
        )
    ]
    total = sum(one["bytes"] * one["count"] for one in phase["collectives"])
    shown = [one for one in phase["collectives"] if one["bytes"] * one["count"] >= total / 1000]
    yield [
        (
            f"{one['kind']} {one['dtype']}",
            f"{one['count']:5d} x {one['bytes'] / 2**20:8.2f} MiB over {one['group']} devices",
        )
        for one in shown
    ] + [("collectives in total", f"{total / 2**20:.1f} MiB")]
    milliseconds = {name: f"{1e3 * value:9.2f} ms" for name, value in estimate.items() if "_seconds" in name and value}
    yield [
        ("model FLOPs a step", f"{compact(phase['model_flops'])}"),
        ("estimate: compute at peak", milliseconds["compute_seconds"]),
        ("estimate: HBM at full bandwidth", milliseconds["hbm_seconds"]),
        ("estimate: interconnect", milliseconds.get("interconnect_seconds", "none")),
        ("estimate: roofline", f"{milliseconds['roofline_seconds']}, bound by {phase['bound_by']}"),
        ("estimate: compiler's cycles", milliseconds.get("cycles_seconds", "not known for this chip")),
        ("estimate: step", f"{milliseconds['step_seconds']}, {estimate['tokens_per_second']:,.0f} tokens/s"),
        ("estimate: MFU", f"{estimate['mfu']:9.1%}, at least"),
        *_refined(phase["refined"], "cycles_seconds" in milliseconds),
        ("estimate: phase", f"{estimate['hours']:.1f} h, {estimate['chip_hours']:.0f} chip-hours"),
    ]
