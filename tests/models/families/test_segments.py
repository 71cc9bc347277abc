"""The memory of text that is read in segments: the last tokens, of which document each is, and rows of a beam."""

import jax.numpy as jnp
import numpy as np

from plmjax.layers.attention.multi_head import KeyValues
from plmjax.models.families.segments import KeyValueMemory, Memory, segment_documents

DOCUMENTS = jnp.array([[0, 1, 1], [2, 2, 3]])
HIDDEN = jnp.arange(12.0).reshape(2, 2, 3, 1)  # layers, rows, tokens, features


def test_other_rows_have_their_states_and_their_documents() -> None:
    rows = jnp.array([1, 1, 0])
    taken = Memory(HIDDEN, DOCUMENTS).take_rows(rows)
    np.testing.assert_array_equal(taken.hidden, np.asarray(HIDDEN)[:, [1, 1, 0]])
    assert taken.documents.tolist() == [[2, 2, 3], [2, 2, 3], [0, 1, 1]]
    keys = HIDDEN.reshape(2, 2, 1, 1, 3)
    taken = KeyValueMemory(KeyValues(keys, -keys), DOCUMENTS).take_rows(rows)
    np.testing.assert_array_equal(taken.key_values.keys, np.asarray(keys)[:, [1, 1, 0]])
    np.testing.assert_array_equal(taken.key_values.values, -taken.key_values.keys)
    assert taken.documents.tolist() == [[2, 2, 3], [2, 2, 3], [0, 1, 1]]


def test_tokens_go_on_in_the_last_document_of_the_memory_until_another_one_starts() -> None:
    """An empty memory is before the first document, whose number is 1; padding is in none."""
    memory = Memory(HIDDEN, DOCUMENTS)
    starts, mask = jnp.array([[0, 1, 0, 1], [0, 0, 0, 0]]), jnp.array([[1, 1, 1, 1], [1, 0, 1, 1]])
    assert segment_documents(memory, 4, mask, starts).tolist() == [[1, 2, 2, 3], [3, 0, 3, 3]]
    assert segment_documents(memory, 2, None, None).tolist() == [[1, 1], [3, 3]]
    for empty in (Memory(HIDDEN[:, :, :0], DOCUMENTS[:, :0]), Memory(HIDDEN, 0 * DOCUMENTS)):
        assert segment_documents(empty, 2, None, starts[:, :2]).tolist() == [[1, 2], [1, 1]]
