"""The schedule of a fraction that falls while a model is trained (Zhu and Gupta, arXiv 1710.01878).

    initial                                           before `begin`
    final + (initial - final) (1 - progress)^3        between
    final                                             after `end`

The released schedule of movement pruning (masked_run_glue.py, `schedule_threshold`) counts `begin` and `end` in
multiples of its warm-up; here both are fractions of the run.
"""

import dataclasses

import jax
import jax.numpy as jnp

from plmjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Cubic:
    """A fraction that falls, or rises, by a cubic function.

    Raises:
        UserError: `begin` and `end` are not ascending fractions of the run.
    """

    initial: float
    """Value at the start."""
    final: float
    """Value at the end."""
    begin: float = 0.1
    """Share of the run before the value changes."""
    end: float = 0.8
    """Share of the run after which the value is final."""

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end <= 1:
            raise UserError(
                f"Expected --compression.begin and --compression.end in their order from 0 to 1, found {self.begin} "
                f"and {self.end}; change them."
            )

    def at(self, step: jax.Array | int, steps: int) -> jax.Array:
        """Return the value at a step of a run of `steps` steps, float32 scalar."""
        begin, end = self.begin * steps, self.end * steps
        progress = jnp.clip((jnp.asarray(step, jnp.float32) - begin) / max(end - begin, 1e-9), 0.0, 1.0)
        return self.final + (self.initial - self.final) * (1 - progress) ** 3
