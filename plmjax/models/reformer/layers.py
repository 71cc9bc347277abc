"""The layers of Reformer, as functions of a reversible stack."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.projection import Projection
from plmjax.layers.reversible_stack import Streams
from plmjax.models.reformer.attention import LocalAttention, LshAttention
from plmjax.models.reformer.cache import ReformerCache


class ReformerFeedForward(nn.Module):
    """activation(dropout(x W1 + b1)) W2 + b2, then dropout: [B T D] -> [B T D].

    `FeedForward` drops features after the activation, which is a different function unless the activation is ReLU.
    """

    config: ModelConfig
    execution: Execution

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        init = config.initializer
        self.intermediate = Projection((config.feed_forward_size,), ("embed", "mlp"), init, dtype)
        self.output = Projection((config.hidden_size,), ("mlp", "embed"), init, dtype)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Apply the network to all tokens at once."""
        inner = nn.with_logical_constraint(self.intermediate(x), ("batch", "length", "mlp"))
        inner = ACTIVATIONS[self.config.hidden_act](self.dropout(inner, deterministic))
        return self.dropout(self.output(inner), deterministic)


class ReformerLayer(nn.Module):
    """The two functions of a layer: attention, local or LSH, and the feed-forward network; each after a norm."""

    config: ModelConfig
    execution: Execution
    kind: str
    deterministic: bool

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        shared = {
            "features": config.hidden_size,
            "num_heads": config.num_attention_heads,
            "head_size": config.attention_head_size,
            "chunks": config.chunks(self.kind),
            "causal": config.is_decoder,
            "kernel_init": config.initializer,
            "execution": self.execution,
        }
        if self.kind == "local":
            self.attention = LocalAttention(**shared, dropout=config.local_attention_probs_dropout_prob)
        else:
            self.attention = LshAttention(
                **shared,
                dropout=config.lsh_attention_probs_dropout_prob,
                rounds=config.num_hashes,
                buckets=config.num_buckets,
                seed=config.hash_seed or 0,
            )
        self.attention_layer_norm = LayerNorm(config.layer_norm_eps, dtype)
        self.feed_forward_layer_norm = LayerNorm(config.layer_norm_eps, dtype)
        self.feed_forward = ReformerFeedForward(config, self.execution)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def attend(
        self, x: jax.Array, documents: jax.Array, layer: jax.Array, buckets: jax.Array | None
    ) -> tuple[jax.Array, Any, jax.Array | None]:
        """Return attention(norm(x)), [B T D], the projected vectors, and the buckets; None in a local layer."""
        x = self.attention_layer_norm(x)
        if self.kind == "local":
            y, vectors = self.attention(x, documents, deterministic=self.deterministic)
            return self.dropout(y, self.deterministic), vectors, None
        y, vectors, buckets = self.attention(x, documents, layer, buckets, deterministic=self.deterministic)
        return self.dropout(y, self.deterministic), vectors, buckets

    def decode_step(
        self, x: jax.Array, cache: ReformerCache, layer: jax.Array, hashing_layer: jax.Array
    ) -> tuple[jax.Array, ReformerCache]:
        """Return attention(norm(x)) of one more token of each row, [B 1 D], and the cache with it."""
        x = self.attention_layer_norm(x)
        if self.kind == "local":
            return self.attention.decode_step(x, cache, layer)
        return self.attention.decode_step(x, cache, layer, hashing_layer)

    def feed(self, x: jax.Array) -> jax.Array:
        """Return feed_forward(norm(x)), [B T D], for all tokens at once or `chunk_size_feed_forward` at a time."""
        size, (rows, length, features) = self.config.chunk_size_feed_forward, x.shape
        if not size or size >= length or self.is_initializing():
            return self.feed_forward(self.feed_forward_layer_norm(x), self.deterministic)

        def feed_chunk(layer: ReformerLayer, carry: None, x: jax.Array) -> tuple[None, jax.Array]:
            return carry, layer.feed_forward(layer.feed_forward_layer_norm(x), layer.deterministic)

        padded = jnp.pad(x, ((0, 0), (0, -length % size), (0, 0)))
        chunks = jnp.moveaxis(padded.reshape(rows, -1, size, features), 1, 0)
        each = {"params": False, nn.DenyList("params"): True}
        step = nn.scan(nn.remat(feed_chunk, prevent_cse=False), variable_broadcast="params", split_rngs=each)
        _, found = step(self, None, chunks)
        return jnp.moveaxis(found, 0, 1).reshape(rows, -1, features)[:, :length]


class ReformerBlock(nn.Module):
    """The layers of one period, `layer_0`, `layer_1`, ..., as functions of a reversible stack.

    The context is the documents of the tokens, int [B T], and the inputs of a block are the indices of its layers.
    """

    config: ModelConfig
    execution: Execution
    deterministic: bool

    def setup(self) -> None:
        kinds = self.config.period
        self.layer = [ReformerLayer(self.config, self.execution, kind, self.deterministic) for kind in kinds]

    @property
    def functions(self) -> int:
        """Number of functions, two for each layer."""
        return 2 * len(self.config.period)

    def function(
        self, number: int, x: jax.Array, context: jax.Array, *, inputs: jax.Array, kept: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Compute the attention or the feed-forward network of a layer; keep the buckets of an LSH layer."""
        place, feeds = divmod(number, 2)
        if feeds:
            return self.layer[place].feed(x), None
        y, _, buckets = self.layer[place].attend(x, context, inputs[place], kept)
        return y, buckets

    def read(
        self, streams: Streams, cache: ReformerCache | None, documents: jax.Array, numbers: jax.Array
    ) -> tuple[tuple[Streams, ReformerCache | None], jax.Array]:
        """Return the streams and the cache after the block, and the streams before every layer, [layers B T 2D].

        A cache takes the first tokens of each row, or one more token.
        """
        (x1, x2), kinds, before = streams, self.config.period, []
        for place, layer in enumerate(self.layer):
            before.append(jnp.concatenate([x1, x2], axis=-1))
            hashing = numbers[0] // len(kinds) * kinds.count("lsh") + kinds[:place].count("lsh")
            if cache is not None and x2.shape[1] == 1:
                y, cache = layer.decode_step(x2, cache, numbers[place], hashing)
            else:
                y, vectors, buckets = layer.attend(x2, documents, numbers[place], None)
                if cache is not None:
                    cache = cache.write(numbers[place], vectors.key, vectors.value)
                    cache = cache if buckets is None else cache.write_buckets(hashing, buckets)
            x1 = x1 + y
            x2 = x2 + layer.feed(x1)
        return ((x1, x2), cache), jnp.stack(before)
