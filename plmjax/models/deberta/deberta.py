"""DeBERTa, versions 2 and 3: disentangled attention and replaced token detection (He et al., ICLR 2021, arXiv
2006.03654, and ICLR 2023, arXiv 2111.09543; microsoft/DeBERTa).

BERT's encoder without positions in its input. Attention adds two terms to the score of two tokens, each for the content
of one token and the distance between both (plmjax/models/deberta/attention.py). All layers share one table of
distances:

    x = norm(words[input_ids]);  r = norm(table)
    L times:  x = norm(x + attention(x, x, r));  x = norm(x + feed_forward(x))

Version 2 adds a convolution of the embeddings to the output of the first layer, and trains a masked language model.
Version 3 trains a generator and a discriminator, as ELECTRA does, but with a word table for each:

    generator:      the enhanced mask decoder. h is the output of layer L - 1 of the generator:
                    z = h + positions[0..T);  twice: z = layer_L(queries z, keys and values h)
                    masked token: softmax(words . norm(gelu(W z_i + b)) + c)
    discriminator:  words' = words + residual, without gradient to words
                    every token: sigmoid(w' gelu(W' norm(x_[CLS] + x_i) + b') + b'')

The discriminator's input and both losses are in `plmjax.objectives.deberta`.

Deviation: a row may hold several packed sequences (`segment_ids`), and each attends only to itself; the paper pads.
Deviation: the dropout mask of the table is drawn for each distance, not for each bucket. So distances of one bucket
lose different features.
Deviation: the discriminator has no residual of the position table, because it does not read absolute positions. The
released code saves such a residual.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
import numpy as np
from jax.nn.initializers import Initializer

from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FRACTION, FROM_0, UserError, check_ranges
from plmjax.layers.feed_forward import check_activation
from plmjax.models.deberta.attention import CONTENT_TO_POSITION, POSITION_TO_CONTENT, log_buckets
from plmjax.models.deberta.encoder import RESIDUAL, DebertaModel
from plmjax.models.deberta.heads import (
    DebertaForMaskedLM,
    DebertaForMultipleChoice,
    DebertaForSequenceClassification,
)
from plmjax.models.deberta.pretraining import DebertaForPreTraining
from plmjax.models.families.encoder import EncoderConfig, encoder_sizes, encoder_template
from plmjax.models.families.task_heads import TOKEN_HEADS

KINDS = (POSITION_TO_CONTENT, CONTENT_TO_POSITION)


@dataclasses.dataclass(frozen=True)
class DebertaConfig(EncoderConfig):
    """Sizes of a DeBERTa; the defaults are the base of version 3.

    Arguments override the fields of a named size: `DebertaConfig.base(vocab_size=8192)`.

    Raises:
        UserError: sizes that do not fit each other, or an unknown name.
    """

    vocab_size: int = 128100
    """Vocabulary size; that of the released tokenizer is 128,001."""
    hidden_act: str = "gelu"
    """Activation: gelu (exact), gelu_new (tanh form) or relu."""
    max_position_embeddings: int = 512
    """Maximum sequence length, and number of rows of the table of absolute positions."""
    type_vocab_size: int = 0
    """Number of token types; 0 for a model without them, as released."""
    layer_norm_eps: float = 1e-7
    """Added to the variance in layer normalisation."""
    position_buckets: int = 256
    """Number of buckets of distances on each side, half of which have a single distance; 0 or -1 for no buckets."""
    max_relative_positions: int = -1
    """Bound of the distances on each side, above which they are clipped; below 1 it is `max_position_embeddings`."""
    pos_att_type: tuple[str, ...] = KINDS
    """Terms of the scores besides content to content: p2c (position to content), c2p (content to position)."""
    position_biased_input: bool = False
    """True to add absolute positions to the input; then there is no enhanced mask decoder."""
    conv_kernel_size: int = 0
    """Kernel size of the convolution beside the first layer, odd; 3 in version 2, 0 for no convolution."""
    conv_act: str = "gelu"
    """Activation of the convolution."""
    pooler_dropout: float = 0.0
    """Dropout rate of the input of the pooler."""
    pooler_hidden_act: str = "gelu"
    """Activation of the pooler."""
    cls_dropout: float | None = None
    """Dropout rate of the pooler's output; None is the rate of the embeddings and sublayers."""
    generator_num_hidden_layers: int = 0
    """Number of layers of the generator; 0 for half of `num_hidden_layers`. Its other sizes are those of this model."""

    attention_window: ClassVar[int | None] = None
    types: ClassVar[tuple[float, float]] = FROM_0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            "model", self, generator_num_hidden_layers=FROM_0, pooler_dropout=FRACTION, conv_kernel_size=FROM_0
        )
        if self.cls_dropout is not None:
            check_ranges("model", self, cls_dropout=FRACTION)
        check_activation(self.conv_act)
        check_activation(self.pooler_hidden_act)
        kinds = self.pos_att_type
        if len(set(kinds)) < len(kinds) or not set(kinds) <= set(KINDS):
            raise UserError(
                f"Expected --model.pos_att_type of {' and '.join(KINDS)}, each once at most, found "
                f"{' '.join(map(str, kinds)) or 'none'}; change it."
            )
        if self.conv_kernel_size and not self.conv_kernel_size % 2:
            raise UserError(
                f"Expected --model.conv_kernel_size of an odd number of tokens, or 0 without convolution, found "
                f"{self.conv_kernel_size}; change it."
            )
        if self.position_buckets > 0 and not 2 <= self.position_buckets < 2 * self.largest_distance - 2:
            raise UserError(
                f"Expected --model.position_buckets from 2, half of which are below the largest distance "
                f"{self.largest_distance - 1}, found {self.position_buckets}; change it, or set it to -1."
            )
        if self.conv_kernel_size and self.generator_layers < 2:
            raise UserError(
                "Expected a generator of at least 2 layers, the first of which has a convolution, found "
                f"{self.generator_layers}; raise --model.generator_num_hidden_layers."
            )

    xsmall = Size(
        "DeBERTa-v3 xsmall: 70,682,112 parameters, 131,339,749 with its generator and both heads.",
        **encoder_sizes(12, 384, 6),
    )
    small = Size(
        "DeBERTa-v3 small: 141,304,320 parameters, 263,051,365 with its generator and both heads.",
        **encoder_sizes(6, 768, 12),
    )
    base = Size(
        "DeBERTa-v3 base: 183,831,552 parameters, 326,842,213 with its generator and both heads.",
        **encoder_sizes(12, 768, 12),
    )
    large = Size(
        "DeBERTa-v3 large: 434,012,160 parameters, 719,626,341 with its generator and both heads.",
        **encoder_sizes(24, 1024, 16),
    )
    multilingual_base = Size(
        "mDeBERTa-v3 base: 278,218,752 parameters.", vocab_size=251_000, **encoder_sizes(12, 768, 12)
    )
    v2_xlarge = Size("DeBERTa-v2 xlarge: 884,593,152 parameters.", conv_kernel_size=3, **encoder_sizes(24, 1536, 24))
    v2_xxlarge = Size(
        "DeBERTa-v2 xxlarge: 1,564,549,632 parameters.", conv_kernel_size=3, **encoder_sizes(48, 1536, 24)
    )
    tiny = Size(
        "Two layers of 128, and a generator of one; none was published.",
        position_buckets=32,
        **encoder_sizes(2, 128, 2),
    )

    @property
    def largest_distance(self) -> int:
        """Bound of the distances on each side; larger ones are clipped."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    @property
    def distance_table(self) -> int:
        """Number of rows of the table of distances."""
        return 2 * (self.position_buckets if self.position_buckets > 0 else self.largest_distance)

    def distance_rows(self, distances: np.ndarray) -> np.ndarray:
        """Return the row of the table for each distance, int [...]."""
        if self.position_buckets > 0:
            distances = log_buckets(distances, self.position_buckets, self.largest_distance)
        return np.clip(distances + self.distance_table // 2, 0, self.distance_table - 1)

    @property
    def pooled_dropout(self) -> float:
        """Dropout rate of the pooler's output."""
        return self.hidden_dropout_prob if self.cls_dropout is None else self.cls_dropout

    @property
    def initializer(self) -> Initializer:
        return nn.initializers.normal(self.initializer_range)

    @property
    def generator_layers(self) -> int:
        """Number of layers of the generator."""
        return self.generator_num_hidden_layers or max(1, self.num_hidden_layers // 2)

    @property
    def generator(self) -> Self:
        """The config of the generator. The generator of that config is the same config."""
        layers = self.generator_layers
        return dataclasses.replace(self, num_hidden_layers=layers, generator_num_hidden_layers=layers)

    def layers_flops(self, batch_size: int, sequence_length: int) -> float:
        """Return the model FLOPs of the layers in one training step: matrix products, backward = 2 x forward.

        The FLOPs of BERT's layers, and for each layer and each of c2p and p2c: 6 (2 T) B T D for the scores of all
        distances, including the column that the shift adds, and 6 (2 T - 1) D^2 for the projection of the distances. A
        convolution of kernel size K adds 6 K D^2 per token.
        """
        size, tokens = self.hidden_size, batch_size * sequence_length
        distances = 2 * sequence_length * tokens * size + (2 * sequence_length - 1) * size**2
        more = self.num_hidden_layers * len(self.pos_att_type) * distances + tokens * self.conv_kernel_size * size**2
        return super().layers_flops(batch_size, sequence_length) + 6.0 * more


def _parts(config: DebertaConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings of both networks, each layer of the discriminator, and the rest.

    The layers of the generator are in no group, so they are trained as the head is. No task uses them.
    """
    alone = int(config.conv_kernel_size > 0)
    first = [ParameterGroup(("deberta/encoder/first_layers", "deberta/encoder/convolution"), None)] * alone
    layers = (ParameterGroup(("deberta/encoder/layers",), layer) for layer in range(config.depth - alone))
    embeddings = ParameterGroup(("deberta/embeddings", "deberta/encoder", "generator/embeddings"))
    return embeddings, *first, *layers, ParameterGroup(("deberta",))


def _derived(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the discriminator's tables by path: each is the sum of the generator's table and its residual."""
    tables = [path.removesuffix(RESIDUAL) for path in params if path.endswith(f"/{RESIDUAL}")]
    return {
        f"{table}embedding": params[f"{table}{RESIDUAL}"]
        + params[f"{table.replace('deberta/', 'generator/', 1)}embedding"]
        for table in tables
    }


SYSTEM = declare(
    System(
        DebertaConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: DebertaForPreTraining,
            Purpose.MASKED_TOKENS: DebertaForMaskedLM,
            Purpose.ENCODING: DebertaModel,
            Purpose.EMBEDDING: DebertaModel,
            Purpose.SEQUENCE_CLASSIFICATION: DebertaForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: DebertaForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="deberta",
        template=encoder_template,
        parts=_parts,
        derived=_derived,
    )
)
