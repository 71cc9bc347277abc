"""word2vec: word vectors that predict neighbouring words (Mikolov et al., ICLR 2013 workshop, arXiv 1301.3781, and
NeurIPS 2013, arXiv 1310.4546; tmikolov/word2vec word2vec.c).

No hidden layer: two tables of vectors and the products of their rows. Every word w is an input v_w and an output u_w.

    skip-gram:  each word t within the window of a word s predicts it         score(t, s) = u_s . v_t
    CBOW:       the words within the window of s predict it together          score(s)    = u_s . mean_t v_t

What becomes of the scores is the objective's: negative sampling (plmjax/objectives/negative_sampling.py) tells the word
s from words that were drawn; the hierarchical softmax (hierarchical_softmax.py) has inner nodes of a tree in the output
table, and gives each word a probability. The vectors that are used afterwards are those of the input table.

Deviation: the sum instead of the mean in CBOW is that of the first release (v0.1b); later ones and the default take the
mean. There gensim divides the gradient of the sum by the number of words.
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
    """Tokens of the vocabulary."""
    vector_size: int = 300
    """Numbers of a vector, D."""

    depth: ClassVar[int] = 1
    field_names: ClassVar[dict[str, str]] = {"width": "vector_size"}

    def __post_init__(self) -> None:
        """Checks the sizes."""
        check_ranges("model", self, vocab_size=FROM_1, vector_size=FROM_1)

    google_news = Size("1,800,000,000 parameters, of which the 900,000,000 of the input table were published.")
    tiny = Size("100 numbers a word.", vocab_size=8192, vector_size=100)


class Word2Vec(nn.Module):
    """The tables `input_vectors` and `output_vectors`, float32 [V D] both."""

    config: Word2VecConfig

    def setup(self) -> None:
        """Inputs begin uniform in -1/2D .. 1/2D, outputs at 0 (word2vec.c, InitNet)."""
        sizes = (self.config.vocab_size, self.config.vector_size, "vocab")
        self.input_vectors = Embedding(*sizes, uniform(1 / (2 * self.config.vector_size)))
        self.output_vectors = Embedding(*sizes, nn.initializers.zeros)

    def __call__(
        self, input_ids: jax.Array, output_ids: jax.Array, *, deterministic: bool = True
    ) -> tuple[jax.Array, jax.Array]:
        """int [B T] and int [B ...] -> the inputs' vectors [B T D] and the outputs' vectors [B ... D]."""
        return self.input_vectors(input_ids), self.output_vectors(output_ids)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What predicts a word: the two architectures differ in it alone.

    `pairs`, float32 [B N T S], is 1 where the word t lies within the window of the word s. B N are stretches of rows, T
    S words, H is the number of what predicts in a stretch, K of drawn words.
    """

    def hidden(self, vectors: jax.Array, pairs: jax.Array) -> jax.Array:
        """Vectors of the words [B N T D] -> what predicts, [B N H D]."""
        raise NotImplementedError(f"{type(self).__name__} must say what predicts.")

    def predictions(self, pairs: jax.Array) -> jax.Array:
        """The weights of predictions: 1 where there is one."""
        raise NotImplementedError(f"{type(self).__name__} must say what is predicted.")

    def scores(self, hidden: jax.Array, outputs: jax.Array) -> jax.Array:
        """Of all predictions, shaped as their weights and K; the outputs of the words are [B N S D] or [B N S K D]."""
        raise NotImplementedError(f"{type(self).__name__} must score its predictions.")

    def asked(self, predictions: jax.Array) -> jax.Array:
        """How often each word is predicted, [B N S]."""
        raise NotImplementedError(f"{type(self).__name__} must count its predictions of a word.")

    def contrasts(self, predictions: jax.Array, differs: jax.Array) -> jax.Array:
        """In how many predictions by h a drawn word k is a negative, [B N H K].

        differs: float32 [B N S K], 1 where k is another word than s.
        """
        raise NotImplementedError(f"{type(self).__name__} must count its predictions beside a drawn word.")


@dataclasses.dataclass(frozen=True)
class SkipGram(Architecture):
    """Every neighbour t of a word s predicts it alone: H = T, and predictions are weighed as [B N T S].

    As in word2vec.c the window is that of the word that is predicted; in the paper it is the other's.
    """

    def hidden(self, vectors: jax.Array, pairs: jax.Array) -> jax.Array:
        return vectors

    def predictions(self, pairs: jax.Array) -> jax.Array:
        return pairs

    def scores(self, hidden: jax.Array, outputs: jax.Array) -> jax.Array:
        return jnp.einsum("BNTD,BNS...D->BNTS...", hidden, outputs)

    def asked(self, predictions: jax.Array) -> jax.Array:
        return jnp.sum(predictions, axis=2)

    def contrasts(self, predictions: jax.Array, differs: jax.Array) -> jax.Array:
        return jnp.einsum("BNTS,BNSK->BNTK", predictions, differs)


@dataclasses.dataclass(frozen=True)
class ContinuousBagOfWords(Architecture):
    """All neighbours of a word s predict it together: H = S, and predictions are weighed as [B N S].

    Of the mean, word2vec.c adds the gradient to each of the vectors whole and not by their share.
    """

    mean: bool = True
    """Predict from the mean of the vectors; otherwise from their sum."""

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

    def asked(self, predictions: jax.Array) -> jax.Array:
        return predictions

    def contrasts(self, predictions: jax.Array, differs: jax.Array) -> jax.Array:
        return predictions[..., None] * differs


SYSTEM = declare(
    System(
        Word2VecConfig,
        Kind.WORD_VECTORS,
        {Purpose.PRETRAINING: lambda config, execution: Word2Vec(config)},  # tables alone: all executions are the same
        parts=lambda config: (ParameterGroup(("input_vectors", "output_vectors")),),
        token_table="input_vectors/embedding",
        instead="put a layer above its vectors with experiments/static_vectors.py",
    )
)
