"""DistilBERT's masked language model, which masks rare tokens more often (huggingface examples/distillation, train.py).

Masked tokens are drawn without replacement. A token that occurs n times in the training text has the weight n^-0.7;
special tokens are never drawn. The idea is from XLM, where the weight is n^-0.5.

The tokens with the lowest -log(u) / weight are taken, u uniform in (0, 1). This is the same as drawing one token after
another in proportion to the weights that are left (Efraimidis and Spirakis 2006).

Deviation: every sequence has its own number of masked tokens, as in BERT. The released code draws 15 % of the tokens of
a batch, so that a sequence of rare tokens has more of them.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import FROM_0, check_ranges
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import ConstantSources


@dataclasses.dataclass(frozen=True)
class DistilBertPretraining(MaskedLanguageModel):
    """Mean nats of the masked tokens."""

    smoothing: float = 0.7
    """Exponent s of a token's weight n^-s; 0 draws all tokens alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("objective", self, smoothing=FROM_0)

    def constants(self, config: Any, sources: ConstantSources) -> Any:
        """Return the logarithm of the weight of every token, float32 [V]."""
        counts = np.maximum(sources.token_counts.astype(np.float64), 1)
        return {"log_weights": jnp.asarray(-self.smoothing * np.log(counts), jnp.float32)}

    def draws(self, key: jax.Array, ids: jax.Array, constants: Any) -> jax.Array:
        """Return the draw of each token, uint32 [T]: tokens with the lowest draws are predicted."""
        chex.assert_rank(ids, 1)
        times = jnp.log(jax.random.exponential(key, ids.shape)) - constants["log_weights"][ids]
        return jnp.argsort(jnp.argsort(times)).astype(jnp.uint32)
