"""Longformer-Encoder-Decoder, LED: BART for sources of 16,384 tokens.

Sources: Beltagy et al. 2020, arXiv 2004.05150, section 7; allenai/longformer longformer_encoder_decoder.py.

BART, whose encoder has Longformer's attention: each token of a source sees the w tokens around it and the first token,
<s>, which is global. The decoder attends to all of the source and to its own tokens, as in BART:

    L times:  x = norm(x + longformer_attention(x, w of the layer));  x = norm(x + feed_forward(x))

It starts from a BART: the layers are copied, and the 1,024 positions of its encoder are repeated sixteen times
(`plmjax.runs.weight_mappings.longformer`).

Deviation: the position tables have no rows before the first position, as in the released models in transformers.
Deviation: the first token is global unless `global_attention_mask` says otherwise. In transformers none is by default.
Deviation: a row has at most `max_global_tokens` global tokens, as in longformer.py.
"""

import dataclasses
import functools
from typing import ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FROM_1, check_ranges
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.rows import EncoderRows, read_source
from plmjax.layers.stack import stack_states
from plmjax.models.bart.bart import BartConfig, BartModel, bart_parts
from plmjax.models.families.encoder_decoder import (
    EncoderDecoderForConditionalGeneration,
    both_sides,
    encoder_decoder_cache,
)
from plmjax.models.longformer.attention import Inputs, LongformerAttention
from plmjax.models.longformer.longformer import check_global_tokens, check_windows, for_layers
from plmjax.models.transformer import EncoderLayer


@dataclasses.dataclass(frozen=True)
class LedConfig(BartConfig):
    """Sizes of an LED; the defaults are the base model.

    Raises:
        UserError: as for `BartConfig`; or a window is odd or longer than the sources, windows are neither one number
            nor one for each layer, or there are more global tokens than a quarter of the longest source.
    """

    max_position_embeddings: int = 16_384
    """Maximum length of a source; max_encoder_position_embeddings in transformers."""
    max_decoder_position_embeddings: int = 1024
    """Maximum length of a target."""
    attention_window: tuple[int, ...] = (1024,)
    """Number of tokens around a token of a source that it sees, half of them on each side: one number for each layer of
    the encoder, or one for all layers.
    """
    max_global_tokens: int = 128
    """Maximum number of global tokens in a source."""

    field_names: ClassVar[dict[str, str]] = BartConfig.field_names | {
        "longest_target": "max_decoder_position_embeddings"
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("model", self, max_decoder_position_embeddings=FROM_1)
        check_windows(self.attention_window, self.encoder_layers, self.longest)
        check_global_tokens(self.max_global_tokens, self.longest)

    base = Size("161,844,480 parameters.")
    large = Size("459,801,600 parameters.", d_model=1024, **both_sides(layers=12, heads=16, inner=4096))
    tiny = Size(
        "Two layers of 128 on each side, sources of 512 tokens with windows of 64; none was published.",
        d_model=128,
        max_position_embeddings=512,
        max_decoder_position_embeddings=128,
        attention_window=(64,),
        **both_sides(layers=2, heads=2, inner=512),
    )

    @classmethod
    def above(cls, bart: BartConfig, length: int, attention_window: tuple[int, ...], max_global_tokens: int) -> Self:
        """Return a config with the sizes of a BART for sources of `length` tokens; targets have the BART's length."""
        sizes = {field.name: getattr(bart, field.name) for field in dataclasses.fields(bart)}
        return cls(
            **sizes | {"max_position_embeddings": length},
            max_decoder_position_embeddings=bart.longest,
            attention_window=attention_window,
            max_global_tokens=max_global_tokens,
        )

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """The window of each layer of the encoder."""
        return for_layers(self.attention_window, self.encoder_layers)

    @property
    def widest_window(self) -> int:
        return max(self.attention_window)

    def layers_products(self, source: int, target: int) -> int:
        """Return the multiplications of the matrix products of all layers, with one global token in each source.

        A token of the encoder sees at most w + 2 keys instead of S: the w + 1 keys of the window, and the global token.
        The global token adds, for each of S tokens, 2 D^2 for the keys and values that it sees and 2 D for its scores
        and context, and D^2 for its query.
        """
        size = self.d_model
        dense = super().layers_products(source, target)
        windowed = 0
        for window in self.layer_windows:
            keys = min(source, window + 1) + 1
            windowed += 2 * source * (keys - source) * size + 2 * source * size**2 + 2 * source * size + size**2
        return dense + windowed


@dataclasses.dataclass(frozen=True)
class LedRows(EncoderRows):
    """The inputs of the encoder's layers, with the inputs of Longformer's attention."""

    attention_inputs: Inputs


class LedEncoderLayer(EncoderLayer):
    """BART's layer with Longformer's attention."""

    config: LedConfig

    def make_attention(self) -> LongformerAttention:
        config = self.config
        sizes = config.d_model, config.encoder_attention_heads, config.attention_dropout, config.initializer
        return LongformerAttention(*sizes, self.execution)

    def attend(self, x: jax.Array, inputs: Inputs, side: jax.Array, *, deterministic: bool) -> jax.Array:
        """Attend within rows, [B S D] -> [B S D]; `side` is half of the window."""
        return self.attention(x, inputs, side, deterministic=deterministic)


class LedModel(BartModel):
    """BART's encoder and decoder; the encoder has Longformer's attention."""

    config: LedConfig
    encoder_layer: ClassVar[type[nn.Module]] = LedEncoderLayer
    first_position: ClassVar[int] = 0

    def _source(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        global_attention_mask: jax.Array | None = None,
    ) -> LedRows:
        """Return the inputs of the encoder's layers.

        global_attention_mask: [B S], 1 for global tokens; by default the first token of each row.
        """
        rows = read_source(self.config, input_ids, attention_mask, positions=positions, segment_ids=segment_ids)
        masks = [mask > 0 for mask in (attention_mask, segment_ids) if mask is not None]
        real = functools.reduce(jnp.logical_and, masks, jnp.ones(input_ids.shape, bool))
        chosen, slots = jnp.arange(input_ids.shape[1])[None] == 0, 1
        if global_attention_mask is not None:
            chosen, slots = global_attention_mask > 0, self.config.max_global_tokens
        inputs = Inputs.of(real, chosen, slots, self.config.widest_window // 2)
        return LedRows(rows.positions, rows.mask_terms, rows.mask, rows.segment_ids, inputs)

    def _encode(
        self, input_ids: jax.Array, rows: LedRows, *, deterministic: bool, output_hidden_states: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        config, inputs = self.config, rows.attention_inputs
        x = self.dropout(self.source_vectors(input_ids, rows.positions), deterministic)
        x = shard_hidden(inputs.poison_overfull(x))

        def apply(layer: LedEncoderLayer, x: jax.Array, side: jax.Array) -> jax.Array:
            return layer(x, inputs, side, deterministic=deterministic)

        depth, sides = config.encoder_layers, jnp.array(config.layer_windows) // 2
        layers, states = self.encoder_layers, {"output_hidden_states": output_hidden_states}
        return stack_states(apply, layers, depth, execution=self.execution, x=x, inputs=sides, **states)


class LedForConditionalGeneration(EncoderDecoderForConditionalGeneration):
    """LED, whose word table is the output layer."""

    config: LedConfig


SYSTEM = declare(
    System(
        LedConfig,
        Kind.ENCODER_DECODER,
        {
            Purpose.PRETRAINING: LedForConditionalGeneration,
            Purpose.CAUSAL_LM: LedForConditionalGeneration,
            Purpose.SEQ2SEQ: LedForConditionalGeneration,
            Purpose.ENCODING: LedModel,
            Purpose.EMBEDDING: LedModel,
        },
        name="led",
        template=lambda config: Template("cls A sep", "cls A sep sep B sep", "last"),  # <s> A </s></s> B </s>
        parts=bart_parts,
        cache=encoder_decoder_cache,
        token_table="led/words/embedding",
        packs=False,
    )
)
