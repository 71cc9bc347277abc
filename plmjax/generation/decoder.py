"""What the decoding loop needs of a model: to read what a text begins with, then one further token a row at a time."""

import dataclasses
from typing import Any, Protocol

import jax

from plmjax.layers.cache import Cache
from plmjax.layers.execution import Execution
from plmjax.layers.model_config import ModelConfig

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
            source: arrays [B ...] of what an encoder reads; None for a decoder alone.
            room: how many tokens a row can have, prompt included.

        Returns:
            float32 [B V], scores of the first token after the prompt; and the state.
        """

    def step(self, variables: Variables, tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        """Reads one more token of each row, int32 [R] -> float32 [R V], scores of the next one; and the state."""

    def rows(self, state: Any, indices: jax.Array) -> Any:
        """The state of other rows, int [R']: some of them several times, others not at all."""


def writes_text(config: ModelConfig) -> bool:
    """Whether a model can be a `Decoder`."""
    return type(config).for_generation is not ModelConfig.for_generation


@dataclasses.dataclass(frozen=True)
class CausalDecoder:
    """A decoder alone, which takes `cache` and returns `scores` and `cache`, such as those of GPT and GPT-2."""

    config: ModelConfig
    execution: Execution

    def start(
        self, variables: Variables, prompt: jax.Array, prompt_mask: jax.Array, source: Any, room: int
    ) -> tuple[jax.Array, Cache]:
        """Reads the prompts at once; there is no source."""
        cache = self.config.empty_cache(prompt.shape[0], room, self.execution)
        return self._read(variables, prompt, prompt_mask, cache)

    def step(self, variables: Variables, tokens: jax.Array, state: Cache) -> tuple[jax.Array, Cache]:
        """One column more."""
        return self._read(variables, tokens[:, None], None, state)

    def rows(self, state: Cache, indices: jax.Array) -> Cache:
        """The cache of other rows."""
        return state.rows(indices)

    def _read(
        self, variables: Variables, tokens: jax.Array, mask: jax.Array | None, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        module = self.config.for_generation(self.execution)
        output = module.apply(variables, tokens, attention_mask=mask, cache=cache)
        last = output.scores.replace(hidden=output.scores.hidden[:, -1:])
        return last.logits()[:, 0], output.cache
