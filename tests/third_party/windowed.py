"""A decoder that brings its own visibility, score term and scores over the vocabulary, in one file.

Each token sees every second one of its neighbors (Beltagy et al. 2020, section 3.1), and distant ones less (Press et
al. 2022). The softmax has two clusters (Grave et al. 2017): a frequent token competes with the other frequent tokens
and with the cluster of the rare ones, a rare token also with the other rare ones, on fewer features.
"""

import dataclasses
import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.attention_arrays import axes
from plmjax.contracts.bias_terms import BiasTerm
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerm, MaskTerms
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.layers.attention.cache import KeyValueCache, with_past
from plmjax.layers.attention.multi_head import MultiHeadAttention
from plmjax.layers.feed_forward import FeedForward
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.rows import read_rows
from plmjax.layers.stack import stack
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.decoder import DecoderOutput, decoder_cache
from plmjax.models.gpt2 import Gpt2Config


@dataclasses.dataclass(frozen=True)
class WindowedConfig(Gpt2Config):
    """Sizes of a GPT-2, those of the window, and those of the clusters."""

    window: int = 6
    frequent: int = 16
    rare_features: int = 4


@flax.struct.dataclass
class EverySecond(MaskTerm):
    """The key stands an even number of positions before the query, at most `distance`."""

    distance: int = flax.struct.field(pytree_node=False)

    @property
    def reach(self) -> tuple[int, int]:
        return self.distance, 0

    def visible(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        distance = query_positions[..., None] - key_positions
        return (distance >= 0) & (distance <= self.distance) & (distance % 2 == 0)


@flax.struct.dataclass
class Slopes(BiasTerm):
    """A learned slope of each head, times the distance. slopes: [N 1 1]."""

    slopes: jax.Array = axes("heads", None, None)

    def scores(
        self, query: jax.Array, key: jax.Array, query_positions: jax.Array, key_positions: jax.Array
    ) -> jax.Array:
        return -jnp.exp(self.slopes) * jnp.abs(query_positions[..., None, :, None] - key_positions)


@flax.struct.dataclass
class AdaptiveScores(TokenScores):
    """hidden: [B T D]. head: [C+1 D], of C frequent tokens and the cluster. down: [D E], tail: [V-C E], of the rare."""

    hidden: jax.Array
    head: jax.Array
    down: jax.Array
    tail: jax.Array

    def logits(self) -> jax.Array:
        hidden = self.hidden.astype(jnp.float32)
        head = jax.nn.log_softmax(hidden @ self.head.T, axis=-1)
        tail = jax.nn.log_softmax(hidden @ self.down @ self.tail.T, axis=-1)
        return jnp.concatenate([head[..., :-1], head[..., -1:] + tail], axis=-1)

    def last_logits(self) -> jax.Array:
        return self.replace(hidden=self.hidden[:, -1:]).logits()[:, 0]

    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = self.logits()
        found = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return -found, found >= jnp.max(logits, axis=-1)


class WindowedLayer(nn.Module):
    config: WindowedConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, x: jax.Array, mask_terms: MaskTerms, cache: KeyValueCache | None, layer: jax.Array
    ) -> tuple[jax.Array, KeyValueCache | None]:
        config, execution, init = self.config, self.execution, self.config.initializer
        attention = MultiHeadAttention(config.n_embd, config.n_head, 0.0, init, execution, name="attention")
        feed_forward = FeedForward(config.inner_size, "gelu", init, execution, name="feed_forward")
        norm = functools.partial(LayerNorm, config.layer_norm_epsilon, execution.dtype)
        slopes = nn.with_logical_partitioning(nn.initializers.zeros, ("heads", None, None))
        term = Slopes(self.param("slopes", slopes, (config.n_head, 1, 1)))

        y = norm(name="attention_norm")(x)
        key_values, cache = with_past(attention.key_values(y), cache, layer)
        x = x + attention.attend(y, key_values, mask_terms, (term,), deterministic=True)
        return x + feed_forward(norm(name="feed_forward_norm")(x)), cache


class Windowed(nn.Module):
    config: WindowedConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self, input_ids, attention_mask=None, *, positions=None, segment_ids=None, cache=None, deterministic=True
    ) -> DecoderOutput:
        config, depth, init = self.config, self.config.n_layer, self.config.initializer
        rows = read_rows(
            config,
            input_ids,
            attention_mask,
            positions=positions,
            segment_ids=segment_ids,
            prefix_lengths=None,
            cache=cache,
        )
        mask_terms = rows.mask_terms.also(EverySecond(config.window))
        words = Embedding(config.vocab_size, config.n_embd, "vocab", init, self.execution.dtype, name="words")

        def body(layer: WindowedLayer, carried, number: jax.Array):
            return layer(carried[0], mask_terms, carried[1], number), None

        layers, numbers = WindowedLayer(config, self.execution, name="layers"), jnp.arange(depth)
        (x, cache), _ = stack(
            body, layers, depth, execution=self.execution, x=(words(input_ids), rows.cache), inputs=numbers
        )
        x = LayerNorm(config.layer_norm_epsilon, self.execution.dtype, name="norm")(x)

        def table(name: str, axes: tuple[str | None, ...], *shape: int) -> jax.Array:
            return self.param(name, nn.with_logical_partitioning(init, axes), shape)

        head = table("head", (None, "embed"), config.frequent + 1, config.n_embd)
        down = table("down", ("embed", None), config.n_embd, config.rare_features)
        tail = table("tail", (None, None), config.vocab_size - config.frequent, config.rare_features)
        return DecoderOutput(
            last_hidden_state=x,
            scores=AdaptiveScores(x, head, down, tail),
            cache=None if cache is None else cache.advance(input_ids.shape[1]),
        )


MODULES = {Purpose.PRETRAINING: Windowed, Purpose.CAUSAL_LM: Windowed}
SYSTEM = declare(System(WindowedConfig, Kind.DECODER, MODULES, token_table="words/embedding", cache=decoder_cache))
