"""The decoding loop: one program does the prefill, another runs decode steps until every text has ended.

Shapes do not change while texts grow, and the number of tokens is data. So both programs are compiled once for a prompt
width, a capacity and a strategy. The caches are donated from call to call. A caller that streams a text requests a few
tokens at a time from the same program.
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
from plmjax.generation.search import Lengths, SearchResult, Strategy
from plmjax.generation.token_buffer import TokenBuffer
from plmjax.parallel import sharding


@flax.struct.dataclass
class Progress:
    """The unfinished texts and the state of the decoder."""

    search: Any
    state: Any


STATIC = ("decoder", "strategy", "constraints", "mesh")


@functools.partial(jax.jit, static_argnames=(*STATIC, "capacity"))
def prefill(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    mesh: Mesh,
    *,
    params: Any,
    prompt: jax.Array,
    prompt_mask: jax.Array,
    source: Any,
    keys: jax.Array,
    lengths: Lengths,
    capacity: int,
) -> Progress:
    """Read the prompts and generate the first token.

    Args:
        decoder: the model; static, so a program is compiled for each one.
        strategy: the choice of tokens; static.
        constraints: the tokens that are forbidden or forced; static.
        mesh: the mesh that holds the parameters.
        params: the result of `weights.place_parameters`.
        prompt: int32 [B W], padded on the left.
        prompt_mask: int32 [B W], 0 at padding.
        source: the encoder's inputs (`Decoder.prefill`), or None.
        keys: random keys [B].
        lengths: the lengths of the texts.
        capacity: maximum number of tokens of a row, including the prompt.
    """

    def run() -> Progress:
        settings, variables = (decoder, strategy, constraints), {"params": weights.stack_layers(params)}
        return _prefill(
            *settings,
            variables=variables,
            prompt=prompt,
            prompt_mask=prompt_mask,
            source=source,
            keys=keys,
            lengths=lengths,
            capacity=capacity,
        )

    return sharding.with_mesh(run, mesh)()


@functools.partial(jax.jit, static_argnames=STATIC, donate_argnames="progress")
def decode(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    mesh: Mesh,
    *,
    params: Any,
    progress: Progress,
    lengths: Lengths,
    until: jax.Array,
) -> tuple[Progress, jax.Array]:
    """Decode until texts have `until` tokens, an int32 scalar, or all have ended.

    Also return whether all have ended.
    """

    def run() -> tuple[Progress, jax.Array]:
        settings, variables = (decoder, strategy, constraints), {"params": weights.stack_layers(params)}
        last = _decode(*settings, variables=variables, progress=progress, lengths=lengths, until=until)
        return last, strategy.is_finished(last.search, lengths)

    return sharding.with_mesh(run, mesh)()


@functools.partial(jax.jit, static_argnames="strategy")
def search_result(strategy: Strategy, search: Any) -> SearchResult:
    """Return the texts of a search."""
    return strategy.result(search)


def generate_within(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    *,
    variables: Variables,
    prompt: jax.Array,
    source: Any,
    keys: jax.Array,
    lengths: Lengths,
    capacity: int,
) -> SearchResult:
    """Generate texts inside a compiled program, such as a train step, for prompts of one length, int32 [B W].

    variables: the model's variables. All other arguments are as for `prefill`. No gradient flows to `variables` or
    `source`.
    """
    settings = decoder, strategy, constraints
    variables, source = jax.lax.stop_gradient((variables, source))
    progress = _prefill(
        *settings,
        variables=variables,
        prompt=prompt,
        prompt_mask=jnp.ones_like(prompt),
        source=source,
        keys=keys,
        lengths=lengths,
        capacity=capacity,
    )
    until = jnp.max(lengths.max_new_tokens)
    return strategy.result(
        _decode(*settings, variables=variables, progress=progress, lengths=lengths, until=until).search
    )


def _prefill(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    *,
    variables: Variables,
    prompt: jax.Array,
    prompt_mask: jax.Array,
    source: Any,
    keys: jax.Array,
    lengths: Lengths,
    capacity: int,
) -> Progress:
    scores, state = decoder.prefill(variables, prompt, prompt_mask, source=source, capacity=capacity)
    search = strategy.init(TokenBuffer.after(prompt, prompt_mask, capacity), keys)
    if strategy.rows > 1:
        scores = jnp.repeat(scores, strategy.rows, axis=0)
        state = decoder.take_rows(state, jnp.repeat(jnp.arange(len(prompt)), strategy.rows))
    return _advance(decoder, strategy, constraints, search=search, scores=scores, state=state, lengths=lengths)


def _decode(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    *,
    variables: Variables,
    progress: Progress,
    lengths: Lengths,
    until: jax.Array,
) -> Progress:
    def going(progress: Progress) -> jax.Array:
        return ~strategy.is_finished(progress.search, lengths) & (progress.search.buffer.count < until)

    def write(progress: Progress) -> Progress:
        scores, state = decoder.decode_step(variables, progress.search.buffer.last, progress.state)
        return _advance(
            decoder, strategy, constraints, search=progress.search, scores=scores, state=state, lengths=lengths
        )

    return jax.lax.while_loop(going, write, progress)


def _advance(
    decoder: Decoder,
    strategy: Strategy,
    constraints: Constraints,
    *,
    search: Any,
    scores: jax.Array,
    state: Any,
    lengths: Lengths,
) -> Progress:
    search, parents = strategy.advance(search, scores, constraints, lengths)
    return Progress(search, state if parents is None else decoder.take_rows(state, parents))
