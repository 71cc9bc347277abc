"""The mean of the parameters over the steps of a run (Polyak and Juditsky 1992)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Params = Any


class AverageState(NamedTuple):
    """The state of `average`.

    Attributes:
        inner: the state of the rule.
        mean: mean of the parameters over `count` steps, float32, with their shapes.
        averaging: bool scalar, true once averaging has started.
        count: int32 scalar, number of steps in the mean.
        best: float32 scalar, the smallest value of the evaluations before `recent`; inf at first.
        recent: float32 [patience], the values of the last evaluations, oldest first; inf at first.
    """

    inner: optax.OptState
    mean: Params
    averaging: jax.Array
    count: jax.Array
    best: jax.Array
    recent: jax.Array


def average(
    update: optax.GradientTransformation, from_start: bool, patience: int = 0, least: float = 0.0
) -> optax.GradientTransformation:
    """Return `update` with a mean of the updated parameters in its state.

    Args:
        from_start: true to average from the first step; false to wait until `on_evaluation` starts it.
        patience: number of last evaluations that `on_evaluation` does not compare with.
        least: smallest weight of a step. As long as 1 / count is larger, all steps have equal weights. Then the mean
            becomes an exponential moving average with decay 1 - least.
    """

    def init(params: Params) -> AverageState:
        return AverageState(
            inner=update.init(params),
            mean=optax.tree.zeros_like(params, dtype=jnp.float32),
            averaging=jnp.asarray(from_start),
            count=jnp.zeros((), jnp.int32),
            best=jnp.full((), jnp.inf, jnp.float32),
            recent=jnp.full((patience,), jnp.inf, jnp.float32),
        )

    def apply(gradients: Params, state: AverageState, params: Params) -> tuple[Params, AverageState]:
        updates, inner = update.update(gradients, state.inner, params)
        count = state.count + state.averaging
        share = jnp.where(state.averaging, jnp.maximum(1 / jnp.maximum(count, 1), least), 0)
        mean = jax.tree.map(lambda m, p, u: m + (p + u - m) * share, state.mean, params, updates)
        return updates, state._replace(inner=inner, mean=mean, count=count)

    return optax.GradientTransformation(init, apply)


def on_evaluation(state: AverageState, value: jax.Array) -> AverageState:
    """Return the state after an evaluation. Averaging starts if an evaluation before the last `patience` was better.

    This is the trigger of NT-ASGD (Merity et al. 2018, algorithm 1). Averaging never stops.

    Deviation: here the mean starts with the parameters after the next step. In the paper it starts with the parameters
    just evaluated, and in the released code (torch.optim.ASGD) with those after the second step.
    """
    known = jnp.concatenate([state.recent, value[None]])
    return state._replace(
        averaging=state.averaging | (value > state.best), best=jnp.minimum(state.best, known[0]), recent=known[1:]
    )
