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


def crashed(number: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


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


@pytest.mark.parametrize(
    "tasks",
    [
        pytest.param([(0,), (1,)], id="the first", marks=pytest.mark.nightly),
        pytest.param([(1,), (0,)], id="the last"),
    ],
)
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
        (crashed, "one ended by SIGSEGV; repeat"),
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


def wait_for_the_end_of_others() -> None:
    """Return a moment after the processes that have started ended, so that the executor has seen it."""
    for child in multiprocessing.active_children():
        multiprocessing.connection.wait([child.sentinel])
        time.sleep(0.3)


class SlowToSend:
    """The argument of a process; another process ends before it is sent."""

    def __reduce__(self) -> tuple:
        wait_for_the_end_of_others()
        return SlowToSend, ()


class SlowToStart(_Worker):
    """A process that starts after another one ended."""

    def start(self) -> None:
        wait_for_the_end_of_others()
        super().start()


@pytest.mark.parametrize("slow", ["to start", "to send"])
def test_the_end_of_a_process_is_named_while_another_starts(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 ends the processes that it knows and closes its queues meanwhile."""
    if slow == "to start":
        monkeypatch.setattr("plmjax.data.workers._Worker", SlowToStart)
    make = (id, SlowToSend()) if slow == "to send" else (None,)
    sentence = "ended by itself with code 3"
    with Workers(2, *make, doing="reading", advice="wait") as workers, pytest.raises(UserError, match=sentence):
        list(workers.results(left, [(0,)] * 4))
    assert not multiprocessing.active_children()


class SlowToEnd(SlowToStart):
    """A process that is not ended before another one has started."""

    def terminate(self) -> None:
        super().terminate()
        time.sleep(1)


def test_a_process_may_start_while_the_others_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that ends them meets one more. Pytest reports what a thread raises."""
    monkeypatch.setattr("plmjax.data.workers._Worker", SlowToEnd)
    with Workers(2, None, doing="reading", advice="wait") as workers, pytest.raises(UserError, match="with code 3"):
        list(workers.results(left, [(0,)] * 4))
    assert not multiprocessing.active_children()


def test_a_mistake_at_the_start_of_a_process_is_that_of_the_command() -> None:
    with Workers(2, refused, doing="reading", advice="wait") as workers, pytest.raises(UserError, match="write it"):
        list(workers.results(blocked, [()]))


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


def test_a_program_without_a_guard_runs_once_and_uses_workers(tmp_path: Path) -> None:
    """multiprocessing imports the `__main__` of its parent, which would run the program once more in every process."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    once, numbers, sentence = done.stdout.splitlines()
    assert (once, numbers) == ("once", "[1, 2, 3]")
    assert sentence.startswith("Expected the parts of the work of reading processes in modules") and "Own" in sentence
