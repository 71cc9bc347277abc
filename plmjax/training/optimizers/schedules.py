"""Learning-rate schedules, one class each: the shape that multiplies the optimizer's peak learning rate.

A warm-up is BERT's: step / warmup_steps * peak, so that step 0 changes no parameter.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from plmjax.errors import FROM_0, FROM_1, SHARE, check_ranges
from plmjax.experiment import Choice


@dataclasses.dataclass(frozen=True)
class Schedule(Choice):
    """Base of the schedules. A subclass gives `rates`; one that follows evaluations gives all methods."""

    def rates(self, peak: float, steps: int) -> optax.Schedule:
        """Step (int32 scalar, from 0) -> learning rate (float32 scalar) of a run of `steps` optimizer steps."""
        raise NotImplementedError(f"{type(self).__name__} must give its learning rates.")

    def start(self) -> Any:
        """The schedule's state before the first evaluation: a pytree in the optimizer's state."""
        return ()

    def on_evaluation(self, state: Any, value: jax.Array) -> Any:
        """The state after an evaluation of `value`, a float32 scalar of which less is better."""
        return state

    def factor(self, state: Any) -> jax.Array | float:
        """The factor of the learning rate."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class WarmedUp(Schedule):
    """Base of the schedules that begin with a linear warm-up."""

    multiplied: ClassVar[bool] = False
    """True if the warm-up multiplies the schedule; else it replaces the first steps by a rise to the peak."""

    warmup_steps: int = 0
    """Steps of linear warm-up."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("optimizer.schedule", self, warmup_steps=FROM_0)

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """Step -> learning rate past the warm-up."""
        raise NotImplementedError(f"{type(self).__name__} must give its learning rates.")

    def rates(self, peak: float, steps: int) -> optax.Schedule:
        """The warm-up, then `after`."""
        warmup, after = self.warmup_steps, self.after(peak, steps)
        if warmup == 0:
            return lambda step: jnp.asarray(after(step), jnp.float32)
        before = after if self.multiplied else optax.constant_schedule(peak)
        return lambda step: jnp.where(step < warmup, before(step) * (step / warmup), after(step)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Linear(WarmedUp):
    """From the peak at step 0 to 0 at the end of the run (BERT).

    Deviation: BERT's paper (appendix A.2) describes warm-up followed by decay; its released optimization.py, which made
    the published models and is followed here, decays from step 0 and lets the warm-up replace the first steps. The rate
    therefore jumps at the end of the warm-up, from almost the peak to (1 - warmup / steps) * peak.
    """

    name: ClassVar[str] = "linear"

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """peak * (1 - step / steps)."""
        # The steps left are counted in whole numbers, so that the last rates are exact and the end is 0.
        return lambda step: peak * ((steps - jnp.minimum(step, steps)) / steps)


@dataclasses.dataclass(frozen=True)
class LinearTimesWarmup(Linear):
    """ELECTRA's: the warm-up multiplies the decay and the rate does not jump (Clark et al. 2020,
    google-research/electra model/optimization.py)."""

    name: ClassVar[str] = "linear_times_warmup"
    multiplied: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Constant(WarmedUp):
    """The peak."""

    name: ClassVar[str] = "constant"

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """peak."""
        return optax.constant_schedule(peak)


@dataclasses.dataclass(frozen=True)
class Cosine(WarmedUp):
    """From the peak at the end of the warm-up to 0 at the end of the run (GPT, Radford et al. 2018, section 4.1)."""

    name: ClassVar[str] = "cosine"

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """Half a cosine over the steps after the warm-up."""
        decay = optax.cosine_decay_schedule(peak, max(steps - self.warmup_steps, 1))
        return lambda step: decay(step - self.warmup_steps)


@dataclasses.dataclass(frozen=True)
class InverseSquareRoot(WarmedUp):
    """Falls with the square root of the step: the Transformer's (Vaswani et al. 2017, equation 3), T5's.

    The Transformer's is `InverseSquareRoot(warmup_steps=4000)`. T5's, 1 / sqrt(max(step, 10,000)) (Raffel et al. 2020,
    section 3.1.2), is `InverseSquareRoot(constant_steps=10_000)` with a peak of 0.01.
    """

    name: ClassVar[str] = "inverse_square_root"

    constant_steps: int = 0
    """Steps, the warm-up among them, after which the rate begins to fall; 0 begins at the end of the warm-up."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        check_ranges("optimizer.schedule", self, constant_steps=FROM_0)

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """peak * sqrt(first / step) from the step `first` on."""
        first = max(self.warmup_steps, self.constant_steps, 1)
        return lambda step: peak * jnp.sqrt(first / jnp.maximum(step, first))


@dataclasses.dataclass(frozen=True)
class InverseTime(WarmedUp):
    """Falls with the inverse of the step: NNLM's (Bengio et al. 2003, section 2), with 1e-8 and a peak of 0.001.

    Deviation: there a step is one example, so that the rate of a batch of B examples falls as there with B times the
    decay.
    """

    name: ClassVar[str] = "inverse_time"

    decay: float = 1e-8
    """r in peak / (1 + r step)."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        check_ranges("optimizer.schedule", self, decay=FROM_0)

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """peak / (1 + decay * step)."""
        return lambda step: peak / (1 + self.decay * step)


@dataclasses.dataclass(frozen=True)
class InverseRootTime(WarmedUp):
    """Falls with the root of the step, later than its inverse: that of cross-view training (Clark et al. 2018,
    tensorflow/models research/cvt_text model/multitask_model.py), whose warm-up of 5,000 steps multiplies it."""

    name: ClassVar[str] = "inverse_root_time"
    multiplied: ClassVar[bool] = True

    decay: float = 0.005
    """r in peak / (1 + r sqrt(step))."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        check_ranges("optimizer.schedule", self, decay=FROM_0)

    def after(self, peak: float, steps: int) -> optax.Schedule:
        """peak / (1 + decay * sqrt(step))."""
        return lambda step: peak / (1 + self.decay * jnp.sqrt(step))


@dataclasses.dataclass(frozen=True)
class SlantedTriangular(Schedule):
    """ULMFiT's: a short rise and a long fall, both linear (Howard and Ruder 2018, equation 3)."""

    name: ClassVar[str] = "slanted_triangular"

    cut_fraction: float = 0.1
    """Share of the run over which the rate rises."""
    ratio: float = 32.0
    """Peak rate divided by the smallest rate."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        check_ranges("optimizer.schedule", self, cut_fraction=SHARE, ratio=FROM_1)

    def rates(self, peak: float, steps: int) -> optax.Schedule:
        """peak * (1 + p * (ratio - 1)) / ratio, where p rises from 0 to 1 and falls back to 0."""
        cut, ratio = max(int(steps * self.cut_fraction), 1), self.ratio

        def learning_rate(step: jax.Array) -> jax.Array:
            # Deviation: the equation divides the fall by cut * (1 / cut_fraction - 1), which is steps - cut up to the
            # rounding of cut; in a run of few steps that rounding would take the rate below zero.
            share = jnp.where(step < cut, step / cut, 1 - (step - cut) / max(steps - cut, 1))
            return jnp.asarray(peak * (1 + share * (ratio - 1)) / ratio, jnp.float32)

        return learning_rate


class PlateauState(NamedTuple):
    """factor: float32, of the learning rate. best: float32, the smallest value. waited: int32, evaluations since.

    All three are scalars.
    """

    factor: jax.Array
    best: jax.Array
    waited: jax.Array


@dataclasses.dataclass(frozen=True)
class Plateau(Constant):
    """The peak, multiplied by a factor whenever the evaluation has not improved for a while.

    As torch.optim.lr_scheduler.ReduceLROnPlateau: a value improves when it is less than the best one by more than a
    share of it, and after more than `patience` evaluations without improvement the rate falls.
    """

    name: ClassVar[str] = "plateau"

    reduction: float = 0.1
    """Factor of the learning rate on a plateau."""
    patience: int = 10
    """Evaluations without improvement that do not lower the learning rate yet."""
    threshold: float = 1e-4
    """Share of the best value by which a better one must be less."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        check_ranges("optimizer.schedule", self, reduction=SHARE, patience=FROM_0, threshold=SHARE)

    def start(self) -> PlateauState:
        """A factor of 1."""
        return PlateauState(
            factor=jnp.ones((), jnp.float32),
            best=jnp.full((), jnp.inf, jnp.float32),
            waited=jnp.zeros((), jnp.int32),
        )

    def on_evaluation(self, state: PlateauState, value: jax.Array) -> PlateauState:
        """The state with a smaller factor where `value` ends the patience."""
        better = value < state.best * (1 - self.threshold)
        waited = jnp.where(better, 0, state.waited + 1)
        falls = waited > self.patience
        return PlateauState(
            factor=jnp.where(falls, state.factor * self.reduction, state.factor),
            best=jnp.where(better, value, state.best),
            waited=jnp.where(falls, 0, waited),
        )

    def factor(self, state: PlateauState) -> jax.Array:
        """float32 scalar."""
        return state.factor
