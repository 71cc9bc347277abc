"""How a run is asked to stop, and says that it did."""

import signal
from typing import Any


class Interrupted(Exception):
    """SIGTERM or Ctrl-C came and the state is saved; the command line ends with `errors.SAVED`."""


class StopSignals:
    """Remembers SIGTERM and Ctrl-C so that the loop can finish its step and save; a Ctrl-C after that stops at once.

    SIGTERM may come several times: a machine that shuts down sends it to every process, and parents pass it on.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __enter__(self) -> "StopSignals":
        self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: Any) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = self.received or signal.Signals(number)
