"""Every figure of a plan or a search is printed under its own name, in its unit."""

import copy
from typing import Any

from plmjax.planning import report

GIB, MIB = 2**30, 2**20
MEMORY = {
    name: (number + 1) * MIB
    for number, name in enumerate(
        "parameters optimizer constants carry_and_batch layout_padding results activations code".split()
    )
}
SECONDS = "computing waiting_hbm waiting_network hidden_network unscheduled step".split()
ENDS = {
    name: {f"{part}_seconds": tens + 0.001 * place for place, part in enumerate(SECONDS, start=1)} | further
    for name, tens, further in (
        ("fast", 0.01, {"assumed": {"hbm": 0.92, "links": 0.9, "startup": 0.5e-6}, "mfu": 0.61,
                        "between_seconds": 0.0015, "tokens_per_second": 62_000.0}),
        ("slow", 0.02, {"assumed": {"hbm": 0.85, "links": 0.75, "startup": 1.5e-6}, "mfu": 0.51,
                        "between_seconds": 0.0025, "tokens_per_second": 52_000.0}),
    )
}  # fmt: skip
PHASE: dict[str, Any] = {
    "phase": 0, "steps": 900, "sequence_length": 128, "rows_per_device": 3, "shards": 4, "accumulation": 2,
    "batch_size": 24, "tokens_per_step": 3072, "parameters": 1_234_567,
    "memory": MEMORY | {"total": 4 * GIB, "device": 16 * GIB},
    "collectives": [
        {"kind": "all-gather", "dtype": "bf16", "count": 7, "bytes": 3 * MIB, "group": 4, "elements": 1, "gathered": 0},
        {"kind": "all-reduce", "dtype": "f32", "count": 1, "bytes": 16, "group": 2, "elements": 4, "gathered": 0},
    ],
    "model_flops": 5e12,
    "estimate": {
        "compute_seconds": 0.001, "hbm_seconds": 0.002, "interconnect_seconds": 0.003, "roofline_seconds": 0.004,
        "cycles": 9, "cycles_seconds": 0.005, "step_seconds": 0.006, "mfu": 0.17, "tokens_per_second": 512_000.0,
        "hours": 1.5, "chip_hours": 6.0,
    },
    "refined": ENDS | {"unscheduled": ["a", "b"], "open_loops": ["c"], "hbm_instructions": 1200},
    "bound_by": "interconnect", "findings": [], "compile_seconds": 3.0,
}  # fmt: skip
MADE: dict[str, Any] = {
    "topology": "v5e:2x2", "device_kind": "TPU v5 lite", "chips": 4, "cores": 5, "devices": 6, "hosts": 7,
    "mesh": {"data": 4, "fsdp": 1, "tensor": 1}, "mesh_reason": "as the run sets it", "compiler": "libtpu 1, jax 2",
    "model": "BertConfig", "parameters": 1_234_567, "steps": 1000, "phases": [PHASE],
    "estimate": {
        "hours": 2.5, "chip_hours": 10.0, "cost": 1234.0, "price": 123.4, "roofline_hours": 0.5, "model_flops": 4.5e15,
        "refined_hours": {"fast": 1.1, "slow": 1.75}, "tokens": 2_764_800,
    },
}  # fmt: skip


def rows(text: str) -> dict[str, str]:
    """Name -> value of the lines of a table of two columns; several lines of one name, or of none, are joined."""
    found: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        name, mark, value = (" ".join(part.split()) for part in line.strip()[1:-1].partition("│"))
        if mark:
            between = "; " if name else " "
            last = name or last
            found[last] = f"{found[last]}{between}{value}" if last in found else value
    return found


def test_a_page_answers_first() -> None:
    lines = report.page(MADE).splitlines()
    assert lines[0] == "v5e:2x2: fits, with 4.0 of 16 GiB of a device"
    assert lines[1] == "reads 2,764,800 tokens in 1,000 steps, 4.5e+15 model FLOPs"
    rows = [line.split() for line in lines]
    assert "refined, fast refined, slow compiler's bound".split() in rows
    assert ["hours", "1.1", "1.8", "2.5"] in rows and ["chip-hours", "4", "7", "10"] in rows
    assert ["cost", "543", "864", "1,234"] in rows and "cost: at 123.4 a chip-hour, in the currency of --price" in lines
    assert "0 900 128 x 24 / 2 4.0 16.0 to 26.0 51 to 61% interconnect".split() in rows
    assert not any("collectives in total" in line for line in lines) and "--breakdown" in lines[-1]
    assert "4 chips, 5 cores, 6 devices (TPU v5 lite), 7 hosts" in lines[10:]
    free = copy.deepcopy(MADE)
    free["estimate"] |= {"price": None, "refined_hours": None}
    free["phases"][0] |= {"refined": None, "breakdown": None}
    text = report.page(free)
    rows = [line.split() for line in text.splitlines()]
    assert ["estimate"] in rows and ["hours", "2.5"] in rows and ["chip-hours", "10"] in rows
    assert "--price" in text and "refined one differ" not in text and "refined one differ" in report.page(MADE)
    assert "libtpu wrote no schedules" in text and "no breakdown, as the refined estimate is not known" in text
    assert "0 900 128 x 24 / 2 4.0 6.0 17% interconnect".split() in rows


def test_a_breakdown_has_every_figure_of_a_phase() -> None:
    text = report.page(MADE | {"phases": [PHASE | {"breakdown": None}]})
    found = rows(text)
    batch = "3 rows x 4 shards x 2 microbatches = 24 rows of 128 = 3,072 tokens a step"
    assert found.pop("batch") == batch
    for number, name in enumerate(MEMORY, start=1):
        assert found.pop(f"HBM a device: {name.replace('_', ' ')}") == f"{number}.0 MiB"
    assert found.pop("HBM a device: total") == "4096.0 MiB of 16384 (25%)"
    assert found == {
        "all-gather bf16": "7 x 3.00 MiB over 4 devices",
        "collectives in total": "21.0 MiB",
        "model FLOPs a step": "5.0T",
        "estimate: compute at peak": "1.00 ms",
        "estimate: HBM at full bandwidth": "2.00 ms",
        "estimate: interconnect": "3.00 ms",
        "estimate: roofline": "4.00 ms, bound by interconnect",
        "estimate: compiler's cycles": "5.00 ms",
        "estimate: step": "6.00 ms, 512,000 tokens/s",
        "estimate: MFU": "17.0%, at least",
        "refined estimate: assumed": "92 to 85% of the HBM's bandwidth, 90 to 75% of the links'; 0.5 to 1.5 us to "
        "start each of 1,200 instructions that use the HBM",
        "refined estimate: compute and HBM": "11.00 to 21.00 ms, 15.00 to 25.00 ms of 2 as the compiler says, 1 have "
        "loops of unknown trips",
        "refined estimate: between instructions": "1.50 to 2.50 ms of it, mainly the targets of permutes",
        "refined estimate: waiting for transfers": "12.00 to 22.00 ms",
        "refined estimate: waiting for the network": "13.00 to 23.00 ms, 14.00 to 24.00 ms hidden",
        "refined estimate: step": "16.00 to 26.00 ms, 52,000 to 62,000 tokens/s",
        "refined estimate: MFU": "51.0 to 61.0%, without dispatch by the host",
        "estimate: phase": "1.5 h, 6 chip-hours",
    }
    lines = text.splitlines()
    assert "by the roofline at least 0.5 h" in lines
    assert "phase 0: 900 steps" in text


def test_a_table_has_one_row_a_phase_and_the_totals_in_the_last_one() -> None:
    last = PHASE | {"phase": 1, "accumulation": 1, "refined": None, "bound_by": "hbm"}
    last["estimate"] = PHASE["estimate"] | {"cycles_seconds": None}
    names, found = report.columns([MADE | {"phases": [PHASE, last]}, {"topology": "v2:2x2", "error": "too small"}])
    figures = ["4.0 of 16", "1.0", "2.0", "3.0"]
    assert names == [
        "slice", "length x rows", "HBM GiB", "compute ms", "HBM ms", "network ms", "bound by", "compiler ms", "step ms",
        "MFU", "refined ms", "refined MFU", "hours", "refined hours", "chip-hours", "cost",
    ]  # fmt: skip
    size, bound = "128 x 24 / 2", ["interconnect", "5.0", "6.0", "17%", "16.0 to 26.0", "51 to 61%"]
    assert found == [
        ["v5e:2x2", size, *figures, *bound, *[""] * 4],
        ["", "128 x 24", *figures, "HBM", "-", "6.0", "17%", "-", "-", "2.5", "1.1 to 1.8", "10", "1,234"],
    ]
    free = copy.deepcopy(MADE)
    free["estimate"]["cost"] = None
    assert report.columns([free])[0][-1] == "chip-hours"
    names, found = report.columns([free, MADE])
    assert names[-1] == "cost" and [row[-1] for row in found] == ["", "1,234"]


def test_cycles_by_part_are_millions_and_shares_of_their_column() -> None:
    """On a page, and below a table of slices, beside the mesh or the error of every slice."""
    cycles = {
        "attention": {"compiler": 3e6, "fast": 1e6, "slow": 1e6, "hbm_bytes": 2e9},
        "layers": {"compiler": 1e6, "fast": 1e6, "slow": 3e6, "hbm_bytes": 1e9},
    }
    largest = [{"cycles": 12_345.0, "name": "fusion.1", "scope": "jit(step)/add"}]
    phase = PHASE | {"breakdown": {"cycles": cycles, "largest_of_other": largest}}
    made = MADE | {"phases": [phase]}
    table = report.table([made, {"topology": "v2:2x2", "error": "too small " * 30}])
    assert "v5e:2x2: mesh data 4 x fsdp 1 x tensor 1: as the run sets it" in table.splitlines()
    assert table.endswith(f"v2:2x2: {'too small ' * 30}".rstrip())
    for text, where in ((report.page(made), ""), (table, "v5e:2x2, ")):
        assert f"{where}phase 0: Mcycles of a device, a step" in text
        lines = [line.split() for line in text.splitlines()]
        assert "attention 3.00 (75%) 1.00 (50 to 25%) 2.00".split() in lines
        assert "layers 1.00 (25%) 1.00 to 3.00 (50 to 75%) 1.00".split() in lines
        assert "total 4.00 (100%) 2.00 to 4.00 (100%) 3.00".split() in lines
        assert "other: 0.012 fusion.1 (jit(step)/add)" in text


def test_a_search_has_a_row_for_every_try() -> None:
    tried = {
        "remat": "full", "batch_size": 0, "hours": 2.5, "chip_hours": 10.0, "cost": None, "seconds_a_row": 1.0,
        "phases": [
            {"phase": 0, "batch_size": 64, "rows_per_device": 16, "accumulation": 1, "memory": 20 * GIB},
            {"phase": 0, "batch_size": 64, "rows_per_device": 8, "accumulation": 2, "memory": 9 * GIB,
             "step_seconds": 0.0125, "tokens_per_second": 4096.0, "steps": 9},
        ],
    }  # fmt: skip
    found = {key: MADE[key] for key in ("topology", "mesh", "mesh_reason")}
    found |= {"tried": [tried], "left_out": ["Not tried."], "overrides": ["--training.remat", "full"]}
    text = report.search(found)
    lines = [line.replace("│", " ").split() for line in text.splitlines()]
    assert "64 full 0 16 x 1 20.0, too much".split() in lines
    assert "64 full 0 8 x 2 9.0 12.5 4,096 2.5 10".split() in lines
    assert "Not tried." in text and text.endswith("fastest: --training.remat full") and "cost" not in text
    assert "cost" in report.search(found | {"tried": [tried | {"cost": 3.0}]})
    assert report.search(found | {"overrides": []}).endswith("fastest: the run without changes")
    text = report.search(found | {"overrides": None})
    assert text.endswith("None of these fits; take a larger slice or a smaller batch.")
