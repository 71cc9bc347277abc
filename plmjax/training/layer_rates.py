"""A learning rate for every layer, and layers that begin to be trained one after the other: for fine-tuning.

    rate of a parameter = learning rate x layer_decay ** (L + 2 - depth)

The depth of embeddings (and of what brings them to the encoder's width) is 0, of layer i, counted from 0, i + 1, of
what else the encoder holds, such as a pooler, L + 1, and of the head and all else outside the encoder L + 2. This is
the rule of ELECTRA (Clark et al., ICLR 2020, arXiv 2003.10555; its released model/optimization.py), whose top
layer thus gets layer_decay ** 2: the place between it and the head is a pooler's, which ELECTRA does not have.

Gradual unfreezing (Howard and Ruder, ACL 2018, arXiv 1801.06146, section 3.3): the head alone is trained at first, then
with it whatever is nearest below it, and so on down to the embeddings.

Deviation: ULMFiT unfreezes a group after every epoch; here it is after a number of steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from plmjax.errors import UserError
from plmjax.training import paths

Params = Any


class LayerRatesState(NamedTuple):
    """step: int32 scalar, updates so far. inner: the state of the rule."""

    step: jax.Array
    inner: optax.OptState


def layer_rates(
    update: optax.GradientTransformation, layer_decay: float, unfreeze_every: int, params: Params
) -> optax.GradientTransformation:
    """`update` with each layer's own rate; every `unfreeze_every` steps one more group is trained, 0 trains them all.

    A group that still waits has no gradient, so that its moments stay zero and the global norm leaves it out, and no
    update, so that it does not decay either. params: boxed with their logical axes, abstract ones too.

    Raises:
        UserError: parameters without an encoder.
    """
    below = below_the_head(params)
    rates = {name: (layer_decay**distance).astype(np.float32) for name, distance in below.items()}
    groups = np.unique(np.concatenate([distance.ravel() for distance in below.values()]))

    def unfrozen(name: str, leaf: jax.Array, step: jax.Array) -> jax.Array:
        if not unfreeze_every:
            return leaf
        return jnp.where(np.searchsorted(groups, below[name]) <= step // unfreeze_every, leaf, 0)

    def init(params: Params) -> LayerRatesState:
        return LayerRatesState(jnp.zeros((), jnp.int32), update.init(params))

    def apply(gradients: Params, state: LayerRatesState, params: Params = None) -> tuple[Params, LayerRatesState]:
        gradients = _map(lambda name, leaf: unfrozen(name, leaf, state.step), gradients)
        updates, inner = update.update(gradients, state.inner, params)
        updates = _map(lambda name, leaf: unfrozen(name, leaf * rates[name], state.step), updates)
        return updates, LayerRatesState(state.step + 1, inner)

    return optax.GradientTransformation(init, apply)


def below_the_head(params: Params) -> dict[str, np.ndarray]:
    """Path -> how far below the head the parameter lies, L + 2 - depth, of a shape that broadcasts to the parameter's.

    The encoder is the part of the tree that begins with embeddings; of several encoders each has its own L. Layers that
    are stacked lie apart along their axis "layers"; those that share their parameters lie where a pooler does.
    """
    leaves = {}
    paths.map_named(lambda name, leaf: leaves.setdefault(name, leaf), params)
    if not any(map(_embeds, leaves)):
        raise UserError(
            "--optimizer.layer_decay and --optimizer.unfreeze_every need a model whose encoder begins with embeddings, "
            f"found {', '.join(sorted({name.split('/')[0] for name in leaves}))}; leave both as they are by default."
        )
    encoders = {name.split("/")[0] for name in leaves if _embeds(name)}
    layers = dict.fromkeys(encoders, 0)
    for name, leaf in leaves.items():
        if _stacked(name, leaf) is not None and name.split("/")[0] in encoders:
            layers[name.split("/")[0]] = leaf.value.shape[_stacked(name, leaf)]

    def distance(name: str, leaf: Any) -> np.ndarray:
        encoder, axis = name.split("/")[0], _stacked(name, leaf)
        if encoder not in encoders:
            return np.array(0)
        if _embeds(name):
            return np.array(layers[encoder] + 2)
        if axis is None:
            return np.array(1)
        shape = [-1 if other == axis else 1 for other in range(leaf.value.ndim)]
        return (layers[encoder] + 1 - np.arange(layers[encoder])).reshape(shape)

    return {name: distance(name, leaf) for name, leaf in leaves.items()}


def _embeds(name: str) -> bool:
    return name.split("/")[1:2] != [] and name.split("/")[1].startswith("embeddings")


def _stacked(name: str, leaf: Any) -> int | None:
    """The axis along which a parameter holds one layer after the other."""
    if not isinstance(leaf, nn.LogicallyPartitioned):
        raise ValueError(f"Rates of layers need the logical axes of {name!r}: build them from boxed parameters.")
    return leaf.names.index(paths.LAYERS) if paths.LAYERS in leaf.names else None


def _map(function: Callable[[str, jax.Array], jax.Array], tree: Params) -> Params:
    """`function(path, array)` of every array of a tree, within its box where it has one."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(paths.name(path), leaf), tree)
