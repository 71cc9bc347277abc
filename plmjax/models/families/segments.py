"""The memory of models that read a text in segments: Transformer-XL and Adaptive-Span.

Each layer remembers its inputs at the tokens before a segment, or its keys and values of these tokens. No gradient
passes through a memory.
"""

from typing import Self

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attentions import Attentions
from plmjax.contracts.cache import Cache
from plmjax.contracts.scores import TokenScores
from plmjax.layers.attention.multi_head import KeyValues


@flax.struct.dataclass
class Memory(Cache):
    """The inputs of every layer at the last M tokens, for a text of any length.

    hidden: [L B M D].
    documents: int32 [B M], the number of each token's document, from 1; 0 for padding and empty places.
    """

    hidden: jax.Array
    documents: jax.Array

    def after(self, hidden: jax.Array, documents: jax.Array) -> Self:
        """Return the memory after T further tokens, [L B T D] and int [B T]; no gradient passes through it."""
        length = self.hidden.shape[2]
        hidden = jnp.concatenate([self.hidden, hidden.astype(self.hidden.dtype)], axis=2)
        documents = jnp.concatenate([self.documents, documents], axis=1)
        kept = self.replace(
            hidden=hidden[:, :, hidden.shape[2] - length :], documents=documents[:, documents.shape[1] - length :]
        )
        return jax.lax.stop_gradient(kept)

    def take_rows(self, indices: jax.Array) -> Self:
        return Memory(jnp.take(self.hidden, indices, axis=1), jnp.take(self.documents, indices, axis=0))


@flax.struct.dataclass
class KeyValueMemory(Cache):
    """The keys and values of every layer at the last M tokens, for generation with fixed parameters.

    key_values: [L B N H M] each, as in `KeyValueCache`, in the dtype of the computation.
    documents: as in `Memory`.
    """

    key_values: KeyValues
    documents: jax.Array

    def after(self, key_values: KeyValues, documents: jax.Array) -> Self:
        """Return the memory after T further tokens.

        key_values: of the last M tokens.
        documents: int [B T], of the further tokens.
        """
        documents = jnp.concatenate([self.documents, documents], axis=1)[:, documents.shape[1] :]
        return KeyValueMemory(key_values, documents)

    def take_rows(self, indices: jax.Array) -> Self:
        key_values = jax.tree.map(lambda x: jnp.take(x, indices, axis=1), self.key_values)
        return KeyValueMemory(key_values, jnp.take(self.documents, indices, axis=0))


@flax.struct.dataclass
class SegmentOutput(Attentions):
    """The output of the modules for a segment of each row.

    last_hidden_state: [B T D].
    cache: the memory after the row; None if there was none before it.
    hidden_states: the embeddings and the outputs of every layer, [L+1 B T D]; only if requested.
    scores: scores of the next token at every position; only for a language model.
    logits: float32, the scores as an array, [B T V].
    """

    last_hidden_state: jax.Array
    cache: Memory | KeyValueMemory | None = None
    hidden_states: jax.Array | None = None
    scores: TokenScores | None = None

    @property
    def logits(self) -> jax.Array:
        return self.scores.logits()


def segment_documents(
    memory: Memory | KeyValueMemory, length: int, attention_mask: jax.Array | None, starts: jax.Array | None
) -> jax.Array:
    """Return the document number of each token of a segment, int32 [B T]; 0 for padding.

    length: T.
    attention_mask: [B T], the padding mask; None: no padding.
    starts: bool [B T], true at the first token of a document; None: no document begins in the segment.
    """
    last = jnp.maximum(jnp.max(memory.documents, axis=1, initial=0), 1)[:, None]
    begun = 0 if starts is None else jnp.cumsum(starts, axis=1, dtype=jnp.int32)
    documents = jnp.broadcast_to(last + begun, (len(last), length))
    return documents if attention_mask is None else jnp.where(attention_mask > 0, documents, 0)
