"""The decoding loop: one program reads the prompts, another writes tokens until every text has ended.

Shapes do not change while texts grow, and the number of tokens is data. So both are compiled once for a width of
prompts, a room and a strategy. The caches are donated from call to call: a caller that shows a text while it is written
asks for a few tokens at a time, with the same program.
"""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from plmjax.generation import weights
from plmjax.generation.constraints import Constraints
from plmjax.generation.decoder import Decoder, Variables
from plmjax.generation.search import Found, Lengths, Strategy
from plmjax.generation.written import Written
from plmjax.parallel import sharding


@flax.struct.dataclass
class Progress:
    """Texts that are being written, and what the model keeps of them."""

    search: Any
    state: Any


STATIC = ("decoder", "strategy", "constraints", "mesh")


@functools.partial(jax.jit, static_argnames=(*STATIC, "room"))
def begin(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    mesh: Mesh,
    params: Any,
    prompt: jax.Array,
    prompt_mask: jax.Array,
    source: Any,
    keys: jax.Array,
    lengths: Lengths,
    room: int,
) -> Progress:
    """Reads the prompts and writes the first token.

    Args:
        decoder, strategy, constraints: what is compiled.
        mesh: that the parameters are placed on.
        params: of `weights.placed`.
        prompt, prompt_mask: int32 [B W], filled up on the left.
        source: what an encoder reads (`Decoder.start`), or None.
        keys: random keys [B].
        lengths: of the texts.
        room: tokens of a row at most, prompt included.
    """

    def run() -> Progress:
        how, variables = (decoder, strategy, constraints), {"params": weights.together(params)}
        return _begun(*how, variables, prompt, prompt_mask, source, keys, lengths, room)

    return sharding.scoped(run, mesh)()


@functools.partial(jax.jit, static_argnames=STATIC, donate_argnames="progress")
def proceed(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    mesh: Mesh,
    params: Any,
    progress: Progress,
    lengths: Lengths,
    until: jax.Array,
) -> tuple[Progress, jax.Array]:
    """Writes until `until` tokens are there, an int32 scalar, or all texts have ended; and whether they have."""

    def run() -> tuple[Progress, jax.Array]:
        how, variables = (decoder, strategy, constraints), {"params": weights.together(params)}
        last = _proceeded(*how, variables, progress, lengths, until)
        return last, strategy.over(last.search, lengths)

    return sharding.scoped(run, mesh)()


@functools.partial(jax.jit, static_argnames="strategy")
def found(strategy: Strategy, search: Any) -> Found:
    """The texts of a search."""
    return strategy.found(search)


def written_within(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    variables: Variables,
    prompt: jax.Array,
    source: Any,
    keys: jax.Array,
    lengths: Lengths,
    room: int,
) -> Found:
    """The texts of prompts of one length each, int32 [B W], within a program of the caller's, such as a train step.

    variables: of the model. All else is as for `begin`. No gradient passes.
    """
    how = decoder, strategy, constraints, jax.lax.stop_gradient(variables)
    source = jax.lax.stop_gradient(source)
    progress = _begun(*how, prompt, jnp.ones_like(prompt), source, keys, lengths, room)
    return strategy.found(_proceeded(*how, progress, lengths, jnp.max(lengths.most)).search)


def _begun(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    variables: Variables,
    prompt: jax.Array,
    prompt_mask: jax.Array,
    source: Any,
    keys: jax.Array,
    lengths: Lengths,
    room: int,
) -> Progress:
    scores, state = decoder.start(variables, prompt, prompt_mask, source, room)
    search = strategy.begin(Written.after(prompt, prompt_mask, room), keys)
    if strategy.rows > 1:
        scores = jnp.repeat(scores, strategy.rows, axis=0)
        state = decoder.repeated(state, strategy.rows)
    return _advance(decoder, strategy, constraints, search, scores, state, lengths)


def _proceeded(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    variables: Variables,
    progress: Progress,
    lengths: Lengths,
    until: jax.Array,
) -> Progress:
    def going(progress: Progress) -> jax.Array:
        return ~strategy.over(progress.search, lengths) & (progress.search.written.count < until)

    def write(progress: Progress) -> Progress:
        scores, state = decoder.step(variables, progress.search.written.last, progress.state)
        return _advance(decoder, strategy, constraints, progress.search, scores, state, lengths)

    return jax.lax.while_loop(going, write, progress)


def _advance(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    search: Any,
    scores: jax.Array,
    state: Any,
    lengths: Lengths,
) -> Progress:
    search, parents = strategy.advance(search, scores, constraints, lengths)
    return Progress(search, state if parents is None else decoder.rows(state, parents))
