"""Dropout from 8 or 16 random bits per element.

The key names its generator (`jax.random.key_impl`). threefry computes the bits of an element from its position in the
global array, so a mask is the same on every mesh. The hardware generator (rbg) is much cheaper, but a compiler cannot
shard its work. Here every device draws the bits of its own shard, so a mask depends on the mesh.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from plmjax.layers.partitioning import partition_spec

TILE_ROWS = 32
"""Number of rows in a tile of a TPU's memory that holds bools."""
TOLERANCE = 0.02
"""Maximum relative error of the rate and of the kept fraction at which eight bits are used.

The rate 0.1 becomes 26 / 256, which is 1.6 % more.
"""


def resolution(rate: float) -> int:
    """Return the number of random bits per element, 8 or 16."""
    return 8 if abs(round(rate * 256) / 256 - rate) <= TOLERANCE * min(rate, 1.0 - rate) else 16


def effective_rate(rate: float) -> float:
    """Return the rate that is really applied: the nearest multiple of 1/256 below 1.

    If that is not near enough, it is the nearest multiple of 1/65536 below 1.
    """
    levels = 1 << resolution(rate)
    return min(round(rate * levels), levels - 1) / levels


def is_threefry(key: jax.Array) -> bool:
    """Return true if the key is of threefry, false if it is of a hardware generator."""
    return str(jax.random.key_impl(key)) == "threefry2x32"


def keep_mask(
    key: jax.Array,
    rate: float,
    shape: tuple[int, ...],
    *,
    axes: tuple[str | None, ...] = ("batch",),
    transposed: bool = False,
) -> jax.Array:
    """Return a mask, bool [shape], true with probability 1 - `effective_rate(rate)`.

    One random 32-bit word decides two or four elements, because random bits take a noticeable part of a training step.
    The elements of one word are far apart along the second-last dimension (the last dimension of a matrix, because its
    first may be sharded): a TPU would pad adjacent elements to 128. The hardware generator makes a large mask in pieces
    of whole tiles, which are concatenated without a copy.

    axes: logical names of the leading axes along which devices shard the mask.
    transposed: draw the mask with its last two dimensions exchanged.
    """
    if transposed:
        *leading, rows, columns = shape
        return jnp.swapaxes(keep_mask(key, rate, (*leading, columns, rows), axes=axes), -1, -2)
    bits = resolution(rate)
    pieces, axis = 32 // bits, len(shape) - 2 if len(shape) > 2 else len(shape) - 1
    size = math.ceil(shape[axis] / pieces)
    if size > TILE_ROWS and not is_threefry(key):
        size += -size % TILE_ROWS
    words = _random_words(key, (*shape[:axis], size, *shape[axis + 1 :]), axes)
    # The bits of an element are shifted to the top of the word. A signed word can be compared directly: its lower bits
    # belong to other elements and change nothing, and a TPU would flip the highest bit of an unsigned word.
    words = jax.lax.bitcast_convert_type(words, jnp.int32)
    limit = jnp.int32((round(effective_rate(rate) * (1 << bits)) << 32 - bits) - (1 << 31))
    masks = [words << 32 - bits * (piece + 1) >= limit for piece in range(pieces)]
    return jax.lax.slice_in_dim(jnp.concatenate(masks, axis), 0, shape[axis], axis=axis)


def _random_words(key: jax.Array, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> jax.Array:
    """Return uint32 [shape]. Unless the generator is threefry, each device draws its own shard along `axes`.

    Within a `vmap` over a mesh axis, every element of that axis has its own key, and its device draws with that key.
    """
    implementation, mesh = str(jax.random.key_impl(key)), jax.sharding.get_abstract_mesh()
    if is_threefry(key) or mesh.empty or mesh.size == 1:
        return jax.random.bits(key, shape, jnp.uint32)
    divided = partition_spec(shape, axes)
    names = tuple(jax.tree.leaves(tuple(divided)))

    def piece(number: jax.Array, data: jax.Array) -> jax.Array:
        # Streams of a counter-based generator are independent if any bit of their keys differs: no need to hash.
        own = jax.random.wrap_key_data(data.at[-1].add(number[0]), impl=implementation)
        local = NamedSharding(mesh, divided).shard_shape(shape)
        return jax.random.bits(own, local, jnp.uint32)

    # The index of a piece is an input: the function cannot ask for it if the compiler shards some axes of the mesh.
    numbers = jnp.arange(math.prod(mesh.shape[name] for name in names), dtype=jnp.uint32)
    specs = (PartitionSpec(names), PartitionSpec())
    return jax.shard_map(piece, in_specs=specs, out_specs=divided, check_vma=False)(numbers, jax.random.key_data(key))


def apply_dropout(
    x: jax.Array,
    rate: float,
    key: jax.Array | None,
    *,
    together: tuple[int, ...] = (),
    axes: tuple[str | None, ...] = ("batch",),
    transposed: bool = False,
) -> jax.Array:
    """Drop elements of x at `effective_rate(rate)` and scale the others to keep the mean; return x without a key.

    The backward pass draws the mask again; only the key is kept. Only first-order reverse-mode differentiation is
    defined; JAX raises an error for forward mode.

    together: axes along which all elements are dropped or all are kept.
    axes, transposed: as in `keep_mask`.
    """
    return x if key is None else _apply_dropout(rate, together, axes, transposed, x, key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _apply_dropout(
    rate: float, together: tuple[int, ...], axes: tuple[str | None, ...], transposed: bool, x: jax.Array, key: jax.Array
) -> jax.Array:
    shape = tuple(1 if axis in together else size for axis, size in enumerate(x.shape))
    mask = keep_mask(key, rate, shape, axes=axes, transposed=transposed)
    return jnp.where(mask, x / jnp.asarray(1.0 - effective_rate(rate), x.dtype), jnp.zeros((), x.dtype))


def _apply_forward(*inputs: Any) -> tuple[jax.Array, jax.Array]:
    return _apply_dropout(*inputs), inputs[-1]


def _apply_backward(
    rate: float,
    together: tuple[int, ...],
    axes: tuple[str | None, ...],
    transposed: bool,
    key: jax.Array,
    cotangent: jax.Array,
) -> tuple[jax.Array, None]:
    return _apply_dropout(rate, together, axes, transposed, cotangent, key), None


_apply_dropout.defvjp(_apply_forward, _apply_backward)


class Dropout(nn.Module):
    """Dropout by `apply_dropout`, with keys of the random collection "dropout"."""

    rate: float
    together: tuple[int, ...] = ()
    axes: tuple[str | None, ...] = ("batch",)

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Drop elements of an array [...] and return [...]."""
        return apply_dropout(x, self.rate, self.key(deterministic), together=self.together, axes=self.axes)

    def key(self, deterministic: bool) -> jax.Array | None:
        """Return a new key, or None if nothing is dropped."""
        return None if deterministic or self.rate == 0.0 else self.make_rng("dropout")
