"""What the tasks share that make a source and a target of one row of text, inside the jitted step.

A row of consecutive tokens, such as `Blocks` gives, is turned into two streams: what the encoder reads and what the
decoder is asked for. Their lengths follow from the length of the row, so every shape is known beforehand. Where a
stream's length is random, its rows are padded to the longest possible one. Replaces the fields of a row by those of
`PairedStreams`, and adds to a batch:

    text_weights    float32 [B T]   1 for targets that are tokens of the text: no sentinels, no special tokens
"""

import dataclasses
from typing import Any, ClassVar

import chex
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.errors import UserError
from plmjax.objectives.objective import Batch
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.vocabulary import Vocabulary

MASK, SENTINELS = "mask", "sentinels"
"""What may stand for a hidden span: the mask token, or one sentinel after the other."""


@flax.struct.dataclass
class Stream:
    """One side of a row, with places that are left out.

    ids: int [K]. segments: int [K], ascending from 1; 0 for places that are left out.
    """

    ids: jax.Array
    segments: jax.Array


@dataclasses.dataclass(frozen=True)
class TextToText(SequenceToSequence):
    """Base of these tasks: a subclass says what a row of text becomes, and how long that is.

    `loss` of held-out text is the mean nats of the tokens of the text, which is what the unigram entropy is taken over;
    `target_loss` is the mean over all targets, which is trained.
    """

    perplexity: ClassVar[bool] = False  # most of them restore a damaged text
    start: ClassVar[str] = "pad"
    """The role of the token that the decoder is given first."""
    gaps: ClassVar[str] = ""
    """What stands for a hidden span in the source: `MASK`, where the decoder writes the whole text, or `SENTINELS`,
    where it writes the spans; empty for tasks that hide no spans."""

    def lengths(self, tokens: int) -> tuple[int, int]:
        """The most tokens of the source and of the target that a row of up to so many tokens may become."""
        raise NotImplementedError(f"{type(self).__name__} must say how long its streams are.")

    def longest(self, tokens: int) -> int:
        """Those of the longer side."""
        return max(self.lengths(tokens))

    def streams(
        self, key: jax.Array, ids: jax.Array, length: jax.Array, vocabulary: Vocabulary
    ) -> tuple[Stream, Stream]:
        """Source and target, end tokens included, of a row of tokens, int [N], of which the first `length` are real."""
        raise NotImplementedError(f"{type(self).__name__} must say what a row becomes.")

    def check(self, tokens: int, vocabulary: Vocabulary) -> None:
        """Raises UserError for rows, or a tokenizer, that this task has no use for."""
        if vocabulary.document_end < 0 or vocabulary.id_of(self.start) < 0:
            raise UserError(
                f"Expected a tokenizer with an end token and a {self.start} token for {type(self).__name__}, found one "
                f"without; use another tokenizer."
            )

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Makes both sides of every row, each with a key of its own.

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
            # A row that only fills a batch has no end tokens either.
            streams = (Stream(one.ids, jnp.where(length > 0, one.segments, 0)) for one in streams)
            return [laid_out(one, room) for one, room in zip(streams, rooms, strict=True)]

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
        """Number of tokens of the text that are asked for, and of all targets."""
        return {"text": jnp.maximum(jnp.sum(batch["text_weights"]), 1e-9)} | super().weights(batch)

    def coefficients(self) -> dict[str, float]:
        """The tokens of the text are counted for reports; their loss is a part of that of all targets."""
        return {"text": 0.0, "target": 1.0}

    def reported(self, batch: Batch, nats: jax.Array) -> dict[str, jax.Array]:
        """The plain nats of the tokens of the text."""
        return {"text": jnp.sum(batch["text_weights"] * nats)}

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The tokens of the text that are asked for."""
        return batch["next_ids"], batch["text_weights"]

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Those of both streams at their longest."""
        rows, tokens = batch["input_ids"].shape
        return config.train_flops(rows, *self.lengths(tokens))


def laid_out(stream: Stream, room: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Ids, segments and positions, int [room], of a stream without the places that are left out; all 0 behind it."""
    kept = stream.segments > 0
    places = jnp.where(kept, jnp.cumsum(kept) - 1, room)
    ids, segments = (
        jnp.zeros(room, values.dtype).at[places].set(values, mode="drop") for values in (stream.ids, stream.segments)
    )
    place = jnp.arange(room)
    begins = segments != jnp.concatenate([jnp.zeros(1, segments.dtype), segments[:-1]])
    return ids, segments, jnp.where(segments > 0, place - jax.lax.cummax(jnp.where(begins, place, 0)), 0)


def ended(ids: jax.Array, kept: jax.Array, vocabulary: Vocabulary) -> Stream:
    """The kept ones of some ids, int [K] and bool [K], and the end token: a stream of one segment."""
    end = jnp.full(1, vocabulary.document_end, ids.dtype)
    return Stream(jnp.concatenate([ids, end]), jnp.concatenate([kept, jnp.ones(1, bool)]).astype(jnp.int32))
