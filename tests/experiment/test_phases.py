"""The parts of a run."""

import dataclasses

import pytest

from plmjax.errors import UserError
from plmjax.experiment import Phase
from plmjax.experiment.phases import ResolvedPhase
from tests.third_party import experiments


def resolve(*parts: Phase, steps: int = 1000) -> tuple[ResolvedPhase, ...]:
    run = experiments.changed(experiments.gpt2(), training={"steps": steps, "accumulation": 2})
    return dataclasses.replace(run, phases=parts).resolved_phases


def test_a_run_has_one_phase_or_several():
    """BERT spends nine tenths at a shorter length."""
    assert resolve(steps=7) == (ResolvedPhase(0, 0, 7, 16, 16, 2),)
    short, long = resolve(Phase(0.9), Phase(0.1, sequence_length=32, batch_size=4, accumulation=1))
    assert (short, long) == (ResolvedPhase(0, 0, 900, 16, 16, 2), ResolvedPhase(1, 900, 100, 32, 4, 1))


@pytest.mark.parametrize("steps", [3, 10, 997])
def test_phases_cover_every_step_once(steps):
    parts = resolve(*[Phase(1 / 3)] * 3, steps=steps)
    assert [part.first_step for part in parts] == [0, *(part.last_step for part in parts[:-1])]
    assert parts[-1].last_step == steps


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [({}, (16, 16)), ({"evaluation_batch_size": 4}, (16, 4)), ({"evaluation_sequence_length": 24}, (24, 16))],
)
def test_an_evaluation_has_the_sizes_of_its_phase_but_for_its_own(settings, sizes):
    run = experiments.changed(experiments.gpt2(), training={"steps": 7, "accumulation": 2} | settings)
    (phase,) = run.resolved_phases
    evaluated = phase.evaluation
    assert (evaluated.sequence_length, evaluated.batch_size, evaluated.accumulation) == (*sizes, 1)
    assert (evaluated.first_step, evaluated.last_step) == (0, 7)


def test_rows_without_a_token_are_refused():
    with pytest.raises(UserError, match=r"--data\.sequence_length of at least 1, found 0"):
        _ = experiments.changed(experiments.gpt2(), data={"sequence_length": 0}).resolved_phases


@pytest.mark.parametrize(
    ("parts", "steps", "message"),
    [
        ((Phase(0.5), Phase(0.4)), 10, "add up to 1, found 0.9"),
        ((Phase(0.99), Phase(0.01)), 10, "Expected at least one step in phase 1"),
        ((Phase(1.5), Phase(-0.5)), 10, "above 0, found -0.5"),
        ((), 0, "at least one step, found 0"),
    ],
)
def test_phases_that_cannot_be_are_named(parts, steps, message):
    with pytest.raises(UserError) as raised:
        resolve(*parts, steps=steps)
    assert message in str(raised.value)
