"""RoBERTa: a robustly optimised BERT (Liu et al. 2019, arXiv 1907.11692; fairseq 0.12.2 models/roberta).

BERT's encoder, trained longer, on more text in larger batches, on full sentences, on masks drawn anew every time, and
on the masked language model alone: whether one text follows another is not asked.

    x = norm(words[input_ids] + positions[p] + types[0])
    L times:  x = norm(x + attention(x, x, x));  x = norm(x + feed_forward(x))
    masked token:   softmax(words . norm(gelu(W x_i + b)) + c)
    p of the k-th token that is no padding = k + the padding token's id, counted from 1; p of padding = that id

fairseq keeps the row of the padding token in the position table too, so with id 1 the first token of a text takes row
2, and 512 positions make a table of 514. GELU is the exact one and weights are drawn from a normal that is not cut.

Deviation: rows may hold several packed sequences, as BERT's; each is counted from its own first token.
Deviation: `type_vocab_size` is 1, one vector added to every token: transformers made it of the released weights, which
have no types, and it is zero there. Here it is drawn and trained like the others.
Deviation: rows of the padding token in the tables are drawn like any other; in fairseq they begin at zero.
Deviation: the masked language model's head has the exact GELU whatever `hidden_act` is, as transformers' has, so that
every model can be handed to it; fairseq's goes by the activation, which is the exact GELU in all published models.
Deviation: `RobertaModel` has a pooler if asked for. RoBERTa trains none; transformers' class has one.
"""

import dataclasses
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.errors import UserError
from plmjax.layers.dropout import Dropout
from plmjax.layers.encoder import (
    ClassifierDropoutConfig,
    EncoderForMaskedLM,
    EncoderForMultipleChoice,
    EncoderOutput,
    MaskedLanguageModelHead,
    first_tokens,
)
from plmjax.layers.execution import Execution
from plmjax.layers.projection import Projection
from plmjax.models.bert import BertModel


@dataclasses.dataclass(frozen=True)
class RobertaConfig(ClassifierDropoutConfig):
    """Sizes of a RoBERTa; the defaults are RoBERTa-Base.

    Raises:
        UserError: besides an encoder's, a padding token that leaves no positions or is none of the vocabulary.
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
    """Standard deviation of the normal distribution that weights are drawn from."""
    layer_norm_eps: float = 1e-5
    """Added to the variance in layer normalisation."""
    pad_token_id: int = 1
    """Id that fills rows and from which positions are counted; the tokenizer's must be the same."""
    bos_token_id: int | None = 0
    """Id of <s>; kept for transformers."""
    eos_token_id: int | None = 2
    """Id of </s>; kept for transformers."""

    def __post_init__(self) -> None:
        """Checks what no later shape error would explain."""
        super().__post_init__()
        if not 0 <= self.pad_token_id < min(self.vocab_size, self.max_position_embeddings - 1):
            raise UserError(
                f"Expected --model.pad_token_id from 0, below the {self.vocab_size} tokens, and with positions above "
                f"it in a table of {self.max_position_embeddings}, found {self.pad_token_id}; change it."
            )

    @classmethod
    def base(cls, **overrides: Any) -> Self:
        """RoBERTa-Base: 124,697,433 parameters with its masked language model's head."""
        return cls._sized(12, 768, 12, overrides)

    @classmethod
    def large(cls, **overrides: Any) -> Self:
        """RoBERTa-Large: 355,412,057 parameters with its masked language model's head."""
        return cls._sized(24, 1024, 16, overrides)

    @classmethod
    def tiny(cls, **overrides: Any) -> Self:
        """Two layers of 128, as BERT's; none was published."""
        return cls._sized(2, 128, 2, overrides)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_position_embeddings - self.pad_token_id - 1

    @property
    def pair_separators(self) -> int:
        """Two: <s> A </s></s> B </s> (fairseq models/roberta/hub_interface.py)."""
        return 2

    @property
    def initializer(self) -> Initializer:
        """Normal."""
        return nn.initializers.normal(self.initializer_range)

    def for_pretraining(self, execution: Execution) -> "RobertaForMaskedLM":
        """The encoder with the masked language model's head: all that RoBERTa is trained on."""
        return self.for_masked_language_model(execution)

    def for_masked_language_model(self, execution: Execution) -> "RobertaForMaskedLM":
        """The encoder with the masked language model's head."""
        return RobertaForMaskedLM(self, execution)

    def encoder(self, execution: Execution, *, pooling: bool = False) -> "RobertaModel":
        """The encoder alone, under the name that its parameters have in every other module."""
        return RobertaModel(self, execution, pooling, name="roberta")

    def for_sequence_classification(self, outputs: int, execution: Execution) -> "RobertaForSequenceClassification":
        """The module that labels whole rows, or gives each `outputs` numbers."""
        return RobertaForSequenceClassification(self, execution, outputs)

    def for_multiple_choice(self, execution: Execution) -> "RobertaForMultipleChoice":
        """The module that gives every choice of a question a number."""
        return RobertaForMultipleChoice(self, execution)


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


class RobertaForMaskedLM(EncoderForMaskedLM):
    """RoBERTa with the head it is pretrained with."""

    config: RobertaConfig

    def setup(self) -> None:
        """The encoder and the head."""
        self.encoder = self.config.encoder(self.execution)
        exact = dataclasses.replace(self.config, hidden_act="gelu")
        self.masked_language_model = MaskedLanguageModelHead(exact, self.execution)


class ClassificationHead(nn.Module):
    """W' dropout(tanh(W dropout(x) + b)) + b' of the vector of <s> (fairseq RobertaClassificationHead)."""

    config: RobertaConfig
    execution: Execution
    outputs: int

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """[... D] -> float32 [... outputs]."""
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        dropout = Dropout(config.head_dropout)
        x = Projection((config.hidden_size,), ("embed", "mlp"), init, dtype, name="dense")(dropout(x, deterministic))
        x = dropout(jnp.tanh(x), deterministic)
        return Projection((self.outputs,), ("mlp", None), init, dtype, logits=True, name="output")(x)


class RobertaForSequenceClassification(nn.Module):
    """RoBERTa with a head of its own on <s>, two layers drawn for the task; one label makes it a regression."""

    config: RobertaConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        """The encoder and the head."""
        self.roberta = self.config.encoder(self.execution)
        self.classifier = ClassificationHead(self.config, self.execution, self.num_labels)

    def __call__(
        self,
        input_ids: jax.Array,
        *,
        cls_positions: jax.Array | None = None,
        deterministic: bool = True,
        **inputs: Any,
    ) -> EncoderOutput:
        """As `RobertaModel`, with logits [B labels], or [B K labels] of the sequences that begin at `cls_positions`."""
        output = self.roberta(input_ids, deterministic=deterministic, **inputs)
        first = first_tokens(output.last_hidden_state, cls_positions)
        return output.replace(logits=self.classifier(first, deterministic))


class RobertaForMultipleChoice(EncoderForMultipleChoice):
    """RoBERTa with a pooler on <s> of every choice, which pretraining does not give, and a linear layer on that."""

    config: RobertaConfig
