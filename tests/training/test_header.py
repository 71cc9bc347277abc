"""The lines before a run's first step."""

import types

import pytest

from plmjax.parallel.peak import PeakFlops
from plmjax.training import header
from tests.families import STEPS
from tests.third_party import experiments
from tests.training.built import program

GIB = 2**30
MEMORY = types.SimpleNamespace(
    argument_size_in_bytes=3 * GIB,
    output_size_in_bytes=2 * GIB,
    alias_size_in_bytes=2 * GIB,
    temp_size_in_bytes=GIB // 2,
)


def lines(**settings) -> list[str]:
    make, source = STEPS["gpt2"]
    run = experiments.changed(make(), training={"steps": 2} | settings)
    built = program(run, source, 8)
    compiled = types.SimpleNamespace(memory_analysis=lambda: MEMORY)
    return header.lines(run, built, compiled, flops=2e9, peak_flops=PeakFlops(built.mesh), compile_seconds=61.0, step=1)


def test_it_says_what_a_device_holds_and_where_the_run_continues() -> None:
    phase, devices, batch, model, memory, _ = lines()
    assert phase.endswith("of 2, continuing from step 1") and devices.startswith("devices  8 x cpu")
    assert "2 rows x 8 shards x 1 microbatches = 16 rows" in batch and "2.0GFLOP a step" in model
    assert memory == "memory   3.00 GiB state and batch + 0.50 GiB temporary a device"


def test_rows_are_those_of_a_microbatch_on_a_device() -> None:
    found = lines(batch_size=32, accumulation=2)[2]
    assert "2 rows x 8 shards x 2 microbatches = 32 rows of 16 = 512 tokens a step" in found


@pytest.mark.parametrize(("generator", "said"), [("rbg", True), ("threefry2x32", False), ("auto", False)])
def test_it_warns_of_masks_that_depend_on_the_mesh(generator: str, said: bool) -> None:
    assert ("dropout  rbg: another mesh draws other masks" in lines(dropout_prng=generator)[-1]) is said


@pytest.mark.parametrize(
    ("before", "backend", "said"), [(0, "cpu", False), (8, "cpu", False), (4, "cpu", True), (4, "tpu", False)]
)
def test_another_number_of_cores_is_told_on_a_cpu(before: int, backend: str, said: bool, monkeypatch) -> None:
    monkeypatch.setattr(header.platform, "cores", lambda: 8)
    monkeypatch.setattr(header.jax, "default_backend", lambda: backend)
    assert [line[:20] for line in header.cores(before)] == (["cores    8, 4 before"] if said else [])
