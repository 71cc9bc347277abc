"""A learning rate for every layer, and gradual unfreezing.

    rate of a parameter = learning rate x layer_decay ** (number of groups from its group up to the head)

The model declares the groups (`ModelConfig.parameter_groups`). From bottom to top they are the embeddings (with their
projection to the hidden size), each layer, and other parts of the encoder such as a pooler. The head and all other
parameters have the unchanged learning rate. This is the rule of ELECTRA (Clark et al., ICLR 2020, arXiv 2003.10555; its
released model/optimization.py). The factor of its top layer is layer_decay ** 2, because the rule counts a pooler
between the top layer and the head, which ELECTRA does not have.

A compression multiplies rates by other factors, which may change from step to step (`scale_rates`).

Gradual unfreezing (Howard and Ruder, ACL 2018, arXiv 1801.06146, section 3.3): at first only the head is trained, and
after every `unfreeze_every` steps one more group, from the top down to the embeddings. In the paper a group is added
after each epoch (`Finetuning.unfreeze`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from plmjax.contracts.system import ParameterGroup
from plmjax.errors import UserError
from plmjax.training import paths

Params = Any
Factor = float | Callable[[jax.Array, int], jax.Array]
"""A factor of the learning rate, or a function that returns the factor of each layer, float32 [L]. Its arguments are
the number of updates so far, an int32 scalar, and the number of layers L.
"""


class LayerRatesState(NamedTuple):
    """step: int32 scalar, number of updates so far. inner: the state of the rule."""

    step: jax.Array
    inner: optax.OptState


def layer_rates(
    update: optax.GradientTransformation,
    layer_decay: float,
    unfreeze_every: int,
    *,
    params: Params,
    groups: Sequence[ParameterGroup],
) -> optax.GradientTransformation:
    """Return `update` with a learning rate for each group; every `unfreeze_every` steps one more group is trained.

    With `unfreeze_every` 0 all groups are trained. The gradients of a frozen group are set to 0, so its moments stay 0
    and the global norm leaves it out. Its updates are set to 0 too, so it has no weight decay. A rule that corrects the
    bias of its moments gets the number of updates of each parameter, `counts`.

    Args:
        params: boxed with their logical axes, possibly abstract.
        groups: the model's parameters below the head, from the bottom to the top.

    Raises:
        UserError: no parameter is in a group.
    """
    below = groups_below_the_head(params, groups)
    rates = {name: (layer_decay**distance).astype(np.float32) for name, distance in below.items()}
    distances = np.unique(np.concatenate([distance.ravel() for distance in below.values()]))
    begins = {name: unfreeze_every * np.searchsorted(distances, distance) for name, distance in below.items()}
    update = optax.with_extra_args_support(update)

    def unfrozen(name: str, leaf: jax.Array, step: jax.Array) -> jax.Array:
        return jnp.where(begins[name] <= step, leaf, 0) if unfreeze_every else leaf

    def init(params: Params) -> LayerRatesState:
        return LayerRatesState(jnp.zeros((), jnp.int32), update.init(params))

    def apply(gradients: Params, state: LayerRatesState, params: Params = None) -> tuple[Params, LayerRatesState]:
        gradients = _map(lambda name, leaf: unfrozen(name, leaf, state.step), gradients)
        counts = _map(lambda name, _: jnp.maximum(state.step + 1 - begins[name], 1), gradients)
        updates, inner = update.update(gradients, state.inner, params, counts=counts)
        updates = _map(lambda name, leaf: unfrozen(name, leaf * rates[name], state.step), updates)
        return updates, LayerRatesState(state.step + 1, inner)

    return optax.GradientTransformation(init, apply)


def scale_rates(update: optax.GradientTransformation, factors: Mapping[str, Factor]) -> optax.GradientTransformation:
    """Return `update` with the learning rates of some parameters multiplied by factors.

    Args:
        factors: path -> factor of all parameters below the path. The first path that matches is used; the empty path
            matches all.
    """

    def scaled(name: str, leaf: jax.Array, step: jax.Array) -> jax.Array:
        covering = (value for prefix, value in factors.items() if not prefix or f"{name}/".startswith(f"{prefix}/"))
        factor = next(covering, 1.0)
        if callable(factor):
            factor = factor(step, len(leaf)).reshape(-1, *[1] * (leaf.ndim - 1))
        return leaf * factor

    def init(params: Params) -> LayerRatesState:
        return LayerRatesState(jnp.zeros((), jnp.int32), update.init(params))

    def apply(gradients: Params, state: LayerRatesState, params: Params = None) -> tuple[Params, LayerRatesState]:
        updates, inner = update.update(gradients, state.inner, params)
        updates = _map(lambda name, leaf: scaled(name, leaf, state.step), updates)
        return updates, LayerRatesState(state.step + 1, inner)

    return optax.GradientTransformation(init, apply) if factors else update


def groups_below_the_head(params: Params, groups: Sequence[ParameterGroup]) -> dict[str, np.ndarray]:
    """Return a dict from path to the number of groups from the parameter up to the head.

    The numbers are int arrays that broadcast to the parameter; 0 is in the head.

    Raises:
        UserError: no parameter is in a group.
        ValueError: parameters have no logical axes, or a layer of a stack is in no group.
    """
    found: dict[str, np.ndarray] = {}
    paths.map_named(lambda name, leaf: found.setdefault(name, _distance(name, leaf, groups)), params)
    if not any(distance.any() for distance in found.values()):
        raise UserError(
            "Expected a model with groups of parameters for --optimizer.layer_decay and --optimizer.unfreeze_every, "
            f"found none among {', '.join(sorted({name.split('/')[0] for name in found}))}; leave both at their "
            "defaults."
        )
    return found


def _distance(name: str, leaf: Any, groups: Sequence[ParameterGroup]) -> np.ndarray:
    """Return the number of groups from a parameter up to the head, for each of its layers if it is stacked."""
    if not isinstance(leaf, nn.LogicallyPartitioned):
        raise ValueError(f"Expected parameters with logical axes, found {name!r} without; box them.")
    lengths = [
        max((len(prefix) for prefix in group.prefixes if f"{name}/".startswith(f"{prefix}/")), default=0)
        for group in groups
    ]
    best = max(lengths, default=0)
    own = {group.index: len(groups) - k for k, group in enumerate(groups) if best and lengths[k] == best}
    if not own:
        return np.array(0)
    if None in own:
        return np.array(own[None])
    axis = leaf.names.index(paths.LAYERS)
    layers = range(leaf.value.shape[axis])
    if missing := set(layers) - own.keys():
        raise ValueError(f"Expected a group for each of the {len(layers)} layers of {name!r}, found none for {missing}")
    shape = [-1 if other == axis else 1 for other in range(leaf.value.ndim)]
    return np.array([own[layer] for layer in layers]).reshape(shape)


def _map(function: Callable[[str, jax.Array], jax.Array], tree: Params) -> Params:
    """Return the tree of `function(path, array)` for every array; a boxed array stays boxed."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(paths.name(path), leaf), tree)
