"""RoBERTa: a robustly optimised BERT (Liu et al. 2019, arXiv 1907.11692; fairseq 0.12.2 models/roberta).

BERT's encoder, trained longer, on more text, in larger batches, on full sentences, with new masks every time, and on
the masked language model alone, without next sentence prediction.

    x = norm(words[input_ids] + positions[p] + types[0])
    L times:  x = norm(x + attention(x, x));  x = norm(x + feed_forward(x))
    masked token:   softmax(words . norm(gelu(W x_i + b)) + c)
    p of the k-th real token, counted from 1 = k + the padding token's id; p of padding = that id

fairseq also keeps a row for the padding token in the position table. With padding id 1 the first token of a text takes
row 2, and 512 positions need a table of 514 rows. GELU is the exact form. The normal distribution of the initial
weights is not truncated.

Deviation: a row may hold several packed sequences, as in BERT; positions count from each sequence's first token.
Deviation: `type_vocab_size` is 1, one vector added to every token. The released weights have no types; transformers
adds this vector as zeros. Here it is initialized and trained like the others.
Deviation: rows of the padding token in the tables are initialized like any other; in fairseq they are zero.
Deviation: the masked language model's head always has the exact GELU, as in transformers, so that every model can be
exported; fairseq's head has `hidden_act`, which is the exact GELU in all published models.
Deviation: `RobertaModel` has a pooler only if requested; transformers' class has one, which RoBERTa does not train.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import UserError
from plmjax.layers.tokens import first_tokens
from plmjax.models.bert import BertForMaskedLM, BertModel, MaskedLanguageModelHead
from plmjax.models.families.encoder import (
    EncoderConfig,
    EncoderForMultipleChoice,
    EncoderOutput,
    encoder_parts,
    encoder_sizes,
)
from plmjax.models.families.task_heads import TOKEN_HEADS, ClassificationHead


@dataclasses.dataclass(frozen=True)
class RobertaConfig(EncoderConfig):
    """Sizes of a RoBERTa; the defaults are RoBERTa-Base.

    Raises:
        UserError: as for `EncoderConfig`; or the padding token is outside the vocabulary or leaves no positions.
    """

    vocab_size: int = 50265
    """Vocabulary size."""
    hidden_act: str = "gelu"
    """Activation: gelu (exact), gelu_new (tanh form) or relu."""
    max_position_embeddings: int = 514
    """Number of rows of the position table: the maximum sequence length, plus the padding token's id, plus one."""
    type_vocab_size: int = 1
    """Number of token types; the texts of a pair differ by the separators between them."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""
    layer_norm_eps: float = 1e-5
    """Added to the variance in layer normalisation."""
    pad_token_id: int = 1
    """Padding token id, from which positions are counted; the tokenizer's must be the same."""
    bos_token_id: int | None = 0
    """Token id of <s>; transformers needs it."""
    eos_token_id: int | None = 2
    """Token id of </s>; transformers needs it."""

    classifier_dropout: float | None = None
    """Dropout rate of the input of a downstream task's head; None is the rate of the embeddings and sublayers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.pad_token_id < min(self.vocab_size, self.max_position_embeddings - 1):
            raise UserError(
                f"Expected --model.pad_token_id from 0, below the {self.vocab_size} tokens, and with positions above "
                f"it in a table of {self.max_position_embeddings}, found {self.pad_token_id}; change it."
            )

    base = Size(
        "RoBERTa-Base: 124,697,433 parameters with its masked language model's head.", **encoder_sizes(12, 768, 12)
    )
    large = Size(
        "RoBERTa-Large: 355,412,057 parameters with its masked language model's head.", **encoder_sizes(24, 1024, 16)
    )
    tiny = Size("Two layers of 128, as BERT's; none was published.", **encoder_sizes(2, 128, 2))

    @property
    def longest(self) -> int:
        return self.max_position_embeddings - self.pad_token_id - 1

    @property
    def initializer(self) -> Initializer:
        return nn.initializers.normal(self.initializer_range)


class RobertaModel(BertModel):
    """BERT's encoder with RoBERTa's numbering of positions; it has a pooler only if `pooling` is set."""

    config: RobertaConfig
    pooling: bool = False

    def position_rows(self, input_ids: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Return the row of the position table for every token, int [B T]; given positions count from 0."""
        pad = self.config.pad_token_id
        real = input_ids != pad
        count = jnp.cumsum(real, axis=1) if positions is None else positions + 1
        return jnp.where(real, count + pad, pad)


class RobertaForMaskedLM(BertForMaskedLM):
    """RoBERTa with its pretraining head."""

    config: RobertaConfig

    def setup(self) -> None:
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        exact = dataclasses.replace(self.config, hidden_act="gelu")
        self.masked_language_model = MaskedLanguageModelHead(exact, self.execution)


class RobertaForSequenceClassification(nn.Module):
    """RoBERTa with a head of two layers on <s>, initialized for the task; with one label it is a regression."""

    config: RobertaConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        self.roberta = self.config.module(Purpose.ENCODING, self.execution)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def __call__(
        self,
        input_ids: jax.Array,
        *,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> EncoderOutput:
        """Take and return the same as `RobertaModel`, with logits.

        Logits are [B labels], or [B K labels] of the sequences that start at `cls_positions`.
        """
        output = self.roberta(input_ids, deterministic=deterministic, **inputs)
        first = first_tokens(output.last_hidden_state, cls_positions)
        return output.replace(logits=self.classifier(first, deterministic))


class RobertaForMultipleChoice(EncoderForMultipleChoice):
    """RoBERTa with a pooler on <s> of every choice, which is not pretrained, and a linear layer on the pooler."""

    config: RobertaConfig


def roberta_template(config: RobertaConfig) -> Template:
    """Return the template <s> A </s> and <s> A </s></s> B </s> (fairseq models/roberta/hub_interface.py)."""
    return Template(pair="cls A sep sep B:1 sep:1").with_types(config.type_vocab_size)


SYSTEM = declare(
    System(
        RobertaConfig,
        Kind.ENCODER,
        {
            Purpose.PRETRAINING: RobertaForMaskedLM,
            Purpose.MASKED_TOKENS: RobertaForMaskedLM,
            Purpose.ENCODING: RobertaModel,
            Purpose.EMBEDDING: RobertaModel,
            Purpose.SEQUENCE_CLASSIFICATION: RobertaForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: RobertaForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="roberta",
        template=roberta_template,
        parts=encoder_parts,
    )
)
