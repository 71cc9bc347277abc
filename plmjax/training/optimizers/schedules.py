"""Learning-rate schedules, one class each. A schedule multiplies the optimizer's peak learning rate.

The warm-up is that of BERT, step / warmup_steps * peak, so step 0 changes no parameter.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from plmjax.errors import FRACTION, FROM_0, FROM_1, PROBABILITY, UserError, check_choice, check_ranges
from plmjax.experiment import Choice


@dataclasses.dataclass(frozen=True)
class Schedule(Choice):
    """Base class of the schedules. A subclass defines `rates`; one that depends on evaluations defines all methods."""

    def rates(self, peak: float, steps: int) -> optax.Schedule:
        """Return the function from step (int32, from 0) to learning rate (float32), for a run of `steps` steps."""
        raise NotImplementedError(f"{type(self).__name__} must define `rates`.")

    def start(self) -> Any:
        """Return the schedule's state before the first evaluation: a pytree in the optimizer state."""
        return ()

    def on_evaluation(self, state: Any, value: jax.Array) -> Any:
        """Return the state after an evaluation with `value`, a float32 scalar; smaller is better."""
        return state

    def factor(self, state: Any) -> jax.Array | float:
        """Return the factor of the learning rate that evaluations have set."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class WarmedUp(Schedule):
    """Base class of the schedules that start with a linear warm-up."""

    multiplied: ClassVar[bool] = False
    """True if the warm-up multiplies the schedule; false if it replaces the first steps by a rise to the peak."""

    warmup_steps: int = 0
    """Number of steps of linear warm-up; 0 for none."""
    warmup_tokens: float = dataclasses.field(default=0.0, kw_only=True)
    """Number of tokens of linear warm-up, rounded to whole steps; 0 takes `warmup_steps`."""

    def __post_init__(self) -> None:
        check_ranges("optimizer.schedule", self, warmup_steps=FROM_0, warmup_tokens=FROM_0)
        if self.warmup_steps and self.warmup_tokens:
            raise UserError(
                f"--optimizer.schedule.warmup_steps and warmup_tokens exclude each other, found {self.warmup_steps} "
                f"and {self.warmup_tokens:g}; set one of them to 0."
            )

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """Return the function from step to learning rate after the warm-up."""
        raise NotImplementedError(f"{type(self).__name__} must define `after`.")

    def rates(self, peak: float, steps: int) -> optax.Schedule:
        warmup, after = self.warmup_steps, self.after(peak, steps)
        if warmup == 0:
            return lambda step: jnp.asarray(after(step), jnp.float32)
        before = after if self.multiplied else optax.constant_schedule(peak)
        return lambda step: jnp.where(step < warmup, before(step) * (step / warmup), after(step)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Linear(WarmedUp):
    """Linear decay from the peak at step 0 to 0 at the end of the run (BERT).

    Deviation: BERT's paper (appendix A.2) describes warm-up followed by decay. Its released optimization.py, which
    trained the published models and is followed here, decays from step 0, and the warm-up replaces the first steps.
    So the rate jumps at the end of the warm-up, from almost the peak to (1 - warmup / steps) * peak.
    """

    name: ClassVar[str] = "linear"

    def after(self, peak: float, steps: int) -> optax.Schedule:
        # The remaining steps are an integer, so that the last rates are exact and the end is 0.
        return lambda step: peak * ((steps - jnp.minimum(step, steps)) / steps)


@dataclasses.dataclass(frozen=True)
class LinearTimesWarmup(Linear):
    """ELECTRA's schedule: the warm-up multiplies the decay, so the rate does not jump.

    Source: Clark et al. 2020, google-research/electra model/optimization.py.
    """

    name: ClassVar[str] = "linear_times_warmup"
    multiplied: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Constant(WarmedUp):
    """The peak learning rate at every step."""

    name: ClassVar[str] = "constant"

    def after(self, peak: float, steps: int) -> optax.Schedule:
        return optax.constant_schedule(peak)


@dataclasses.dataclass(frozen=True)
class Cosine(WarmedUp):
    """Cosine decay from the peak at the end of the warm-up to 0 at the end of the run (GPT; Radford et al. 2018)."""

    name: ClassVar[str] = "cosine"

    def after(self, peak: float, steps: int) -> optax.Schedule:
        decay = optax.cosine_decay_schedule(peak, max(steps - self.warmup_steps, 1))
        return lambda step: decay(step - self.warmup_steps)


SHAPES: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "linear": lambda done: 1 - done,
    "one_minus_sqrt": lambda done: 1 - jnp.sqrt(done),
    "cosine": lambda done: 0.5 * (1 + jnp.cos(jnp.pi * done)),
}
"""Shape of a decay -> function from the fraction of its steps that are done to the remaining fraction of the decay."""


@dataclasses.dataclass(frozen=True)
class WarmupStableDecay(WarmedUp):
    """Warm-up, a constant peak, then a decay to a floor in the last steps of the run (Hu et al., arXiv 2404.06395).

    A run without decay (`decay_steps` 0) can be continued for any number of steps. ModernBERT decays by 1 - sqrt, over
    its last phase (Warner et al., arXiv 2412.13663; Hagele et al., arXiv 2405.18392).

    Raises:
        UserError: a number out of its range, or an unknown shape.
    """

    name: ClassVar[str] = "warmup_stable_decay"

    decay_steps: int = 0
    """Number of steps of the decay, at the end of the run or of its phases with this schedule; 0 takes
    `decay_fraction`.
    """
    shape: str = "linear"
    """Shape of the decay: linear, one_minus_sqrt or cosine."""
    floor: float = 0.0
    """Fraction of the peak at the end of the decay."""
    decay_fraction: float = 0.0
    """Length of the decay as a fraction of all steps; 0 takes `decay_steps`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer.schedule", self, decay_steps=FROM_0, decay_fraction=PROBABILITY, floor=FRACTION)
        if self.decay_steps and self.decay_fraction:
            raise UserError(
                f"--optimizer.schedule.decay_steps and decay_fraction exclude each other, found {self.decay_steps} and "
                f"{self.decay_fraction:g}; set one of them to 0."
            )
        check_choice("--optimizer.schedule.shape", self.shape, SHAPES)

    def stable_steps(self, steps: int) -> int:
        """Return the number of steps before the decay, in a schedule of `steps` steps."""
        return steps - (self.decay_steps or round(self.decay_fraction * steps))

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """Return the peak, then the decay.

        Raises:
            UserError: the decay begins before the end of the warm-up.
        """
        first = self.stable_steps(steps)
        decay_steps = steps - first
        if decay_steps and first < self.warmup_steps:
            raise UserError(
                f"Expected a decay of at most {max(steps - self.warmup_steps, 0)} steps, those after the warm-up of "
                f"{self.warmup_steps}, found {decay_steps}; lower --optimizer.schedule.decay_steps, decay_fraction or "
                f"warmup_steps."
            )

        def rate(step: jax.Array) -> jax.Array:
            done = jnp.clip((step - first) / max(decay_steps, 1), 0, 1)
            return peak * (self.floor + (1 - self.floor) * SHAPES[self.shape](done))

        return rate if decay_steps else optax.constant_schedule(peak)


@dataclasses.dataclass(frozen=True)
class Polynomial(WarmedUp):
    """Decay from the peak at the end of the warm-up to 0 at the end of the run: peak * remaining fraction ** power.

    Source: fairseq optim/lr_scheduler/polynomial_decay_schedule.py. Longformer's pretraining has a power of 3.
    """

    name: ClassVar[str] = "polynomial"

    power: float = 1.0
    """Exponent of the remaining fraction of the steps after the warm-up; 1 is a linear decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer.schedule", self, power=FROM_0)

    def after(self, peak: float, steps: int) -> optax.Schedule:
        length = max(steps - self.warmup_steps, 1)
        return lambda step: peak * ((steps - jnp.minimum(step, steps)) / length) ** self.power


@dataclasses.dataclass(frozen=True)
class InverseSquareRoot(WarmedUp):
    """Decay as 1 / sqrt(step), as in the Transformer (Vaswani et al. 2017, equation 3) and T5.

    The Transformer's schedule is `InverseSquareRoot(warmup_steps=4000)`. T5's, 1 / sqrt(max(step, 10,000)) (Raffel et
    al. 2020, section 3.1.2), is `InverseSquareRoot(constant_steps=10_000)` with a peak of 0.01.
    """

    name: ClassVar[str] = "inverse_square_root"

    constant_steps: int = 0
    """Number of steps, including the warm-up, before the decay; 0 starts it at the end of the warm-up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer.schedule", self, constant_steps=FROM_0)

    def after(self, peak: float, steps: int) -> optax.Schedule:
        first = max(self.warmup_steps, self.constant_steps, 1)
        return lambda step: peak * jnp.sqrt(first / jnp.maximum(step, first))


@dataclasses.dataclass(frozen=True)
class InverseTime(WarmedUp):
    """Decay as 1 / (1 + decay * step): NNLM's schedule (Bengio et al. 2003, section 2).

    NNLM has a decay of 1e-8 and a peak of 0.001.

    Deviation: in the paper a step is one example. With batches of B examples, B times the decay gives the same rates.
    """

    name: ClassVar[str] = "inverse_time"

    decay: float = 1e-8
    """r in peak / (1 + r step)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer.schedule", self, decay=FROM_0)

    def after(self, peak: float, steps: int) -> optax.Schedule:
        return lambda step: peak / (1 + self.decay * step)


@dataclasses.dataclass(frozen=True)
class InverseRootTime(WarmedUp):
    """Decay as 1 / (1 + decay * sqrt(step)): the schedule of cross-view training.

    Its warm-up of 5,000 steps multiplies it (Clark et al. 2018; tensorflow/models research/cvt_text
    model/multitask_model.py).
    """

    name: ClassVar[str] = "inverse_root_time"
    multiplied: ClassVar[bool] = True

    decay: float = 0.005
    """r in peak / (1 + r sqrt(step))."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer.schedule", self, decay=FROM_0)

    def after(self, peak: float, steps: int) -> optax.Schedule:
        return lambda step: peak / (1 + self.decay * jnp.sqrt(step))


@dataclasses.dataclass(frozen=True)
class SlantedTriangular(Schedule):
    """ULMFiT's schedule: a short linear rise and a long linear decay (Howard and Ruder 2018, equation 3)."""

    name: ClassVar[str] = "slanted_triangular"

    cut_fraction: float = 0.1
    """Fraction of the run in which the rate rises."""
    ratio: float = 32.0
    """Peak rate divided by the smallest rate."""

    def __post_init__(self) -> None:
        check_ranges("optimizer.schedule", self, cut_fraction=FRACTION, ratio=FROM_1)

    def rates(self, peak: float, steps: int) -> optax.Schedule:
        """Return peak * (1 + p * (ratio - 1)) / ratio, where p rises from 0 to 1 and falls back to 0."""
        cut, ratio = max(int(steps * self.cut_fraction), 1), self.ratio

        def learning_rate(step: jax.Array) -> jax.Array:
            # Deviation: the equation divides the fall by cut * (1 / cut_fraction - 1), which is steps - cut up to the
            # rounding of cut; in a run of few steps that rounding would take the rate below zero.
            share = jnp.where(step < cut, step / cut, 1 - (step - cut) / max(steps - cut, 1))
            return jnp.asarray(peak * (1 + share * (ratio - 1)) / ratio, jnp.float32)

        return learning_rate


class PlateauState(NamedTuple):
    """The state of `Plateau`: three scalars.

    Attributes:
        factor: float32, factor of the learning rate.
        best: float32, the smallest value so far.
        waited: int32, number of evaluations since then.
    """

    factor: jax.Array
    best: jax.Array
    waited: jax.Array


@dataclasses.dataclass(frozen=True)
class Plateau(Constant):
    """The peak, multiplied by `reduction` each time that evaluations have stopped improving.

    As in torch.optim.lr_scheduler.ReduceLROnPlateau, a value is an improvement if it is smaller than the best one by
    more than a fraction of it. After more than `patience` evaluations without improvement, the rate is reduced.
    """

    name: ClassVar[str] = "plateau"

    reduction: float = 0.1
    """Factor of the learning rate on a plateau."""
    patience: int = 10
    """Number of evaluations without improvement that are tolerated; 0 reduces the learning rate at the first one."""
    threshold: float = 1e-4
    """Fraction of the best value by which a new value must be smaller to count as an improvement."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer.schedule", self, reduction=FRACTION, patience=FROM_0, threshold=FRACTION)

    def start(self) -> PlateauState:
        return PlateauState(
            factor=jnp.ones((), jnp.float32),
            best=jnp.full((), jnp.inf, jnp.float32),
            waited=jnp.zeros((), jnp.int32),
        )

    def on_evaluation(self, state: PlateauState, value: jax.Array) -> PlateauState:
        better = value < state.best * (1 - self.threshold)
        waited = jnp.where(better, 0, state.waited + 1)
        falls = waited > self.patience
        return PlateauState(
            factor=jnp.where(falls, state.factor * self.reduction, state.factor),
            best=jnp.where(better, value, state.best),
            waited=jnp.where(falls, 0, waited),
        )

    def factor(self, state: PlateauState) -> jax.Array:
        return state.factor
