"""Processes that do a share of the work on a text; they end with the process that started them.

A terminal, and a machine that shuts down, send a signal to every process of a command. It is for the first one alone,
which says what happened and ends the others: a worker that ended by itself would look like one that had no memory.
"""

import collections
import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from plmjax.errors import UserError

WAITING = 2
"""Tasks for each process that are handed out before the first of them is done."""


class Workers:
    """`processes` of them; one is this process itself.

    make, arguments: of the object `make(*arguments)` that each has for itself; None: there is none.
    doing: what they do, and advice: what to do where memory was short, for a message.
    """

    def __init__(self, processes: int, make: Callable | None, *arguments: Any, doing: str, advice: str) -> None:
        self._processes, self._doing, self._advice = processes, doing, advice
        self._own, self._executor = (), None
        if processes == 1:
            self._own = _made(make, arguments)
        else:
            context = multiprocessing.get_context("spawn")
            self._executor = concurrent.futures.ProcessPoolExecutor(processes, context, _start, (make, arguments))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def results(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[Any]:
        """`function(object, *task)` of every task in order, without an object `function(*task)`; tasks may be a stream.

        Raises:
            UserError: the system ended a process.
        """
        if self._executor is None:
            yield from (function(*self._own, *task) for task in tasks)
            return
        pending: collections.deque[concurrent.futures.Future] = collections.deque()
        try:
            for task in tasks:
                if len(pending) == WAITING * self._processes:
                    yield pending.popleft().result()
                pending.append(self._submit(function, task))
            while pending:
                yield pending.popleft().result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise UserError(
                f"Expected the {self._doing} processes to go on, found one ended by the system, most likely for lack "
                f"of memory; {self._advice}."
            ) from error

    def _submit(self, function: Callable, task: tuple) -> concurrent.futures.Future:
        """Hands out a task; the process that may start for it inherits which signals are blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        try:
            return self._executor.submit(_run, function, task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_own: tuple = ()  # the object of a worker process


def _made(make: Callable | None, arguments: tuple) -> tuple:
    return () if make is None else (make(*arguments),)


def _start(make: Callable | None, arguments: tuple) -> None:
    global _own
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are taken by processes
    _own = _made(make, arguments)


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed: it would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(0)


def _run(function: Callable, task: tuple) -> Any:
    return function(*_own, *task)
