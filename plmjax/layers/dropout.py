"""Dropout from eight random bits an element.

The key names its generator (`jax.random.key_impl`), and the generator decides what a mask depends on. threefry computes
every element's bits from its place in the whole array, so that a mask is the same on every mesh. A chip's own generator
(rbg) is much cheaper, but a compiler cannot divide its work: here every device draws the bits of its own piece, so that
a mask depends on the mesh.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.layers.mesh_places import places

TOLERANCE = 0.02
"""Eight bits are enough where they meet a rate up to this share of it: 0.1 becomes 26 / 256, 1.6 % more."""


def resolution(rate: float) -> int:
    """Random bits an element, 8 or 16."""
    return 8 if abs(round(rate * 256) / 256 - rate) <= TOLERANCE * rate else 16


def drawn_rate(rate: float) -> float:
    """The rate as it is drawn: the nearest multiple of 1/256, or of 1/65536 where that is not near enough."""
    levels = 1 << resolution(rate)
    return round(rate * levels) / levels


def keep_mask(
    key: jax.Array, rate: float, shape: tuple[int, ...], axes: tuple[str | None, ...] = ("batch",)
) -> jax.Array:
    """bool [shape], true with probability 1 - `drawn_rate(rate)`.

    One random 32-bit word decides two or four elements, which saves generating the others, a visible share of a
    training step. They are far apart along the second-last dimension (the last one
    of a matrix, whose first may be shared): a TPU would pad neighbours to 128.

    axes: logical names of the leading axes, by which devices share the mask.
    """
    bits = resolution(rate)
    pieces, axis = 32 // bits, len(shape) - 2 if len(shape) > 2 else len(shape) - 1
    limit = jnp.uint32(round(drawn_rate(rate) * (1 << bits)))
    words = _words(key, (*shape[:axis], math.ceil(shape[axis] / pieces), *shape[axis + 1 :]), axes)
    masks = [(words >> bits * piece & (1 << bits) - 1) >= limit for piece in range(pieces)]
    return jax.lax.slice_in_dim(jnp.concatenate(masks, axis), 0, shape[axis], axis=axis)


def _words(key: jax.Array, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> jax.Array:
    """uint32 [shape]; unless the generator is threefry, each device draws the piece of these axes that it holds.

    Within a `vmap` whose axis is one of the mesh's, every element of that axis has a key of its own, and its device
    draws with that.
    """
    implementation, mesh = str(jax.random.key_impl(key)), jax.sharding.get_abstract_mesh()
    if implementation == "threefry2x32" or mesh.empty or mesh.size == 1:
        return jax.random.bits(key, shape, jnp.uint32)
    divided = places(shape, axes)
    names = tuple(jax.tree.leaves(tuple(divided)))

    def piece(number: jax.Array, data: jax.Array) -> jax.Array:
        # Streams of a counter-based generator are independent when any bit of their keys differs: no need to hash.
        own = jax.random.wrap_key_data(data.at[-1].add(number[0]), impl=implementation)
        local = NamedSharding(mesh, divided).shard_shape(shape)
        return jax.random.bits(own, local, jnp.uint32)

    # The number of a piece is an input: the compiler cannot ask for it where a part of the mesh is its own to divide.
    numbers = jnp.arange(math.prod(mesh.shape[name] for name in names), dtype=jnp.uint32)
    specs = (PartitionSpec(names), PartitionSpec())
    return jax.shard_map(piece, in_specs=specs, out_specs=divided, check_vma=False)(numbers, jax.random.key_data(key))


def dropped(
    x: jax.Array,
    rate: float,
    key: jax.Array | None,
    together: tuple[int, ...] = (),
    axes: tuple[str | None, ...] = ("batch",),
) -> jax.Array:
    """x with elements zeroed at `drawn_rate(rate)` and the rest scaled to keep the mean; x itself without a key.

    The backward pass draws the mask again and keeps nothing. Only reverse-mode differentiation is defined, and once;
    JAX refuses forward mode.

    together: axes along which all elements are dropped or all are kept.
    axes: as `keep_mask` has them.
    """
    return x if key is None else _dropped(rate, together, axes, x, key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _dropped(
    rate: float, together: tuple[int, ...], axes: tuple[str | None, ...], x: jax.Array, key: jax.Array
) -> jax.Array:
    shape = tuple(1 if axis in together else size for axis, size in enumerate(x.shape))
    mask = keep_mask(key, rate, shape, axes)
    return jnp.where(mask, x / jnp.asarray(1.0 - drawn_rate(rate), x.dtype), jnp.zeros((), x.dtype))


def _dropped_forward(
    rate: float, together: tuple[int, ...], axes: tuple[str | None, ...], x: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _dropped(rate, together, axes, x, key), key


def _dropped_backward(
    rate: float, together: tuple[int, ...], axes: tuple[str | None, ...], key: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, None]:
    return _dropped(rate, together, axes, cotangent, key), None


_dropped.defvjp(_dropped_forward, _dropped_backward)


class Dropout(nn.Module):
    """`dropped` with keys of the random collection "dropout"."""

    rate: float
    together: tuple[int, ...] = ()
    axes: tuple[str | None, ...] = ("batch",)

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """[...] -> [...]."""
        return dropped(x, self.rate, self.key(deterministic), self.together, self.axes)

    def key(self, deterministic: bool) -> jax.Array | None:
        """A new key; None where nothing is dropped."""
        return None if deterministic or self.rate == 0.0 else self.make_rng("dropout")
