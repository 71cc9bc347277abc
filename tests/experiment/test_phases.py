"""Phases: their lengths in steps and tokens, ramps of the batch size, and the settings that they change."""

import dataclasses

import pytest

from plmjax.data.layouts import Documents
from plmjax.errors import UserError
from plmjax.experiment import Phase, after_step, in_phase
from plmjax.experiment.phases import ResolvedPhase
from plmjax.runs.resolve import resolve
from plmjax.training.optimizers import StableAdamW
from plmjax.training.optimizers.schedules import Constant, WarmupStableDecay
from tests.third_party import experiments

A_STEP = 16 * 16  # tokens of the run below


def run(*phases: Phase, **training: float):
    """16 rows of 16 tokens a step."""
    changed = experiments.changed(experiments.modernbert(), training={"steps": 0} | training)
    schedule = WarmupStableDecay(warmup_tokens=2 * A_STEP)
    return dataclasses.replace(changed, phases=phases, optimizer=StableAdamW(1e-3, schedule))


STAGES = (
    Phase(tokens=12 * A_STEP, ramp=3, batch_size=48),  # two steps of 1, of 2 and of 3 times the size
    Phase(steps=10, changes=("optimizer.schedule.warmup_tokens=0", "model.global_rope_theta=160000")),
    Phase(tokens=4 * A_STEP, changes=("objective.rate=0.1",)),
)


def test_lengths_in_tokens_make_steps_and_a_ramp_has_as_many_steps_of_each_size():
    found = run(*STAGES).resolved_phases
    assert [(each.steps, each.batch_size) for each in found] == [(2, 16), (2, 32), (2, 48), (10, 16), (4, 16)]
    assert [(each.declared, each.index) for each in found] == [(0, 0), (0, 1), (0, 2), (1, 3), (2, 4)]
    assert [each.evaluation.batch_size for each in found] == [48, 48, 48, 16, 16]
    assert [(each.schedule_start, each.schedule_steps) for each in found] == [(0, 6)] * 3 + [(6, 14)] * 2


def test_a_shorter_run_shortens_every_phase_and_its_warm_up():
    phases = Phase(tokens=100 * A_STEP), Phase(steps=300)
    assert [each.steps for each in run(*phases).resolved_phases] == [100, 300]
    short = dataclasses.replace(
        run(*phases, steps=40), optimizer=StableAdamW(1e-3, WarmupStableDecay(warmup_tokens=40 * A_STEP))
    )
    assert [each.steps for each in short.resolved_phases] == [10, 30]
    assert in_phase(short, short.resolved_phases[0]).optimizer.schedule.warmup_steps == 4


def test_fractions_cover_every_step_once_and_an_evaluation_has_sizes_of_its_own():
    short, long = run(
        Phase(0.9), Phase(0.1, sequence_length=32, batch_size=4, accumulation=2), steps=1000
    ).resolved_phases
    assert short == ResolvedPhase(0, 0, 900, 16, 16, 1, schedule_steps=1000)
    assert long == ResolvedPhase(1, 900, 100, 32, 4, 2, declared=1, schedule_steps=1000)
    for settings, sizes in (
        ({}, (32, 4)),
        ({"evaluation_batch_size": 8}, (32, 8)),
        ({"evaluation_sequence_length": 24}, (24, 4)),
    ):
        evaluated = run(Phase(1, 32, 4, 2), steps=7, **settings).resolved_phases[0].evaluation
        assert (evaluated.sequence_length, evaluated.batch_size, evaluated.accumulation) == (*sizes, 1)
    for steps in (3, 10, 997):
        parts = run(*[Phase(1 / 3)] * 3, steps=steps).resolved_phases
        assert [part.first_step for part in parts] == [0, *(part.last_step for part in parts[:-1])]
        assert parts[-1].last_step == steps


def test_a_run_is_as_long_as_its_tokens():
    found = run(Phase(0.5), Phase(0.5, batch_size=32), tokens=30 * A_STEP).resolved_phases
    assert [each.steps for each in found] == [10, 10]


def test_a_phase_changes_options_and_a_checkpoint_has_those_of_its_phase():
    stages = run(Phase(steps=4), *STAGES[1:])
    first, second, third = (in_phase(stages, each) for each in stages.resolved_phases)
    assert first.optimizer.schedule == WarmupStableDecay(warmup_steps=2)
    assert second.model.global_rope_theta == 160_000 and first.model == stages.model == third.model
    assert third.objective.rate == 0.1 and second.objective == first.objective
    for step, expected in ((4, first), (5, second), (14, second), (15, third), (18, third)):
        found = after_step(stages, step)
        assert (found.model, found.objective) == (expected.model, expected.objective)
        assert after_step(found, step) == found, "a second time changes nothing"


def test_a_warm_up_of_tokens_counts_the_sizes_of_a_ramp():
    ramp = run(Phase(steps=9, ramp=3, batch_size=48))  # 3 steps of 1, of 2 and of 3
    warm = dataclasses.replace(ramp, optimizer=StableAdamW(1e-3, WarmupStableDecay(warmup_tokens=7 * A_STEP)))
    assert in_phase(warm, warm.resolved_phases[-1]).optimizer.schedule.warmup_steps == 3 + 2


def test_another_class_of_schedule_starts_anew_and_values_are_read_as_on_the_command_line():
    change = ("optimizer.schedule=constant", "optimizer.schedule.warmup_tokens=0", "optimizer.learning-rate=3e-4")
    change = (*change, "data.path='my texts/one'", "optimizer.frozen=modernbert other")
    stages = run(Phase(steps=4), Phase(steps=6, changes=change))
    last = stages.resolved_phases[-1]
    found = in_phase(stages, last)
    assert found.optimizer == StableAdamW(3e-4, Constant(), frozen=("modernbert", "other"))
    assert found.data.path == "my texts/one"
    assert (last.schedule_start, last.schedule_steps) == (4, 6)


@pytest.mark.parametrize(
    ("phases", "training", "part"),
    [
        ((Phase(tokens=100),), {}, "--phases.0.tokens of at least one step of 256 tokens, found 100"),
        ((Phase(0.5), Phase(steps=5)), {"steps": 10}, "a fraction of the steps for every phase, or steps or tokens"),
        ((Phase(0.5, steps=5),), {"steps": 10}, "steps and tokens, found fraction 0.5, steps 5"),
        ((Phase(0.5), Phase(0.4)), {"steps": 10}, "add up to 1, found 0.9"),
        ((Phase(0.99), Phase(0.01)), {"steps": 10}, "at least one step in phase 1"),
        ((), {}, "at least one step, found 0"),
        ((Phase(steps=2, ramp=4),), {}, "at least 4 steps in phase 0, found 2 of 2 steps"),
        ((Phase(steps=9, ramp=3),), {}, "divides by the 3 sizes of --phases.0.ramp, found 16"),
        ((Phase(1),), {"steps": 5, "tokens": 1e4}, "--training.steps and --training.tokens exclude each other"),
        ((Phase(steps=5),), {"tokens": 1e4}, "--training.tokens does not apply to phases with steps or tokens"),
    ],
)
def test_lengths_that_cannot_be_are_named(phases, training, part):
    with pytest.raises(UserError) as raised:
        _ = run(*phases, **training).resolved_phases
    assert part in str(raised.value)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("objective.rat=0.1", "'--objective.rat'; did you mean '--objective.rate'?, in --phases.0.changes"),
        ("data.path='a", "both quotes in --phases.N.changes"),
        ("optimizer.schedule.warmup_tokens=1e9", "warmup_tokens of at most the tokens of the 4 steps of its schedule"),
        ("optimizer.schedule.warmup_tokens=1", "warmup_tokens of at least one step, found 1"),
    ],
)
def test_changes_that_cannot_be_are_named(change, part):
    with pytest.raises(UserError) as raised:
        changed = run(Phase(steps=4, changes=(change,)))
        in_phase(changed, changed.resolved_phases[0])
    assert part in str(raised.value)


@pytest.mark.parametrize("change", ["training.steps=3", "objective.rate"])
def test_only_some_options_change_with_a_phase(change):
    with pytest.raises(UserError, match=r"NAME=VALUE of an option of objective, model, optimizer, data\.path"):
        Phase(changes=(change,))


def test_a_change_that_does_not_fit_is_named_before_any_text_is_read() -> None:
    first = run(Phase(steps=4), Phase(steps=4, changes=("data.layout.shortest_length=40",)))
    with pytest.raises(UserError, match="shortest_length of at most the 16 tokens of a row, found 40"):
        resolve(experiments.changed(first, data={"layout": Documents()}))
