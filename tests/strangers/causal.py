"""A small causal transformer language model and its task, in one file: a model that the core does not know."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.layers.attention import MultiHeadAttention
from plmjax.layers.dropout import Dropout
from plmjax.layers.embeddings import Embedding
from plmjax.layers.execution import Execution
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.model_config import ModelConfig
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.stack import stack
from plmjax.layers.visibility import Visibility
from plmjax.objectives.objective import Batch, Given, Objective, Sums, apply, cross_entropy

INIT = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class CausalConfig(ModelConfig):
    """Sizes."""

    vocab_size: int = 64
    width: int = 16
    depth: int = 2
    num_attention_heads: int = 2
    intermediate_size: int = 32
    longest: int = 32
    dropout: float = 0.1

    def for_pretraining(self, execution: Execution) -> "CausalModel":
        return CausalModel(self, execution)


class CausalLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    config: CausalConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, visibility: Visibility) -> jax.Array:
        config, dtype, dropout = self.config, self.execution.dtype, Dropout(self.config.dropout)
        sizes = (config.width, config.num_attention_heads, config.dropout)
        attention = MultiHeadAttention(*sizes, INIT, self.execution, name="attention")
        y = LayerNorm(1e-5, dtype, name="attention_layer_norm")(x)
        x = x + dropout(attention(y, y, visibility, deterministic=self.deterministic), self.deterministic)
        y = LayerNorm(1e-5, dtype, name="feed_forward_layer_norm")(x)
        return x + dropout(FeedForward(config.intermediate_size, "gelu_new", INIT, dtype)(y), self.deterministic)


class CausalModel(nn.Module):
    """Logits of the next token: int [B T] -> float32 [B T V]."""

    config: CausalConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, input_ids: jax.Array, positions: jax.Array, segment_ids: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        config, dtype = self.config, self.execution.dtype
        words = Embedding(config.vocab_size, config.width, "vocab", INIT, dtype, name="words")
        places = Embedding(config.longest, config.width, None, INIT, dtype, name="positions")
        x = nn.with_logical_constraint(words(input_ids) + places(positions), ("batch", "length", "embed"))
        visibility = Visibility(query_segments=segment_ids, key_segments=segment_ids, causal=True)
        layers = CausalLayer(config, self.execution, deterministic, name="layers")
        x, _ = stack(lambda layer, x, _: (layer(x, visibility), None), layers, config.depth, self.execution, x)
        return words.attend(LayerNorm(1e-5, dtype, name="layer_norm")(x))


@dataclasses.dataclass(frozen=True)
class NextToken(Objective):
    """Mean nats of each token given those before it."""

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {name: batch[name] for name in ("input_ids", "positions", "segment_ids")}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"next_token": jnp.maximum(jnp.sum(batch["next_weights"]), 1e-9)}

    def sums(self, module: nn.Module, given: Given, batch: Batch, key: jax.Array, *, training: bool) -> Sums:
        ids, weights = self.targets(batch)
        logits = apply(self, module, given, batch, key, training=training)
        hits = jnp.sum(weights * (jnp.argmax(logits, axis=-1) == ids))
        loss = jnp.sum(weights * cross_entropy(logits, ids))
        return Sums({"next_token": loss}, {"accuracy": (hits, jnp.sum(weights))})

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["next_ids"], batch["next_weights"]

    def train_flops(self, config: CausalConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        (rows, length), size = batch["input_ids"].shape, config.width
        layer = 4 * size**2 + 2 * size * config.intermediate_size + 2 * length * size
        return 6.0 * rows * length * (config.depth * layer + size * config.vocab_size)
