"""A profile of a few steps, in the format of TensorBoard and xprof."""

from pathlib import Path
from typing import Any

import jax


class Profile:
    """Records the steps `first` to `last` in a folder.

    steps: (first, last), or (step,) for one; empty records nothing.
    start: the first step of this process; the profile begins there if its first step is earlier.
    final: the last step of the run; the profile ends there at the latest.
    """

    def __init__(self, steps: tuple[int, ...], folder: Path, start: int, final: int) -> None:
        self._steps, self._folder, self._start, self._final = steps, folder, start, final
        self._recording = False

    def before(self, step: int) -> None:
        """To be called before each step."""
        if self._steps and step == max(self._steps[0], self._start) and step <= self._steps[-1]:
            jax.profiler.start_trace(str(self._folder))
            self._recording = True

    def after(self, step: int, state: Any) -> None:
        """To be called with the state after each step; waits for it where the profile ends."""
        if self._recording and step in (self._steps[-1], self._final):
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """Ends the profile."""
        if self._recording:
            jax.profiler.stop_trace()
            self._recording = False
