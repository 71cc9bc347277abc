"""AdamW: as in BERT's released code, and as published."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from plmjax.errors import FRACTION, FROM_0, check_ranges
from plmjax.training.optimizers.weight_decay import Decaying

Params = Any


@dataclasses.dataclass(frozen=True)
class Moments(Decaying):
    """Base class of the rules with running averages of the gradient and of its square."""

    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    epsilon: float = 1e-6
    """Added to the root of the second moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("optimizer", self, beta1=FRACTION, beta2=FRACTION, epsilon=FROM_0)


@dataclasses.dataclass(frozen=True)
class BertAdamW(Moments):
    """AdamW as in BERT's released code, without bias correction of the moments."""

    name: ClassVar[str] = "bert_adamw"

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        return optax.chain(
            scale_by_moments(self.beta1, self.beta2, self.epsilon),
            self.decay(params),
            optax.scale_by_learning_rate(learning_rate),
        )


@dataclasses.dataclass(frozen=True)
class AdamW(Moments):
    """AdamW as published (Loshchilov and Hutter, ICLR 2019, arXiv 1711.05101)."""

    name: ClassVar[str] = "adamw"

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        return optax.chain(
            scale_by_corrected_moments(self.beta1, self.beta2, self.epsilon),
            self.decay(params),
            optax.scale_by_learning_rate(learning_rate),
        )


class MomentsState(NamedTuple):
    """mean, mean_square: running averages of the gradient and of its square, float32, with the parameters' shapes."""

    mean: Params
    mean_square: Params


def scale_by_moments(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Replace gradients by mean / (sqrt(mean_square) + epsilon), without bias correction (bert optimization.py).

    Deviation: Adam as published (Kingma and Ba 2015) divides both averages by 1 - beta ** step. The released code of
    BERT, ALBERT and ELECTRA does not. So the first update is larger by a factor of (1 - beta1) / sqrt(1 - beta2) = 3.2.
    """

    def init(params: Params) -> MomentsState:
        return MomentsState(*(optax.tree.zeros_like(params, dtype=jnp.float32) for _ in range(2)))

    def update(gradients: Params, state: MomentsState, params: Params = None) -> tuple[Params, MomentsState]:
        mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mean, gradients)
        mean_square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.mean_square, gradients)
        directions = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mean, mean_square)
        return directions, MomentsState(mean, mean_square)

    return optax.GradientTransformation(init, update)


def scale_by_corrected_moments(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformationExtraArgs:
    """Replace gradients by mean / (sqrt(mean_square) + epsilon), where both averages are bias-corrected (Adam).

    Bias correction divides an average by 1 - beta ** count. The update takes `counts`, the number of updates of each
    parameter including this one: int32 arrays that broadcast to the parameters. By default it is the number of updates
    of the run, as in optax.scale_by_adam, whose state is used.

    The averages of a parameter that is unfrozen later are 0 until then. With the count of the run its first updates
    would be too large. For ULMFiT's betas the factor at the fourth step is 1.9 after 25 frozen steps, 3.1 after 100,
    and 3.8 after many. torch.optim.Adam also counts the steps of each parameter.
    """

    def update(
        gradients: Params, state: optax.ScaleByAdamState, params: Params = None, *, counts: Params | None = None
    ) -> tuple[Params, optax.ScaleByAdamState]:
        mean = optax.tree.update_moment(gradients, state.mu, beta1, 1)
        mean_square = optax.tree.update_moment_per_elem_norm(gradients, state.nu, beta2, 2)
        count = optax.safe_increment(state.count)
        if counts is None:
            counts = jax.tree.map(lambda _: count, gradients)

        def direction(m: jax.Array, v: jax.Array, n: jax.Array) -> jax.Array:
            return (m / (1 - beta1**n)) / (jnp.sqrt(v / (1 - beta2**n)) + epsilon)

        directions = jax.tree.map(direction, mean, mean_square, counts)
        return directions, optax.ScaleByAdamState(count, mean, mean_square)

    return optax.GradientTransformationExtraArgs(optax.scale_by_adam().init, update)
