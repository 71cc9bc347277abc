"""Translation in cross-view training (Clark et al., EMNLP 2018, arXiv 1809.08370, section 3.3).

An LSTM reads the words y of the translation so far, and bilinear attention reads the states h of the source:

    g_t = LSTM(y_{t-1}, g_{t-1})
    alpha_t = softmax over j of h_j W_alpha g_t
    a_t = tanh(W_a [sum over j of alpha_tj h_j ; g_t])
    p(y_t | y_<t, source) = softmax(W_s a_t + b)

The auxiliary decoders share the words and the LSTM with the primary decoder. Each has its own W_alpha, W_a, W_s and b:

    attention_dropout    elements of alpha_t are dropped at random: the decoder sees a part of the source
    future               p(y_t | y_<t-1, source) = softmax(W_s a_{t-1} + b): the decoder does not see y_{t-1}

Deviation: the paper does not give the initial state of the LSTM. Here it is zero, so a decoder reads the source only
through its own attention.
Deviation: the paper does not give the rate of attention dropout; the released code has no translation.
"""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.parameters import as_bias
from plmjax.contracts.scores import TokenScores
from plmjax.layers.dropout import Dropout
from plmjax.layers.initializers import uniform
from plmjax.layers.recurrent.lstm import Lstm, LstmState
from plmjax.layers.recurrent.luong_attention import LuongAttention
from plmjax.layers.tokens import first_of_each
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.cvt.cvt import PRIMARY, CvtConfig, States

TRANSLATION_VIEWS = ("attention_dropout", "future")
"""The auxiliary decoders."""


class TranslationHead(LuongAttention):
    """The separate parameters of each decoder, which computes attention, a_t, and the scores of the next word.

    words: vocabulary size of the target.
    dropout: dropout rate of a_t.
    attention_dropout: dropout rate of alpha_t.
    """

    words: int = 0
    dropout: float = 0.0
    output_axes: tuple[str, str] = ("embed", "mlp")

    @nn.compact
    def __call__(
        self, g: jax.Array, sentences: jax.Array, h: jax.Array, *, segment_ids: jax.Array, deterministic: bool
    ) -> TokenScores:
        """Return the scores of the word after each of U words.

        Args:
            g: [B U P], the states of the LSTM.
            sentences: int [B U], the segment of the source that each target word translates.
            h: [B T D], the states of the sources.
            segment_ids: int [B T], the segment of each source word, 0 for padding.
        """
        seen = (sentences[:, :, None] == segment_ids[:, None]) & (segment_ids > 0)[:, None]
        a = self.attend(g, h, seen, deterministic)
        kernel = nn.with_logical_partitioning(self.kernel_init, ("vocab", "embed"))
        zeros = as_bias(nn.initializers.zeros, ("vocab",))
        return VocabularyScores(
            Dropout(self.dropout)(a, deterministic),
            self.param("words", kernel, (self.words, self.features)),
            self.param("words_bias", zeros, (self.words,)),
        )


class TranslationModules(nn.Module):
    """The primary decoder and the auxiliary decoders, `TRANSLATION_VIEWS`.

    words: vocabulary size of the target.
    """

    config: CvtConfig
    dtype: jnp.dtype
    words: int

    def setup(self) -> None:
        config, dtype = self.config, self.dtype
        bound = uniform(math.sqrt(3 / config.word_dim))
        self.target = Embedding(self.words, config.word_dim, "vocab", bound, dtype)
        init = nn.initializers.glorot_uniform(in_axis=0, out_axis=-1)
        self.lstm = Lstm(config.projection_size, init, forget_bias=1.0, dtype=dtype)
        self.labelled_dropout, self.unlabelled_dropout = Dropout(config.dropout), Dropout(config.unlabelled_dropout)
        head = functools.partial(TranslationHead, config.projection_size, config.initializer, dtype, words=self.words)
        self.primary = head(dropout=config.dropout)
        self.attention_dropout = head(dropout=config.unlabelled_dropout, attention_dropout=config.attention_dropout)
        self.future = head(dropout=config.unlabelled_dropout)

    def __call__(
        self, states: States, tokens: dict[str, jax.Array], names: tuple[str, ...], deterministic: bool
    ) -> dict[str, TokenScores]:
        """Return a dict from each of these decoders' names to the scores of the next word, [B U V].

        At the position of y_{t-1} the primary decoder predicts y_t, and `future` predicts y_{t+1}.

        Args:
            tokens: `segment_ids` int [B T], the sentence of each word; `decoder_input_ids` int [B U], the words of the
                translations, each of which begins with the end mark; `decoder_segment_ids` int [B U], the sentence that
                each of these words translates, 0 for padding.
        """
        sentences = tokens["decoder_segment_ids"]
        dropout = self.labelled_dropout if PRIMARY in names else self.unlabelled_dropout
        words = dropout(self.target(tokens["decoder_input_ids"]), deterministic)
        g, _ = self.lstm(words, starts=first_of_each(sentences), visible=sentences > 0)
        given = {"segment_ids": tokens["segment_ids"], "deterministic": deterministic}
        return {name: getattr(self, name)(g, sentences, states[2], **given) for name in names}

    def write(
        self, states: States, segment_ids: jax.Array, sentences: jax.Array, *, words: jax.Array, before: LstmState
    ) -> tuple[jax.Array, LstmState]:
        """Compute one decode step of N translations per row, by the primary decoder without dropout.

        segment_ids: int [B T], the segment of each source word, 0 for padding.
        sentences: int [B N], the segment of the source of each translation.
        words: int [B N], the last word of each translation.
        before: state of the LSTM, with B N rows.

        Returns: scores of the next words, float32 [B N V]; and the state of the LSTM after these words.
        """
        g, after = self.lstm(self.target(words.reshape(-1, 1)), before)
        g = g.reshape(*words.shape, -1)
        return self.primary(g, sentences, states[2], segment_ids=segment_ids, deterministic=True).logits(), after
