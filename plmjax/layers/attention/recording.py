"""Recording of attention weights for `output_attentions` (`plmjax.contracts.attentions`).

No backend returns its weights, and no layer passes them on. Instead a model opens `collect` around its layers, and an
attention offers its weights to `record`. Outside of `collect` an offer is ignored: nothing is computed, and the
program is the same as without it. In a loop over layers the arrays must leave the loop as outputs:

    def body(layer, x):                                      with collect(True) as found:
        with collect(wanted()) as found:                         x, weights = loop(body, x)
            x = layer(x)                    # record             record_layers(weights)
        return x, found                                      found["attention"]     # [L B N T S]

Recording happens while a program is traced, in one thread, as Flax's own interception of methods does.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp

OWN, CROSS = "attention", "cross_attention"
"""Names of the attention of a row to itself, and to a source: those of the modules in a layer."""

_parts: contextvars.ContextVar[dict[str, list[jax.Array]] | None] = contextvars.ContextVar("attentions", default=None)


@contextlib.contextmanager
def collect(wanted: bool) -> Iterator[dict[str, jax.Array]]:
    """Collect the weights that are recorded in the block, in a dict from name to float32 [L B N T S].

    The dict stays empty if they are not wanted, or if there is no attention. An outer `collect` does not see them.
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
    """Return whether an enclosing `collect` wants weights."""
    return _parts.get() is not None


def record(name: str, weights: Callable[[], jax.Array]) -> None:
    """Offer the weights of one layer, a function that returns float32 [B N T S]."""
    if wanted():
        record_layers({name: weights()[None]})


def record_layers(found: Mapping[str, jax.Array]) -> None:
    """Add the weights of several layers, name -> [L B N T S], or [K L B N T S] of a loop of K iterations."""
    for name, weights in found.items():
        _parts.get().setdefault(name, []).append(weights.reshape(-1, *weights.shape[-4:]))


def _concatenate(layers: list[jax.Array]) -> jax.Array:
    """Concatenate [l B n T S] of all layers to [L B N T S]; N is the largest number of heads."""
    heads = max(part.shape[2] for part in layers)
    return jnp.concatenate(
        [jnp.pad(part, [(0, 0), (0, 0), (0, heads - part.shape[2]), (0, 0), (0, 0)]) for part in layers]
    )
