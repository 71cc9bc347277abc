"""Dropout: its rate, its scale, its determinism, and what its bits depend on; where a mesh places dimensions."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.layers.dropout import TILE_ROWS, Dropout, apply_dropout, effective_rate, keep_mask, resolution
from plmjax.layers.partitioning import partition_spec, shard_counts
from plmjax.parallel import sharding


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("rate", [0.1, 0.02])
def test_rate_and_independence(implementation: str, rate: float) -> None:
    """Four or two elements that come from one word, and neighbours, are independent."""
    key = jax.random.key(0, impl=implementation)
    mask = np.asarray(jax.jit(lambda: keep_mask(key, rate, (2, 500, 999)))())[0]
    assert abs(mask.mean() - (1 - effective_rate(rate))) < 5 * np.sqrt(rate / mask.size)
    apart = 500 * resolution(rate) // 32
    apart += -apart % TILE_ROWS if implementation == "rbg" else 0
    for one, other in ((mask[:, 1:], mask[:, :-1]), (mask[1:], mask[:-1]), (mask[apart:], mask[:-apart])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(one.size)


def test_a_rate_takes_as_many_bits_as_it_needs() -> None:
    assert [resolution(rate) for rate in (0.1, 0.05, 0.5, 0.25, 0.01, 0.001)] == [8, 8, 8, 8, 16, 16]
    assert effective_rate(0.1) == 26 / 256 and effective_rate(0.5) == 0.5
    assert effective_rate(0.001) == pytest.approx(0.001, rel=0.01)
    assert resolution(0.999) == 16 and 1 - effective_rate(0.999) == pytest.approx(0.001, rel=0.01)
    assert effective_rate(0.9999999) < 1 and not keep_mask(jax.random.key(0), 0.9999999, (64,)).any()


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 9, 3), (2, 3, 6, 5)])
def test_every_shape_has_a_mask(shape: tuple[int, ...]) -> None:
    """A transposed one is drawn with its last dimensions exchanged."""
    masks = np.asarray(jax.vmap(lambda seed: keep_mask(jax.random.key(seed), 0.5, shape))(np.arange(40)))
    assert masks[0].shape == shape and (masks.mean(axis=0) > 0).all() and (masks.mean(axis=0) < 1).all()
    if len(shape) > 2:
        turned = keep_mask(jax.random.key(0), 0.5, (*shape[:-2], shape[-1], shape[-2]), transposed=True)
        np.testing.assert_array_equal(turned, masks[0].swapaxes(-1, -2))


def test_expectation_is_kept_and_gradients_pass_where_values_do() -> None:
    dropout, x = Dropout(0.3), jnp.ones((500, 401))
    apply = lambda x: dropout.apply({}, x, False, rngs={"dropout": jax.random.key(1)})  # noqa: E731
    y = np.asarray(apply(x))
    assert set(np.unique(y)) == {0.0, np.float32(1 / (1 - 77 / 256))}
    assert abs(y.mean() - 1) < 0.01
    np.testing.assert_array_equal(jax.grad(lambda x: apply(x).sum())(x), y)
    np.testing.assert_array_equal(dropout.apply({}, x, True), x)


def test_the_backward_pass_keeps_the_key_alone() -> None:
    drop = functools.partial(apply_dropout, rate=0.1, key=jax.random.key(0))
    closed = jax.eval_shape(lambda: jax.vjp(drop, jnp.ones((8, 64, 64)))[1])
    assert sum(leaf.size for leaf in jax.tree.leaves(closed)) < 16


@functools.cache
def drawn(implementation: str, *sizes: int) -> tuple:
    """The mask of scores [B N T S] on a mesh (data, fsdp, tensor), and the shape of the words that a device draws."""
    mesh = Mesh(np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes), ("data", "fsdp", "tensor"))

    def draw() -> jax.Array:
        mask = keep_mask(jax.random.key(0, impl=implementation), 0.5, (8, 4, 16, 24), axes=("batch", "heads"))
        return nn.with_logical_constraint(mask, ("batch", "heads", None, None))

    place = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "tensor"))
    lowered = jax.jit(sharding.with_mesh(draw, mesh), out_shardings=place).lower()
    shapes = re.findall(r"rng_bit_generator.*tensor<([\dx]+)xui32>", lowered.as_text())
    return np.asarray(lowered.compile()()), *shapes


def test_threefry_draws_the_same_mask_on_every_mesh_and_the_chips_own_generator_a_piece_on_each_device() -> None:
    """No device computes the words of the whole mask, and no piece is another one's."""
    np.testing.assert_array_equal(drawn("threefry2x32", 1, 1, 1)[0], drawn("threefry2x32", 2, 2, 2)[0])
    mask, shape = drawn("rbg", 2, 2, 2)
    assert shape == "2x2x4x24" and drawn("rbg", 1, 1, 1)[1] == "8x4x4x24"
    pieces = mask.reshape(4, 2, 2, 2, 16, 24).swapaxes(1, 2).reshape(8, -1)
    assert len({piece.tobytes() for piece in pieces}) == 8
    assert 0.45 < mask.mean() < 0.55


def test_the_shards_of_a_batch_draw_masks_of_their_own() -> None:
    """As microbatches do: a key for each shard along data, whose rows are divided over fsdp."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2, 1), ("data", "fsdp", "tensor"))
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 4)

    def draw(keys: jax.Array) -> jax.Array:
        with nn.logical_axis_rules(sharding.RULES_WITHIN_DATA):
            return jax.vmap(lambda key: keep_mask(key, 0.5, (2, 16, 24)), spmd_axis_name="data")(keys)

    place = NamedSharding(mesh, PartitionSpec("data", "fsdp"))
    masks = np.asarray(jax.jit(sharding.with_mesh(draw, mesh), out_shardings=place)(keys)).reshape(8, -1)
    assert len({mask.tobytes() for mask in masks}) == 8
    assert np.abs(np.corrcoef(masks) - np.eye(8)).max() < 0.25


@functools.partial(sharding.with_mesh, mesh=Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor")))
def asked(question, shape: tuple[int, ...]):
    return question(shape, ("batch", "heads"))


def test_dimensions_that_divide_are_divided() -> None:
    assert asked(partition_spec, (8, 6, 5)) == PartitionSpec(("data", "fsdp"), "tensor")
    assert asked(shard_counts, (8, 6, 5)) == (4, 2)
    assert asked(partition_spec, (6, 3)) == PartitionSpec(None, None) and asked(shard_counts, (6, 3)) == (1, 1)
