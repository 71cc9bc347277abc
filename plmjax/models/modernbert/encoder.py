"""The encoder of ModernBERT (see modernbert.py): layers of two kinds in stacks."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms, Window
from plmjax.contracts.model_config import ModelConfig
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.attention.rotary import RotaryAttention, Rotation
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import GatedFeedForward
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.stack import stack
from plmjax.layers.tokens import check_token_inputs, first_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.encoder import EncoderOutput

GLOBAL, LOCAL = "global", "local"


@dataclasses.dataclass(frozen=True)
class LayerRun:
    """Consecutive layers of an encoder whose parameters are one stack.

    name: the name of the stack. kinds: kinds of the layers of one repetition. repetitions: number of repetitions.
    first: number of the first layer.
    """

    name: str
    kinds: tuple[str, ...]
    repetitions: int
    first: int


class ModernBertLayer(nn.Module):
    """Attention, then the gated feed-forward network; each reads the normalised sum and adds its output.

    kind: global or local. normalised: true if the input is normalised already.
    """

    config: ModelConfig
    execution: Execution
    kind: str
    normalised: bool
    deterministic: bool

    @nn.compact
    def __call__(self, x: jax.Array, rotations: dict[str, Rotation], masks: dict[str, MaskTerms]) -> jax.Array:
        """Map [B T D] to [B T D]; rotations and masks are those of each kind of layer."""
        config, execution, still = self.config, self.execution, self.deterministic
        made = {"kernel_init": config.initializer, "output_init": config.output_initializer, "execution": execution}
        attention = RotaryAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.attention_dropout,
            **made,
            use_bias=config.attention_bias,
            key_value_heads=config.heads_of_keys,
            interleaved=config.rotary_interleaved,
            name="attention",
        )
        sizes = config.intermediate_size, config.hidden_activation
        settings = {"dropout": config.mlp_dropout, "use_bias": config.mlp_bias}
        feed_forward = GatedFeedForward(*sizes, **made, **settings, name="feed_forward")
        dropout = functools.partial(Dropout(config.attention_output_dropout), deterministic=still)
        rotation, mask_terms = rotations[self.kind], masks[self.kind]

        y = x if self.normalised else config.norm_of(execution, "attention_norm")(x)
        key_values = attention.rotated_key_values(y, rotation)
        x = shard_hidden(
            x + dropout(attention.attend_rotated(y, rotation, key_values, mask_terms, deterministic=still))
        )
        y = config.norm_of(execution, "feed_forward_norm")(x)
        return shard_hidden(x + feed_forward(y, deterministic=still))


class ModernBertPeriod(nn.Module):
    """Consecutive layers, `layer_0`, `layer_1` and so on: one repetition of a stack."""

    config: ModelConfig
    execution: Execution
    kinds: tuple[str, ...]
    normalised: bool
    deterministic: bool

    @nn.compact
    def __call__(
        self, x: jax.Array, rotations: dict[str, Rotation], masks: dict[str, MaskTerms]
    ) -> tuple[jax.Array, jax.Array]:
        """Map [B T D] to [B T D] and to the outputs of all layers, [layers B T D]."""
        states = []
        for number, kind in enumerate(self.kinds):
            settings = (self.config, self.execution, kind, self.normalised, self.deterministic)
            x = ModernBertLayer(*settings, name=f"layer_{number}")(x, rotations, masks)
            states.append(x)
        return x, jnp.stack(states)


class ModernBertModel(nn.Module):
    """The embeddings, the stacks of layers, and a norm.

    pooling: true for the vectors of sequences, by the config's pooling.
    """

    config: ModelConfig
    execution: Execution = Execution()
    pooling: bool = False

    def setup(self) -> None:
        config, execution = self.config, self.execution
        sizes = (config.vocab_size, config.hidden_size)
        self.word_embeddings = Embedding(*sizes, "vocab", config.initializer, execution.dtype)
        if config.embedding_norm:
            self.embedding_norm = config.norm_of(execution)
        self.embedding_dropout = Dropout(config.embedding_dropout)
        self.final_norm = config.norm_of(execution)

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
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
            positions: int [B T], from 0 in every sequence; 0..T-1 by default.
            segment_ids: int [B T], the packed sequence of each token, 0 for padding; two tokens attend to each other
                iff their segments are equal and above 0.
            cls_positions: int [B K], the starts of the packed sequences; without them a row is one sequence.
            deterministic: disables dropout; otherwise the random collection "dropout" is needed.
            output_hidden_states: returns the outputs of all layers; the last is normalised.
            output_attentions: returns the weights of attention of every layer (`plmjax.contracts.attentions`).

        Raises:
            UserError: the rows are longer than `max_position_embeddings`.
            ValueError: an input's shape does not fit the others'.
        """
        config, execution = self.config, self.execution
        longest, option = config.longest, config.option("longest")
        check_token_inputs(longest, option, input_ids, attention_mask, positions, segment_ids)
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
        kinds, half = sorted(set(config.layer_kinds)), config.local_attention // 2
        rotations = {kind: Rotation.of(positions, config.head_size, config.theta(kind)) for kind in kinds}
        whole = MaskTerms.of_rows(attention_mask, segment_ids)
        masks = {GLOBAL: whole, LOCAL: whole.also(Window(half, half))}

        x = self.word_embeddings(input_ids)
        x = self.embedding_norm(x) if config.embedding_norm else x
        x = shard_hidden(self.embedding_dropout(x, deterministic))
        states = [x[None]]

        def body(period: ModernBertPeriod, x: jax.Array, _: None) -> tuple[jax.Array, jax.Array | None]:
            x, outputs = period(x, rotations, masks)
            return x, outputs if output_hidden_states else None

        with collect(output_attentions) as attentions:
            for run in config.layer_runs:
                settings = (run.kinds, run.name == "first_layers", deterministic)
                period = ModernBertPeriod(config, execution, *settings, name=run.name)
                x, outputs = stack(body, period, run.repetitions, execution=execution, x=x)
                states.append(outputs)
        x = self.final_norm(x)
        hidden_states = None
        if output_hidden_states:
            inner = [each.reshape(-1, *x.shape) for each in states]
            hidden_states = jnp.concatenate([*inner[:-1], inner[-1][:-1], x[None]])
        pooled = self.pool(x, attention_mask, segment_ids, cls_positions) if self.pooling else None
        return EncoderOutput(x, hidden_states, pooled, attentions=attentions.get(OWN))

    def pool(
        self,
        x: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        cls_positions: jax.Array | None,
    ) -> jax.Array:
        """Return the vector of each sequence: [B D], or [B K D] of the sequences that start at `cls_positions`."""
        if self.config.classifier_pooling == "cls":
            return first_tokens(x, cls_positions)
        real = jnp.ones(x.shape[:2]) if attention_mask is None else attention_mask.astype(jnp.float32)
        if cls_positions is None:
            weights = real[:, None]  # [B 1 T]
        else:
            segments = jnp.take_along_axis(segment_ids, cls_positions, axis=1, mode="clip")
            weights = real[:, None] * (segments[:, :, None] == segment_ids[:, None])
        mean = jnp.einsum("BKT,BTD->BKD", weights, x) / jnp.maximum(weights.sum(-1, keepdims=True), 1)
        return mean[:, 0] if cls_positions is None else mean
