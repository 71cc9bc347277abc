"""The interface of a model to the decoding loop: prefill reads the prompts, a decode step reads one token per row."""

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
    """A model for the decoding loop. It is hashable: a program is compiled for each decoder.

    Its state is a pytree of arrays: a cache, and the encoded source if there is one. Its shapes are the same at every
    token.
    """

    def prefill(
        self, variables: Variables, prompt: jax.Array, prompt_mask: jax.Array, *, source: Any, capacity: int
    ) -> tuple[jax.Array, Any]:
        """Read the source, if there is one, and the beginning of each text.

        Args:
            variables: the model's variables.
            prompt: int32 [B W], padded on the left.
            prompt_mask: int32 [B W], 0 at padding.
            source: the encoder's inputs: "input_ids" and "attention_mask" int32 [B S], padded on the right; None for a
                decoder without an encoder.
            capacity: maximum number of tokens of a row, including the prompt.

        Returns:
            float32 [B V], scores of the first token after the prompt; and the state.
        """

    def decode_step(self, variables: Variables, tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Read one more token of each row, int32 [R]. Return scores of the next token, float32 [R V], and the state."""

    def take_rows(self, state: Any, indices: jax.Array) -> Any:
        """Return the state of the rows `indices`, int [R]: a row may occur several times or not at all.

        The rows of a prompt stay adjacent, in the order of the prompts, and all prompts have the same number of rows.
        """


@dataclasses.dataclass(frozen=True)
class CausalDecoder:
    """A decoder without an encoder.

    Its module takes a `cache` and returns the next cache with `scores` (contracts/cache.py).

    Attributes:
        reads_prefix: true if the tokens of a prompt attend to the complete prompt. The model then takes
            `prefix_lengths`. Generated tokens attend to preceding tokens in any case.
    """

    config: ModelConfig
    execution: Execution
    reads_prefix: bool = False

    def prefill(
        self, variables: Variables, prompt: jax.Array, prompt_mask: jax.Array, *, source: Any, capacity: int
    ) -> tuple[jax.Array, Cache]:
        """Read all prompt tokens at once. There is no source."""
        cache = self.config.empty_cache(prompt.shape[0], capacity, self.execution)
        count, width = prompt.shape
        # Positions as `MaskTerms` counts them: the mask hides the padding before the prompt.
        prefix = {"prefix_lengths": jnp.full(count, width, jnp.int32)} if self.reads_prefix else {}
        return self._read(variables, prompt, prompt_mask, cache, **prefix)

    def decode_step(self, variables: Variables, tokens: jax.Array, state: Cache) -> tuple[jax.Array, Cache]:
        return self._read(variables, tokens[:, None], None, state)

    def take_rows(self, state: Cache, indices: jax.Array) -> Cache:
        return state.take_rows(indices)

    def _read(
        self, variables: Variables, tokens: jax.Array, mask: jax.Array | None, cache: Cache, **prefix: jax.Array
    ) -> tuple[jax.Array, Cache]:
        module = self.config.module(Purpose.CAUSAL_LM, self.execution)
        output = module.apply(variables, tokens, attention_mask=mask, cache=cache, **prefix)
        return output.scores.last_logits(), output.cache


@dataclasses.dataclass(frozen=True)
class SourceDecoder:
    """The decoder of an encoder-decoder whose modules follow layers/encoder_decoder.py.

    The source is read once. All texts of a prompt share it (`layers.encoder_decoder.group_by_source`).
    """

    config: ModelConfig
    execution: Execution

    def prefill(
        self,
        variables: Variables,
        prompt: jax.Array,
        prompt_mask: jax.Array,
        *,
        source: dict[str, jax.Array],
        capacity: int,
    ) -> tuple[jax.Array, tuple[SourceKeyValues, Cache]]:
        """Read the source, then the beginning of each text."""
        module = self.config.module(Purpose.CAUSAL_LM, self.execution)
        read = module.apply(variables, **source, method="encode")
        cache = self.config.empty_cache(prompt.shape[0], capacity, self.execution)
        return self._read(variables, prompt, prompt_mask, source=read, cache=cache)

    def decode_step(
        self, variables: Variables, tokens: jax.Array, state: tuple[SourceKeyValues, Cache]
    ) -> tuple[jax.Array, tuple[SourceKeyValues, Cache]]:
        source, cache = state
        return self._read(variables, tokens[:, None], None, source=source, cache=cache)

    def take_rows(self, state: tuple[SourceKeyValues, Cache], indices: jax.Array) -> tuple[SourceKeyValues, Cache]:
        """Return the cache of the rows, with the same source: the texts of a prompt share it."""
        source, cache = state
        return source, cache.take_rows(indices)

    def _read(
        self, variables: Variables, tokens: jax.Array, mask: jax.Array | None, *, source: SourceKeyValues, cache: Cache
    ) -> tuple[jax.Array, tuple[SourceKeyValues, Cache]]:
        module = self.config.module(Purpose.CAUSAL_LM, self.execution)
        output = module.apply(variables, tokens, source, decoder_attention_mask=mask, cache=cache, method="decode")
        return output.scores.last_logits(), (source, output.cache)


def decoder_of(config: ModelConfig, execution: Execution, reads_prefix: bool = False) -> Decoder:
    """Return the decoder of a model that generates text. reads_prefix: as for `CausalDecoder`."""
    if config.system.kind is Kind.ENCODER_DECODER:
        return SourceDecoder(config, execution)
    return CausalDecoder(config, execution, reads_prefix)
