"""A model as the decoding loop calls it: a prefill reads the prompts, then each decode step reads one token a row."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, Purpose
from plmjax.layers.encoder_decoder import SourceKeyValues

Variables = dict[str, Any]


class Decoder(Protocol):
    """A model as the loop calls it. It is hashable: a program is compiled for it.

    Its state is a pytree of arrays: a cache, with the encoded source if there is one. Its shapes stay the same from
    token to token.
    """

    def prefill(
        self, variables: Variables, prompt: jax.Array, prompt_mask: jax.Array, source: Any, capacity: int
    ) -> tuple[jax.Array, Any]:
        """Reads the source, if there is one, and what each text begins with.

        Args:
            variables: of the model.
            prompt: int32 [B W], rows filled up on the left.
            prompt_mask: int32 [B W], 0 where a row is filled up.
            source: what an encoder reads: "input_ids" and "attention_mask" int32 [B S], rows filled up on the right;
                None for a decoder alone.
            capacity: tokens of a row at most, prompt included.

        Returns:
            float32 [B V], scores of the first token after the prompt; and the state.
        """

    def decode_step(self, variables: Variables, tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Reads one more token of each row, int32 [R] -> float32 [R V], scores of the next one; and the state."""

    def take_rows(self, state: Any, indices: jax.Array) -> Any:
        """The state of other rows, int [R]: a row may come several times or not at all.

        The rows of a prompt stay side by side, in the order of the prompts, and all prompts have the same number.
        """


@dataclasses.dataclass(frozen=True)
class CausalDecoder:
    """A decoder alone. Its module takes a `cache` and returns the next one with `scores` (contracts/cache.py).

    reads_prefix: whether the tokens of a prompt see all of it, as the model takes `prefix_lengths`; what is written
        sees what comes before it in any case.
    """

    config: ModelConfig
    execution: Execution
    reads_prefix: bool = False

    def prefill(
        self, variables: Variables, prompt: jax.Array, prompt_mask: jax.Array, source: Any, capacity: int
    ) -> tuple[jax.Array, Cache]:
        """Reads the prompts at once; there is no source."""
        cache = self.config.empty_cache(prompt.shape[0], capacity, self.execution)
        count, width = prompt.shape
        # Places, as visibility counts them: the mask hides those that fill a row up before its prompt.
        prefix = {"prefix_lengths": jnp.full(count, width, jnp.int32)} if self.reads_prefix else {}
        return self._read(variables, prompt, prompt_mask, cache, **prefix)

    def decode_step(self, variables: Variables, tokens: jax.Array, state: Cache) -> tuple[jax.Array, Cache]:
        """One column more."""
        return self._read(variables, tokens[:, None], None, state)

    def take_rows(self, state: Cache, indices: jax.Array) -> Cache:
        """The cache of other rows."""
        return state.take_rows(indices)

    def _read(
        self, variables: Variables, tokens: jax.Array, mask: jax.Array | None, cache: Cache, **prefix: jax.Array
    ) -> tuple[jax.Array, Cache]:
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

    def prefill(
        self,
        variables: Variables,
        prompt: jax.Array,
        prompt_mask: jax.Array,
        source: dict[str, jax.Array],
        capacity: int,
    ) -> tuple[jax.Array, tuple[SourceKeyValues, Cache]]:
        """Reads the source, then what each text begins with."""
        module = self.config.module(Purpose.WRITING, self.execution)
        read = module.apply(variables, **source, method="encode")
        cache = self.config.empty_cache(prompt.shape[0], capacity, self.execution)
        return self._read(variables, prompt, prompt_mask, read, cache)

    def decode_step(
        self, variables: Variables, tokens: jax.Array, state: tuple[SourceKeyValues, Cache]
    ) -> tuple[jax.Array, tuple[SourceKeyValues, Cache]]:
        """One column more."""
        return self._read(variables, tokens[:, None], None, *state)

    def take_rows(self, state: tuple[SourceKeyValues, Cache], indices: jax.Array) -> tuple[SourceKeyValues, Cache]:
        """The cache of other rows, beside the same source: the texts of a prompt share one."""
        source, cache = state
        return source, cache.take_rows(indices)

    def _read(
        self, variables: Variables, tokens: jax.Array, mask: jax.Array | None, source: SourceKeyValues, cache: Cache
    ) -> tuple[jax.Array, tuple[SourceKeyValues, Cache]]:
        module = self.config.module(Purpose.WRITING, self.execution)
        output = module.apply(variables, tokens, source, decoder_attention_mask=mask, cache=cache, method="decode")
        return output.scores.last_logits(), (source, output.cache)


def decoder_of(config: ModelConfig, execution: Execution, reads_prefix: bool = False) -> Decoder:
    """The decoder of a model that writes text. reads_prefix: of a decoder alone, see `CausalDecoder`."""
    if config.system.kind is Kind.ENCODER_DECODER:
        return SourceDecoder(config, execution)
    return CausalDecoder(config, execution, reads_prefix)
