"""RoBERTa: a robustly optimised BERT (Liu et al. 2019, arXiv 1907.11692; fairseq 0.12.2 models/roberta).

BERT's encoder, trained longer, on more text, in larger batches, on full sentences, with new masks every time, and on
the masked language model alone, without next sentence prediction.

    x = norm(words[input_ids] + positions[p] + types[0])
    L times:  x = norm(x + attention(x, x));  x = norm(x + feed_forward(x))
    masked token:   softmax(words . norm(gelu(W x_i + b)) + c)
    p of the k-th real token, counted from 1 = k + the padding token's id; p of padding = that id

fairseq keeps a row for the padding token in the position table too: with id 1 the first token of a text takes row 2,
and 512 positions make a table of 514. GELU is the exact form, and initial weights come from a normal that is not cut.

Deviation: rows may hold several packed sequences, as BERT's; positions count from each sequence's first token.
Deviation: `type_vocab_size` is 1, one vector added to every token. The released weights have no types; transformers
adds this vector as zeros. Here it is initialised and trained like the others.
Deviation: rows of the padding token in the tables are initialised like any other; in fairseq they are zero.
Deviation: the masked language model's head always has the exact GELU, as in transformers, so that every model can be
exported; fairseq's head has `hidden_act`, which is the exact GELU in all published models.
Deviation: `RobertaModel` has a pooler only if asked for; transformers' class has one, which RoBERTa does not train.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import UserError
from plmjax.layers.dropout import Dropout
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import first_tokens
from plmjax.models.bert import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertModel,
    BertOutput,
    EncoderConfig,
    MaskedLanguageModelHead,
    encoder_parts,
    encoder_sizes,
)
from plmjax.models.families.task_heads import TOKEN_HEADS


@dataclasses.dataclass(frozen=True)
class RobertaConfig(EncoderConfig):
    """Sizes of a RoBERTa; the defaults are RoBERTa-Base.

    Raises:
        UserError: besides an encoder's, a padding token outside the vocabulary, or one that leaves no positions.
    """

    vocab_size: int = 50265
    """Tokens of the vocabulary."""
    hidden_act: str = "gelu"
    """gelu (exact), gelu_new (tanh form) or relu."""
    max_position_embeddings: int = 514
    """Rows of the position table: the longest sequence, the padding token's id and one."""
    type_vocab_size: int = 1
    """Kinds of segment; texts of a pair are told apart by the separators between them."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""
    layer_norm_eps: float = 1e-5
    """Added to the variance in layer normalisation."""
    pad_token_id: int = 1
    """Id that fills rows and from which positions are counted; the tokenizer's must be the same."""
    bos_token_id: int | None = 0
    """Id of <s>; transformers needs it."""
    eos_token_id: int | None = 2
    """Id of </s>; transformers needs it."""

    classifier_dropout: float | None = None
    """Dropout of the input of a downstream task's head; None is that of the embeddings and sublayers."""

    def __post_init__(self) -> None:
        """Checks what no later shape error would explain."""
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
        """Tokens of the longest sequence."""
        return self.max_position_embeddings - self.pad_token_id - 1

    @property
    def initializer(self) -> Initializer:
        """Normal."""
        return nn.initializers.normal(self.initializer_range)


class RobertaModel(BertModel):
    """BERT's encoder with its own rows of the position table; a pooler only where `pooling` asks for it."""

    config: RobertaConfig
    pooling: bool = False

    def position_rows(self, input_ids: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Which row of the position table every token takes, int [B T]; given positions count from 0."""
        pad = self.config.pad_token_id
        real = input_ids != pad
        count = jnp.cumsum(real, axis=1) if positions is None else positions + 1
        return jnp.where(real, count + pad, pad)


class RobertaForMaskedLM(BertForMaskedLM):
    """RoBERTa with the head it is pretrained with."""

    config: RobertaConfig

    def setup(self) -> None:
        """The encoder and the head."""
        self.encoder = self.config.module(Purpose.ENCODING, self.execution)
        exact = dataclasses.replace(self.config, hidden_act="gelu")
        self.masked_language_model = MaskedLanguageModelHead(exact, self.execution)


class ClassificationHead(nn.Module):
    """W' dropout(tanh(W dropout(x) + b)) + b' of one vector of a text (fairseq RobertaClassificationHead)."""

    config: ModelConfig
    execution: Execution
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """[... D] -> float32 [... outputs]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        dropout = Dropout(config.head_dropout)
        x = Projection((config.width,), ("embed", "mlp"), init, dtype, name="dense")(dropout(x, deterministic))
        x = dropout(jnp.tanh(x), deterministic)
        return Projection((self.outputs,), ("mlp", None), init, dtype, logits=True, name="output")(x)


class RobertaForSequenceClassification(nn.Module):
    """RoBERTa with a head of two layers on <s>, initialised for the task; one label makes it a regression."""

    config: RobertaConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        """The encoder and the head."""
        self.roberta = self.config.module(Purpose.ENCODING, self.execution)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def __call__(
        self,
        input_ids: jax.Array,
        *,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> BertOutput:
        """As `RobertaModel`, with logits [B labels], or [B K labels] of the sequences that start at `cls_positions`."""
        output = self.roberta(input_ids, deterministic=deterministic, **inputs)
        first = first_tokens(output.last_hidden_state, cls_positions)
        return output.replace(logits=self.classifier(first, deterministic))


class RobertaForMultipleChoice(BertForMultipleChoice):
    """RoBERTa with a pooler on <s> of every choice, which is not pretrained, and a linear layer on that."""

    config: RobertaConfig


def _template(config: RobertaConfig) -> Template:
    """<s> A </s> and <s> A </s></s> B </s> (fairseq models/roberta/hub_interface.py)."""
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
            Purpose.TEXT_LABELS: RobertaForSequenceClassification,
            Purpose.CHOICES: RobertaForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="roberta",
        template=_template,
        parts=encoder_parts,
    )
)
