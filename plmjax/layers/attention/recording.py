"""Recording of attention weights for `output_attentions` (`plmjax.contracts.attentions`).

Backends do not return weights, and layers do not pass them on. Instead a model opens `collect` around its layers, and
an attention module offers its weights to `record`. Outside of `collect` the offer is ignored: nothing is computed, and
the program does not change. The body of a loop over layers must return the arrays:

    def body(layer, x):                                      with collect(True) as found:
        with collect(wanted()) as found:                         x, weights = loop(body, x)
            x = layer(x)                    # record             record_layers(weights)
        return x, found                                      found["attention"]     # [L B N T S]

Weights are recorded while a program is traced, in one thread, like the method interceptors of Flax.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp

OWN, CROSS = "attention", "cross_attention"
"""Names of self-attention and cross-attention: the names of the modules in a layer."""

_parts: contextvars.ContextVar[dict[str, list[jax.Array]] | None] = contextvars.ContextVar("attentions", default=None)


@contextlib.contextmanager
def collect(wanted: bool) -> Iterator[dict[str, jax.Array]]:
    """Collect the weights that are recorded in the `with` block: a dict from name to float32 [L B N T S].

    The dict is filled at the end of the block. It stays empty if `wanted` is false or nothing was recorded. An outer
    `collect` does not get these weights.
    """
    parts: dict[str, list[jax.Array]] = {}
    found: dict[str, jax.Array] = {}
    token = _parts.set(parts if wanted else None)
    try:
        yield found
    finally:
        _parts.reset(token)
    found |= {name: _concatenate(layers) for name, layers in parts.items()}


def wanted() -> bool:
    """Return whether weights are collected here."""
    return _parts.get() is not None


def record(name: str, weights: Callable[[], jax.Array]) -> None:
    """Offer the weights of one layer. weights: function that returns them, float32 [B N T S]; called only if wanted."""
    if wanted():
        record_layers({name: weights()[None]})


def record_layers(found: Mapping[str, jax.Array]) -> None:
    """Add the weights of several layers: name -> [L B N T S], or [K L B N T S] from a loop of K iterations."""
    for name, weights in found.items():
        _parts.get().setdefault(name, []).append(weights.reshape(-1, *weights.shape[-4:]))


def _concatenate(layers: list[jax.Array]) -> jax.Array:
    """Concatenate arrays [l B n T S] to [L B N T S]. N is the largest n; layers with fewer heads are padded with 0."""
    heads = max(part.shape[2] for part in layers)
    return jnp.concatenate(
        [jnp.pad(part, [(0, 0), (0, 0), (0, heads - part.shape[2]), (0, 0), (0, 0)]) for part in layers]
    )
