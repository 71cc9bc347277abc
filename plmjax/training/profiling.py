"""Profiles of a few steps, in the format of TensorBoard and xprof: by a setting, or on request.

While a run trains, a file WORKDIR/profile_request.json requests a profile: {"id": "any text", "steps": 5}, with "first"
if the first step is not the next one. The trace appears in WORKDIR/profile/, and WORKDIR/profile_done.json has the
id of the request and the path of its trace. A request is answered once.
"""

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from plmjax.files import json_text, storage

REQUEST, DONE, FOLDER = "profile_request.json", "profile_done.json", "profile"
LOOK_SECONDS = 15.0
"""Seconds between two checks for a request."""
LONGEST = 1000
"""Largest number of steps of a request; traces grow by megabytes a step."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a profile."""

    id: str
    steps: int
    first: int = 0
    """First step; the next one if it has passed."""
    time: float = 0.0

    @classmethod
    def read(cls, workdir: Path) -> "Request | None":
        """Return the request in a run directory, or None.

        Raises:
            ValueError: the file holds something else.
        """
        shape = {"id": str, "steps": range(1, LONGEST + 1), "first": json_text.COUNT, "time": float}
        found = _read(workdir / REQUEST, shape, optional=("first", "time"))
        return None if found is None else cls(**found)

    def write(self, workdir: Path) -> None:
        _write(workdir / REQUEST, self)


@dataclasses.dataclass(frozen=True)
class Done:
    """The answer to a request."""

    id: str
    first: int
    last: int
    folder: str
    """Folder of the trace in the run directory."""
    error: str = ""
    """Reason why there is no trace."""

    @classmethod
    def read(cls, workdir: Path) -> "Done | None":
        """Return the newest answer in a run directory, or None.

        Raises:
            ValueError: the file holds something else.
        """
        shape = {"id": str, "first": json_text.COUNT, "last": json_text.COUNT, "folder": str, "error": str}
        found = _read(workdir / DONE, shape)
        return None if found is None else cls(**found)

    def write(self, workdir: Path) -> None:
        _write(workdir / DONE, self)


def _read(path: Path, shape: dict[str, Any], optional: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the fields of a record, or None without a file; raise ValueError if the file has other contents."""
    try:
        found = json_text.parse(storage.contents(path))
    except FileNotFoundError:
        return None
    json_text.check(found, {name: kind for name, kind in shape.items() if name not in optional or name in found})
    return {name: found[name] for name in shape if name in found}


def _write(path: Path, record: Request | Done) -> None:
    storage.write(path, json.dumps(dataclasses.asdict(record)) + "\n")


class Profile:
    """Records a profile of the steps `first` to `last`, and profiles that are requested later.

    steps: (first, last), or (step,) for one step; an empty tuple records nothing.
    start: the first step of this process; if `first` is earlier, the profile starts here.
    final: the last step of the run; a profile ends there at the latest.
    workdir: the run directory in which to look for requests; None looks for none.
    """

    def __init__(
        self, steps: tuple[int, ...], folder: Path, start: int, *, final: int, workdir: Path | None = None
    ) -> None:
        self._steps, self._folder, self._start, self._final = steps, folder, start, final
        self._workdir = workdir
        self._last, self._begin, self._step = 0, start, start
        self._asked: Request | None = None
        self._recording: Request | None = None
        self._answer: Done | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="profile requests", daemon=True)
        if workdir is not None:
            self._thread.start()

    def before(self, step: int) -> None:
        """Start a profile if `step` is its first step. Call this before each step."""
        if self._last:
            return
        if self._steps and step == max(self._steps[0], self._start) and step <= self._steps[-1]:
            jax.profiler.start_trace(str(self._folder))
            self._last = min(self._steps[-1], self._final)
            return
        asked = self._asked
        if asked is None or step < asked.first:
            return
        self._asked, self._recording, self._begin = None, asked, step
        try:
            jax.profiler.start_trace(str(self._folder))
        except Exception as error:  # a failed request must not end the run
            self._finish(step, error=f"{type(error).__name__}: {error}")
            return
        self._last = min(step + asked.steps - 1, self._final)

    def after(self, step: int, state: Any) -> None:
        """Stop the profile if `step` is its last step, once `state` is computed. Call this after each step."""
        self._step = step
        if self._last and step == self._last:
            jax.block_until_ready(state)
            self._stop()

    def close(self) -> None:
        """Stop a profile and look for no more requests."""
        self._stop()
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _stop(self) -> None:
        if not self._last:
            return
        self._last = 0
        if self._recording is None:
            jax.profiler.stop_trace()
            return
        try:
            jax.profiler.stop_trace()
            newest = max((self._folder / "plugins" / "profile").iterdir()).name
        except Exception as error:
            self._finish(self._step, error=f"{type(error).__name__}: {error}")
        else:
            self._finish(self._step, f"{FOLDER}/plugins/profile/{newest}")

    def _finish(self, step: int, folder: str = "", error: str = "") -> None:
        """Set the answer, which the thread of `_look` writes, because a bucket may be slow."""
        self._answer, self._recording = Done(self._recording.id, self._begin, step, folder, error), None

    def _look(self) -> None:
        """Look for requests and answer them, until the profile is closed."""
        met: str | None = None
        while True:
            closed = self._closed.wait(LOOK_SECONDS)
            # A bucket that does not answer, or a file of another kind, is looked at again later.
            with contextlib.suppress(Exception):
                if (answer := self._answer) is not None:
                    answer.write(self._workdir)
                    self._answer = None
                if met is None:
                    done = Done.read(self._workdir)
                    met = done.id if done else ""
                asked = Request.read(self._workdir)
                if asked is not None and asked.id != met:
                    self._asked, met = asked, asked.id
            if closed:
                return


def ask(workdir: Path, steps: int, first: int) -> Request:
    """Write a request for a profile and return it."""
    request = Request(f"{time.time_ns():x}", steps, first, time.time())
    request.write(workdir)
    return request
