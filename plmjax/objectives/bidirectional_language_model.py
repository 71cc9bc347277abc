"""The bidirectional language model: every word is predicted from the words before it, and from the words after it.

This is ELMo's objective (Peters et al., NAACL 2018, arXiv 1802.05365, section 3.1; allenai/bilm-tf bilm/training.py):

    loss = mean over both directions and all words of -log softmax(score)[word]

In training the softmax is over the word and sampled words (plmjax/objectives/sampled_softmax.py). The samples are the
same for all words of a batch, and differ between the directions. In evaluation the softmax is over the vocabulary.
States are carried from batch to batch, and are zero where a document begins.

Deviation: the released code carries its states over all sentences, across documents.
Deviation: training reads a word outside the vocabulary as the spelling of the unknown token. In the released code it
has its own spelling, as it has here after training.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_0, UserError, check_ranges
from plmjax.layers.words.characters import sentence_marks, spell
from plmjax.models.elmo import ElmoConfig
from plmjax.objectives import sampled_softmax
from plmjax.objectives.capabilities import ReadsDirections
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, Objective, apply

PREFIXES = {"forward": "", "backward": "backward_"}
"""Direction -> prefix of its field names in the rows of `BidirectionalStreams`."""


@dataclasses.dataclass(frozen=True)
class BidirectionalLanguageModel(ReadsDirections, Objective):
    """Mean nats of a word in both directions, for rows of `BidirectionalStreams`."""

    directions: ClassVar[tuple[str, ...]] = tuple(PREFIXES)

    negatives: int = 8192
    """Number of words to sample for the softmax in training; 0 takes the whole vocabulary."""

    def __post_init__(self) -> None:
        check_ranges("objective", self, negatives=FROM_0)

    def constants(self, config: ElmoConfig, sources: ConstantSources) -> Any:
        """Return the constants. spelling: the characters of every token, int32 [V C].

        Raises:
            UserError: there are more samples than words, or words are not in the order of their frequency.
        """
        if self.negatives >= config.vocab_size:
            raise UserError(
                f"Expected --objective.negatives below the {config.vocab_size} words of the model, found "
                f"{self.negatives}; lower it, or set 0 for all words."
            )
        if self.negatives:
            sampled_softmax.check_order(sources.token_counts, sources.vocabulary.special)
        vocabulary, length = sources.vocabulary, config.max_characters_per_token
        table = np.zeros((config.vocab_size, length), np.int32)
        table[: vocabulary.size] = spell(sources.texts(), length)
        for role, mark in zip((vocabulary.begin, vocabulary.end), sentence_marks(length), strict=True):
            if role >= 0:
                table[role] = mark
        return {"spelling": nn.LogicallyPartitioned(table, (None, None))}

    def initial_carry(
        self, config: ElmoConfig, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Any:
        """Return zero states of all layers in both directions, float32."""

        def named(state: jax.Array) -> Any:
            return nn.LogicallyPartitioned(state, ("batch", None))

        return jax.tree.map(named, config.zero_states(batch_size))

    def carry_inputs(self, carry: Any) -> dict[str, Any]:
        return {"states": carry}

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Add the characters, int32 [B T C], of both directions, and a key for every row.

        All rows have the same key, because all words share the samples.
        """
        table, data = constants["spelling"], jax.random.key_data(key)
        spellings = {f"{prefix}characters": table[batch[f"{prefix}input_ids"]] for prefix in PREFIXES.values()}
        return batch | spellings | {"draws": jnp.broadcast_to(data, (len(batch["input_ids"]), *data.shape))}

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        return {
            "characters": {way: batch[f"{prefix}characters"] for way, prefix in PREFIXES.items()},
            "starts": {way: batch[f"{prefix}document_starts"] for way, prefix in PREFIXES.items()},
            "visible": {way: batch[f"{prefix}segment_ids"] > 0 for way, prefix in PREFIXES.items()},
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"language_model": jnp.maximum(jnp.sum(self.targets(batch)[1]), 1e-9)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        """Return the nats of the words, in total and for each direction. Evaluation also counts correct predictions."""
        found = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        loss, metrics = jnp.zeros(()), {}
        for number, (way, prefix) in enumerate(PREFIXES.items()):
            scores, ids, weights = found.scores[way], batch[f"{prefix}next_ids"], batch[f"{prefix}next_weights"]
            sampled = training and self.negatives > 0
            if sampled:
                draws_key = jax.random.fold_in(jax.random.wrap_key_data(batch["draws"][0]), number)
                draws = sampled_softmax.draw(draws_key, scores.vocab_size, self.negatives)
                scores = sampled_softmax.SampledScores(scores, draws)
            nats, likeliest = scores.weighted_cross_entropy(ids, weights)
            if not sampled:
                metrics[f"{way}_accuracy"] = jnp.sum(weights * likeliest), jnp.sum(weights)
            metrics[f"{way}_nats"] = nats, jnp.sum(weights)
            loss += nats
        return LossSums({"language_model": loss}, metrics, found.states)

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        fields = [(batch[f"{prefix}next_ids"], batch[f"{prefix}next_weights"]) for prefix in PREFIXES.values()]
        ids, weights = (jnp.concatenate(both, axis=1) for both in zip(*fields, strict=True))
        return ids, weights

    def train_flops(self, config: ElmoConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the model's FLOPs. Its predictions score the sampled words and the word itself."""
        rows, length = batch["input_ids"].shape
        words = self.negatives + 1 if self.negatives else config.vocab_size
        return config.train_flops(rows, length, length * words / config.vocab_size)
