"""Properties of Transformer-XL: what goes through its memory; and the memory of all readers of segments."""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.models.families.segments import Memory, segment_documents
from plmjax.models.transformer_xl import TransformerXlForCausalLM
from tests.families.memories import TXL
from tests.products import flops
from tests.systems.modules import random_params

LENGTH = 12
LONG = dataclasses.replace(TXL, mem_len=LENGTH)
MODULE = TransformerXlForCausalLM(LONG)
IDS = np.random.default_rng(0).integers(0, TXL.vocab_size, (2, LENGTH))
READ = jax.jit(lambda ids, memory=None, starts=None: MODULE.apply(parameters(), ids, starts=starts, cache=memory))


@functools.cache
def parameters() -> Any:
    return {"params": random_params(MODULE, deviation=0.3)}


LOGITS = jax.jit(lambda scores: scores.logits())


def in_parts(sizes: tuple[int, ...], memory: Memory, starts: np.ndarray | None = None) -> tuple[np.ndarray, Memory]:
    """The log probabilities of all tokens, read in parts, and the memory after them."""
    found, first = [], 0
    for size in sizes:
        part = slice(first, first + size)
        outputs = READ(IDS[:, part], memory, None if starts is None else starts[:, part])
        found.append(LOGITS(outputs.scores))
        memory, first = outputs.cache, first + size
    return np.concatenate(found, axis=1), memory


def test_parts_with_a_memory_are_the_whole() -> None:
    """A memory that holds all tokens loses nothing, and ends in the same state."""
    whole, parts = in_parts((LENGTH,), LONG.memory(2)), in_parts((5, 1, 6), LONG.memory(2))
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(parts[1], whole[1], atol=1e-5)
    np.testing.assert_allclose(whole[0], LOGITS(READ(IDS).scores), rtol=1e-5, atol=1e-5)


def test_zeros_before_a_text_are_attended_to() -> None:
    zeros = dataclasses.replace(LONG, initial_memory="zeros").memory(2)
    assert np.abs(in_parts((LENGTH,), zeros)[0] - in_parts((LENGTH,), LONG.memory(2))[0]).max() > 0.01


@pytest.mark.nightly
def test_a_document_sees_nothing_before_it() -> None:
    """Neither in its segment nor in the memory: its scores are those of the document alone."""
    starts = np.zeros((2, LENGTH), bool)
    starts[0, 3] = starts[1, 6] = True
    found, _ = in_parts((4, 8), LONG.memory(2), starts)
    for row, first in enumerate((3, 6)):
        alone = LOGITS(READ(IDS[row : row + 1, first:]).scores)
        np.testing.assert_allclose(found[row : row + 1, first:], alone, rtol=1e-5, atol=1e-5)
    joined, _ = in_parts((4, 8), LONG.memory(2))
    assert np.abs(joined[0, 3:] - found[0, 3:]).max() > 0.01


def test_no_gradient_passes_through_the_memory_or_from_the_future() -> None:
    """With respect to the memory it is 0, and to the words of later tokens."""
    _, memory = in_parts((6,), LONG.memory(2))
    words = parameters()["params"]["transformer_xl"]["words"]

    def score(hidden: jax.Array, rows: jax.Array, place: int) -> jax.Array:
        changed = {
            **parameters()["params"],
            "transformer_xl": {**parameters()["params"]["transformer_xl"], "words": {**words, "table_0": rows}},
        }
        ids = jnp.arange(6)[None].repeat(2, 0)
        outputs = MODULE.apply({"params": changed}, ids, cache=memory.replace(hidden=hidden))
        return jnp.sum(jnp.sin(outputs.last_hidden_state[:, place]))

    of_memory, of_words = jax.jit(jax.grad(score, (0, 1)), static_argnums=2)(memory.hidden, words["table_0"], 2)
    assert not np.any(of_memory)
    assert (np.abs(of_words[:6]).max(1) > 0).tolist() == [True, True, True, False, False, False]
    with_memory, without = (LOGITS(READ(IDS[:, 6:], one).scores) for one in (memory, LONG.memory(2)))
    assert np.abs(with_memory - without).max() > 0.01


def test_no_key_or_value_is_computed_twice_while_text_is_written() -> None:
    """A further token costs the projections of M keys and M values less than a segment of one token."""
    writes = LONG.empty_cache(2, 100, Execution())
    of_caches = [
        flops(lambda cache: MODULE.apply(parameters(), IDS[:, :1], cache=cache).last_hidden_state, cache)
        for cache in (LONG.memory(2), writes)
    ]
    projection = 2 * LONG.d_model * LONG.n_head * LONG.d_head
    assert of_caches[0] - of_caches[1] == 2 * 2 * LONG.n_layer * LONG.mem_len * projection


def test_vectors_of_tokens_are_those_of_each_cluster_through_its_projection() -> None:
    """Or through the one that all share, or as they are where an embedding is as wide as the layers."""
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 3)), random.normal(size=(4, 3))
    one, other = random.normal(size=(3, 5)), random.normal(size=(3, 5))
    tables = {"table_0": first, "table_1": second}

    def vectors(**parameters: np.ndarray) -> np.ndarray:
        params = {f"transformer_xl/words/{name}": value for name, value in parameters.items()}
        return np.asarray(TXL.system.vectors(params | {"transformer_xl/layers/relative/kernel": one}))

    np.testing.assert_allclose(vectors(**tables), [*first, *second], rtol=1e-6)
    np.testing.assert_allclose(vectors(**tables, projection_0=one), [*first @ one, *second @ one], rtol=1e-5)
    both = {"projection_0": one, "projection_1": other}
    np.testing.assert_allclose(vectors(**tables, **both), [*first @ one, *second @ other], rtol=1e-5)


DOCUMENTS = jnp.array([[0, 1, 1], [2, 2, 3]])
HIDDEN = jnp.arange(12.0).reshape(2, 2, 3, 1)  # layers, rows, tokens, features


def test_other_rows_have_their_states_and_their_documents() -> None:
    rows = jnp.array([1, 1, 0])
    taken = Memory(HIDDEN, DOCUMENTS).take_rows(rows)
    np.testing.assert_array_equal(taken.hidden, np.asarray(HIDDEN)[:, [1, 1, 0]])
    assert taken.documents.tolist() == [[2, 2, 3], [2, 2, 3], [0, 1, 1]]


def test_tokens_go_on_in_the_last_document_of_the_memory_until_another_one_starts() -> None:
    """An empty memory is before the first document, whose number is 1; padding is in none."""
    memory = Memory(HIDDEN, DOCUMENTS)
    starts, mask = jnp.array([[0, 1, 0, 1], [0, 0, 0, 0]]), jnp.array([[1, 1, 1, 1], [1, 0, 1, 1]])
    assert segment_documents(memory, 4, mask, starts).tolist() == [[1, 2, 2, 3], [3, 0, 3, 3]]
    assert segment_documents(memory, 2, None, None).tolist() == [[1, 1], [3, 3]]
    for empty in (Memory(HIDDEN[:, :, :0], DOCUMENTS[:, :0]), Memory(HIDDEN, 0 * DOCUMENTS)):
        assert segment_documents(empty, 2, None, starts[:, :2]).tolist() == [[1, 2], [1, 1]]
