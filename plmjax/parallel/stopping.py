"""Stopping of a process by SIGTERM or Ctrl-C, at any moment after its start.

Python calls signal handlers in the main thread, between two Python instructions. So it does not call them while XLA
compiles in that thread. An exception of a handler is lost if C++ or a finalizer has called Python. If the interpreter
shuts down while other threads compile, the process ends with a segmentation fault. Therefore the interpreter's handler
in C passes each signal to a thread (`signal.set_wakeup_fd`), and this thread ends the process: it prints one sentence
and calls `os._exit`. A training loop with unsaved steps is the exception: it uses `StopSignals`, saves, and raises
`Interrupted`.
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
    """SIGTERM or Ctrl-C was received and the state is saved. The command line ends with `errors.SAVED`."""


class StopSignals:
    """A record of SIGTERM and Ctrl-C, so that a training loop can finish its step and save.

    A Ctrl-C after another signal stops at once. SIGTERM may come several times: a machine that shuts down sends it to
    every process, and parent processes pass it on.

    unsaved: true if a stop would lose work. While it is false, a watched process ends at once.
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

    def handle(self, number: int) -> bool:
        """Record a signal. Return False if the process must stop at once: for a Ctrl-C that is not the first signal."""
        if self.received is not None and number == signal.SIGINT:
            return False
        self.received = self.received or signal.Signals(number)
        return True

    def _receive(self, number: int, frame: Any) -> None:
        if not self.handle(number):
            raise KeyboardInterrupt


class _Watch(threading.Thread):
    """A thread that ends this process at a signal.

    report: function that is called with the printed sentence before the process ends.
    """

    def __init__(self, program: str, report: Callable[[str], None]) -> None:
        super().__init__(name="signals", daemon=True)
        self.program, self.report = program, report
        self.listener: StopSignals | None = None
        self.ending = threading.Event()
        self.reader, self.writer = socket.socketpair()
        self.writer.setblocking(False)

    def run(self) -> None:
        # Signals must still interrupt the main thread: a blocking call there returns to Python for them.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        while number := self.reader.recv(1):
            self.handle(signal.Signals(number[0]))

    def handle(self, number: signal.Signals) -> None:
        listener = self.listener
        if listener is None or not listener.unsaved:
            sentence = f"Stopped by {number.name} with nothing new to save; run the same command again."
            self.end(SAVED if number == signal.SIGTERM else CTRL_C, sentence)
        if not listener.handle(number):
            self.end(CTRL_C, f"Stopped at once by a second signal, {number.name}; what is left is the last checkpoint.")

    def end(self, code: int, sentence: str) -> NoReturn:
        """End the process now. Write to the file descriptor, because other threads may lock Python's streams."""
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
    """Let SIGTERM and Ctrl-C end this process at once, except while `StopSignals` is active and has unsaved work.

    Must be called in the main thread. A signal that the process was started to ignore stays ignored.

    report: function that is called with the printed sentence before the process ends.
    """
    global _watch
    _watch = _Watch(program, report)
    for number in _not_ignored():
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(_watch.writer.fileno(), warn_on_full_buffer=False)
    _watch.start()


def _not_ignored() -> list[signal.Signals]:
    """Return SIGNALS without those that the process ignores.

    A shell starts its background jobs with ignored signals.
    """
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def unwatch() -> None:
    """Undo `watch`. Signals have no effect until it is called again or other handlers are set."""
    global _watch
    if _watch is not None:
        signal.set_wakeup_fd(-1)
        _watch.writer.close()
        _watch.join()
        _watch.reader.close()
        _watch = None


def is_watched() -> bool:
    """Return whether `watch` is active."""
    return _watch is not None


def give_way() -> None:
    """Wait forever if a signal is ending this process, so that no error is printed in the meantime."""
    if _watch is not None and _watch.ending.is_set():
        threading.Event().wait()


@contextlib.contextmanager
def block_signals(*signals: signal.Signals) -> Iterator[None]:
    """Block signals during the body. A process that is started in the body never receives them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _workers() -> list[int]:
    """Return the process ids of the multiprocessing workers of this process, if /proc lists them.

    Workers end by themselves when their parent is gone, but a worker that is just starting would print a traceback.
    """
    found = []
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                if b"--multiprocessing-fork" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found
