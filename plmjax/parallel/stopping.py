"""Stopping a process by SIGTERM or Ctrl-C, at any moment from its first line on.

Python calls its signal handlers in the main thread, between two of its own instructions: not while XLA compiles there.
An exception that a handler raises is lost where C++ or a finalizer has called Python, and an interpreter that unwinds
while other threads compile ends in a segmentation fault. So the interpreter's handler in C passes each signal to a
thread (`signal.set_wakeup_fd`), and that thread ends the process: it prints one sentence and calls `os._exit`. A
training loop with unsaved steps is the exception: it uses `StopSignals`, saves, and raises `Interrupted`.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from plmjax.errors import SAVED

SIGNALS = (signal.SIGTERM, signal.SIGINT)
CTRL_C = 130
"""Exit code after Ctrl-C with nothing to save, as shells define it: 128 + SIGINT."""
FLUSH_SECONDS = 1.0


class Interrupted(Exception):
    """SIGTERM or Ctrl-C came and the state is saved; the command line ends with `errors.SAVED`."""


class StopSignals:
    """Remembers SIGTERM and Ctrl-C so that the loop can finish its step and save; a Ctrl-C after that stops at once.

    SIGTERM may come several times: a machine that shuts down sends it to every process, and parents pass it on.

    unsaved: whether a stop would lose work; a watched process ends at once while it is false.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.unsaved = False

    def __enter__(self) -> "StopSignals":
        self._before: dict[int, Any] = {}
        if _watch is None:
            self._before = {number: signal.signal(number, self._receive) for number in _not_ignored()}
        else:
            _watch.listener = self
        return self

    def __exit__(self, *error: Any) -> None:
        if _watch is not None:
            _watch.listener = None
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hear(self, number: int) -> bool:
        """Remembers a signal; false if it asks to stop at once, as a Ctrl-C that is not the first signal does."""
        if self.received is not None and number == signal.SIGINT:
            return False
        self.received = self.received or signal.Signals(number)
        return True

    def _receive(self, number: int, frame: Any) -> None:
        if not self.hear(number):
            raise KeyboardInterrupt


class _Watch(threading.Thread):
    """The thread that ends this process.

    report: called with the sentence before the end.
    """

    def __init__(self, program: str, report: Callable[[str], None]) -> None:
        super().__init__(name="signals", daemon=True)
        self.program, self.report = program, report
        self.listener: StopSignals | None = None
        self.ending = threading.Event()
        self.reader, self.writer = socket.socketpair()
        self.writer.setblocking(False)

    def run(self) -> None:
        # The main thread stays the one that signals interrupt: a blocking call there returns to Python for them.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        while number := self.reader.recv(1):
            self.hear(signal.Signals(number[0]))

    def hear(self, number: signal.Signals) -> None:
        listener = self.listener
        if listener is None or not listener.unsaved:
            sentence = f"Stopped by {number.name} with nothing new to save; run the same command again."
            self.end(SAVED if number == signal.SIGTERM else CTRL_C, sentence)
        if not listener.hear(number):
            self.end(CTRL_C, f"Stopped at once by a second signal, {number.name}; what is left is the last checkpoint.")

    def end(self, code: int, sentence: str) -> NoReturn:
        """Ends the process now; it prints past the streams, whose locks other threads may hold."""
        self.ending.set()
        flush = threading.Thread(target=sys.stdout.flush, daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)
        self.report(sentence)
        shown = "\x1b[?25h\n" if os.isatty(2) else ""  # a progress bar hides the cursor, and its line is not finished
        workers = _workers()
        with contextlib.suppress(OSError):
            os.write(2, f"{shown}{self.program}: {sentence}\n".encode())
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        os._exit(code)


_watch: _Watch | None = None


def watch(program: str = "plmjax", report: Callable[[str], None] = lambda sentence: None) -> None:
    """From now on SIGTERM and Ctrl-C end this process at once, unless `StopSignals` listens with something unsaved.

    Must be called in the main thread. A signal that the process was started to ignore stays ignored.

    report: called with the sentence that is printed, before the end.
    """
    global _watch
    _watch = _Watch(program, report)
    for number in _not_ignored():
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(_watch.writer.fileno(), warn_on_full_buffer=False)
    _watch.start()


def _not_ignored() -> list[signal.Signals]:
    """SIGNALS without those that the process ignores: a shell starts what runs in its background so."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def unwatch() -> None:
    """Undoes `watch`; signals have no effect until it is called again or other handlers are set."""
    global _watch
    if _watch is not None:
        signal.set_wakeup_fd(-1)
        _watch.writer.close()
        _watch.join()
        _watch.reader.close()
        _watch = None


def is_watched() -> bool:
    """Whether `watch` is in force."""
    return _watch is not None


def give_way() -> None:
    """Returns unless a signal is ending this process: an error that happens meanwhile must not be printed too."""
    if _watch is not None and _watch.ending.is_set():
        threading.Event().wait()


@contextlib.contextmanager
def held(*signals: signal.Signals) -> Iterator[None]:
    """Delays signals until the block ends; a process that is started in it never receives them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _workers() -> list[int]:
    """The processes of multiprocessing that this one has started, where /proc names them.

    They end by themselves when their parent is gone, but one that is just starting would print a traceback.
    """
    found = []
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                if b"--multiprocessing-fork" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found
