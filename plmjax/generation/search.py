"""The common interface of strategies: the lengths of texts, and the result of a search."""

from typing import Any, Protocol, Self

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.generation.constraints import Constraints
from plmjax.generation.token_buffer import TokenBuffer


@flax.struct.dataclass
class Lengths:
    """Number of tokens to generate after each prompt, int32 [B]. Programs are not compiled again for other numbers.

    min_new_tokens: number of tokens before which no text stops.
    max_new_tokens: number of tokens after which every text ends, stopped or not.
    """

    min_new_tokens: jax.Array
    max_new_tokens: jax.Array

    @classmethod
    def alike(cls, prompts: int, min_new_tokens: int, max_new_tokens: int) -> Self:
        """Return the same lengths for this many prompts."""
        return cls(jnp.full(prompts, min_new_tokens, jnp.int32), jnp.full(prompts, max_new_tokens, jnp.int32))

    def repeat(self, times: int) -> tuple[jax.Array, jax.Array]:
        """Return (min_new_tokens, max_new_tokens) with each prompt repeated, int32 [B times]."""
        return jnp.repeat(self.min_new_tokens, times), jnp.repeat(self.max_new_tokens, times)


@flax.struct.dataclass
class SearchResult:
    """The n texts of each prompt. Ranked texts have the best first.

    tokens: int32 [B n P], P positions with prompt and text, padded on both sides.
    counts: int32 [B n], number of generated tokens, including the stop token.
    stopped: bool [B n], true if a stop token ended the text.
    log_probabilities: float32 [B n], natural logarithm of the text's probability given its prompt, without the
        constraints; for beam search with the constraints.
    scores: float32 [B n], the ranking score of texts.
    """

    tokens: jax.Array
    counts: jax.Array
    stopped: jax.Array
    log_probabilities: jax.Array
    scores: jax.Array


class Strategy(Protocol):
    """A strategy that chooses tokens. It is hashable: a program is compiled for each strategy.

    rows: the number of rows for each prompt, K.
    """

    @property
    def rows(self) -> int: ...

    def init(self, buffer: TokenBuffer, keys: jax.Array) -> Any:
        """Initialize the search from prompts, B rows, and a key for each, [B]. The search has B K rows."""

    def advance(
        self, search: Any, scores: jax.Array, constraints: Constraints, lengths: Lengths
    ) -> tuple[Any, jax.Array | None]:
        """Choose one more token of each row from its scores, float32 [B K V].

        Return the search, whose field `buffer` has the texts with that token. Also return the rows that continue, int
        [B K], or None if all continue.
        """

    def is_finished(self, search: Any, lengths: Lengths) -> jax.Array:
        """Return true if no row continues, bool scalar."""

    def result(self, search: Any) -> SearchResult:
        """Return the texts."""
