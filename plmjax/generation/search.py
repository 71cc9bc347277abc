"""What every strategy shares: how long texts get, and what is found."""

from typing import Any, Protocol, Self

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.generation.constraints import Constraints
from plmjax.generation.written import Written


@flax.struct.dataclass
class Lengths:
    """Tokens that are written after each prompt, int32 [B]: other numbers need no other program.

    min_new_tokens: before which no text stops.
    max_new_tokens: after which every text ends, stopped or not.
    """

    min_new_tokens: jax.Array
    max_new_tokens: jax.Array

    @classmethod
    def alike(cls, prompts: int, min_new_tokens: int, max_new_tokens: int) -> Self:
        """The same for so many prompts."""
        return cls(jnp.full(prompts, min_new_tokens, jnp.int32), jnp.full(prompts, max_new_tokens, jnp.int32))

    def of_rows(self, times: int) -> tuple[jax.Array, jax.Array]:
        """(min_new_tokens, max_new_tokens) of the rows of every prompt, int32 [B times]."""
        return jnp.repeat(self.min_new_tokens, times), jnp.repeat(self.max_new_tokens, times)


@flax.struct.dataclass
class Found:
    """The n texts of each prompt, the best first where they are ranked.

    tokens: int32 [B n P], prompt and text, filled up on both sides.
    counts: int32 [B n], tokens written, the one that stopped the text included.
    stopped: bool [B n], whether one did.
    log_probabilities: float32 [B n], natural logarithm of the text's probability after its prompt, of the model alone;
        of a beam search as the constraints changed it.
    scores: float32 [B n], what texts are ranked by.
    """

    tokens: jax.Array
    counts: jax.Array
    stopped: jax.Array
    log_probabilities: jax.Array
    scores: jax.Array


class Strategy(Protocol):
    """How tokens are chosen. It is hashable: a program is compiled for it.

    rows: rows that are written for one prompt, K.
    """

    @property
    def rows(self) -> int: ...

    def init(self, written: Written, keys: jax.Array) -> Any:
        """The search before its first token: of prompts, B rows, and a key of each, [B]; it has B K rows."""

    def advance(
        self, search: Any, scores: jax.Array, constraints: Constraints, lengths: Lengths
    ) -> tuple[Any, jax.Array | None]:
        """One token more, float32 [B K V] its scores; and the rows that go on, int [B K], None where all do.

        Its field `written` has the texts with that token.
        """

    def over(self, search: Any, lengths: Lengths) -> jax.Array:
        """Whether no row goes on, bool scalar."""

    def found(self, search: Any) -> Found:
        """The texts."""
