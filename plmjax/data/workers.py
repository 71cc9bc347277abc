"""Worker processes that each do a part of the work on a text. They end with the process that started them.

A worker does not import the `__main__` of its parent, as multiprocessing does. So a program without
`if __name__ == "__main__":` can use workers.

A terminal, or a machine that shuts down, sends a signal to every process of a command. Only the first process handles
it: it prints the reason and ends the workers. A worker that ended by itself would look like one that ran out of memory.
"""

import collections
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from plmjax.errors import UserError

WAITING = 2
"""Number of tasks per process that are submitted before the first of them is done."""
LOOK_EVERY = 5.0
"""Seconds of waiting for a result after which the executor is made to look for ended processes."""


class _Worker(multiprocessing.context.SpawnProcess):
    """A worker process that ends when the executor terminates it, although it blocks SIGTERM (`Workers._submit`).

    If one process ends, the executor terminates the others and waits for them.

    terminated: true if the process was still running when it was terminated.
    """

    terminated = False

    def start(self) -> None:
        """Start the process, without a `__main__` file to import."""
        with _STARTING:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = types.ModuleType("__main__")
            try:
                super().start()
            finally:
                sys.modules["__main__"] = main

    def terminate(self) -> None:
        """Kill the process."""
        # The executor may call this twice, and while another thread reads the exit code.
        self.terminated |= not multiprocessing.connection.wait([self.sentinel], 0)
        self.kill()


class _Context(multiprocessing.context.SpawnContext):
    """Keeps references to the processes that it makes; an executor drops them when a process ends."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[_Worker] = []

    def Process(self, *arguments: Any, **keywords: Any) -> _Worker:  # noqa: N802 - multiprocessing's name
        self.workers.append(_Worker(*arguments, **keywords))
        return self.workers[-1]


class _Processes(dict):
    """Process id -> process of an executor. Python 3.11 reads it without a lock while another thread adds a process."""

    def values(self) -> list[_Worker]:
        return list(super().values())


_STARTING = threading.Lock()


class Workers:
    """Worker processes, `processes` of them. With one, this process does the work.

    make, arguments: every worker creates the object `make(*arguments)`; None creates no object.
    doing: the activity of the workers, for an error message.
    advice: advice for too little memory, for an error message.
    """

    def __init__(self, processes: int, make: Callable | None, *arguments: Any, doing: str, advice: str) -> None:
        self._processes, self._doing, self._advice = processes, doing, advice
        self._own, self._executor = (), None
        self._context = _Context()
        if processes == 1:
            self._own = _made(make, arguments)
        else:
            self._executor = concurrent.futures.ProcessPoolExecutor(processes, self._context, _start, (make, arguments))
            self._executor._processes = _Processes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def results(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        """Yield `function(object, *task)` for every task in order, or `function(*task)` if there is no object.

        tasks: read as results are yielded, so they may be an endless stream.

        Raises:
            UserError: a process ended, or the work has a part that was defined in the `__main__` of this program.
            Exception: an exception of `make` or the function.
        """
        if self._executor is None:
            yield from (function(*self._own, *task) for task in tasks)
            return
        pending: collections.deque[concurrent.futures.Future] = collections.deque()
        try:
            for task in tasks:
                if len(pending) == WAITING * self._processes:
                    yield self._result(pending.popleft())
                pending.append(self._submit(function, task))
            while pending:
                yield self._result(pending.popleft())
        except concurrent.futures.process.BrokenProcessPool as error:
            raise UserError(f"Expected the {self._doing} processes to continue, found {self._ended()}.") from error
        except pickle.PicklingError as error:
            if "__main__" not in str(error):
                raise
            raise UserError(
                f"Expected the parts of the work of {self._doing} processes in modules that these can import, found "
                f"one that this program defines itself ({error}); put it into a file of its own and import it."
            ) from error

    def _ended(self) -> str:
        """Return the reason for which the first process ended, and advice."""
        started = [worker for worker in self._context.workers if worker.pid is not None]
        for worker in started:  # Python 3.11 forgets a process that starts while it ends the others
            worker.terminate()
        self._executor.shutdown()
        for worker in started:
            worker.join()
        code = next((worker.exitcode for worker in started if not worker.terminated), -signal.SIGKILL)
        if code == -signal.SIGKILL:
            return f"one ended by the system, most likely for lack of memory; {self._advice}"
        if code < 0:
            return f"one ended by {signal.Signals(-code).name}; repeat the command, or report it if it ends so again"
        return f"one that ended by itself with code {code}; it printed the reason above"

    def _submit(self, function: Callable, task: tuple) -> concurrent.futures.Future:
        """Submit a task. A process that starts for it inherits the blocked signals.

        Python 3.11 may close the queues of a broken executor while a process starts; then a second try names the cause.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        try:
            return self._executor.submit(_run, function, task)
        except (OSError, ValueError):
            self._executor.submit(_run, _nothing, ())
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _result(self, future: concurrent.futures.Future) -> Any:
        """Return the result of a task.

        Python's executor watches the processes that it had at the last result or task, and starts a process after it
        received the task. So it would not notice the end of the process that it started last.
        """
        while not concurrent.futures.wait([future], LOOK_EVERY).done:
            self._submit(_nothing, ())
        return future.result()


_own: tuple = ()  # the object of a worker process
_failure: Exception | None = None  # the error that prevented the object; the first task raises it in the parent


def _made(make: Callable | None, arguments: tuple) -> tuple:
    return () if make is None else (make(*arguments),)


def _start(make: Callable | None, arguments: tuple) -> None:
    global _own, _failure
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are taken by processes
    try:
        _own = _made(make, arguments)
    except Exception as error:
        _failure = error


def _end_with_parent() -> None:
    """End a worker whose parent was killed; it would wait for work forever."""
    multiprocessing.parent_process().join()
    os._exit(0)


def _nothing(*own: object) -> None:
    """Do nothing. When this is submitted, the executor looks at all of its processes."""


def _run(function: Callable, task: tuple) -> Any:
    if _failure is not None:
        raise _failure
    return function(*_own, *task)
