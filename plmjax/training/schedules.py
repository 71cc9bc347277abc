"""Learning-rate schedules: the peak of `experiment.Optimizer` times a shape, after a linear warm-up.

The warm-up is BERT's: step / warmup_steps * peak, so that step 0 changes no parameter.
"""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from plmjax import experiment
from plmjax.errors import UserError, nearest, quoted


def schedule(optimizer: experiment.Optimizer, steps: int) -> optax.Schedule:
    """Step (int32 scalar, from 0) -> learning rate (float32 scalar) of a run of `steps` optimizer steps.

    Raises:
        UserError: the schedule has no such name, or its warm-up is one that it cannot have.
    """
    if optimizer.schedule not in SCHEDULES:
        raise UserError(
            f"Unknown --optimizer.schedule {quoted(optimizer.schedule)}; {nearest(optimizer.schedule, SCHEDULES)}"
        )
    peak, warmup = optimizer.learning_rate, optimizer.warmup_steps
    after = SCHEDULES[optimizer.schedule](peak, warmup, steps)
    if warmup == 0:
        return lambda step: jnp.asarray(after(step), jnp.float32)
    before = after if optimizer.schedule in MULTIPLIED else optax.constant_schedule(peak)
    return lambda step: jnp.where(step < warmup, before(step) * (step / warmup), after(step)).astype(jnp.float32)


def _linear(peak: float, warmup: int, steps: int) -> optax.Schedule:
    # Deviation: BERT's paper (appendix A.2) describes warm-up followed by decay; its released optimization.py, which
    # made the published models and is kept here, decays from step 0 and lets the warm-up replace the first steps, so
    # that the rate jumps at the end of the warm-up from almost the peak to (1 - warmup / steps) * peak.
    # The steps left are counted in whole numbers, so that the last rates are exact and the end is 0.
    return lambda step: peak * ((steps - jnp.minimum(step, steps)) / steps)


def _constant(peak: float, warmup: int, steps: int) -> optax.Schedule:
    return optax.constant_schedule(peak)


def _cosine(peak: float, warmup: int, steps: int) -> optax.Schedule:
    """From the peak at the end of the warm-up to 0 at the end of the run (GPT, Radford et al. 2018, section 4.1)."""
    decay = optax.cosine_decay_schedule(peak, max(steps - warmup, 1))
    return lambda step: decay(step - warmup)


def _inverse_square_root(peak: float, warmup: int, steps: int) -> optax.Schedule:
    """peak * sqrt(warmup / step), the Transformer's (Vaswani et al. 2017, equation 3); without warm-up from step 1."""
    return lambda step: peak * jnp.sqrt(max(warmup, 1) / jnp.maximum(step, max(warmup, 1)))


def _slanted_triangular(peak: float, warmup: int, steps: int) -> optax.Schedule:
    """ULMFiT's (Howard and Ruder 2018, equation 3): cut_frac 0.1, ratio 32; its short rise is its warm-up."""
    if warmup:
        raise UserError(
            f"The slanted_triangular schedule rises over the first tenth of the run instead of a warm-up, found "
            f"{warmup} steps of it; set --optimizer.warmup_steps 0."
        )
    cut_fraction, ratio = 0.1, 32
    cut = max(int(steps * cut_fraction), 1)

    def learning_rate(step):
        # Deviation: the equation divides the fall by cut * (1 / cut_frac - 1), which is steps - cut up to the rounding
        # of cut; in a run of few steps that rounding would take the rate below zero.
        share = jnp.where(step < cut, step / cut, 1 - (step - cut) / max(steps - cut, 1))
        return peak * (1 + share * (ratio - 1)) / ratio

    return learning_rate


SCHEDULES: dict[str, Callable[[float, int, int], optax.Schedule]] = {
    "linear": _linear,
    "linear_times_warmup": _linear,
    "constant": _constant,
    "cosine": _cosine,
    "inverse_square_root": _inverse_square_root,
    "slanted_triangular": _slanted_triangular,
}
"""Name -> (peak, warmup_steps, steps) -> learning rate of a step that is past the warm-up."""

MULTIPLIED = ("linear_times_warmup",)
"""Schedules that the warm-up does not replace but multiplies, so that no rate jumps: ELECTRA's (Clark et al. 2020,
google-research/electra model/optimization.py)."""
