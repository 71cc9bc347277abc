"""When a command is run again, by simulated time: what fails for how long ends a job."""

import itertools

import pytest

from plmjax.errors import SAVED, UNAVAILABLE
from tpu.job import JOIN_SECONDS, Verdict
from tpu.restarts import LEAST, LONGEST_WAIT, UNKNOWN, Restarts

HOUR = 3600.0


def lasts(restarts: Restarts, code: int, step: int | None, *, now: float = 0.0, runs: float = 1.0) -> tuple[float, str]:
    """(Seconds, verdict) of a command that always ends with `code` after `runs` seconds."""
    began = now
    while not isinstance(decided := restarts.after(code, step, "boom", now), Verdict):
        assert decided <= 1.5 * LONGEST_WAIT < JOIN_SECONDS
        now += decided + runs
    assert decided.state == "failed"
    return now - began, decided.reason


@pytest.mark.parametrize(
    ("code", "step", "hours", "said"),
    [
        (UNAVAILABLE, 20, 24, "could not continue"),
        (UNAVAILABLE, None, 2, "could not continue"),  # such as a bucket that is forbidden from the beginning
        (UNAVAILABLE, UNKNOWN, 24, "could not continue"),
        (-9, None, 2, "was stopped"),
        (137, 20, 24, "was stopped"),
        (1, 20, 3, "crashed"),
        (1, None, 0.25, "crashed"),
    ],
)
def test_a_job_fails_by_hours_since_its_last_checkpoint(code, step, hours, said) -> None:
    seconds, reason = lasts(Restarts(), code, step)
    assert hours * HOUR <= seconds <= hours * HOUR + 1.5 * LONGEST_WAIT + 1
    where = {None: "without a checkpoint", UNKNOWN: "and its checkpoints could not be listed"}.get(
        step, "with no checkpoint after step 20"
    )
    assert reason.startswith(f"The run {said} ") and " times within " in reason
    assert reason.endswith(f" {where}, the last time with exit code {code}: boom")


def test_waits_grow_and_a_checkpoint_resets_them() -> None:
    restarts = Restarts()
    for step in (None, 10, 20):
        waits = [restarts.after(1, step, "boom", now=0.0) for _ in range(12)]
        assert 5 <= waits[0] <= 15 and waits[3] >= 40 and LONGEST_WAIT / 2 <= waits[-1] <= 1.5 * LONGEST_WAIT
    assert lasts(restarts, 1, 30)[0] >= 3 * HOUR


def test_a_first_stop_costs_no_time_and_the_next_ones_do() -> None:
    restarts = Restarts()
    waits = [restarts.after(code, 10, "", now) for now, code in enumerate((-15, SAVED, -15))]
    assert waits[0] == 0 and all(waits[1:])
    assert restarts.after(SAVED, 20, "", 99.0) == 0


def test_a_crash_after_a_day_without_the_bucket_is_a_first_crash() -> None:
    restarts, now = Restarts(), 0.0
    assert restarts.after(1, 20, "boom", now)
    while now < 23 * HOUR:
        now += restarts.after(UNAVAILABLE, 20, "boom", now) + 1
    for _ in range(LEAST):
        decided = restarts.after(1, 20, "boom", now)
        assert not isinstance(decided, Verdict)
        now += decided


def test_kinds_in_turn_end_too() -> None:
    restarts, now = Restarts(), 0.0
    for code in itertools.cycle((1, UNAVAILABLE)):
        if isinstance(decided := restarts.after(code, 20, "boom", now), Verdict):
            break
        now += decided
    assert code == 1 and 5 * HOUR < now < 8 * HOUR


def test_two_failures_after_long_work_do_not_end_a_job() -> None:
    restarts = Restarts()
    assert not isinstance(restarts.after(1, None, "boom", 0.0), Verdict)
    assert not isinstance(restarts.after(1, None, "boom", 5 * HOUR), Verdict)
    assert restarts.after(1, None, "boom", 10 * HOUR) == Verdict(
        "failed", "The run crashed 3 times within 10.0 hours without a checkpoint, the last time with exit code 1: boom"
    )
