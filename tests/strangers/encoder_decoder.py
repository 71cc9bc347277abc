"""A small encoder-decoder over two streams, whose evaluation decodes text: a fifth stranger."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.layers.attention import MultiHeadAttention
from plmjax.layers.embeddings import Embedding
from plmjax.layers.encoder_decoder import EncoderDecoderOutput
from plmjax.layers.execution import Execution
from plmjax.layers.model_config import ModelConfig
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.visibility import Visibility
from plmjax.layers.vocabulary_scores import VocabularyScores
from plmjax.objectives.objective import Batch, Given
from plmjax.objectives.sequence_to_sequence import INPUTS
from plmjax.training import feed
from plmjax.training.evaluation import HeldOut
from plmjax.training.step import Program

INIT = nn.initializers.normal(0.1)


@dataclasses.dataclass(frozen=True)
class TranslatorConfig(ModelConfig):
    vocab_size: int = 64
    width: int = 32
    depth: int = 1
    longest: int = 16

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """6 D^2 (4 a source token + 8 a target token) and 6 D V a target token; attention's own products left out."""
        layers = 4 * self.width**2 * (sequence_length + 2 * predictions)
        return 6.0 * batch_size * (layers + predictions * self.width * self.vocab_size)

    def for_pretraining(self, execution: Execution) -> "Translator":
        return Translator(self)


class Translator(nn.Module):
    """One layer that reads the source, and one that writes the target after it; both share the word table."""

    config: TranslatorConfig

    def setup(self) -> None:
        size = self.config.width
        self.words = Embedding(self.config.vocab_size, size, "vocab", INIT)
        self.places = Embedding(self.config.longest, size, None, INIT)
        self.reading, self.writing, self.crossing = (MultiHeadAttention(size, 2, 0.0, INIT) for _ in range(3))
        self.norms = [LayerNorm(1e-5) for _ in range(3)]

    def encode(self, input_ids: jax.Array, segment_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """int [B S] three times -> [B S D]."""
        x = self.words(input_ids) + self.places(positions)
        return self.norms[0](x + self.reading(x, x, Visibility.of_rows(None, segment_ids), deterministic=True))

    def decode(self, memory: jax.Array, source: jax.Array, target: tuple[jax.Array, ...]) -> EncoderDecoderOutput:
        """[B S D], int [B S], and int [B T] three times."""
        ids, segments, positions = target
        x, own = self.words(ids) + self.places(positions), Visibility.of_rows(None, segments).replace(causal=True)
        x = self.norms[1](x + self.writing(x, x, own, deterministic=True))
        across = Visibility(query_segments=segments, key_segments=source)
        x = self.norms[2](x + self.crossing(x, memory, across, deterministic=True))
        return EncoderDecoderOutput(x, scores=VocabularyScores(x, self.words.embedding))

    def __call__(self, *, deterministic: bool, **inputs: jax.Array) -> EncoderDecoderOutput:
        """Fields of `PairedStreams`."""
        memory = self.encode(*(inputs[name] for name in INPUTS))
        return self.decode(memory, inputs["segment_ids"], tuple(inputs[f"decoder_{name}"] for name in INPUTS))


@dataclasses.dataclass(frozen=True)
class Decoding(HeldOut):
    """The means of held-out rows of one pair each, and the share of targets that greedy decoding writes exactly."""

    def names(self, program: Program) -> list[str]:
        return [*super().names(program), "exact"]

    def __call__(self, program: Program, given: Given, limit: int = 0) -> dict[str, float]:
        decode, shapes, exact = jax.jit(functools.partial(greedy, program.module)), program.evaluation_batch, []
        rows = self.source.evaluation(program.evaluation_phase, feed.places(shapes))
        for batch in feed.on_device(rows, shapes):
            decoded, expected, asked = jax.device_get((decode(given, batch), batch["next_ids"], batch["next_weights"]))
            exact += ((decoded == expected) | (asked == 0)).all(axis=1)[asked.any(axis=1)].tolist()
        return super().__call__(program, given, limit) | {"exact": float(np.mean(exact))}


def greedy(module: nn.Module, given: Given, batch: Batch) -> jax.Array:
    """Batch of one pair a row -> int [B T], the likeliest token after those written so far, again and again."""
    memory = module.apply(given.variables, *(batch[name] for name in INPUTS), method="encode")
    segments, positions = jnp.ones_like(batch["decoder_input_ids"]), jnp.arange(batch["input_ids"].shape[1])

    def write(ids: jax.Array, place: jax.Array) -> tuple[jax.Array, Any]:
        target = (ids, segments, jnp.broadcast_to(positions, ids.shape))
        logits = module.apply(given.variables, memory, batch["segment_ids"], target, method="decode").logits
        token = jnp.argmax(logits[:, place], axis=-1)
        return ids.at[:, place + 1].set(token, mode="drop"), token

    return jax.lax.scan(write, batch["decoder_input_ids"], positions)[1].T
