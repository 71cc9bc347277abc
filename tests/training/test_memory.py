"""What a run says of the memory of a step: before its first step, and where it is too little."""

import dataclasses
import types
from types import SimpleNamespace

import jax
import pytest

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.experiment.phases import ResolvedPhase
from plmjax.parallel import topologies
from plmjax.parallel.peak import PeakFlops
from plmjax.training import header, loop, memory
from tests.families import STEPS
from tests.third_party import experiments
from tests.third_party.source import ChainSource
from tests.training.built import program

GIB = 2**30
HALVES = (experiment.Phase(0.5), experiment.Phase(0.5))


def run(**training):
    return experiments.changed(experiments.gpt2(), training={"steps": 2, "batch_size": 64, **training})


def of_phases(**training):
    return dataclasses.replace(run(**training), phases=HALVES)


def test_a_step_that_needs_more_than_a_device_has_is_refused_with_microbatches_that_fit(monkeypatch):
    # 2 parts need 28 GiB, 4 need 15.5, which is more than nine tenths of 16, and 8 need 9.25. 3 GiB and a 32nd part of
    # 50 GiB are less than nine tenths of 5.1 GiB, a 16th part is more: one row a device.
    sizes = {"argument_size": 3 * GIB, "output_size": 2 * GIB, "alias_size": 2 * GIB, "temp_size": 50 * GIB}
    sizes = SimpleNamespace(**{f"{name}_in_bytes": size for name, size in sizes.items()})
    compiled = SimpleNamespace(memory_analysis=lambda: sizes)
    phase = ResolvedPhase(0, 0, 1, sequence_length=16, batch_size=64, accumulation=2)
    mesh = jax.sharding.Mesh([[jax.devices()[:2]]], ("data", "fsdp", "tensor"))
    second = dataclasses.replace(phase, index=1, declared=1)
    for available, asked, of, sentence in (
        (16.0, run(), phase, "a step of phase 0 to fit into the 16.0 GiB of a device, found 32 rows of 16 a device to "
         "need 53.0 GiB; take more microbatches with --training.accumulation 16, --training.remat full or fewer rows "
         "with --training.batch_size."),
        (5.1, run(), phase, "--training.accumulation 64, "),
        (5.0, run(), phase, "--training.accumulation, "),
        (16.0, of_phases(remat="full"), second, "--phases.1.accumulation 16 or fewer rows with --phases.1.batch_size."),
    ):  # fmt: skip
        monkeypatch.setattr(memory, "_available", lambda device, available=available: available * GIB)
        with pytest.raises(UserError) as raised:
            memory.check(asked, SimpleNamespace(mesh=mesh, phase=of), compiled)
        assert sentence in str(raised.value)
    monkeypatch.setattr(memory, "_available", lambda device: 53.0 * GIB)  # all of it
    memory.check(run(), SimpleNamespace(mesh=mesh, phase=phase), compiled)


@pytest.mark.nightly
def test_the_trainer_asks_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_available", lambda device: 1000.0)
    with pytest.raises(UserError, match=r"rows of 16 a device to need .* GiB; take more microbatches"):
        loop.train(run(), tmp_path, ChainSource(run().data), tokenizer={})
    assert not (tmp_path / "metrics.jsonl").read_text()


def test_an_error_of_the_device_is_explained_where_it_is_one_of_memory() -> None:
    phase = SimpleNamespace(declared=1, accumulation=1, sequence_length=24, batch_size=8)
    v5e, detail = topologies.parse("v5e:1x1").devices()[0], "RESOURCE_EXHAUSTED: Out of memory, 9 bytes.\nBuffers:"
    for asked, device, error, sentence in (
        (run(), None, detail, "Expected a step of 8 rows of 24 to fit into the memory of a device, found it exhausted "
         "(Out of memory, 9 bytes); take more microbatches with --training.accumulation, --training.remat full or "
         "fewer rows with --training.batch_size."),
        (of_phases(remat="full"), None, detail, "with --phases.1.accumulation or fewer"),
        (run(), v5e, detail, "--training.batch_size, or try --training.rings off, --training.kernels off or other"),
        (run(), None, "INTERNAL: something else", "INTERNAL: something else"),
    ):  # fmt: skip
        kind = UserError if error == detail else jax.errors.JaxRuntimeError
        with pytest.raises(kind) as raised, memory.explain_out_of_memory(asked, phase, device or jax.devices()[0]):
            raise jax.errors.JaxRuntimeError(error)
        assert sentence in str(raised.value)


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
