"""Rotary positions and buckets of distances against transformers, and attention with fewer heads of keys."""

import functools
import importlib

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.mask_terms import Causal, MaskTerms
from plmjax.layers.attention import backends
from plmjax.layers.attention.relative_positions import DistanceScores, distance_buckets
from plmjax.layers.attention.rotary import RotaryAttention, Rotation
from tests.optional import needs_torch, torch, transformers

ROWS, LENGTH, HEADS = 2, 5, 3
CASES = [(theta, size) for theta in (1e4, 1.6e5, 2.5e5) for size in (12, 64)]
POSITIONS = np.array([[0, 1, 127, 128, 8191], [8190, 4096, 513, 2, 0]], np.int32)


def heads(size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, LENGTH, HEADS, size)).astype(np.float32)


@needs_torch
@pytest.mark.parametrize(("theta", "size"), CASES)
def test_halves_rotate_as_in_transformers(theta: float, size: int) -> None:
    """ModernBERT's functions, at positions up to 8,191."""
    modernbert = importlib.import_module("transformers.models.modernbert.modeling_modernbert")
    rope = {"full_attention": {"rope_type": "default", "rope_theta": theta}}
    config = transformers.ModernBertConfig(hidden_size=HEADS * size, num_attention_heads=HEADS, rope_parameters=rope)
    x = heads(size)
    tensor = torch.tensor(x).transpose(1, 2)
    cos, sin = modernbert.ModernBertRotaryEmbedding(config)(tensor, torch.tensor(POSITIONS).long(), "full_attention")
    expected, _ = modernbert.apply_rotary_pos_emb(tensor, tensor, cos, sin)
    found = Rotation.of(jnp.asarray(POSITIONS), size, theta).rotate(jnp.asarray(x), interleaved=False)
    np.testing.assert_allclose(found, expected.transpose(1, 2).numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("theta", "size"), CASES)
def test_neighbours_rotate_as_complex_numbers(theta: float, size: int) -> None:
    """As in the code of NeoBERT, whose pairs are numbers on the complex plane."""
    x = heads(size)
    exponents = torch.arange(0, size, 2)[: size // 2].float() / size
    angles = torch.outer(torch.tensor(POSITIONS.reshape(-1)).float(), 1.0 / theta**exponents)
    turns = torch.polar(torch.ones_like(angles), angles).reshape(ROWS, LENGTH, 1, -1)
    expected = torch.view_as_real(torch.view_as_complex(torch.tensor(x).reshape(*x.shape[:-1], -1, 2)) * turns)
    found = Rotation.of(jnp.asarray(POSITIONS), size, theta).rotate(jnp.asarray(x), interleaved=True)
    np.testing.assert_allclose(found, expected.flatten(3).numpy(), rtol=1e-6, atol=1e-6)


def test_rotations_of_half_precision_are_computed_in_float32() -> None:
    x, rotation = jnp.asarray(heads(64)), Rotation.of(jnp.asarray(POSITIONS), 64, 1e4)
    half = rotation.rotate(x.astype(jnp.bfloat16), interleaved=False)
    assert half.dtype == jnp.bfloat16
    exact = rotation.rotate(x.astype(jnp.bfloat16).astype(jnp.float32), interleaved=False)
    np.testing.assert_array_equal(half, exact.astype(jnp.bfloat16))


def test_heads_of_queries_share_keys_and_values() -> None:
    """Grouped queries are attention whose projections of keys and values are repeated, head by head."""
    init = jax.nn.initializers.normal(0.5)
    x, rotation = jnp.asarray(heads(8)).reshape(ROWS, LENGTH, -1), Rotation.of(jnp.asarray(POSITIONS), 4, 1e4)

    def attend(attention: RotaryAttention, x: jax.Array) -> jax.Array:
        keys = attention.rotated_key_values(x, rotation)
        return attention.attend_rotated(x, rotation, keys, MaskTerms(), deterministic=True)

    grouped = RotaryAttention(24, 6, 0.0, init, key_value_heads=2)
    found, variables = jax.jit(functools.partial(grouped.init_with_output, method=attend))(jax.random.key(0), x)
    params = dict(nn.meta.unbox(variables)["params"])
    assert params["key"]["kernel"].shape == params["value"]["kernel"].shape == (24, 2, 4)
    for name in ("key", "value"):
        params[name] = {part: np.repeat(leaf, 3, axis=-2) for part, leaf in params[name].items()}
    apply = functools.partial(RotaryAttention(24, 6, 0.0, init).apply, method=attend)
    whole = jax.jit(apply)({"params": params}, x)
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_transformers(both_sides: bool, buckets: int, largest: int) -> None:
    """Every distance is compared, farther ones than the largest included."""
    attention = transformers.models.t5.modeling_t5.T5Attention
    places = np.arange(-5000, 5001)
    expected = attention._relative_position_bucket(torch.tensor(places), both_sides, buckets, largest).numpy()
    found = distance_buckets(both_sides, buckets, largest)
    np.testing.assert_array_equal(found[np.clip(places, -largest, largest) + largest], expected)
    assert len(set(found.tolist())) == (buckets - 1 if both_sides else buckets)  # none is at distance 0 and after


def test_blocks_of_queries_and_a_head_at_a_time_read_and_teach_their_own_numbers(monkeypatch) -> None:
    """The table itself is the term where attention is computed in bands."""
    shapes = enumerate([(2, 6, 4, 3)] * 3 + [(8, 4)])
    query, key, value, table = (jax.random.normal(jax.random.key(i), shape) for i, shape in shapes)

    def loss(table: jax.Array) -> jax.Array:
        settings = {"mask_terms": MaskTerms((Causal(),)), "terms": (DistanceScores(table, False, 20),)}
        return jnp.sum(jnp.sin(backends.dense(query, key, value, **settings, rate=0.0, dropout_key=None)))

    together = jax.jit(jax.value_and_grad(loss))(table)
    monkeypatch.setattr(backends, "SCORES_AT_ONCE", 2)
    monkeypatch.setattr(backends, "LANES", 2)
    chex.assert_trees_all_close(jax.jit(jax.value_and_grad(loss))(table), together, rtol=1e-5, atol=1e-6)
