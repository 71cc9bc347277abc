"""Retries for services that do not answer for a while."""

import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from plmjax.errors import Unavailable

Result = TypeVar("Result")
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
_log = logging.getLogger(__name__)


def waits(first: float | None = None, longest: float | None = None) -> Iterator[float]:
    """Yield the seconds before each retry, without end: they double from `first` up to `longest`.

    Each is multiplied by a random factor from 0.5 to 1.5, so that many hosts do not retry at the same time.
    """
    spread, seconds, longest = random.Random(os.getpid()), first or FIRST_WAIT, longest or LONGEST_WAIT
    while True:
        yield seconds * spread.uniform(0.5, 1.5)
        seconds = min(2 * seconds, longest)


def sleep(seconds: float) -> None:
    """Wait before a retry."""
    time.sleep(seconds)


def insist(
    call: Callable[[], Result],
    what: str,
    seconds: float,
    wait: Callable[[float], object] = sleep,
) -> Result:
    """Return the result of a call; retry it while it raises `Unavailable`.

    Each failure is logged as a warning.

    Args:
        what: the work of the call, for the warning, such as "writing the last checkpoint".
        seconds: time after which a failure is raised.
        wait: function that waits for some seconds.

    Raises:
        Unavailable: the call failed for longer than `seconds`.
    """
    start = time.monotonic()
    for pause in waits():
        try:
            return call()
        except Unavailable as error:
            if time.monotonic() - start > seconds:
                raise
            _log.warning("waiting    to try %s again in %.0f s: %s", what, pause, error)
            wait(pause)
    raise AssertionError("waits() has no end")
