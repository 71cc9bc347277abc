"""Properties of Reformer's attention alone: order, chunks, and the token that is read behind a cache."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.layers.attention.cache import KeyValueCache
from plmjax.models.reformer import hashing
from plmjax.models.reformer.cache import ReformerCache
from plmjax.models.reformer.chunked_attention import Chunks, Tokens, attend
from plmjax.models.reformer.heads import ReformerForCausalLM
from tests.families.hashes import CHUNKED, REFORMER
from tests.systems.modules import random_params

LENGTH = 32
IDS = np.random.default_rng(0).integers(0, REFORMER.vocab_size, (2, LENGTH), np.int32)


def test_gradients_of_an_order_are_those_of_a_lookup() -> None:
    order, ranks = hashing.order_by_bucket(jnp.array([[[[2, 0, 2, 1, 0], [1, 1, 0, 0, 1]]]], jnp.uint8))
    x = jax.random.normal(jax.random.key(0), (1, 1, 5, 3))
    rounds = jax.random.normal(jax.random.key(1), (1, 1, 2, 5, 3))
    plain = jax.grad(lambda x: jnp.sum(jnp.sin(jnp.stack([x[:, :, order[0, 0, r]] for r in range(2)], 2)) * rounds))
    found = jax.grad(lambda x: jnp.sum(jnp.sin(hashing.sort_tokens(x, order, ranks)) * rounds))
    back = jax.grad(lambda y: jnp.sum(jnp.sin(hashing.unsort_tokens(y, order, ranks)) * rounds))
    plain, found, back = jax.jit(lambda x, rounds: (plain(x), found(x), back(rounds)))(x, rounds)
    np.testing.assert_allclose(found, plain, rtol=1e-6)
    expected = jnp.stack([jnp.cos(rounds[0, 0, r]) * rounds[0, 0, r, order[0, 0, r]] for r in range(2)])
    np.testing.assert_allclose(back[0, 0], expected, rtol=1e-6)


def attended(*inputs: jax.Array, at_once: bool, **settings: Any) -> jax.Array:
    return jax.jit(lambda: attend(*inputs, **settings, at_once=at_once).result())()


def test_a_chunk_at_a_time_gives_the_same() -> None:
    inputs = tuple(jax.random.normal(jax.random.key(seed), (2, 3, 16, 5)) for seed in range(3))
    tokens = Tokens.of_rows(jnp.array([[1] * 10 + [2] * 4 + [0] * 2, [1] * 16]))
    given = {"chunks": Chunks(4, 1, 0), "causal": True, "itself": -1e5, "rate": 0.0, "dropout_key": None}
    ways = [attended(*inputs, tokens=tokens, **given, at_once=at_once) for at_once in (True, False)]
    np.testing.assert_allclose(*ways, rtol=1e-6, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["dense", "blockwise"])
def test_no_token_sees_a_later_one_or_padding(backend: str) -> None:
    """The hashes of later tokens move the chunks, but their content is hidden: the gradient is zero."""
    config = dataclasses.replace(REFORMER, **CHUNKED)
    module, params = (
        ReformerForCausalLM(config, Execution(attention=backend)),
        random_params(ReformerForCausalLM(config)),
    )
    mask = np.ones((1, LENGTH), np.int32)
    mask[0, 27:] = 0
    embedding = params["reformer"]["word_embeddings"].pop("embedding")
    ids = np.arange(LENGTH)[None]

    def outputs(words: jax.Array) -> jax.Array:
        own = params | {"reformer": params["reformer"] | {"word_embeddings": {"embedding": words}}}
        return module.apply({"params": own}, ids, mask).last_hidden_state[0].sum(-1)

    reach = np.abs(jax.jit(jax.jacrev(outputs))(embedding)[:, ids[0]]).max(-1) > 0
    assert not np.triu(reach, 1)[:27].any() and not reach[:27, 27:].any()
    assert np.diag(reach)[:27].all() and reach[:27].sum() > 3 * 27


TWO_BEFORE = CHUNKED | {"num_hashes": 1, "lsh_num_chunks_before": 2}


@pytest.mark.parametrize(
    ("layers", "changes"),
    [
        (("local", "lsh"), CHUNKED),
        pytest.param(("lsh",), TWO_BEFORE, marks=pytest.mark.nightly),
        pytest.param(("local", "lsh", "lsh"), {}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_a_token_behind_a_cache_sees_what_the_last_of_a_row_sees(layers: tuple[str, ...], changes: dict) -> None:
    """Where nothing below has seen a hash: the chunks of earlier tokens change when a row becomes longer."""
    config = dataclasses.replace(REFORMER, attn_layers=layers, **changes)
    module, params = ReformerForCausalLM(config), random_params(ReformerForCausalLM(config))
    real = np.ones((2, LENGTH), np.int32)
    real[1, :3] = 0  # the padding before a prompt

    @jax.jit
    def read(ids, mask, cache):
        return module.apply({"params": params}, ids, mask, cache=cache)

    whole = jax.jit(lambda ids, mask, positions: module.apply({"params": params}, ids, mask, positions=positions))
    output = read(IDS[:, :8], real[:, :8], config.empty_cache(2, LENGTH, Execution()))
    for length in range(9, 17):
        output = read(IDS[:, length - 1 : length], real[:, length - 1 : length], output.cache)
        padded = 24 if config.smallest_chunk >= 24 else config.padded_length(length)
        mask = real[:, :padded] * (np.arange(padded) < length)
        expected = whole(IDS[:, :padded], mask, np.maximum(np.cumsum(mask, axis=1) - 1, 0))
        np.testing.assert_allclose(output.logits[:, -1], expected.logits[:, length - 1], rtol=1e-5, atol=1e-5)


def test_every_chunk_drops_probabilities_of_its_own() -> None:
    ones, tokens = jnp.ones((1, 1, 64, 1)), Tokens.of_rows(jnp.ones((1, 64), jnp.int32))
    given = {"chunks": Chunks(16, 0, 0), "causal": False, "itself": None, "rate": 0.5, "dropout_key": jax.random.key(0)}
    for at_once in (True, False):
        chunks = np.asarray(attended(ones, ones, ones, tokens=tokens, **given, at_once=at_once)).reshape(4, 16)
        assert len({chunk.tobytes() for chunk in chunks}) == 4 and 0.8 < chunks.mean() < 1.2


def test_buckets_are_written_behind_those_before_and_taken_with_their_rows() -> None:
    key_values = KeyValueCache.empty(2, 2, 9, heads=1, size=1, dtype=jnp.float32)
    cache = ReformerCache(key_values, jnp.zeros((1, 2, 1, 1, 9), int), 4, 3).with_mask(jnp.array([[0, 1], [1, 1]]))
    cache = cache.write_buckets(0, jnp.array([5, 6, 7, 8]).reshape(2, 1, 1, 2)).advance(2)
    cache = cache.with_mask(jnp.array([[1], [0]])).write_buckets(0, jnp.array([9, 10]).reshape(2, 1, 1, 1))
    assert cache.last_mask.tolist() == [[1], [0]]
    taken = cache.take_rows(jnp.array([1, 1, 0]))
    assert taken.buckets[0, :, 0, 0, :4].tolist() == [[7, 8, 10, 0], [7, 8, 10, 0], [5, 6, 9, 0]]
    assert taken.key_mask[:, :3].tolist() == [[1, 1, 0], [1, 1, 0], [0, 1, 1]] and taken.smallest == 4
