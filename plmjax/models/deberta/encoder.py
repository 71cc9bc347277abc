"""The encoder of DeBERTa: embeddings, layers with disentangled attention, the convolution of version 2."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.model_config import ModelConfig
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.attention.relative_shift import copy_per_shard, distances
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.stack import repeat, stack_states
from plmjax.layers.tokens import check_token_inputs, first_tokens
from plmjax.layers.words.embeddings import Embedding, check_ids
from plmjax.models.bert import BertLayer
from plmjax.models.deberta.attention import DisentangledAttention
from plmjax.models.families.encoder import EncoderOutput

DECODER_STEPS = 2
"""Number of times that the enhanced mask decoder applies the last layer."""
RESIDUAL = "residual"
"""Name of the parameter of a `ResidualEmbedding`."""


class ResidualEmbedding(Embedding):
    """An embedding table that is the sum of another table and a `residual`, float32 [rows D], which starts at 0.

    No gradient passes to the other table (He et al., arXiv 2111.09543, section 3.3).

    base: the other table.
    """

    base: Embedding | None = None

    def setup(self) -> None:
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, (self.axis, "embed"))
        self.residual = self.param(RESIDUAL, zeros, (self.rows, self.features))

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Look up ids in both tables and add the rows, int [...] -> [... D]. The tables themselves are never added.

        Raises:
            UserError: an id is outside the table; only checked if the ids are concrete.
        """
        check_ids(ids, self.rows, f"the {self.rows} rows of {self.name}")
        shared, own = (jnp.take(table, ids, axis=0, mode="clip") for table in (self.base.embedding, self.residual))
        return (jax.lax.stop_gradient(shared) + own).astype(self.dtype)


class DebertaEmbeddings(nn.Module):
    """norm(words), or norm(words + positions + token types) if the config has them.

    base: the generator's embeddings; with it the word and position tables are `ResidualEmbedding`s.
    """

    config: ModelConfig
    execution: Execution
    base: "DebertaEmbeddings | None" = None

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        size, init = config.hidden_size, config.initializer
        self.word_embeddings = self._table("word_embeddings", config.vocab_size, "vocab")
        if config.position_biased_input:
            self.position_embeddings = self._table("position_embeddings", config.max_position_embeddings, None)
        if config.type_vocab_size:
            self.token_type_embeddings = Embedding(config.type_vocab_size, size, None, init, dtype)
        self.layer_norm = LayerNorm(config.layer_norm_eps, dtype)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def _table(self, name: str, rows: int, axis: str | None) -> Embedding:
        config, dtype = self.config, self.execution.dtype
        settings = rows, config.hidden_size, axis, config.initializer, dtype
        if self.base is None:
            return Embedding(*settings)
        return ResidualEmbedding(*settings, base=getattr(self.base, name))

    def __call__(
        self, input_ids: jax.Array, token_type_ids: jax.Array | None, positions: jax.Array, *, deterministic: bool
    ) -> jax.Array:
        """Map token ids, token types (0 by default) and positions, int [B T] each, to [B T D]."""
        config, x = self.config, self.word_embeddings(input_ids)
        if config.position_biased_input:
            x += self.position_embeddings(positions)
        if config.type_vocab_size:
            token_type_ids = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            x += self.token_type_embeddings(token_type_ids)
        return shard_hidden(self.dropout(self.layer_norm(x), deterministic))


class DebertaLayer(BertLayer):
    """BERT's layer with disentangled attention."""

    def attention(
        self, x: jax.Array, mask_terms: MaskTerms, vectors: jax.Array, source: jax.Array | None = None
    ) -> jax.Array:
        """Attend within rows, [B T D] -> [B T D].

        vectors: [G R D], as for `DisentangledAttention.distance_terms`.
        source: the input of keys and values, [B T D]; x by default.
        """
        config, dropped = self.config, Dropout(self.config.hidden_dropout_prob, together=(0,), axes=())
        attention = DisentangledAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.attention_probs_dropout_prob,
            config.initializer,
            self.execution,
            scale=1 / math.sqrt((1 + len(config.pos_att_type)) * config.head_size),
            kinds=config.pos_att_type,
            name="attention",
        )
        terms = attention.distance_terms(dropped(vectors, self.deterministic))
        return attention(x, x if source is None else source, mask_terms, terms, deterministic=self.deterministic)


class DebertaConvolution(nn.Module):
    """norm(x + activation(dropout(convolution(embeddings)))), where x is the output of the first layer."""

    config: ModelConfig
    execution: Execution
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, embeddings: jax.Array, segments: jax.Array) -> jax.Array:
        """Map the output of the first layer and the embeddings, [B T D] each, to [B T D].

        segments: int [B T], the sequence of each token, 0 for padding. A token sees only neighbours of its sequence.
        """
        config, dtype, length = self.config, self.execution.dtype, x.shape[1]
        sides = (config.conv_kernel_size // 2,) * 2
        padded = jnp.pad(embeddings, ((0, 0), sides, (0, 0)))
        around = jnp.pad(segments, ((0, 0), sides), constant_values=-1)
        places = [slice(first, first + length) for first in range(config.conv_kernel_size)]
        seen = [jnp.where((around[:, at] == segments)[..., None], padded[:, at], 0) for at in places]
        axes = (None, "embed", "mlp")
        y = Projection((config.hidden_size,), axes, config.initializer, dtype, name="convolution")(jnp.stack(seen, 2))
        y = ACTIVATIONS[config.conv_act](Dropout(config.hidden_dropout_prob)(y, self.deterministic))
        return shard_hidden(LayerNorm(config.layer_norm_eps, dtype, name="layer_norm")(x + y))


class DebertaEncoder(nn.Module):
    """L layers whose parameters are stacked under `layers`, and the table of distances that they share.

    With a convolution, the first layer is separate, under `first_layers`. With an enhanced mask decoder (He et al.,
    arXiv 2006.03654, section 3.2), the last layer is separate, under `last_layer`.
    """

    config: ModelConfig
    execution: Execution

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask_terms: MaskTerms,
        segments: jax.Array,
        positions: jax.Array | None = None,
        *,
        deterministic: bool,
        output_hidden_states: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Map [B T D] to [B T D], and to the hidden states [L+1 B T D], the input first, if requested.

        segments: int [B T], the sequence of each token, 0 for padding.
        positions: [B T D], embeddings of absolute positions. With them the last layer is the enhanced mask decoder. Its
            first queries are the sum of these embeddings and the hidden states below it. It is applied twice. Its keys
            and values are the hidden states below it both times.
        """
        config, execution, embeddings = self.config, self.execution, x
        settings = config, execution, deterministic
        vectors = copy_per_shard(self.distance_vectors(x.shape[1]), len(x))

        def apply(layer: DebertaLayer, x: jax.Array, _: None) -> jax.Array:
            return layer(x, mask_terms, vectors)

        def decode(layer: DebertaLayer, queries: jax.Array, _: None) -> tuple[jax.Array, None]:
            return layer(queries, mask_terms, vectors, x), None

        states = [x[None]]
        alone, last = int(config.conv_kernel_size > 0), int(positions is not None)
        if alone:
            layer = DebertaLayer(*settings, name="first_layers")
            x, _ = stack_states(apply, layer, 1, execution=execution, x=x, output_hidden_states=False)
            x = DebertaConvolution(*settings, name="convolution")(x, embeddings, segments)
            states.append(x[None])
        if others := config.num_hidden_layers - alone - last:
            layer = DebertaLayer(*settings, name="layers")
            x, found = stack_states(
                apply, layer, others, execution=execution, x=x, output_hidden_states=output_hidden_states
            )
            states.append(found[1:] if output_hidden_states else x[None])
        if last:
            layer = DebertaLayer(*settings, name="last_layer")
            decoded, _ = repeat(decode, layer, DECODER_STEPS, execution=execution, x=x + positions)
            x = decoded
            states.append(x[None])
        return x, jnp.concatenate(states) if output_hidden_states else None

    def distance_vectors(self, length: int) -> jax.Array:
        """Return the normalised vectors of the distances length - 1 down to 1 - length, [R D], R = 2 length - 1."""
        config, dtype = self.config, self.execution.dtype
        rows = config.distance_rows(distances(length, length, 0, later=True))
        size, init = config.hidden_size, config.initializer
        table = Embedding(config.distance_table, size, None, init, dtype, name="relative_embeddings")
        return LayerNorm(config.layer_norm_eps, dtype, name="relative_layer_norm")(table(rows))


class DebertaModel(nn.Module):
    """Embeddings and encoder.

    pooling: true to return the hidden state of [CLS] as `pooler_output`.
    base: the embeddings of a generator, to which this model adds residuals.
    """

    config: ModelConfig
    execution: Execution = Execution()
    pooling: bool = False
    base: DebertaEmbeddings | None = None

    def setup(self) -> None:
        self.embeddings = DebertaEmbeddings(self.config, self.execution, self.base)
        self.encoder = DebertaEncoder(self.config, self.execution)

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
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Encode rows of tokens.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], 1 for tokens that may be attended to; all by default.
            token_type_ids: int [B T], of a config with types; 0 by default.
            positions: int [B T], from 0 in every sequence; 0..T-1 by default. Only tables of absolute positions use
                them. Relative distances are those of indices in the row.
            segment_ids: int [B T], the packed sequence of each token, 0 for padding; two tokens attend to each other
                iff their segments are equal and above 0.
            cls_positions: int [B K], the starts of the packed sequences; without them the pooler reads position 0.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: returns the output of every layer.
            output_attentions: returns the attention weights of every layer (`plmjax.contracts.attentions`).

        Raises:
            UserError: the rows are longer than `max_position_embeddings`.
            ValueError: an input's shape does not fit the others'.
        """
        longest, option = self.config.longest, self.config.option("longest")
        check_token_inputs(longest, option, input_ids, attention_mask, token_type_ids, positions, segment_ids)
        mask_terms = MaskTerms.of_rows(attention_mask, segment_ids).also(*self.config.windows)
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
        segments = sequences_of(input_ids, attention_mask, segment_ids)
        x = self.embeddings(input_ids, token_type_ids, positions, deterministic=deterministic)
        with collect(output_attentions) as attentions:
            x, hidden_states = self.encoder(
                x,
                mask_terms,
                segments,
                self.decoder_positions(positions),
                deterministic=deterministic,
                output_hidden_states=output_hidden_states,
            )
        pooled = first_tokens(x, cls_positions) if self.pooling else None
        return EncoderOutput(x, hidden_states, pooled, attentions=attentions.get(OWN))

    def decoder_positions(self, positions: jax.Array) -> jax.Array | None:
        """Map positions, int [B T], to the enhanced mask decoder's embeddings, [B T D]; None without such a decoder."""
        return None


def sequences_of(input_ids: jax.Array, attention_mask: jax.Array | None, segment_ids: jax.Array | None) -> jax.Array:
    """Return the index of each token's sequence, int [B T], 0 for padding, from the arguments of the model."""
    segments = jnp.ones_like(input_ids) if segment_ids is None else segment_ids
    return segments if attention_mask is None else jnp.where(attention_mask > 0, segments, 0)
