"""RoBERTa's pretraining objective (Liu et al. 2019, section 4): only the masked language model, with dynamic masks.

In a sequence of n tokens floor(0.15 n + u) are predicted, u uniform in [0, 1), so 0.15 n on average. A replacement is
never a special token (fairseq 0.12.2, data/mask_tokens_dataset.py).

Deviation: <s> and </s> count in n but are never chosen. fairseq chooses them as well. Their positions are known without
reading the text, and a target's nats would no longer be comparable with the unigram entropy of the text.
Deviation: <mask> is never a replacement; in fairseq's dictionary it follows the special tokens and may be drawn.
Deviation: with `whole_word` the fraction is of the tokens, as in BERT; in fairseq it is of the words.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.masked_language_model import MaskedLanguageModel


@dataclasses.dataclass(frozen=True)
class RobertaPretraining(MaskedLanguageModel):
    """Mean nats of the masked tokens (fairseq criterions/masked_lm.py)."""

    def budget(self, key: jax.Array, lengths: jax.Array, segments: jax.Array) -> jax.Array:
        """Return int [T]: predictions in each token's sequence, rounded up with the probability of their fraction."""
        draws = jax.random.uniform(key, (len(lengths) + 1,))[segments]  # the same for all tokens of a sequence
        rate = self.row_rate(jax.random.fold_in(key, 1))
        if not isinstance(rate, float):
            fractions, counts = jnp.modf(rate * lengths)
            return counts.astype(jnp.int32) + (draws < fractions)
        fractions, counts = np.modf(rate * np.arange(len(lengths) + 1))
        up = draws < jnp.array(fractions, jnp.float32)[lengths]
        return jnp.array(counts, jnp.int32)[lengths] + up

    def random_tokens(self, key: jax.Array, shape: tuple[int, ...], vocabulary: Vocabulary) -> jax.Array:
        """Return random tokens that are not special."""
        token = jax.random.randint(key, shape, 0, vocabulary.size - len(vocabulary.special), jnp.int32)
        for special in sorted(vocabulary.special):
            token += token >= special
        return token
