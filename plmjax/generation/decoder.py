"""What the decoding loop needs of a model: to read what a text begins with, then one further token a row at a time."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, Purpose
from plmjax.layers.attention.cache import Cache, Kept
from plmjax.layers.encoder_decoder import Source

Variables = dict[str, Any]


class Decoder(Protocol):
    """A model as the loop sees it. It is hashable: a program is compiled for it.

    Its state is a pytree of arrays, whatever the model keeps of what it has read: a cache, an encoded source, an LSTM's
    state. Its shapes stay the same from token to token.
    """

    def start(
        self, variables: Variables, prompt: jax.Array, prompt_mask: jax.Array, source: Any, room: int
    ) -> tuple[jax.Array, Any]:
        """Reads the source, if there is one, and what each text begins with.

        Args:
            variables: of the model.
            prompt: int32 [B W], rows filled up on the left.
            prompt_mask: int32 [B W], 0 where a row is filled up.
            source: what an encoder reads: "input_ids" and "attention_mask" int32 [B S], rows filled up on the right;
                None for a decoder alone.
            room: how many tokens a row can have, prompt included.

        Returns:
            float32 [B V], scores of the first token after the prompt; and the state.
        """

    def step(self, variables: Variables, tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Reads one more token of each row, int32 [R] -> float32 [R V], scores of the next one; and the state."""

    def repeated(self, state: Any, times: int) -> Any:
        """The state of every row several times, for the several texts of a prompt side by side."""

    def rows(self, state: Any, indices: jax.Array) -> Any:
        """The state of other rows, int [R]: each of a row of the same prompt, some several times, others not at all."""


@dataclasses.dataclass(frozen=True)
class CausalDecoder:
    """A decoder alone, which takes `cache`, what it keeps of a text (layers/attention/cache.py), and returns it with
    `scores`.

    reads_prefix: whether the tokens of a prompt see all of it, as the model takes `prefix_lengths`; what is written
        sees what comes before it in any case.
    """

    config: ModelConfig
    execution: Execution
    reads_prefix: bool = False

    def start(
        self, variables: Variables, prompt: jax.Array, prompt_mask: jax.Array, source: Any, room: int
    ) -> tuple[jax.Array, Kept]:
        """Reads the prompts at once; there is no source."""
        cache = self.config.empty_cache(prompt.shape[0], room, self.execution)
        count, width = prompt.shape
        # Places, as visibility counts them: the mask hides those that fill a row up before its prompt.
        prefix = {"prefix_lengths": jnp.full(count, width, jnp.int32)} if self.reads_prefix else {}
        return self._read(variables, prompt, prompt_mask, cache, **prefix)

    def step(self, variables: Variables, tokens: jax.Array, state: Kept) -> tuple[jax.Array, Kept]:
        """One column more."""
        return self._read(variables, tokens[:, None], None, state)

    def repeated(self, state: Kept, times: int) -> Cache:
        """The cache of every row several times."""
        return state.rows(_repeated(state.count, times))

    def rows(self, state: Kept, indices: jax.Array) -> Cache:
        """The cache of other rows."""
        return state.rows(indices)

    def _read(
        self, variables: Variables, tokens: jax.Array, mask: jax.Array | None, cache: Kept, **prefix: jax.Array
    ) -> tuple[jax.Array, Kept]:
        module = self.config.module(Purpose.WRITING, self.execution)
        output = module.apply(variables, tokens, attention_mask=mask, cache=cache, **prefix)
        return output.scores.last_logits(), output.cache


@dataclasses.dataclass(frozen=True)
class SourceDecoder:
    """The decoder of an encoder-decoder, whose modules are as layers/encoder_decoder.py says.

    The source is read once. All texts of a prompt share it (`layers.encoder_decoder.by_source`).
    """

    config: ModelConfig
    execution: Execution

    def start(
        self, variables: Variables, prompt: jax.Array, prompt_mask: jax.Array, source: dict[str, jax.Array], room: int
    ) -> tuple[jax.Array, tuple[Source, Cache]]:
        """Reads the source, then what each text begins with."""
        module = self.config.module(Purpose.WRITING, self.execution)
        read = module.apply(variables, **source, method="encode")
        cache = self.config.empty_cache(prompt.shape[0], room, self.execution)
        return self._read(variables, prompt, prompt_mask, read, cache)

    def step(
        self, variables: Variables, tokens: jax.Array, state: tuple[Source, Cache]
    ) -> tuple[jax.Array, tuple[Source, Cache]]:
        """One column more."""
        return self._read(variables, tokens[:, None], None, *state)

    def repeated(self, state: tuple[Source, Cache], times: int) -> tuple[Source, Cache]:
        """The cache of every row several times, beside the source, of which one is enough for them."""
        source, cache = state
        return source, cache.rows(_repeated(len(source.attention_mask), times))

    def rows(self, state: tuple[Source, Cache], indices: jax.Array) -> tuple[Source, Cache]:
        """The cache of other rows, beside the source, which is the same for them."""
        source, cache = state
        return source, cache.rows(indices)

    def _read(
        self, variables: Variables, tokens: jax.Array, mask: jax.Array | None, source: Source, cache: Cache
    ) -> tuple[jax.Array, tuple[Source, Cache]]:
        module = self.config.module(Purpose.WRITING, self.execution)
        output = module.apply(variables, tokens, source, decoder_attention_mask=mask, cache=cache, method="decode")
        return output.scores.last_logits(), (source, output.cache)


def decoder_of(config: ModelConfig, execution: Execution, reads_prefix: bool = False) -> Decoder:
    """The decoder of a model that writes text. reads_prefix: of a decoder alone, see `CausalDecoder`."""
    if config.system.kind is Kind.ENCODER_DECODER:
        return SourceDecoder(config, execution)
    return CausalDecoder(config, execution, reads_prefix)


def _repeated(count: int, times: int) -> jax.Array:
    """The number of each of so many rows several times, int [count times]."""
    return jnp.repeat(jnp.arange(count), times)
