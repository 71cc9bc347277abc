"""LAMB: the update of each layer is scaled to the norm of its parameters (You et al., ICLR 2020, arXiv 1904.00962)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath

from plmjax.training import paths
from plmjax.training.optimizers.adam import Moments, scale_by_corrected_moments, scale_by_moments
from plmjax.training.optimizers.stacked import Axes, axes_of, layer_norms

Params = Any


@dataclasses.dataclass(frozen=True)
class Lamb(Moments):
    """LAMB as in ALBERT's lamb_optimizer.py.

    Deviation: algorithm 2 of the paper corrects the bias of the moments and has a trust ratio for every parameter.
    ALBERT's released code, followed here, has no bias correction, and no trust ratio for parameters without weight
    decay. With `correct_bias` this is LAMB as in MLPerf's BERT (mlcommons/training, lamb_optimizer_v1.py), which has
    the correction and the same exception.
    """

    name: ClassVar[str] = "lamb"

    correct_bias: bool = False
    """Correct the bias of the moments."""

    def rule(self, learning_rate: optax.Schedule, params: Params) -> optax.GradientTransformation:
        scale = scale_by_corrected_moments if self.correct_bias else scale_by_moments
        return optax.chain(
            scale(self.beta1, self.beta2, self.epsilon),
            self.decay(params),
            scale_by_trust_ratio(axes_of(params, self.decay_mask(params))),
            optax.scale_by_learning_rate(learning_rate),
        )


def scale_by_trust_ratio(axes: Axes) -> optax.GradientTransformation:
    """Multiply each layer's update by norm(parameter) / norm(update), or by 1 if either norm is 0.

    A parameter with a "layers" axis has a ratio for each layer, so that stacked layers are updated like separate ones.

    axes: logical axes of the parameters that have a ratio, by path; updates of all others do not change.
    """

    def ratio(parameter: jax.Array, update: jax.Array, names: tuple) -> jax.Array:
        size, length = (layer_norms(x, names) for x in (parameter, update))
        return jnp.where((size > 0) & (length > 0), size / jnp.where(length > 0, length, 1), 1)

    def scale(path: KeyPath, update: jax.Array, parameter: jax.Array) -> jax.Array:
        name = paths.name(path)
        return update * ratio(parameter, update, axes[name]) if name in axes else update

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates, params))
