"""GloVe: word vectors whose products are the logarithms of cooccurrences (Pennington et al., EMNLP 2014;
stanfordnlp/GloVe glove.c).

No text is read, only the counts X of which word stands near which (plmjax/data/cooccurrence). Every word is a row i and
a column j of X, with a vector and a bias each:

    w_i . w~_j + b_i + b~_j  is to be  log X_ij

How far it may miss is the objective's (plmjax/objectives/weighted_least_squares.py). X is symmetric, so that w and w~
differ by their first values alone; the vectors that are used afterwards are w + w~, without biases.

Deviation: the released program also writes a vector `<unk>`, the mean of the 100 rarest words; here a word that has no
vector has none.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig, ParameterGroup
from plmjax.errors import FROM_1, check_ranges
from plmjax.layers.initializers import uniform
from plmjax.layers.words.embeddings import Embedding


@dataclasses.dataclass(frozen=True)
class GloveConfig(ModelConfig):
    """Sizes of the tables; the defaults are those of the published glove.6B.300d."""

    vocab_size: int = 400_000
    """Tokens of the vocabulary."""
    vector_size: int = 300
    """Numbers of a vector, D."""

    depth: ClassVar[int] = 1
    has_token_vectors: ClassVar[bool] = True
    field_names: ClassVar[dict[str, str]] = {"width": "vector_size"}
    parameter_groups: ClassVar[tuple[ParameterGroup, ...]] = (
        ParameterGroup(("words", "contexts", "word_biases", "context_biases")),
    )

    def __post_init__(self) -> None:
        """Checks the sizes."""
        check_ranges("model", self, vocab_size=FROM_1, vector_size=FROM_1)

    @classmethod
    def six_billion(cls, **overrides: Any) -> Self:
        """240,800,000 parameters, for 6 billion tokens; the sums of vectors, 120,000,000 numbers, were published."""
        return cls(**overrides)

    @classmethod
    def tiny(cls, **overrides: Any) -> Self:
        """100 numbers a word."""
        return cls(**({"vocab_size": 8192, "vector_size": 100} | overrides))

    def for_pretraining(self, execution: Execution) -> "Glove":
        """The two tables and their biases."""
        return Glove(self)

    def token_vectors(self, params: Mapping[str, Any]) -> Any:
        """w + w~."""
        return params["words/embedding"] + params["contexts/embedding"]


class Glove(nn.Module):
    """The tables `words` and `contexts`, float32 [V D], and `word_biases` and `context_biases`, float32 [V]."""

    config: GloveConfig

    def setup(self) -> None:
        """All begin uniform in -1/2(D + 1) .. 1/2(D + 1) (glove.c, initialize_parameters)."""
        size, features = self.config.vocab_size, self.config.vector_size
        first = uniform(1 / (2 * (features + 1)))
        self.words = Embedding(size, features, "vocab", first)
        self.contexts = Embedding(size, features, "vocab", first)
        biases = nn.with_logical_partitioning(first, ("vocab",))
        self.word_biases = self.param("word_biases", biases, (size,))
        self.context_biases = self.param("context_biases", biases, (size,))

    def __call__(self, input_ids: jax.Array, context_ids: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """The logarithms of cooccurrences, float32 [...], of rows and columns, int [...]."""
        products = jnp.einsum("...D,...D->...", self.words(input_ids), self.contexts(context_ids))
        return products + self.word_biases[input_ids] + self.context_biases[context_ids]
