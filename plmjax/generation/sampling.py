"""Strategies that choose one token at a time: greedy decoding and sampling."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from plmjax.errors import UserError
from plmjax.generation.constraints import Constraints, top_k, top_p
from plmjax.generation.search import Lengths, SearchResult
from plmjax.generation.token_buffer import TokenBuffer

SMALLEST = 1e-30
"""Lower bound of the temperature in computations. At such temperatures the likeliest token is always sampled."""


@flax.struct.dataclass
class Texts:
    """The state of a search whose texts are independent.

    buffer: R rows.
    keys: random keys [R].
    counts: int32 [R], number of tokens of each text.
    stopped: bool [R].
    log_probabilities: float32 [R], of each text so far.
    """

    buffer: TokenBuffer
    keys: jax.Array
    counts: jax.Array
    stopped: jax.Array
    log_probabilities: jax.Array


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Greedy decoding: the most likely token each time."""

    @property
    def rows(self) -> int:
        """Return the number of rows of a prompt: 1, because another text would be the same."""
        return 1

    def init(self, buffer: TokenBuffer, keys: jax.Array) -> Texts:
        """Initialize every row with its own key. So no text depends on the other prompts."""
        count, rows = len(buffer.first), self.rows
        keys = jax.vmap(lambda key: jax.random.split(key, rows))(keys).reshape(count * rows)
        return Texts(
            buffer=buffer.rows(jnp.repeat(jnp.arange(count), rows)),
            keys=keys,
            counts=jnp.zeros(count * rows, jnp.int32),
            stopped=jnp.zeros(count * rows, bool),
            log_probabilities=jnp.zeros(count * rows),
        )

    def advance(
        self, search: Texts, scores: jax.Array, constraints: Constraints, lengths: Lengths
    ) -> tuple[Texts, None]:
        """Choose the next tokens. Texts that have stopped get tokens that are ignored."""
        buffer = search.buffer
        bounds = lengths.repeat(self.rows)
        tokens = self.choose(constraints(scores, buffer, *bounds), search.keys, buffer.count).astype(jnp.int32)
        gained = jnp.take_along_axis(jax.nn.log_softmax(scores, axis=-1), tokens[:, None], axis=-1)[:, 0]
        on = ~search.stopped & (buffer.count < bounds[1])
        return search.replace(
            buffer=buffer.with_tokens(tokens),
            counts=search.counts + on,
            stopped=search.stopped | (on & constraints.stops(tokens)),
            log_probabilities=search.log_probabilities + jnp.where(on, gained, 0.0),
        ), None

    def choose(self, scores: jax.Array, keys: jax.Array, count: jax.Array) -> jax.Array:
        """Choose tokens, [R V] -> int [R]. keys: [R]. count: number of tokens generated before."""
        return jnp.argmax(scores, axis=-1)

    def is_finished(self, search: Texts, lengths: Lengths) -> jax.Array:
        """Return true if every text has stopped or has the maximum length."""
        return jnp.all(search.stopped | (search.buffer.count >= lengths.repeat(self.rows)[1]))

    def result(self, search: Texts) -> SearchResult:
        """Return the texts of each prompt in the order of their keys."""

        def by_prompt(x: jax.Array) -> jax.Array:
            return x.reshape(-1, self.rows, *x.shape[1:])

        return SearchResult(
            tokens=by_prompt(search.buffer.text),
            counts=by_prompt(search.counts),
            stopped=by_prompt(search.stopped),
            log_probabilities=by_prompt(search.log_probabilities),
            scores=by_prompt(search.log_probabilities),
        )


@dataclasses.dataclass(frozen=True)
class Sampling(Greedy):
    """Sampling from softmax(scores / temperature), restricted to the `top_k` best and then to the `top_p` nucleus.

    sequences: number of texts for each prompt.

    Raises:
        UserError: a number is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    """Number of likeliest tokens to sample from; 0: all tokens."""
    top_p: float = 1.0
    sequences: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise UserError(
                f"Expected a --temperature above 0, found {self.temperature:g}; change it, or give 0 for the likeliest "
                f"token each time."
            )
        if self.top_k < 0:
            raise UserError(f"Expected a --top_k of at least 1, or 0 for all tokens, found {self.top_k}; change it.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"Expected a --top_p above 0 and of at most 1, found {self.top_p:g}; change it.")
        if self.sequences < 1:
            raise UserError(f"Expected --sequences of at least 1, found {self.sequences}; change it.")

    @property
    def rows(self) -> int:
        """Return the number of rows of a prompt: one for each text."""
        return self.sequences

    def choose(self, scores: jax.Array, keys: jax.Array, count: jax.Array) -> jax.Array:
        # The best score becomes 0, so it stays finite. The bound keeps the temperature from becoming 0 in float32.
        scores = (scores - jnp.max(scores, axis=-1, keepdims=True)) / max(self.temperature, SMALLEST)
        scores = top_k(scores, self.top_k) if self.top_k else scores
        scores = top_p(scores, self.top_p) if self.top_p < 1 else scores
        return jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, count), row))(keys, scores)
