"""The biattentive classification network: the classifier of CoVe's paper (McCann et al., NeurIPS 2017, arXiv
1708.00107, section 5).

It reads two texts, or one text twice. The embeddings w of their words are not trained. They are static embeddings or
[GloVe ; CoVe]:

    x = biLSTM(relu(W w + b))                           y likewise
    C_y[t] = sum over s of softmax_s(x_t . y_s) y_s     a mean of y for each word of x; C_x[s] likewise
    X = biLSTM([x ; x - C_y ; x * C_y])                 Y with another biLSTM
    pool(X) = [max ; mean ; min ; sum over t of softmax_t(v . X_t) X_t]
    three maxout layers on [pool(X) ; pool(Y)], the last with an output for each label

A maxout layer returns the maximum of several linear maps (Goodfellow et al. 2013, arXiv 1302.4389). Each maxout layer
normalizes its input over the batch, and each microbatch is normalized by itself. The paper does not say whether the
normalization comes before the maps or after them.

Deviation: the paper chose the sizes of the maxout layers and the number of their pieces by task. Here they are those of
allenai/allennlp's configurations of this network: 4 H, 2 H and the number of labels, with 4 pieces. There is one
dropout rate.
Deviation: the scores of self-attentive pooling have no bias, because it would not change their softmax.
"""

import dataclasses
import functools
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import EXCLUDED
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FRACTION, FROM_1, check_ranges
from plmjax.layers.attention.recording import OWN, collect, record
from plmjax.layers.dropout import Dropout
from plmjax.layers.initializers import fan_in_uniform, uniform
from plmjax.layers.kinks import largest
from plmjax.layers.normalization import BatchNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.product import float32_product
from plmjax.layers.projection import Projection
from plmjax.layers.recurrent.lstm import GATES, BidirectionalLstm
from plmjax.layers.recurrent.masks import text_starts, visible_tokens
from plmjax.models.baselines.static_vectors import StaticVectorsConfig
from plmjax.models.cove import cove
from plmjax.models.cove.cove import CoveConfig
from plmjax.models.families.encoder import EncoderOutput
from plmjax.models.families.task_heads import HEAD

POOLINGS = 4
"""Number of poolings: largest, mean, smallest, self-attentive."""


@dataclasses.dataclass(frozen=True)
class BiattentiveConfig(ModelConfig):
    """Sizes of the network, and the config of the model that computes its embeddings."""

    vectors: CoveConfig | StaticVectorsConfig = CoveConfig()
    """CoVe, with the words' static embeddings, or static embeddings only."""
    hidden_size: int = 300
    """Hidden size of every cell in each direction, H."""
    pieces: int = 4
    """Number of linear maps in a maxout layer."""
    dropout: float = 0.2
    """Dropout rate of the inputs of each layer except the biLSTM over the words."""

    def __post_init__(self) -> None:
        check_ranges("model", self, hidden_size=FROM_1, pieces=FROM_1, dropout=FRACTION)

    @property
    def system(self) -> System:
        """The declaration, with the encoder's name and the word table of the model that computes the embeddings."""
        below = self.vectors.system
        return dataclasses.replace(SYSTEM, name=below.name, token_table=below.token_table)

    @property
    def vocab_size(self) -> int:
        """Vocabulary size."""
        return self.vectors.vocab_size

    @property
    def width(self) -> int:
        """Hidden size of a word within the network."""
        return 2 * self.hidden_size

    @property
    def depth(self) -> int:
        """Number of layers of the model that computes the embeddings."""
        return self.vectors.depth

    @property
    def token_width(self) -> int:
        return self.vectors.token_width

    @property
    def features(self) -> int:
        """Size of the network's input for a word, F."""
        context = self.vectors.width if self.vectors.depth else 0
        return self.vectors.token_width + context

    def with_dropout(self, rate: float) -> Self:
        return dataclasses.replace(self, dropout=rate)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward), matrix products only.

        6 times these multiplications. Per token: F H in the first layer, 8 H (H + H) in the first biLSTM, 4 T H in the
        biattention, 8 H (6 H + H) in each of the other two biLSTMs, and 4 H in each pooling. Per row: the first two
        maxout layers, on 16 H features. The task counts the third one. The embeddings are added.
        """
        size = self.hidden_size
        token = self.features * size + 2 * GATES * size * (2 * size + 2 * 7 * size) + 4 * sequence_length * size
        token += 2 * 4 * size
        row = self.pieces * (4 * POOLINGS * size * 4 * size + 4 * size * 2 * size)
        own = 6.0 * batch_size * (sequence_length * token + row)
        return own + self.vectors.train_flops(batch_size, sequence_length, 0)


class SelfAttentivePooling(nn.Module):
    """[max ; mean ; min ; sum of softmax(v . y_t) y_t] over the tokens of a text."""

    initializer: Initializer
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, y: jax.Array, own: jax.Array) -> jax.Array:
        """Map an LSTM's output [B T D] and the tokens of the text bool [B T] to [B 4 D]."""
        scores = Projection((1,), ("embed", None), self.initializer, self.dtype, logits=True, use_bias=False)(y)
        weights = jax.nn.softmax(jnp.where(own[..., None], scores, EXCLUDED), axis=1)
        attended = jnp.einsum("BTO,BTD->BD", weights.astype(self.dtype), y)
        own = own[..., None]
        # Outputs of an LSTM lie between -1 and 1, so other tokens cannot be the extremes.
        highest, lowest = largest(jnp.where(own, y, -1), axis=1), -largest(jnp.where(own, -y, -1), axis=1)
        mean = jnp.sum(jnp.where(own, y, 0), axis=1) / jnp.maximum(jnp.sum(own, axis=1), 1).astype(self.dtype)
        return jnp.concatenate([highest, mean, lowest, attended], axis=-1)


class BiattentiveNetwork(nn.Module):
    """The network: it maps the embeddings of the words of two texts to a score for each label."""

    config: BiattentiveConfig
    execution: Execution
    num_labels: int

    @nn.compact
    def __call__(
        self, x: jax.Array, first: jax.Array, second: jax.Array, starts: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """Map [B T F] to float32 [B labels].

        Args:
            x: [B T F], the embeddings of the words of both texts.
            first: bool [B T], the tokens of the first text.
            second: bool [B T], the tokens of the second text; equal to `first` if there is one text.
            starts: bool [B T], true at the first token of a text.

        Raises:
            UserError: a training batch has only one row.
        """
        config, dtype, dropout = self.config, self.execution.dtype, Dropout(self.config.dropout)
        size, init = config.hidden_size, uniform(config.hidden_size**-0.5)

        def lstm(name: str) -> BidirectionalLstm:
            return BidirectionalLstm(size, init, dtype=dtype, name=name)

        x = dropout(x, deterministic)
        x = nn.relu(Projection((size,), ("embed", "mlp"), fan_in_uniform, dtype, name="feed_forward")(x))
        x, _ = lstm("encoder")(x, starts=starts, visible=first | second)
        x = shard_hidden(x)
        context = biattention(x, first, second)
        x = dropout(jnp.concatenate([x, x - context, x * context], axis=-1), deterministic)
        pooled = []
        for name, own in (("first", first), ("second", second)):
            y, _ = lstm(f"{name}_integrator")(x, visible=own)
            pooled.append(SelfAttentivePooling(fan_in_uniform, dtype, name=f"{name}_pooling")(y, own))
        x, exists = jnp.concatenate(pooled, axis=-1), jnp.any(first | second, axis=1)  # [B 16 H]; rows with a text
        for number, outputs in enumerate((4 * size, 2 * size, self.num_labels)):
            x = dropout(BatchNorm(name=f"norm_{number}")(x, exists, deterministic), deterministic)
            last = number == 2
            sizes, axes = (config.pieces, outputs), ("embed", None, None if last else "mlp")
            x = Projection(sizes, axes, fan_in_uniform, dtype, logits=last, name=f"maxout_{number}")(x)
            x = largest(x, axis=1)
        return x


def biattention(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Compute for every word a weighted mean of the other text: [B T D] -> [B T D].

    first, second: bool [B T], the tokens of each text; if both are equal, a text attends to itself.
    """
    scores = float32_product(functools.partial(jnp.einsum, "BTD,BSD->BTS"), x, x)
    seen = (first[:, :, None] & second[:, None]) | (second[:, :, None] & first[:, None])
    probabilities = jax.nn.softmax(jnp.where(seen, scores, EXCLUDED), axis=-1)
    record(OWN, lambda: jnp.where(seen, probabilities, 0)[:, None])
    return jnp.einsum("BTS,BSD->BTD", probabilities.astype(x.dtype), x)


class BiattentiveForSequenceClassification(nn.Module):
    """Embeddings, computed without dropout, and the network `classifier` over them.

    With one label it is a regression.
    """

    config: BiattentiveConfig
    execution: Execution = Execution()
    num_labels: int = 2

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        token_type_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Return logits, float32 [B labels], of the text or the pair in each row.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens; all by default.
            token_type_ids: int [B T], 0 in the first text and 1 in the second; a row without a 1 has one text.
            positions: int [B T]; LSTMs do not need positions, so only the shape is checked.
            segment_ids: int [B T], 1 at tokens and 0 at padding.
            cls_positions: int [B 1], the position of a token of the row; with it logits are [B 1 labels], as for packed
                rows.
            deterministic: disables dropout.
            output_attentions: returns the attention weights of each word for the words of the other text,
                [1 B 1 T T].
        """
        encoder = self.config.module(Purpose.ENCODING, self.execution)
        rows = {"token_type_ids": token_type_ids, "positions": positions, "segment_ids": segment_ids}
        output = encoder(input_ids, attention_mask, **rows, output_hidden_states=True)
        words, context = output.hidden_states[0], output.last_hidden_state
        x = jnp.concatenate([words, context], axis=-1) if self.config.depth else words
        visible = visible_tokens(attention_mask, segment_ids)
        visible = jnp.ones_like(input_ids, bool) if visible is None else visible
        types = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        first, second = visible & (types == 0), visible & (types == 1)
        second |= first & ~jnp.any(second, axis=1, keepdims=True)
        network = BiattentiveNetwork(self.config, self.execution, self.num_labels, name=HEAD)
        with collect(output_attentions) as attentions:
            logits = network(x, first, second, text_starts(types), deterministic=deterministic)
        logits = logits if cls_positions is None else logits[:, None]
        return EncoderOutput(context, logits=logits, attentions=attentions.get(OWN))


def _parts(config: BiattentiveConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups of the embeddings; the network is the head."""
    groups = config.vectors.parameter_groups
    return tuple(group for group in groups if group.prefixes[0].split("/")[0] == config.system.name)


def _encoder(config: BiattentiveConfig, execution: Execution, **options: Any) -> nn.Module:
    """Return the model that computes the embeddings."""
    return config.vectors.system.modules[Purpose.ENCODING](config.vectors, execution, **options)


SYSTEM = declare(
    System(
        BiattentiveConfig,
        Kind.ENCODER,
        {
            Purpose.ENCODING: _encoder,
            Purpose.EMBEDDING: _encoder,
            Purpose.SEQUENCE_CLASSIFICATION: BiattentiveForSequenceClassification,
        },
        template=cove.SYSTEM.template,
        parts=_parts,
        packs=False,
    )
)
