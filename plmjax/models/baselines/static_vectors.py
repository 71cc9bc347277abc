"""Static word vectors as a model of texts: the simplest baseline.

The embedding of a word does not depend on its neighbours. A token is represented by its embedding v, and a text by the
mean of its embeddings. A pair of texts is represented by its two means u and w, their absolute difference and their
product (as in InferSent, Conneau et al. 2017, arXiv 1705.02364, figure 1, over a bag of words):

    a label of a token:   W v + b
    a label of a text:    W u + b
    a label of a pair:    W (u, w, |u - w|, u * w) + b
    a score of a choice:  the same, for the pair of the question and the choice

The table may come from any model of words, such as word2vec (plmjax/runs/weight_mappings/token_embeddings.py). It is
trained or frozen.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.contracts.template import Template
from plmjax.errors import FRACTION, FROM_0, FROM_1, check_ranges
from plmjax.layers.dropout import Dropout
from plmjax.layers.kinks import absolute
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.embeddings import Embedding
from plmjax.models.families.encoder import EncoderOutput
from plmjax.models.families.task_heads import TOKEN_HEADS, score_choices


@dataclasses.dataclass(frozen=True)
class StaticVectorsConfig(ModelConfig):
    """Sizes of the table, and the dropout rate of the heads."""

    vocab_size: int = 8192
    """Vocabulary size."""
    vector_size: int = 100
    """Embedding size, D."""
    initializer_range: float = 0.02
    """Standard deviation of the normal distribution of initial weights."""
    dropout: float = 0.0
    """Dropout rate of the input of a task's head."""

    depth: ClassVar[int] = 0
    field_names: ClassVar[dict[str, str]] = {"width": "vector_size"}

    def __post_init__(self) -> None:
        check_ranges("model", self, vocab_size=FROM_1, vector_size=FROM_1, initializer_range=FROM_0, dropout=FRACTION)

    @property
    def head_dropout(self) -> float:
        return self.dropout

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, not truncated."""
        return nn.initializers.normal(self.initializer_range)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return 0: there are no matrix products below the head."""
        return 0.0


class StaticVectors(nn.Module):
    """The table of word embeddings, `words`."""

    config: StaticVectorsConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        token_type_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        deterministic: bool = True,
        output_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Look up the embeddings [B T D] of tokens, int [B T]. The other inputs have no effect.

        Raises:
            ValueError: the inputs do not all have the shape [B T].
        """
        check_token_inputs(None, "", input_ids, attention_mask, token_type_ids, positions, segment_ids)
        config = self.config
        sizes = (config.vocab_size, config.vector_size, "vocab", config.initializer)
        vectors = Embedding(*sizes, self.execution.dtype, name="words")(input_ids)
        return EncoderOutput(vectors, vectors[None] if output_hidden_states else None)


class StaticVectorsForSequenceClassification(nn.Module):
    """A linear layer on the means of texts; with one label it is a regression."""

    config: StaticVectorsConfig
    execution: Execution = Execution()
    num_labels: int = 2

    def setup(self) -> None:
        config, dtype = self.config, self.execution.dtype
        self.encoder = config.module(Purpose.ENCODING, self.execution)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = Projection((self.num_labels,), ("embed", None), config.initializer, dtype, logits=True)

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
    ) -> EncoderOutput:
        """Take and return the same as `StaticVectors`, with logits.

        Logits are [B labels], or [B K labels] of the packed sequences at `cls_positions`.

        Args:
            attention_mask: [B T], 1 for tokens; all by default.
            token_type_ids: int [B T], 0 in the first text and 1 in the second; all are 0 by default.
            segment_ids: int [B T], the packed sequence of each token, 0 for padding.
            cls_positions: int [B K], the position of any token of each sequence; without it a row is one sequence.
        """
        places = {"token_type_ids": token_type_ids, "positions": positions, "segment_ids": segment_ids}
        output = self.encoder(input_ids, attention_mask, **places, output_hidden_states=output_hidden_states)
        sequences = jnp.ones_like(input_ids) if segment_ids is None else segment_ids
        types = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        chosen = cls_positions if cls_positions is not None else jnp.zeros_like(input_ids[:, :1])
        own = jnp.take_along_axis(sequences, chosen, axis=1, mode="clip")[..., None] == sequences[:, None]  # [B K T]
        own &= sequences[:, None] > 0
        if attention_mask is not None:
            own &= attention_mask[:, None] > 0
        features = texts(output.last_hidden_state, own, types)
        logits = self.classifier(self.dropout(features, deterministic))
        return output.replace(logits=logits if cls_positions is not None else logits[:, 0])


class StaticVectorsForMultipleChoice(StaticVectorsForSequenceClassification):
    """A linear layer that gives one score to every pair of a question and a choice."""

    num_labels: ClassVar[int] = 1

    def __call__(self, input_ids: jax.Array, **inputs: Any) -> EncoderOutput:
        """Map the C adjacent choices of a question, int [B C T], to logits [B C], or [B C K] of packed questions."""
        output, scores = score_choices(super().__call__, input_ids, **inputs)
        return output.replace(logits=scores)


def texts(vectors: jax.Array, own: jax.Array, types: jax.Array) -> jax.Array:
    """Compute the input of the head for sequences, float32 [B K 4D]: (u, w, |u - w|, u * w).

    For one text it is (u, 0, 0, 0).

    vectors: [B T D].
    own: bool [B K T], the tokens of each sequence.
    types: int [B T], 0 in the first text and 1 in the second.
    """
    means, sizes = [], []
    for text in (0, 1):
        mask = (own & (types == text)[:, None]).astype(jnp.float32)
        sizes.append(jnp.sum(mask, axis=-1, keepdims=True))
        means.append(jnp.einsum("BKT,BTD->BKD", mask, vectors.astype(jnp.float32)) / jnp.maximum(sizes[-1], 1))
    first, second = means
    return jnp.concatenate([first, second, absolute(first - second) * (sizes[1] > 0), first * second], axis=-1)


SYSTEM = declare(
    System(
        StaticVectorsConfig,
        Kind.WORD_VECTORS,
        {
            Purpose.ENCODING: StaticVectors,
            Purpose.EMBEDDING: StaticVectors,
            Purpose.SEQUENCE_CLASSIFICATION: StaticVectorsForSequenceClassification,
            Purpose.MULTIPLE_CHOICE: StaticVectorsForMultipleChoice,
            **TOKEN_HEADS,
        },
        name="static_vectors",
        template=lambda config: Template("A", "A B:1"),
        parts=lambda config: (ParameterGroup(("static_vectors",)),),
        token_table="static_vectors/words/embedding",
    )
)
