"""Beam search: the most likely texts that a few rows of each prompt can reach.

Each of the K beams of a prompt can be extended by any token. The best of these extensions continue. If one of the K
best ends its text, it is stored with its score: its log probability divided by a power of its length. The divisor for n
tokens depends on `length_normalization`:

    tokens  n ** length_penalty, as in transformers
    gnmt    ((5 + n) / 6) ** length_penalty (Wu et al., arXiv 1609.08144, section 7), as in the Transformer and T5

`early_stopping` decides when the search ends:

    full    as soon as K texts have stopped
    likely  as soon as the best beam, scored at its present length, is no better than the worst of K texts
    never   as soon as the best beam, scored at the length with the highest score, is no better than the worst of K
            texts

They are transformers' True, False and "never". With a positive length penalty the score of a beam may rise as it grows.
So `likely` may miss a better text.
"""

import dataclasses
import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.errors import UserError, check_choice
from plmjax.generation.constraints import Constraints
from plmjax.generation.search import Lengths, SearchResult
from plmjax.generation.token_buffer import TokenBuffer

IMPOSSIBLE = -1e9
"""The score of an impossible choice, as in transformers. It is finite, so that sums of it stay finite. It is not
`EXCLUDED`, because texts are compared by this score, and no exponential of it is computed.
"""
EARLY_STOPPING = ("full", "likely", "never")
LENGTH_NORMALIZATIONS = ("tokens", "gnmt")


@flax.struct.dataclass
class Texts:
    """Texts that have stopped or reached the maximum length: K of each prompt, the best first.

    tokens: int32 [B K P].
    counts: int32 [B K].
    stopped: bool [B K], true if a stop token ended the text.
    log_probabilities, scores: float32 [B K].
    held: bool [B K], true if there is a text.
    """

    tokens: jax.Array
    counts: jax.Array
    stopped: jax.Array
    log_probabilities: jax.Array
    scores: jax.Array
    held: jax.Array


@flax.struct.dataclass
class Beams:
    """The state of a beam search.

    buffer: the B K rows that continue.
    log_probabilities: float32 [B K], of these rows.
    texts: the finished texts.
    open: bool [B], true if a better text may still be found.
    """

    buffer: TokenBuffer
    log_probabilities: jax.Array
    texts: Texts
    open: jax.Array


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """A search with `beams` rows for each prompt. The best `sequences` texts are returned.

    Raises:
        UserError: a number is out of its range.
    """

    beams: int = 4
    length_penalty: float = 1.0
    early_stopping: str = "likely"
    sequences: int = 1
    length_normalization: str = "tokens"

    def __post_init__(self) -> None:
        check_choice("--early_stopping", self.early_stopping, EARLY_STOPPING)
        check_choice("--length_normalization", self.length_normalization, LENGTH_NORMALIZATIONS)
        if self.beams < 2:
            raise UserError(f"Expected --beams of at least 2, found {self.beams}; for one beam give --temperature 0.")
        if not 1 <= self.sequences <= self.beams:
            raise UserError(
                f"Expected --sequences from 1 to the {self.beams} beams, found {self.sequences}; change it."
            )
        if not math.isfinite(self.length_penalty):
            raise UserError(f"Expected a number for --length_penalty, found {self.length_penalty}; change it.")

    @property
    def rows(self) -> int:
        """Return the number of rows of a prompt: one for each beam."""
        return self.beams

    def init(self, buffer: TokenBuffer, keys: jax.Array) -> Beams:
        """Initialize the search. All beams hold the same prompt, so only the first is extended. No key is used."""
        count, capacity = buffer.text.shape
        shape = (count, self.beams)
        first = jnp.where(jnp.arange(self.beams) == 0, 0.0, IMPOSSIBLE)
        return Beams(
            buffer=buffer.rows(jnp.repeat(jnp.arange(count), self.beams)),
            log_probabilities=jnp.broadcast_to(first, shape),
            texts=Texts(
                tokens=jnp.zeros((*shape, capacity), jnp.int32),
                counts=jnp.zeros(shape, jnp.int32),
                stopped=jnp.zeros(shape, bool),
                log_probabilities=jnp.full(shape, IMPOSSIBLE),
                scores=jnp.full(shape, IMPOSSIBLE),
                held=jnp.zeros(shape, bool),
            ),
            open=jnp.ones(count, bool),
        )

    def advance(
        self, search: Beams, scores: jax.Array, constraints: Constraints, lengths: Lengths
    ) -> tuple[Beams, jax.Array]:
        """Choose among all continuations of each prompt's beams."""
        (count, beams), size = search.log_probabilities.shape, scores.shape[-1]
        scores = jax.nn.log_softmax(scores, axis=-1)
        gained = constraints(scores, search.buffer, *lengths.repeat(beams))
        total = search.log_probabilities[..., None] + gained.reshape(count, beams, size)
        # Enough candidates: `beams` of them continue even if each beam can end with every stop token.
        kept = beams * max(2, 1 + len(constraints.stop))
        best, places = jax.lax.top_k(total.reshape(count, beams * size), kept)  # [B kept]
        parents = (places // size + jnp.arange(count)[:, None] * beams).reshape(-1)
        tokens = (places % size).astype(jnp.int32)
        candidates = search.buffer.rows(parents).with_tokens(tokens.reshape(-1))

        stopped = constraints.stops(tokens)
        longest = candidates.count >= lengths.max_new_tokens
        ends = stopped | longest[:, None]
        on, chosen = jax.lax.top_k(jnp.where(ends, best + IMPOSSIBLE, best), beams)
        flat = (chosen + jnp.arange(count)[:, None] * kept).reshape(-1)
        texts = self._kept(search, candidates, best, stopped=stopped, ends=ends)
        worst = jnp.where(texts.held, jnp.min(texts.scores, axis=1, keepdims=True), IMPOSSIBLE)
        possible = on[:, :1] / self._norm(self._length_of_best(candidates.count, lengths))[:, None]
        still = search.open & jnp.any(possible > worst, axis=1) & ~longest
        return Beams(candidates.rows(flat), on, texts, still), parents[flat]

    def _kept(
        self, search: Beams, candidates: TokenBuffer, best: jax.Array, *, stopped: jax.Array, ends: jax.Array
    ) -> Texts:
        """Return the best K of the stored texts and of the texts that end now among the K best candidates."""
        count, kept = best.shape
        ends_well = ends & (jnp.arange(kept) < self.beams) & search.open[:, None]
        if self.early_stopping == "full":
            ends_well &= ~jnp.all(search.texts.held, axis=1, keepdims=True)
        new = Texts(
            tokens=candidates.text.reshape(count, kept, -1),
            counts=jnp.full((count, kept), candidates.count),
            stopped=stopped,
            log_probabilities=best,
            scores=jnp.where(ends_well, best / self._norm(candidates.count), IMPOSSIBLE),
            held=ends_well,
        )
        both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), search.texts, new)
        order = jax.lax.top_k(both.scores, self.beams)[1]
        return jax.tree.map(lambda x: jax.vmap(lambda row, places: row[places])(x, order), both)

    def _length_of_best(self, count: jax.Array, lengths: Lengths) -> jax.Array:
        """Return int32 [B]: the length at which the best beam is scored, to test if a better text is possible."""
        if self.early_stopping == "never" and self.length_penalty > 0:
            return lengths.max_new_tokens
        return jnp.full_like(lengths.max_new_tokens, count)

    def _norm(self, count: jax.Array) -> jax.Array:
        length = count.astype(jnp.float32)
        length = (5 + length) / 6 if self.length_normalization == "gnmt" else length
        return length**self.length_penalty

    def is_finished(self, search: Beams, lengths: Lengths) -> jax.Array:
        """Return true if no prompt can get a better text."""
        done = ~search.open | (search.buffer.count >= lengths.max_new_tokens)
        done |= jnp.all(search.texts.held, axis=1) if self.early_stopping == "full" else False
        return jnp.all(done)

    def result(self, search: Any) -> SearchResult:
        texts = jax.tree.map(lambda x: x[:, : self.sequences], search.texts)
        return SearchResult(texts.tokens, texts.counts, texts.stopped, texts.log_probabilities, texts.scores)
