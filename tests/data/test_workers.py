"""Processes that share work: order, streams of tasks, signals, and an end that was not asked for."""

import itertools
import os
import signal
import time

import pytest

from plmjax.data.workers import WAITING, Workers
from plmjax.errors import UserError


class Scale:
    """An object of a process."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def times(self, number: int) -> int:
        return self.factor * number


def blocked() -> set[signal.Signals]:
    """The signals that a process does not hear."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, [])


def ended(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ended_or_busy(number: int) -> None:
    """The first task ends its process; the others take minutes."""
    if number:
        time.sleep(300)
    ended(number)


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order_from_tasks_that_are_taken_as_needed(processes: int) -> None:
    taken = []
    tasks = ((taken.append(number) or number,) for number in itertools.count())
    with Workers(processes, Scale, 3, doing="scaling", advice="wait") as workers:
        found = list(itertools.islice(workers.results(Scale.times, tasks), 7))
    assert found == [0, 3, 6, 9, 12, 15, 18]
    assert len(taken) <= 7 + WAITING * processes


def test_workers_leave_signals_to_their_parent_and_their_end_is_told() -> None:
    with Workers(2, None, doing="reading", advice="wait") as workers:
        (found,) = workers.results(blocked, [()])
        assert {signal.SIGINT, signal.SIGTERM} <= found and not {signal.SIGINT, signal.SIGTERM} & blocked()
        with pytest.raises(UserError, match=r"reading processes to continue, found one ended by the system.*; wait"):
            list(workers.results(ended, [(0,)]))


@pytest.mark.parametrize("tasks", [[(0,), (1,)], [(1,), (0,)]], ids=["the first", "the last"])
def test_the_others_end_with_a_process_that_the_system_ended(tasks: list[tuple[int]]) -> None:
    """They do not hear the signal that the library sends them, and it does not look at the process started last."""
    begin, sentence = time.monotonic(), "found one ended by the system"
    with Workers(2, None, doing="reading", advice="wait") as workers, pytest.raises(UserError, match=sentence):
        list(workers.results(ended_or_busy, tasks))
    assert time.monotonic() - begin < 100
