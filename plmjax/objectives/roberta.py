"""RoBERTa's pretraining task (Liu et al. 2019, section 4): the masked language model alone, masked anew every time.

Of a sequence of n tokens floor(0.15 n + u) are predicted, u uniform in [0, 1), so that 0.15 n are on average, and a
replacement is never a special token (fairseq 0.12.2, data/mask_tokens_dataset.py).

Deviation: <s> and </s> count in n but are never chosen. fairseq draws from them as well; where they stand is known
without reading the text, and a target's nats would no longer compare with the unigram entropy of the text.
Deviation: <mask> is never a replacement; in fairseq's dictionary it follows the special tokens and may be drawn.
Deviation: with `whole_word` the share is of the tokens, as in BERT; fairseq takes it of the words.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class RobertaPretraining(MaskedLanguageModel):
    """mean nats of the hidden tokens (fairseq criterions/masked_lm.py)."""

    def _budget(self, key: jax.Array, lengths: jax.Array, segments: jax.Array) -> jax.Array:
        """int [T]: the share of each token's sequence, rounded up as often as its fraction says."""
        fractions, counts = np.modf(self.rate * np.arange(len(lengths) + 1))
        draws = jax.random.uniform(key, (len(lengths) + 1,))[segments]  # the same in all of a sequence
        up = draws < jnp.array(fractions, jnp.float32)[lengths]
        return jnp.array(counts, jnp.int32)[lengths] + up

    def _random_tokens(self, key: jax.Array, shape: tuple[int, ...], vocabulary: Vocabulary) -> jax.Array:
        """Any token that is not special."""
        token = jax.random.randint(key, shape, 0, vocabulary.size - len(vocabulary.special), jnp.int32)
        for special in sorted(vocabulary.special):
            token += token >= special
        return token
