"""The base of objectives that make a source and a target from one row of text, inside the jitted step.

A row of consecutive tokens, such as `Chunks` gives, becomes two streams: the encoder's input and the decoder's targets.
Their lengths follow from the length of the row, so that all shapes are static. If a stream's length is random, its rows
are padded to the maximum length. The fields of `PairedStreams` replace those of the row, and one is added to a batch:

    text_weights    float32 [B T]   1 for targets that are tokens of the text: no sentinels, no special tokens
"""

import dataclasses
from typing import Any, ClassVar

import chex
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.objective import Batch
from plmjax.objectives.sequence_to_sequence import SequenceToSequence

MASK, SENTINELS = "mask", "sentinels"
"""Replacements of a hidden span: the mask token, or a different sentinel for each span."""


@flax.struct.dataclass
class Stream:
    """One side of a row, with some positions left out.

    ids: int [K]. segments: int [K], ascending from 1; 0 for positions that are left out.
    """

    ids: jax.Array
    segments: jax.Array


@dataclasses.dataclass(frozen=True)
class TextToText(SequenceToSequence):
    """Base class of these objectives. A subclass defines the source and the target of a row, and their lengths.

    `loss` of held-out text is the mean nats of the tokens of the text; the unigram entropy is over the same tokens.
    `target_loss` is the mean over all targets, which is trained.
    """

    perplexity: ClassVar[bool] = False  # most of these objectives restore a corrupted text
    start: ClassVar[str] = "pad"
    """The role of the decoder's first input token."""
    gaps: ClassVar[str] = ""
    """The replacement of a hidden span in the source: `MASK` if the decoder predicts the whole text, `SENTINELS` if it
    predicts the spans; empty for objectives that hide no spans.
    """

    def lengths(self, tokens: int) -> tuple[int, int]:
        """Return the maximum length of the source and of the target for a row of up to `tokens` tokens."""
        raise NotImplementedError(f"{type(self).__name__} must define `lengths`.")

    def longest(self, tokens: int) -> int:
        return max(self.lengths(tokens))

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        """Return source and target, with end tokens, of a row of tokens, int [N].

        length: number of real tokens, which come first.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `streams`.")

    def check(self, tokens: int, vocabulary: Vocabulary) -> None:
        """Check rows and tokenizer. Raises UserError if this objective cannot use them."""
        if vocabulary.document_end < 0 or vocabulary.id_of(self.start) < 0:
            raise UserError(
                f"Expected a tokenizer with an end token and a {self.start} token for {type(self).__name__}, found one "
                f"without; use another tokenizer."
            )

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Make both sides of every row, each with its own key.

        Raises:
            UserError: as `check`.
        """
        ids, segments = batch["input_ids"], batch["segment_ids"]
        chex.assert_rank([ids, segments], 2)
        rows, tokens = ids.shape
        self.check(tokens, vocabulary)
        rooms = self.lengths(tokens)
        pad = max(vocabulary.pad, 0)

        def make(key: jax.Array, ids: jax.Array, length: jax.Array) -> list[tuple[jax.Array, jax.Array, jax.Array]]:
            streams = self.streams(key, ids, length, vocabulary)
            # A padding row has no end tokens either.
            streams = (Stream(one.ids, jnp.where(length > 0, one.segments, 0)) for one in streams)
            return [padded_row(one, room) for one, room in zip(streams, rooms, strict=True)]

        source, target = jax.vmap(make)(jax.random.split(key, rows), ids, jnp.sum(segments > 0, axis=1))
        source_ids, source_segments, source_positions = source
        next_ids, target_segments, target_positions = target
        before = jnp.concatenate([next_ids[:, :1], next_ids[:, :-1]], axis=1)
        asked = target_segments > 0
        special = jnp.array(sorted({vocabulary.document_end, *vocabulary.special, *vocabulary.sentinels}))
        shown = jnp.where(target_positions == 0, vocabulary.id_of(self.start), before)
        return batch | {
            "input_ids": jnp.where(source_segments > 0, source_ids, pad),
            "segment_ids": source_segments,
            "positions": source_positions,
            "decoder_input_ids": jnp.where(asked, shown, pad),
            "decoder_segment_ids": target_segments,
            "decoder_positions": target_positions,
            "next_ids": jnp.where(asked, next_ids, pad),
            "next_weights": asked.astype(jnp.float32),
            "text_weights": (asked & ~jnp.isin(next_ids, special)).astype(jnp.float32),
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of target tokens of the text, and of all targets."""
        return {"text": jnp.maximum(jnp.sum(batch["text_weights"]), 1e-9)} | super().weights(batch)

    def coefficients(self) -> dict[str, float]:
        """Return the factors of the terms: 0 for the tokens of the text, which are only reported.

        Their loss is a part of the loss of all targets.
        """
        return {"text": 0.0, "target": 1.0}

    def extra_terms(self, batch: Batch, nats: jax.Array) -> dict[str, jax.Array]:
        return {"text": jnp.sum(batch["text_weights"] * nats)}

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["next_ids"], batch["text_weights"]

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        rows, tokens = batch["input_ids"].shape
        return config.train_flops(rows, *self.lengths(tokens))


def padded_row(stream: Stream, room: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return ids, segments and positions, int [room], of a stream without the positions left out; zeros follow."""
    kept = stream.segments > 0
    places = jnp.where(kept, jnp.cumsum(kept) - 1, room)
    ids, segments = (
        jnp.zeros(room, values.dtype).at[places].set(values, mode="drop") for values in (stream.ids, stream.segments)
    )
    place = jnp.arange(room)
    begins = segments != jnp.concatenate([jnp.zeros(1, segments.dtype), segments[:-1]])
    return ids, segments, jnp.where(segments > 0, place - jax.lax.cummax(jnp.where(begins, place, 0)), 0)


def append_end_token(ids: jax.Array, kept: jax.Array, vocabulary: Vocabulary) -> Stream:
    """Return a stream of one segment: the kept ids, from int [K] and bool [K], and the end token."""
    end = jnp.full(1, vocabulary.document_end, ids.dtype)
    return Stream(jnp.concatenate([ids, end]), jnp.concatenate([kept, jnp.ones(1, bool)]).astype(jnp.int32))
