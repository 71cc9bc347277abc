"""BART after a new source encoder: translation into BART's language (Lewis et al. 2019, 3.4).

BART was pretrained in one language, the language of the targets. Instead of word embeddings, its encoder now reads the
outputs of a source encoder, which reads words of another language. The source encoder is initialized at random. It
learns to produce inputs for BART's encoder that are like corrupted sentences of the target's language:

    e = layers(norm(source_words[source] + source_positions))   source encoder: M layers like those of BART's encoder
    x_s = norm(e_s + positions[s])                              BART's encoder, with e_s in place of a word embedding
    target: as in BART

The training has two stages. The first stage trains the source encoder, BART's positions and the projections of the
input of self-attention (queries, keys, values) in the first layer of BART's encoder: everything except
`FROZEN_AT_FIRST`. The second stage trains everything, for a small number of steps.

Deviation: the source encoder has its own word table, but with the tokens of BART's tokenizer. In the paper the source
may have another vocabulary.
Deviation: of the source encoder the paper gives only the number of layers, 6; here it has a position table of its own,
and its layers have the sizes of BART's layers.
"""

import dataclasses
from typing import Self

import flax.linen as nn
import jax

from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FROM_1, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.rows import EncoderRows
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.bart import bart
from plmjax.models.bart.bart import BartConfig, BartForConditionalGeneration, BartModel, bart_parts
from plmjax.models.transformer import LAYER_NORM_EPSILON, EncoderLayer, run_encoder

SOURCE_ENCODER = "source_encoder"
"""First name in the paths of the source encoder's parameters; BART's parameters keep their paths."""
FROZEN_AT_FIRST = (
    "bart/words",
    "bart/encoder_layer_norm",
    "bart/decoder_layer_norm",
    *(f"bart/encoder_layers/attention/{projection}[1:]" for projection in ("query", "key", "value")),
    "bart/encoder_layers/attention/output",
    "bart/encoder_layers/attention_layer_norm",
    "bart/encoder_layers/feed_forward",
    "bart/encoder_layers/feed_forward_layer_norm",
    "bart/decoder_layers",
)
"""Parameters that the first stage does not train, in the form of `optimizer.frozen`."""


@dataclasses.dataclass(frozen=True)
class BartTranslationConfig(BartConfig):
    """Sizes of a BART and of the source encoder before it."""

    source_layers: int = 6
    """Number of layers of the source encoder, M."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("model", self, source_layers=FROM_1)

    @classmethod
    def before(cls, bart: BartConfig, source_layers: int) -> Self:
        """Return the config of a BART with `source_layers` new layers before it."""
        return cls(**dataclasses.asdict(bart), source_layers=source_layers)

    def layers_products(self, source: int, target: int) -> int:
        size = self.d_model
        layer = source * (4 * size**2 + 2 * size * self.encoder_ffn_dim + 2 * source * size)
        return super().layers_products(source, target) + self.source_layers * layer


class SourceEncoder(nn.Module):
    """Embeddings of the source's words and positions, then M layers like those of BART's encoder, stacked [M ...]."""

    config: BartTranslationConfig
    execution: Execution

    def setup(self) -> None:
        config, execution = self.config, self.execution
        init, dtype = config.initializer, execution.dtype
        self.words = Embedding(config.vocab_size, config.d_model, "vocab", init, dtype)
        self.positions = Embedding(config.max_position_embeddings, config.d_model, None, init, dtype)
        self.layer_norm = LayerNorm(LAYER_NORM_EPSILON, dtype)
        self.layers = EncoderLayer(config, execution)
        self.dropout = Dropout(config.dropout)

    def __call__(
        self, input_ids: jax.Array, positions: jax.Array, mask_terms: MaskTerms, *, deterministic: bool
    ) -> jax.Array:
        """Map token ids and positions, int [B S] each, to [B S D]."""
        x = self.dropout(self.layer_norm(self.words(input_ids) + self.positions(positions)), deterministic)
        depth = self.config.source_layers
        last, _ = run_encoder(self.layers, depth, self.execution, x, mask_terms=mask_terms, deterministic=deterministic)
        return last


class BartBehindEncoder(BartModel):
    """BART with the outputs of `source_encoder` as the embeddings of the source."""

    config: BartTranslationConfig
    source_encoder: nn.Module | None = None

    def _encode(
        self,
        input_ids: jax.Array,
        rows: EncoderRows,
        *,
        deterministic: bool,
        output_hidden_states: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        words = self.source_encoder(input_ids, rows.positions, rows.mask_terms, deterministic=deterministic)
        x = self.encoder_layer_norm(words + self.encoder_positions(self._rows(rows.positions, self.config.longest)))
        flags = {"deterministic": deterministic, "output_hidden_states": output_hidden_states}
        x = self.dropout(x, deterministic)
        return run_encoder(
            self.encoder_layers, self.config.encoder_layers, self.execution, x, mask_terms=rows.mask_terms, **flags
        )


class BartForTranslation(BartForConditionalGeneration):
    """Source encoder and BART with the scores of the next token. BART's word table is the output layer."""

    config: BartTranslationConfig

    def setup(self) -> None:
        self.source_encoder = SourceEncoder(self.config, self.execution)
        self.model = BartBehindEncoder(self.config, self.execution, self.source_encoder, name=self.config.system.name)


def _parts(config: BartTranslationConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the source encoder's tables and norm, each of its layers, then BART's groups."""
    tables = ParameterGroup(tuple(f"{SOURCE_ENCODER}/{part}" for part in ("words", "positions", "layer_norm")))
    layers = (ParameterGroup((f"{SOURCE_ENCODER}/layers",), layer) for layer in range(config.source_layers))
    return tables, *layers, *bart_parts(config)


SYSTEM = declare(
    System(
        BartTranslationConfig,
        Kind.ENCODER_DECODER,
        {
            Purpose.CAUSAL_LM: BartForTranslation,
            Purpose.SEQ2SEQ: BartForTranslation,
            Purpose.ENCODING: BartModel,
        },
        name=bart.SYSTEM.name,
        template=bart.SYSTEM.template,
        parts=_parts,
        cache=bart.SYSTEM.cache,
        token_table=bart.SYSTEM.token_table,
    )
)
