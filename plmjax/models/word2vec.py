"""word2vec: word vectors that predict neighbouring words.

Sources: Mikolov et al., ICLR 2013 workshop, arXiv 1301.3781, and NeurIPS 2013, arXiv 1310.4546; tmikolov/word2vec
word2vec.c.

There is no hidden layer, only two embedding tables and the products of their rows. Every word w has an input embedding
v_w and an output embedding u_w.

    skip-gram:  each word t within the window of a word s predicts it         score(t, s) = u_s . v_t
    CBOW:       the words within the window of s predict it together          score(s)    = u_s . mean_t v_t

Objectives use the scores. Negative sampling (plmjax/objectives/negative_sampling.py) distinguishes the word s from
random words. The hierarchical softmax (hierarchical_softmax.py) has inner nodes of a tree in the output table, and
gives each word a probability. The final embeddings are those of the input table.

Deviation: CBOW with the sum instead of the mean is as in the first release (v0.1b); later releases and the default
take the mean. With the sum, gensim divides the gradient by the number of words.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FROM_1, check_ranges
from plmjax.layers.initializers import uniform
from plmjax.layers.words.embeddings import Embedding


@dataclasses.dataclass(frozen=True)
class Word2VecConfig(ModelConfig):
    """Sizes of the two tables; the defaults are those of the published GoogleNews-vectors-negative300."""

    vocab_size: int = 3_000_000
    """Vocabulary size."""
    vector_size: int = 300
    """Embedding size, D."""

    depth: ClassVar[int] = 1
    field_names: ClassVar[dict[str, str]] = {"width": "vector_size"}

    def __post_init__(self) -> None:
        check_ranges("model", self, vocab_size=FROM_1, vector_size=FROM_1)

    google_news = Size("1,800,000,000 parameters, of which the 900,000,000 of the input table were published.")
    tiny = Size("100 numbers a word.", vocab_size=8192, vector_size=100)


class Word2Vec(nn.Module):
    """The tables `input_vectors` and `output_vectors`, float32 [V D] both."""

    config: Word2VecConfig

    def setup(self) -> None:
        """Create the input table, uniform in -1/2D .. 1/2D, and the output table, zeros (word2vec.c, InitNet)."""
        sizes = (self.config.vocab_size, self.config.vector_size, "vocab")
        self.input_vectors = Embedding(*sizes, uniform(1 / (2 * self.config.vector_size)))
        self.output_vectors = Embedding(*sizes, nn.initializers.zeros)

    def __call__(
        self, input_ids: jax.Array, output_ids: jax.Array, *, deterministic: bool = True
    ) -> tuple[jax.Array, jax.Array]:
        """Map int [B T] and int [B ...] to the inputs' embeddings [B T D] and the outputs' embeddings [B ... D]."""
        return self.input_vectors(input_ids), self.output_vectors(output_ids)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The input of a prediction: the only difference between the two architectures.

    pairs: float32 [B N T S], 1 if the word t is within the window of the word s, else 0. N is the number of blocks of a
        row, T and S are numbers of words, H is the number of predictors in a block, and K the number of drawn words.
    """

    def hidden(self, vectors: jax.Array, pairs: jax.Array) -> jax.Array:
        """Map embeddings of the words [B N T D] to the predictors [B N H D]."""
        raise NotImplementedError(f"{type(self).__name__} must define the inputs of the prediction.")

    def predictions(self, pairs: jax.Array) -> jax.Array:
        """Return the weights of predictions: 1 for a prediction, else 0."""
        raise NotImplementedError(f"{type(self).__name__} must define the targets.")

    def scores(self, hidden: jax.Array, outputs: jax.Array) -> jax.Array:
        """Return the scores of all predictions.

        The scores have the shape of the weights, with a last axis K if `outputs` has it.

        outputs: output embeddings, [B N S D] or [B N S K D].
        """
        raise NotImplementedError(f"{type(self).__name__} must score its predictions.")

    def prediction_counts(self, predictions: jax.Array) -> jax.Array:
        """Return the number of predictions of each word, [B N S]."""
        raise NotImplementedError(f"{type(self).__name__} must count its predictions of a word.")

    def negative_counts(self, predictions: jax.Array, differs: jax.Array) -> jax.Array:
        """Return the number of predictions by each predictor in which a drawn word k is a negative, [B N H K].

        differs: float32 [B N S K], 1 if k is another word than s.
        """
        raise NotImplementedError(f"{type(self).__name__} must count its predictions beside a drawn word.")


@dataclasses.dataclass(frozen=True)
class SkipGram(Architecture):
    """Every neighbour t of a word s predicts it alone: H = T, and the weights of predictions are [B N T S].

    As in word2vec.c the window is that of the predicted word; in the paper it is that of the other word.
    """

    def hidden(self, vectors: jax.Array, pairs: jax.Array) -> jax.Array:
        return vectors

    def predictions(self, pairs: jax.Array) -> jax.Array:
        return pairs

    def scores(self, hidden: jax.Array, outputs: jax.Array) -> jax.Array:
        return jnp.einsum("BNTD,BNS...D->BNTS...", hidden, outputs)

    def prediction_counts(self, predictions: jax.Array) -> jax.Array:
        return jnp.sum(predictions, axis=2)

    def negative_counts(self, predictions: jax.Array, differs: jax.Array) -> jax.Array:
        return jnp.einsum("BNTS,BNSK->BNTK", predictions, differs)


@dataclasses.dataclass(frozen=True)
class ContinuousBagOfWords(Architecture):
    """All neighbours of a word s predict it together: H = S, and the weights of predictions are [B N S].

    With the mean, word2vec.c adds the full gradient to each of the embeddings, not a part of it.
    """

    mean: bool = True
    """Predict from the mean of the embeddings; otherwise from their sum."""

    def hidden(self, vectors: jax.Array, pairs: jax.Array) -> jax.Array:
        total = jnp.einsum("BNTS,BNTD->BNSD", pairs, vectors)
        if not self.mean:
            return total
        mean = total / jnp.maximum(jnp.sum(pairs, axis=2), 1)[..., None]
        return jax.lax.stop_gradient(mean) + (total - jax.lax.stop_gradient(total))

    def predictions(self, pairs: jax.Array) -> jax.Array:
        return jnp.max(pairs, axis=2)

    def scores(self, hidden: jax.Array, outputs: jax.Array) -> jax.Array:
        return jnp.einsum("BNSD,BNS...D->BNS...", hidden, outputs)

    def prediction_counts(self, predictions: jax.Array) -> jax.Array:
        return predictions

    def negative_counts(self, predictions: jax.Array, differs: jax.Array) -> jax.Array:
        return predictions[..., None] * differs


SYSTEM = declare(
    System(
        Word2VecConfig,
        Kind.WORD_VECTORS,
        {Purpose.PRETRAINING: lambda config, execution: Word2Vec(config)},  # only tables: all executions are the same
        parts=lambda config: (ParameterGroup(("input_vectors", "output_vectors")),),
        token_table="input_vectors/embedding",
        instead="put a layer above its vectors with experiments/static_vectors.py",
    )
)
