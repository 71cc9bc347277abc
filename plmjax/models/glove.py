"""GloVe: word vectors whose products are the logarithms of cooccurrences (Pennington et al., EMNLP 2014;
stanfordnlp/GloVe glove.c).

The model reads no text, only the counts X of neighbouring words (plmjax/data/cooccurrence). Every word is a row i and a
column j of X. Each row and each column has an embedding and a bias:

    w_i . w~_j + b_i + b~_j  is to be  log X_ij

The objective defines the loss (plmjax/objectives/weighted_least_squares.py). X is symmetric, so w and w~ differ only by
their initial values. The final embeddings are w + w~, without biases.

Deviation: the released program also writes an embedding `<unk>`, the mean of the 100 rarest words; here a word outside
the vocabulary has no embedding.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FROM_1, check_ranges
from plmjax.layers.initializers import uniform
from plmjax.layers.words.embeddings import Embedding


@dataclasses.dataclass(frozen=True)
class GloveConfig(ModelConfig):
    """Sizes of the tables; the defaults are those of the published glove.6B.300d."""

    vocab_size: int = 400_000
    """Vocabulary size."""
    vector_size: int = 300
    """Embedding size, D."""

    depth: ClassVar[int] = 1
    field_names: ClassVar[dict[str, str]] = {"width": "vector_size"}

    def __post_init__(self) -> None:
        check_ranges("model", self, vocab_size=FROM_1, vector_size=FROM_1)

    six_billion = Size(
        "240,800,000 parameters, for 6 billion tokens; the sums of vectors, 120,000,000 numbers, were published."
    )
    tiny = Size("100 numbers a word.", vocab_size=8192, vector_size=100)


class Glove(nn.Module):
    """The tables `words` and `contexts`, float32 [V D], and `word_biases` and `context_biases`, float32 [V]."""

    config: GloveConfig

    def setup(self) -> None:
        """Create the tables with uniform values in -1/2(D + 1) .. 1/2(D + 1) (glove.c, initialize_parameters)."""
        size, features = self.config.vocab_size, self.config.vector_size
        first = uniform(1 / (2 * (features + 1)))
        self.words = Embedding(size, features, "vocab", first)
        self.contexts = Embedding(size, features, "vocab", first)
        biases = as_bias(first, ("vocab",))
        self.word_biases = self.param("word_biases", biases, (size,))
        self.context_biases = self.param("context_biases", biases, (size,))

    def __call__(self, input_ids: jax.Array, context_ids: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Compute the predicted logarithms of cooccurrences, float32 [...], of rows and columns, int [...]."""
        products = jnp.einsum("...D,...D->...", self.words(input_ids), self.contexts(context_ids))
        return products + self.word_biases[input_ids] + self.context_biases[context_ids]


SYSTEM = declare(
    System(
        GloveConfig,
        Kind.WORD_VECTORS,
        {Purpose.PRETRAINING: lambda config, execution: Glove(config)},  # tables do not depend on the execution
        parts=lambda config: (ParameterGroup(("words", "contexts", "word_biases", "context_biases")),),
        token_vectors=lambda params: params["words/embedding"] + params["contexts/embedding"],  # w + w~
        instead="put a layer above its vectors with experiments/static_vectors.py",
    )
)
