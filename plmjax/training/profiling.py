"""A profile of a few steps, in the format of TensorBoard and xprof."""

from pathlib import Path
from typing import Any

import jax


class Profile:
    """Records the steps `first` to `last` in a folder.

    steps: (first, last), or (step,) for one step; an empty tuple records nothing.
    start: the first step of this process; the profile starts there if its own first step is earlier.
    final: the last step of the run, at which the profile ends at the latest.
    """

    def __init__(self, steps: tuple[int, ...], folder: Path, start: int, final: int) -> None:
        self._steps, self._folder, self._start, self._final = steps, folder, start, final
        self._recording = False

    def before(self, step: int) -> None:
        """Start the profile if `step` is its first step. Call this before each step."""
        if self._steps and step == max(self._steps[0], self._start) and step <= self._steps[-1]:
            jax.profiler.start_trace(str(self._folder))
            self._recording = True

    def after(self, step: int, state: Any) -> None:
        """Stop the profile if `step` is its last step, once `state` is computed. Call this after each step."""
        if self._recording and step in (self._steps[-1], self._final):
            jax.block_until_ready(state)
            self.close()

    def close(self) -> None:
        """Stop the profile."""
        if self._recording:
            jax.profiler.stop_trace()
            self._recording = False
