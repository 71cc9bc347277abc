"""The encoder of ModernBERT (modernbert.py), and the stacks of global and local layers that its decoder shares."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.model_config import ModelConfig
from plmjax.layers.attention.cache import KeyValueCache, with_past
from plmjax.layers.attention.recording import OWN, collect
from plmjax.layers.attention.rotary import RotaryAttention, Rotation
from plmjax.layers.dropout import Dropout
from plmjax.layers.feed_forward import GatedFeedForward
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.rows import read_source
from plmjax.layers.stack import stack
from plmjax.layers.tokens import first_tokens, mean_of_tokens
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.encoder import EncoderOutput

GLOBAL, LOCAL = "global", "local"
FIRST_TOKEN = ("cls", "bos")
"""Values of `classifier_pooling` that take the vector of the first token; all others take means."""


@dataclasses.dataclass(frozen=True)
class LayerRun:
    """Consecutive layers whose parameters are stacked.

    name: the name of the stack.
    kinds: the kind of each layer of one repetition, global or local.
    repetitions: number of repetitions.
    first: index of the first layer.
    """

    name: str
    kinds: tuple[str, ...]
    repetitions: int
    first: int


class ModernBertLayer(nn.Module):
    """Attention, then the gated feed-forward network. Each normalises its input, and its output is added to the input.

    kind: global or local.
    normalised: true if the input is normalised already, so that attention has no norm of its own.
    """

    config: ModelConfig
    execution: Execution
    kind: str
    normalised: bool
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        rotations: dict[str, Rotation],
        masks: dict[str, MaskTerms],
        *,
        cache: KeyValueCache | None,
        layer: jax.Array,
    ) -> tuple[jax.Array, KeyValueCache | None]:
        """Map [B T D] to [B T D]. Return it and the cache, to which the keys and values of these tokens are added.

        rotations, masks: dicts from the kind of a layer.
        layer: index of this layer in the cache, int scalar.
        """
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
        key_values, cache = with_past(attention.rotated_key_values(y, rotation), cache, layer)
        x = shard_hidden(
            x + dropout(attention.attend_rotated(y, rotation, key_values, mask_terms, deterministic=still))
        )
        y = config.norm_of(execution, "feed_forward_norm")(x)
        return shard_hidden(x + feed_forward(y, deterministic=still)), cache


class ModernBertPeriod(nn.Module):
    """One repetition of a stack: the layers `layer_0`, `layer_1` and so on."""

    config: ModelConfig
    execution: Execution
    kinds: tuple[str, ...]
    normalised: bool
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        rotations: dict[str, Rotation],
        masks: dict[str, MaskTerms],
        *,
        cache: KeyValueCache | None,
        first: jax.Array,
    ) -> tuple[jax.Array, KeyValueCache | None, jax.Array]:
        """Map [B T D] to [B T D]. Return it, the cache, and the outputs of all layers, [layers B T D].

        first: index of the first layer, int scalar.
        """
        states = []
        for number, kind in enumerate(self.kinds):
            settings = (self.config, self.execution, kind, self.normalised, self.deterministic)
            layer = ModernBertLayer(*settings, name=f"layer_{number}")
            x, cache = layer(x, rotations, masks, cache=cache, layer=first + number)
            states.append(x)
        return x, cache, jnp.stack(states)


@dataclasses.dataclass(frozen=True)
class EncoderStates:
    """The output of the layers for rows of tokens.

    last: [B T D], normalised.
    hidden_states: [L+1 B T D], the embeddings first; None unless requested.
    cache: with the keys and values of these tokens; None without a cache.
    attentions: attention weights (`plmjax.contracts.attentions`); None unless requested.
    """

    last: jax.Array
    hidden_states: jax.Array | None
    cache: KeyValueCache | None
    attentions: Any


class ModernBertStacks(nn.Module):
    """The embeddings, the stacks of layers, and the final norm, for an encoder or a decoder."""

    config: ModelConfig
    execution: Execution = Execution()

    def setup(self) -> None:
        config, execution = self.config, self.execution
        sizes = (config.vocab_size, config.hidden_size)
        self.word_embeddings = Embedding(*sizes, "vocab", config.initializer, execution.dtype)
        if config.embedding_norm:
            self.embedding_norm = config.norm_of(execution)
        self.embedding_dropout = Dropout(config.embedding_dropout)
        self.final_norm = config.norm_of(execution)

    @nn.compact
    def read(
        self,
        input_ids: jax.Array,
        positions: jax.Array,
        mask_terms: MaskTerms,
        cache: KeyValueCache | None = None,
        *,
        deterministic: bool,
        output_hidden_states: bool,
        output_attentions: bool,
    ) -> EncoderStates:
        """Run all layers.

        input_ids, positions: int [B T].
        mask_terms: the mask of global layers; local layers add their window.
        cache: the tokens before these.
        """
        config, execution = self.config, self.execution
        kinds = sorted(set(config.layer_kinds))
        rotations = {kind: Rotation.of(positions, config.head_size, config.theta(kind)) for kind in kinds}
        masks = {GLOBAL: mask_terms, LOCAL: mask_terms.also(config.local_window)}

        x = self.word_embeddings(input_ids)
        x = self.embedding_norm(x) if config.embedding_norm else x
        x = shard_hidden(self.embedding_dropout(x, deterministic))
        states = [x[None]]

        def body(period: ModernBertPeriod, carried: tuple[jax.Array, Any], first: jax.Array) -> tuple[Any, Any]:
            x, cache, outputs = period(carried[0], rotations, masks, cache=carried[1], first=first)
            return (x, cache), outputs if output_hidden_states else None

        with collect(output_attentions) as attentions:
            for run in config.layer_runs:
                settings = (run.kinds, run.name == "first_layers", deterministic)
                period = ModernBertPeriod(config, execution, *settings, name=run.name)
                firsts = run.first + len(run.kinds) * jnp.arange(run.repetitions)
                (x, cache), outputs = stack(
                    body, period, run.repetitions, execution=execution, x=(x, cache), inputs=firsts
                )
                states.append(outputs)
        x = self.final_norm(x)
        hidden_states = None
        if output_hidden_states:
            inner = [each.reshape(-1, *x.shape) for each in states]
            hidden_states = jnp.concatenate([*inner[:-1], inner[-1][:-1], x[None]])
        cache = None if cache is None else cache.advance(input_ids.shape[1])
        return EncoderStates(x, hidden_states, cache, attentions.get(OWN))


class ModernBertModel(ModernBertStacks):
    """The encoder. pooling: true to return a vector of each sequence too, by `classifier_pooling`."""

    pooling: bool = False

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
            output_attentions: returns the attention weights of every layer (`plmjax.contracts.attentions`).

        Raises:
            UserError: the rows are longer than `max_position_embeddings`.
            ValueError: an input's shape does not fit the others'.
        """
        rows = read_source(self.config, input_ids, attention_mask, positions=positions, segment_ids=segment_ids)
        asked = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        found = self.read(input_ids, rows.positions, rows.mask_terms, deterministic=deterministic, **asked)
        pooled = self.pool(found.last, attention_mask, segment_ids, cls_positions) if self.pooling else None
        return EncoderOutput(found.last, found.hidden_states, pooled, attentions=found.attentions)

    def pool(
        self,
        x: jax.Array,
        attention_mask: jax.Array | None,
        segment_ids: jax.Array | None,
        cls_positions: jax.Array | None,
    ) -> jax.Array:
        """Return the vector of each sequence, [B D], or [B K D] for sequences that start at `cls_positions` [B K]."""
        if self.config.classifier_pooling in FIRST_TOKEN:
            return first_tokens(x, cls_positions)
        return mean_of_tokens(x, attention_mask, segment_ids, cls_positions)
