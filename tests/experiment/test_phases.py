"""Phases: their lengths in steps and tokens, ramps of the batch size, and the settings that they change."""

import dataclasses

import pytest

from plmjax.data.layouts import Documents
from plmjax.errors import UserError
from plmjax.experiment import Phase, after_step, in_phase
from plmjax.runs.resolve import resolve
from plmjax.training.optimizers import StableAdamW
from plmjax.training.optimizers.schedules import Constant, WarmupStableDecay
from tests.third_party import experiments

A_STEP = 16 * 16  # tokens of the run below


def run(*phases: Phase, **training: float):
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
    assert [each.declared for each in found] == [0, 0, 0, 1, 2]
    assert [each.index for each in found] == [0, 1, 2, 3, 4]
    assert [each.evaluation.batch_size for each in found] == [48, 48, 48, 16, 16]
    assert [(each.schedule_start, each.schedule_steps) for each in found] == [(0, 6)] * 3 + [(6, 14)] * 2


def test_a_shorter_run_shortens_every_phase_and_its_warm_up():
    whole = run(Phase(tokens=100 * A_STEP), Phase(steps=300))
    short = run(Phase(tokens=100 * A_STEP), Phase(steps=300), steps=40)
    assert [each.steps for each in whole.resolved_phases] == [100, 300]
    assert [each.steps for each in short.resolved_phases] == [10, 30]
    long = dataclasses.replace(short, optimizer=StableAdamW(1e-3, WarmupStableDecay(warmup_tokens=40 * A_STEP)))
    assert in_phase(long, long.resolved_phases[0]).optimizer.schedule.warmup_steps == 4


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


def test_a_change_spelled_with_dashes_is_that_with_underscores():
    spelled = [Phase(steps=6, changes=(f"optimizer.learning{mark}rate=3e-4",)) for mark in "_-"]
    first, second = (run(Phase(steps=4), one).resolved_phases for one in spelled)
    assert first == second and second[-1].schedule_start == 4
    with pytest.raises(UserError, match=r"both quotes in --phases\.N.changes"):
        run(Phase(steps=4), Phase(steps=4, changes=('data.path="a',))).phases[1].options  # noqa: B018


def test_another_class_of_schedule_starts_anew():
    change = ("optimizer.schedule=constant", "optimizer.schedule.warmup_tokens=0", "optimizer.learning_rate=3e-4")
    stages = run(Phase(steps=4), Phase(steps=6, changes=change))
    last = stages.resolved_phases[-1]
    assert in_phase(stages, last).optimizer == StableAdamW(3e-4, Constant())
    assert (last.schedule_start, last.schedule_steps) == (4, 6)


@pytest.mark.parametrize(
    ("phases", "training", "part"),
    [
        ((Phase(tokens=100),), {}, "--phases.0.tokens of at least one step of 256 tokens, found 100"),
        ((Phase(0.5), Phase(steps=5)), {"steps": 10}, "a fraction of the steps for every phase, or steps or tokens"),
        (
            (Phase(0.5, steps=5),),
            {"steps": 10},
            "one of --phases.0.fraction, steps and tokens, found fraction 0.5, steps 5",
        ),
        ((Phase(),), {"steps": 10}, "one of --phases.0.fraction, steps and tokens, found none"),
        ((Phase(steps=2, ramp=4),), {}, "at least 4 steps in phase 0, found 2 of 2 steps"),
        ((Phase(steps=9, ramp=3),), {}, "divides by the 3 sizes of --phases.0.ramp, found 16"),
        ((Phase(1),), {"steps": 5, "tokens": 1e4}, "--training.steps and --training.tokens exclude each other"),
        ((Phase(steps=5),), {"tokens": 1e4}, "--training.tokens does not apply to phases with steps or tokens"),
        ((), {"tokens": 10}, "--training.tokens of at least one step of 256 tokens, found 10"),
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
        ("objective.rate=high", "type float for --objective.rate, found 'high'; change it, in --phases.0.changes"),
        ("optimizer.schedule.warmup_tokens=1e9", "warmup_tokens of at most the tokens of the 4 steps of its schedule"),
        ("optimizer.schedule.warmup_tokens=1", "warmup_tokens of at least one step, found 1"),
    ],
)
def test_changes_that_cannot_be_are_named(change, part):
    changed = run(Phase(steps=4, changes=(change,)))
    with pytest.raises(UserError) as raised:
        in_phase(changed, changed.resolved_phases[0])
    assert part in str(raised.value)


def test_values_are_read_as_on_the_command_line():
    changes = ("data.path='my texts/one'", "data.mixture.sources=", "optimizer.frozen=modernbert other")
    changed = run(Phase(steps=4, changes=changes))
    found = in_phase(changed, changed.resolved_phases[0])
    assert (found.data.path, found.optimizer.frozen) == ("my texts/one", ("modernbert", "other"))


@pytest.mark.parametrize("change", ["training.steps=3", "objective.rate", "data.sequence_length=8", "mesh.data=1"])
def test_only_some_options_change_with_a_phase(change):
    with pytest.raises(UserError, match=r"NAME=VALUE of an option of objective, model, optimizer, data\.path"):
        Phase(changes=(change,))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("data.layout.shortest_length=40", "shortest_length of at most the 16 tokens of a row, found 40"),
        ("objective.rat=0.1", "did you mean '--objective.rate'?, in --phases.1.changes"),
    ],
)
def test_a_change_that_does_not_fit_is_named_before_any_text_is_read(change: str, part: str) -> None:
    first = run(Phase(steps=4), Phase(steps=4, changes=(change,)))
    first = experiments.changed(first, data={"layout": Documents()})
    with pytest.raises(UserError) as raised:
        resolve(first)
    assert part in str(raised.value)
