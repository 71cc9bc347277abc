"""Skip-gram with negative sampling: token counts become constants, and an evaluation draws too; a third stranger."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.layers.embeddings import Embedding
from plmjax.layers.execution import Execution
from plmjax.layers.model_config import ModelConfig
from plmjax.objectives.objective import Batch, Given, Materials, Objective, Sums, apply
from plmjax.vocabulary import Vocabulary

INIT = nn.initializers.normal(0.1)


@dataclasses.dataclass(frozen=True)
class SkipGramConfig(ModelConfig):
    """Sizes."""

    vocab_size: int = 64
    width: int = 16
    depth: int = 1

    def for_pretraining(self, execution: Execution) -> "SkipGramModel":
        return SkipGramModel(self)


class SkipGramModel(nn.Module):
    """Scores of pairs of words: centres int [B T], others int [B T K] -> float32 [B T K]."""

    config: SkipGramConfig

    @nn.compact
    def __call__(self, centres: jax.Array, others: jax.Array, *, deterministic: bool) -> jax.Array:
        sizes = (self.config.vocab_size, self.config.width, "vocab", INIT)
        words, contexts = Embedding(*sizes, name="words"), Embedding(*sizes, name="contexts")
        return jnp.einsum("BTD,BTKD->BTK", words(centres), contexts(others))


@dataclasses.dataclass(frozen=True)
class NegativeSampling(Objective):
    """log s(v_c u_o) + sum over K drawn words log s(-v_c u_n), for every neighbour o of a centre c."""

    window: int = 2
    negatives: int = 5
    power: float = 0.75
    threshold: float = 0.05

    def constants(self, config: SkipGramConfig, materials: Materials) -> dict[str, Any]:
        """Cumulative shares of counts^power to draw from; chance that a word is kept, smaller for frequent ones."""
        counts = materials.token_counts.astype(np.float64) + 1e-9
        noise, shares = np.cumsum(counts**self.power), counts / counts.sum()
        kept = np.minimum(1.0, np.sqrt(self.threshold / shares))
        tables = {"noise": noise / noise[-1], "kept": kept}
        return {name: nn.LogicallyPartitioned(np.float32(table), ("vocab",)) for name, table in tables.items()}

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Leaves frequent words out and pairs each word with those beside it: pair_ids, pair_weights [B T 2 window]."""
        ids, length = batch["input_ids"], batch["input_ids"].shape[1]
        there = (batch["segment_ids"] > 0) & (jax.random.uniform(key, ids.shape) < constants["kept"][ids])
        offsets = np.array([offset for offset in range(-self.window, self.window + 1) if offset])
        places = np.arange(length)[:, None] + offsets
        within, places = (places >= 0) & (places < length), places.clip(0, length - 1)
        weights = there[:, :, None] & there[:, places] & within
        return batch | {"pair_ids": ids[:, places], "pair_weights": weights.astype(jnp.float32)}

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {"centres": batch["input_ids"], "others": batch["others"] if "others" in batch else batch["pair_ids"]}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"pairs": jnp.maximum(jnp.sum(batch["pair_weights"]), 1e-9)}

    def sums(self, module: nn.Module, given: Given, batch: Batch, key: jax.Array, *, training: bool) -> Sums:
        neighbours, weights = self.targets(batch)
        uniform = jax.random.uniform(key, (*neighbours.shape, self.negatives))
        drawn = jnp.searchsorted(given.constants["noise"], uniform).clip(0, len(given.constants["noise"]) - 1)
        others = jnp.concatenate([neighbours[..., None], drawn], axis=-1)  # [B T 2 window, 1 + negatives]
        shown = batch | {"others": others.reshape(*others.shape[:2], -1)}
        scores = apply(self, module, given, shown, key, training=training).reshape(others.shape)
        nats = jax.nn.softplus(-scores[..., 0]) + jnp.sum(jax.nn.softplus(scores[..., 1:]), axis=-1)
        loss, hits = jnp.sum(weights * nats), jnp.sum(weights * (scores[..., 0] > scores[..., 1:].max(-1)))
        return Sums({"pairs": loss}, {"accuracy": (hits, jnp.sum(weights))})

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["pair_ids"], batch["pair_weights"]

    def train_flops(self, config: SkipGramConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        return 6.0 * batch["input_ids"].size * 2 * self.window * (1 + self.negatives) * config.width
