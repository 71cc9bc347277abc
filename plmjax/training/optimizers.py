"""Update rules: BERT's AdamW as its authors wrote it, the textbook AdamW, and LAMB.

Each is a chain of optax transformations: clip by the global norm, direction, decoupled decay, (trust ratio,) learning
rate. Everything but the two norms is elementwise, so the moments have the parameters' shapes and shard as they do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath

from plmjax import experiment
from plmjax.errors import UserError, nearest, quoted
from plmjax.training import paths
from plmjax.training.layer_rates import layer_rates
from plmjax.training.schedules import schedule

Params = Any


def build(optimizer: experiment.Optimizer, steps: int, params: Params) -> optax.GradientTransformation:
    """The update of a run of `steps` optimizer steps.

    Args:
        params: the parameters, abstract ones too, boxed with their logical axes. Only paths and axes are read; the
            transformation itself takes the same tree boxed or unboxed. LAMB and rates of layers need the axes.

    Raises:
        UserError: an unknown rule or schedule, or a frozen name that no parameter has.
    """
    check_name(optimizer)
    update = optax.chain(
        clip_by_global_norm(optimizer.clip_norm),
        RULES[optimizer.name](optimizer, schedule(optimizer, steps), params),
    )
    if optimizer.layer_decay != 1 or optimizer.unfreeze_every:
        update = layer_rates(update, optimizer.layer_decay, optimizer.unfreeze_every, params)
    if not optimizer.frozen:
        return update
    _check_frozen(optimizer.frozen, params)

    def frozen(tree: Params) -> Params:
        return paths.map_named(lambda name, _: _begins(name, optimizer.frozen), tree)

    def trained(tree: Params) -> Params:
        return jax.tree.map(lambda is_frozen: not is_frozen, frozen(tree))

    return optax.chain(optax.masked(update, trained), optax.masked(optax.set_to_zero(), frozen))


def check_name(optimizer: experiment.Optimizer) -> None:
    """Raises UserError for an unknown rule."""
    if optimizer.name not in RULES:
        raise UserError(f"Unknown --optimizer.name {quoted(optimizer.name)}; {nearest(optimizer.name, RULES)}")


def decay_mask(params: Params, exclude: tuple[str, ...]) -> Params:
    """Tree of bool, one a parameter (a boxed one counts once): whether weight decay applies to it.

    A parameter is left out when its path contains a word of `exclude`, as the regular expressions of bert
    optimization.py do: "bias" leaves out "predictions/output_bias" as well.
    """
    return paths.map_named(lambda name, _: not any(word in name for word in exclude), params)


def gradient_norm(state: optax.OptState) -> jax.Array:
    """Global norm of the last gradient before clipping, frozen parameters left out, from the state of `build`."""
    return optax.tree.get(state, "global_norm")


class ClipState(NamedTuple):
    """global_norm: float32 scalar, of the last gradient before clipping."""

    global_norm: jax.Array


def clip_by_global_norm(largest: float) -> optax.GradientTransformation:
    """Scales float32 gradients to a global norm of at most `largest`; 0 only records the norm.

    A norm that is not finite makes every gradient NaN, as tf.clip_by_global_norm does, so that the run stops.
    """

    def init(params: Params) -> ClipState:
        return ClipState(jnp.zeros((), jnp.float32))

    def update(gradients: Params, state: ClipState, params: Params = None) -> tuple[Params, ClipState]:
        gradients = optax.tree.cast(gradients, jnp.float32)
        norm = optax.tree.norm(gradients)
        if largest:
            scale = jnp.where(jnp.isfinite(norm), largest / jnp.maximum(norm, largest), jnp.nan)
            gradients = jax.tree.map(lambda gradient: gradient * scale, gradients)
        return gradients, ClipState(norm)

    return optax.GradientTransformation(init, update)


class MomentsState(NamedTuple):
    """mean and mean_square: running averages of the gradient and its square, float32, shaped as the parameters."""

    mean: Params
    mean_square: Params


def scale_by_moments(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """mean / (sqrt(mean_square) + epsilon) without bias correction (google-research/bert optimization.py).

    Deviation: Adam as published (Kingma and Ba 2015) divides both averages by 1 - beta ** step; BERT's, ALBERT's and
    ELECTRA's releases do not, so that their first updates are larger: by (1 - beta1) / sqrt(1 - beta2) = 3.2.
    """

    def init(params: Params) -> MomentsState:
        return MomentsState(*(optax.tree.zeros_like(params, dtype=jnp.float32) for _ in range(2)))

    def update(gradients: Params, state: MomentsState, params: Params = None) -> tuple[Params, MomentsState]:
        mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mean, gradients)
        mean_square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.mean_square, gradients)
        directions = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mean, mean_square)
        return directions, MomentsState(mean, mean_square)

    return optax.GradientTransformation(init, update)


def scale_by_trust_ratio(axes: dict[str, tuple]) -> optax.GradientTransformation:
    """Multiplies each layer's update by norm(parameter) / norm(update), or 1 where either is 0 (You et al. 2020).

    `axes` gives, by path, the logical axes of the parameters that get a ratio. One with a "layers" axis gets a ratio
    for each index along it, so that stacked layers are updated as separate ones would be.
    """

    def ratio(parameter: jax.Array, update: jax.Array, names: tuple) -> jax.Array:
        within = tuple(axis for axis in range(parameter.ndim) if names[axis : axis + 1] != (paths.LAYERS,))
        size, length = (jnp.sqrt(jnp.sum(jnp.square(x), within, keepdims=True)) for x in (parameter, update))
        return jnp.where((size > 0) & (length > 0), size / jnp.where(length > 0, length, 1), 1)

    def scale(path: KeyPath, update: jax.Array, parameter: jax.Array) -> jax.Array:
        name = paths.name(path)
        return update * ratio(parameter, update, axes[name]) if name in axes else update

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates, params))


def _decay(optimizer: experiment.Optimizer) -> optax.GradientTransformation:
    return optax.add_decayed_weights(optimizer.weight_decay, lambda tree: decay_mask(tree, optimizer.decay_exclude))


def _bert_adamw(
    optimizer: experiment.Optimizer, learning_rate: optax.Schedule, params: Params
) -> optax.GradientTransformation:
    return optax.chain(
        scale_by_moments(optimizer.beta1, optimizer.beta2, optimizer.epsilon),
        _decay(optimizer),
        optax.scale_by_learning_rate(learning_rate),
    )


def _adamw(
    optimizer: experiment.Optimizer, learning_rate: optax.Schedule, params: Params
) -> optax.GradientTransformation:
    return optax.adamw(
        learning_rate,
        b1=optimizer.beta1,
        b2=optimizer.beta2,
        eps=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        mask=lambda tree: decay_mask(tree, optimizer.decay_exclude),
    )


def _lamb(
    optimizer: experiment.Optimizer, learning_rate: optax.Schedule, params: Params
) -> optax.GradientTransformation:
    # Deviation: algorithm 2 of You et al. 2020 corrects the bias of the moments and gives every parameter a trust
    # ratio; ALBERT's released lamb_optimizer.py, kept here, corrects nothing and leaves out the undecayed parameters.
    return optax.chain(
        scale_by_moments(optimizer.beta1, optimizer.beta2, optimizer.epsilon),
        _decay(optimizer),
        scale_by_trust_ratio(_axes(params, decay_mask(params, optimizer.decay_exclude))),
        optax.scale_by_learning_rate(learning_rate),
    )


RULES: dict[str, Callable[[experiment.Optimizer, optax.Schedule, Params], optax.GradientTransformation]] = {
    "bert_adamw": _bert_adamw,
    "adamw": _adamw,
    "lamb": _lamb,
}
"""Name -> (settings, learning rate, boxed parameters) -> the rule, given clipped gradients."""


def _begins(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(f"{name}/".startswith(f"{prefix}/") for prefix in prefixes)


def _check_frozen(prefixes: tuple[str, ...], params: Params) -> None:
    names = jax.tree.leaves(paths.map_named(lambda name, _: name, params))
    for prefix in prefixes:
        if not any(_begins(name, (prefix,)) for name in names):
            parts = {"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 2)}
            raise UserError(
                f"Expected --optimizer.frozen to name the beginning of a parameter's path, found {quoted(prefix)}; "
                f"{nearest(prefix, parts)}"
            )
    if all(_begins(name, prefixes) for name in names):
        raise UserError("--optimizer.frozen leaves no parameter to train; freeze fewer of them.")


def _axes(params: Params, chosen: Params) -> dict[str, tuple]:
    """Path -> logical axes of the chosen parameters; without a box a stacked kernel cannot be told from a layer's."""
    found = {}

    def note(path: KeyPath, is_chosen: bool, parameter: Any) -> None:
        if not is_chosen:
            return
        if not paths.is_parameter(parameter):
            raise ValueError(f"LAMB needs the logical axes of {paths.name(path)!r}: build it from boxed parameters.")
        found[paths.name(path)] = tuple(getattr(parameter, "names", parameter))

    jax.tree_util.tree_map_with_path(note, chosen, params)
    return found
