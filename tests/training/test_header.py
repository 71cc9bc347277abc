"""The lines before a run's first step."""

import types

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


def test_it_says_what_a_device_holds_where_the_run_continues_and_when_masks_depend_on_the_mesh() -> None:
    make, source = STEPS["gpt2"]
    for generator in ("rbg", "threefry2x32"):
        training = {"steps": 2, "batch_size": 32, "accumulation": 2, "dropout_prng": generator}
        run = experiments.changed(make(), training=training)
        built, compiled = program(run, source, 8), types.SimpleNamespace(memory_analysis=lambda: MEMORY)
        rates = {"flops": 2e9, "peak_flops": PeakFlops(built.mesh), "compile_seconds": 61.0}
        phase, devices, batch, model, memory, *_, last = header.lines(run, built, compiled, **rates, step=1)
        assert phase.endswith("of 2, continuing from step 1") and devices.startswith("devices  8 x cpu")
        assert "2 rows x 8 shards x 2 microbatches = 32 rows of 16 = 512 tokens a step" in batch
        assert memory == "memory   3.00 GiB state and batch + 0.50 GiB temporary a device"
        assert "2.0GFLOP a step" in model
        assert last.startswith("dropout  rbg: another mesh" if generator == "rbg" else "compile  1:01 min; MFU")


def test_another_number_of_cores_is_told_on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(header.platform, "cores", lambda: 8)
    assert [len(header.cores(before)) for before in (0, 8, 4)] == [0, 0, 1]
    monkeypatch.setattr(header.jax, "default_backend", lambda: "tpu")
    assert header.cores(4) == []
