"""NNLM: a neural probabilistic language model (Bengio, Ducharme, Vincent and Jauvin, JMLR 3, 2003).

Every word has an embedding. A word is predicted from the embeddings of the n-1 words before it. Embeddings and network
are learned together, so words in the same contexts get similar embeddings:

    x = (C(w_t-1), C(w_t-2), ..., C(w_t-n+1))
    y = b + W x + U tanh(d + H x)                       (equation 1; without direct connections W is 0)
    P(w_t | w_t-1, ..., w_t-n+1) = softmax(y)

It is trained by stochastic gradient ascent. The learning rate decreases as in `InverseTime`. Weight decay applies to
all weights and to C, but not to the biases b and d (section 2).

Deviation: in the paper the text is one stream of words. Here a row may hold the beginning of a text or several packed
sequences. If a sequence has fewer than n-1 words before the predicted word, the missing embeddings in x are 0.
Deviation: the paper does not give the initial weights; here they are normal, and the biases are 0.
"""

import dataclasses
from typing import ClassVar, Self

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.cache import Cache
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import as_bias
from plmjax.contracts.scores import TokenScores
from plmjax.contracts.sizes import Size
from plmjax.contracts.system import Kind, ParameterGroup, Purpose, System, declare
from plmjax.errors import FROM_0, FROM_1, UserError, check_ranges
from plmjax.layers.partitioning import shard_hidden
from plmjax.layers.projection import Projection
from plmjax.layers.tokens import check_token_inputs
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores


@dataclasses.dataclass(frozen=True)
class NnlmConfig(ModelConfig):
    """Sizes, in the letters of the paper; the defaults are those of its best model of the Brown corpus (table 1).

    Raises:
        UserError: a size is out of range, n is below 2, or there is neither a hidden layer nor direct connections.
    """

    vocab_size: int = 16_383
    """Vocabulary size, |V|."""
    vector_size: int = 30
    """Embedding size, m."""
    hidden_size: int = 100
    """Hidden size, h; 0 omits the hidden layer."""
    order: int = 5
    """Length of an n-gram in words, n: the predicted word and the words before it."""
    direct_connections: bool = False
    """True to connect the embeddings directly with the scores, through W, besides the hidden layer."""
    initializer_range: float = 0.1
    """Standard deviation of the normal distribution of initial weights."""

    depth: ClassVar[int] = 1
    field_names: ClassVar[dict[str, str]] = {"width": "vector_size"}

    def __post_init__(self) -> None:
        check_ranges("model", self, vocab_size=FROM_1, vector_size=FROM_1, hidden_size=FROM_0, initializer_range=FROM_0)
        if self.order < 2:
            raise UserError(
                f"Expected --model.order of at least 2, a word and one before it, found {self.order}; raise it."
            )
        if not self.hidden_size and not self.direct_connections:
            raise UserError(
                "Expected a hidden layer or direct connections, found neither; set --model.hidden_size above 0 or "
                "--model.direct_connections True."
            )

    brown = Size("The best model of the Brown corpus, without direct connections: 2,158,273 parameters.")
    ap_news = Size(
        "The model of Associated Press news, with direct connections (table 2): 11,904,264 parameters.",
        vocab_size=17_964,
        vector_size=100,
        hidden_size=60,
        order=6,
        direct_connections=True,
    )

    @property
    def context(self) -> int:
        """Size of the embeddings of n-1 words together, (n-1) m."""
        return (self.order - 1) * self.vector_size

    @property
    def features(self) -> int:
        """Size of the output layer's input: the hidden size and, with direct connections, `context`."""
        return self.hidden_size + self.direct_connections * self.context

    @property
    def initializer(self) -> Initializer:
        """Normal distribution, not truncated."""
        return nn.initializers.normal(self.initializer_range)

    def train_flops(self, batch_size: int, sequence_length: int, predictions: int) -> float:
        """Return the model FLOPs of one training step (backward = 2 x forward).

        There are `predictions` scored positions per row. Matrix products only: 6 (n-1) m h per token, and 6 |V| (h +
        (n-1) m) per prediction, without W 6 |V| h.
        """
        hidden = sequence_length * self.context * self.hidden_size
        return 6.0 * batch_size * (hidden + predictions * self.vocab_size * self.features)


@flax.struct.dataclass
class NnlmCache(Cache):
    """The last n-1 words that were read.

    words, mask: int32 [B n-1]; the mask is 0 where a row has no word.
    """

    words: jax.Array
    mask: jax.Array

    def append(self, words: jax.Array, mask: jax.Array | None) -> Self:
        """Return a cache with T new words, int [B T], and their mask after the old ones: n-1+T words per row."""
        mask = jnp.ones_like(words) if mask is None else mask
        pairs = (self.words, words), (self.mask, mask)
        return NnlmCache(*(jnp.concatenate([old, new.astype(jnp.int32)], axis=1) for old, new in pairs))

    def last(self, count: int) -> Self:
        """Return a cache with only the last `count` words."""
        return NnlmCache(self.words[:, -count:], self.mask[:, -count:])


@flax.struct.dataclass
class NnlmOutput:
    """The output of the model.

    last_hidden_state: [B T h + (n-1) m], the input of the output layer: tanh(d + H x) and, with direct connections, x.
    scores: scores of the next word at every position.
    cache: cache of the words so far, if a cache was given.
    """

    last_hidden_state: jax.Array
    scores: TokenScores
    cache: NnlmCache | None = None

    @property
    def logits(self) -> jax.Array:
        """The scores as an array, float32 [B T V]."""
        return self.scores.logits()


class Nnlm(nn.Module):
    """The model. C is `words`, H and d are `hidden`, U is `output`, W is `direct` and b is `output_bias`."""

    config: NnlmConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        *,
        positions: jax.Array | None = None,
        segment_ids: jax.Array | None = None,
        cache: NnlmCache | None = None,
        deterministic: bool = True,
    ) -> NnlmOutput:
        """Compute the scores of the word after each word, given that word and the n-2 words before it.

        Args:
            input_ids: int [B T].
            attention_mask: [B T], the padding mask, 1 for words, 0 for padding; all are words by default.
            positions: int [B T], the positions of words in their sequences; by default 0..T-1. The previous word is the
                word whose position is one less.
            segment_ids: int [B T], the packed sequence of each word, 0 for padding.
            cache: the words before these, of rows that hold one text each, without positions and segments.
            deterministic: no effect: the model has no dropout.

        Raises:
            ValueError: an input's shape does not fit the others', or a cache is given with positions or segments.
        """
        config, dtype, init = self.config, self.execution.dtype, self.config.initializer
        check_token_inputs(None, "", input_ids, attention_mask, positions, segment_ids)
        asked = input_ids.shape[1]
        if cache is not None:
            if positions is not None or segment_ids is not None:
                raise ValueError("Expected a cache without positions and segments; rows hold one text each.")
            read = cache.append(input_ids, attention_mask)
            input_ids, attention_mask, cache = read.words, read.mask, read.last(config.order - 1)
        sequences = jnp.ones_like(input_ids) if segment_ids is None else segment_ids
        sequences = sequences if attention_mask is None else sequences * attention_mask
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)

        words = Embedding(config.vocab_size, config.vector_size, "vocab", init, dtype, name="words")
        x = before(words(input_ids), sequences, positions, config.order - 1)  # [B T m] -> [B T (n-1)m]
        x = x[:, -asked:]
        features, tables = [], []
        if config.hidden_size:
            hidden = Projection((config.hidden_size,), ("embed", "mlp"), init, dtype, name="hidden")
            features.append(jnp.tanh(hidden(x)))
            tables.append(Embedding(config.vocab_size, config.hidden_size, "vocab", init, name="output").embedding)
        if config.direct_connections:
            features.append(x)
            tables.append(Embedding(config.vocab_size, config.context, "vocab", init, name="direct").embedding)
        zeros = as_bias(nn.initializers.zeros_init(), ("vocab",))
        bias = self.param("output_bias", zeros, (config.vocab_size,))
        last = shard_hidden(jnp.concatenate(features, axis=-1))
        return NnlmOutput(last, VocabularyScores(last, jnp.concatenate(tables, axis=-1), bias), cache)


def before(vectors: jax.Array, sequences: jax.Array, positions: jax.Array, words: int) -> jax.Array:
    """Compute x for every position: the embeddings of the last `words` words, the latest word first.

    vectors: [B T m], the embeddings.
    sequences: int [B T], the sequence of each word; 0 for padding.
    positions: int [B T], as for the model.

    Returns:
        [B T words*m], 0 where the sequence has no such word.
    """
    length, found = vectors.shape[1], []
    for distance in range(words):

        def back(row: jax.Array, distance: int = distance) -> jax.Array:
            return jnp.pad(row, [(0, 0), (distance, 0), *[(0, 0)] * (row.ndim - 2)])[:, :length]

        there = (back(sequences) == sequences) & (sequences > 0) & (positions - back(positions) == distance)
        found.append(jnp.where(there[..., None], back(vectors), 0))
    return jnp.concatenate(found, axis=-1)


def _cache(config: NnlmConfig, batch: int, capacity: int, execution: Execution) -> NnlmCache:
    """Return an empty cache of n-1 words, for any capacity."""
    none = jnp.zeros((batch, config.order - 1), jnp.int32)
    return NnlmCache(none, none)


def _parts(config: NnlmConfig) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups: the embeddings, the hidden layer, and the output layer."""
    scores = ParameterGroup(("output", "direct", "output_bias"))
    return ParameterGroup(("words",)), ParameterGroup(("hidden",)), scores


SYSTEM = declare(
    System(
        NnlmConfig,
        Kind.DECODER,
        {Purpose.PRETRAINING: Nnlm, Purpose.CAUSAL_LM: Nnlm},
        parts=_parts,
        cache=_cache,
        token_table="words/embedding",
        instead="put a layer above its vectors with experiments/static_vectors.py",
    )
)
