"""Processes that share work: order, streams of tasks, signals, and an end that was not asked for."""

import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plmjax.data.workers import WAITING, Workers, _Worker
from plmjax.errors import UserError
from tests.paths import ROOT


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


def left(*numbers: object) -> None:
    os._exit(3)


def refused() -> None:
    """What makes the object of a process, and cannot."""
    raise UserError("Expected a file, found none; write it.")


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


@pytest.mark.parametrize("tasks", [pytest.param([(0,), (1,)], marks=pytest.mark.nightly), [(1,), (0,)]], ids=str)
def test_the_others_end_with_a_process_that_the_system_ended(tasks: list[tuple[int]]) -> None:
    """They do not hear the signal that the library sends them, and it does not look at the process started last."""
    begin, sentence = time.monotonic(), "found one ended by the system"
    with Workers(2, None, doing="reading", advice="wait") as workers, pytest.raises(UserError, match=sentence):
        list(workers.results(ended_or_busy, tasks))
    assert time.monotonic() - begin < 100


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (ended, "reading processes to continue, found one ended by the system, most likely for lack of memory; wait"),
        (left, "one that ended by itself with code 3; it printed the reason above"),
    ],
)
def test_the_end_of_a_process_is_named(task: object, sentence: str) -> None:
    """Workers leave signals to their parent."""
    with Workers(2, None, doing="reading", advice="wait") as workers:
        (found,) = workers.results(blocked, [()])
        assert {signal.SIGINT, signal.SIGTERM} <= found and not {signal.SIGINT, signal.SIGTERM} & blocked()
        with pytest.raises(UserError, match=sentence):
            list(workers.results(task, [(0,)] * 4))


class SlowToStart(_Worker):
    """A process that starts a moment after another one ended, so that the executor has seen it."""

    def start(self) -> None:
        for child in multiprocessing.active_children():
            multiprocessing.connection.wait([child.sentinel])
            time.sleep(0.3)
        super().start()


def test_the_end_of_a_process_is_named_while_another_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 ends the processes that it knows and closes its queues meanwhile."""
    monkeypatch.setattr("plmjax.data.workers._Worker", SlowToStart)
    with Workers(2, None, doing="reading", advice="wait") as workers, pytest.raises(UserError, match="with code 3"):
        list(workers.results(left, [(0,)] * 4))
    assert not multiprocessing.active_children()


PROGRAM = """
from plmjax.data.workers import Workers
from plmjax.errors import UserError

print("once")

class Own:
    def value(self, number):
        return number

with Workers(2, None, doing="reading", advice="wait") as workers:
    print(list(workers.results(abs, [(-1,), (-2,), (-3,)])))
try:
    with Workers(2, Own(), doing="reading", advice="wait") as workers:
        print(list(workers.results(Own.value, [(1,)])))
except UserError as error:
    print(error)
"""


def test_a_program_without_a_guard_runs_once_and_a_mistake_at_the_start_is_that_of_the_command(tmp_path: Path) -> None:
    """multiprocessing imports the `__main__` of its parent, which would run the program once more in every process."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    once, numbers, sentence = done.stdout.splitlines()
    assert (once, numbers) == ("once", "[1, 2, 3]")
    assert sentence.startswith("Expected the parts of the work of reading processes in modules") and "Own" in sentence
    with Workers(2, refused, doing="reading", advice="wait") as workers, pytest.raises(UserError, match="write it"):
        list(workers.results(blocked, [()]))
