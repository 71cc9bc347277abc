"""Too large a step is answered with what fits, not with a traceback."""

import dataclasses
from types import SimpleNamespace

import jax
import pytest

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.experiment.phases import ResolvedPhase
from plmjax.training import loop, memory
from tests.third_party import experiments
from tests.third_party.source import ChainSource

GIB = 2**30
DEVICE = jax.devices()[0]


def run(**training):
    return experiments.changed(experiments.gpt2(), training={"steps": 2, "batch_size": 64, **training})


def train(tmp_path, **training):
    one = run(**training)
    return loop.train(one, tmp_path, ChainSource(one.data), tokenizer={})


def test_a_step_that_needs_more_than_a_device_has_is_refused_with_microbatches_that_fit(tmp_path, monkeypatch):
    sizes = SimpleNamespace(
        argument_size_in_bytes=3 * GIB,
        output_size_in_bytes=2 * GIB,
        alias_size_in_bytes=2 * GIB,
        temp_size_in_bytes=50 * GIB,
    )
    monkeypatch.setattr(memory, "_available", lambda device: 16.0 * GIB)
    compiled = SimpleNamespace(memory_analysis=lambda: sizes)
    program = SimpleNamespace(
        mesh=jax.sharding.Mesh([[jax.devices()[:2]]], ("data", "fsdp", "tensor")),
        phase=ResolvedPhase(0, 0, 1, sequence_length=16, batch_size=64, accumulation=2),
    )
    # 2 parts need 28 GiB, 4 need 15.5, which is more than nine tenths of 16, and 8 need 9.25.
    with pytest.raises(UserError) as raised:
        memory.check(run(), program, compiled)
    assert str(raised.value) == (
        "Expected a step of phase 0 to fit into the 16.0 GiB of a device, found 32 rows of 16 a device to need 53.0 "
        "GiB; take more microbatches with --training.accumulation 16, --training.remat full or fewer rows with "
        "--training.batch_size."
    )
    monkeypatch.setattr(memory, "_available", lambda device: 53.0 * GIB)  # all of it
    memory.check(run(), program, compiled)
    # 3 GiB and a 32nd part of 50 GiB are less than nine tenths of 5.1 GiB, a 16th part is more: one row a device.
    for available, advice in ((5.1, "accumulation 64, "), (5.0, "accumulation, ")):
        monkeypatch.setattr(memory, "_available", lambda device, available=available: available * GIB)
        with pytest.raises(UserError, match=f"--training.{advice}"):
            memory.check(run(), program, compiled)
    phases = (experiment.Phase(0.5), experiment.Phase(0.5))
    program.phase = dataclasses.replace(program.phase, index=1, declared=1)
    monkeypatch.setattr(memory, "_available", lambda device: 16.0 * GIB)
    with pytest.raises(UserError, match=r"--phases\.1\.accumulation 16 or fewer rows with --phases\.1\.batch_size\.$"):
        memory.check(dataclasses.replace(run(remat="full"), phases=phases), program, compiled)


@pytest.mark.nightly
def test_the_trainer_asks_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_available", lambda device: 1000.0)
    with pytest.raises(UserError, match=r"rows of 16 a device to need .* GiB; take more microbatches"):
        train(tmp_path)
    assert not (tmp_path / "metrics.jsonl").read_text()


def test_an_error_of_the_device_is_explained_where_it_is_one_of_memory() -> None:
    phase, phases = phase_of(sequence_length=24, batch_size=8), (experiment.Phase(0.5), experiment.Phase(0.5))
    with pytest.raises(UserError) as raised, memory.explain_out_of_memory(run(), phase, DEVICE):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nBuffers:")
    assert str(raised.value) == (
        "Expected a step of 8 rows of 24 to fit into the memory of a device, found it exhausted (Out of memory "
        "allocating 9 bytes); take more microbatches with --training.accumulation, --training.remat full or fewer "
        "rows with --training.batch_size."
    )
    parts = dataclasses.replace(run(remat="full"), phases=phases)
    with (
        pytest.raises(UserError, match=r"\.1\.accumulation or fewer"),
        memory.explain_out_of_memory(parts, phase, DEVICE),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 bytes")
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
        memory.explain_out_of_memory(run(), phase, DEVICE),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def phase_of(**sizes: int) -> SimpleNamespace:
    return SimpleNamespace(index=1, declared=1, accumulation=1, **sizes)
