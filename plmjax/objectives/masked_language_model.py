"""The masked language model (BERT section 3.1, google-research/bert create_pretraining_data.py): restore masked tokens.

Rows are corrupted inside the jitted step. Fields added to a batch, for P predicted positions a row:

    masked_positions   int32 [B P]     positions in ascending order; 0 if a row has fewer
    masked_ids         int32 [B P]     the original tokens there
    masked_weights     float32 [B P]   1 for a prediction, 0 for padding

Deviation: with `whole_word`, a continuation that follows [CLS] or [SEP] begins a word; the released code appends it to
the word before, across the separator.
"""

import dataclasses
import math
from typing import Any, Self

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FRACTION, FROM_0, UserError, check_ranges, nearest, quoted
from plmjax.objectives.choosing import draw_words, ranks, sequence_lengths, strict_draws
from plmjax.objectives.objective import Batch, LossInputs, LossSums, Objective, apply, cross_entropy

MASKING = ("dynamic", "static")


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModel(Objective):
    """Prediction of masked tokens by an encoder whose module takes `masked_positions`.

    Raises:
        UserError: an unknown kind of masking, or fractions out of their range.
    """

    rate: float = 0.15
    """Share of a sequence's tokens to predict; [CLS] and [SEP] are counted, but only chosen by `choose_special`."""
    lowest_rate: float = 0.0
    """If above 0, a rate between it and `rate` is drawn for each row."""
    evaluation_rate: float = 0.0
    """The rate of evaluations; 0 takes `rate`, and `lowest_rate`."""
    choose_special: bool = False
    """Choose among all tokens, [CLS] and [SEP] too, as ModernBERT's released code does."""
    mask_fraction: float = 0.8
    """Share of the predicted tokens that are replaced by [MASK]."""
    random_fraction: float = 0.1
    """Share of the predicted tokens that are replaced by a token drawn from the whole vocabulary."""
    max_predictions: int = 0
    """Maximum number of predictions in a sequence; 0 derives it from `rate` and the longest sequence."""
    whole_word: bool = False
    """Choose whole words instead of single tokens."""
    masking: str = "dynamic"
    """dynamic draws new masks at every step; static gives a row the same mask in every epoch."""
    static_seed: int = 0
    """Random seed of static masks."""

    def __post_init__(self) -> None:
        if self.masking not in MASKING:
            raise UserError(
                f"Expected a known --objective.masking, found {quoted(self.masking)}; {nearest(self.masking, MASKING)}"
            )
        check_ranges("objective", self, max_predictions=FROM_0)
        if not (0 < self.rate < 1 and min(self.mask_fraction, self.random_fraction) >= 0):
            raise UserError(f"Expected a masking rate between 0 and 1 and shares from 0, found {self}; change them.")
        check_ranges("objective", self, evaluation_rate=FRACTION)
        if not 0 <= self.lowest_rate <= self.rate:
            raise UserError(
                f"Expected --objective.lowest_rate from 0 to the rate {self.rate}, found {self.lowest_rate}; change it."
            )
        if self.mask_fraction + self.random_fraction > 1:
            raise UserError(
                f"Expected shares of masked and random tokens that add up to at most 1, found {self.mask_fraction} and "
                f"{self.random_fraction}; lower one of them."
            )

    def module(self, config: Any, execution: Execution) -> nn.Module:
        return config.module(Purpose.MASKED_TOKENS, execution)

    def module_for_masks(self, config: Any, execution: Execution) -> nn.Module:
        """Return the module that fills masks, whose parameters are among those of `module`."""
        return config.module(Purpose.MASKED_TOKENS, execution)

    def in_evaluation(self) -> Self:
        if not self.evaluation_rate:
            return self
        return dataclasses.replace(self, rate=self.evaluation_rate, lowest_rate=0.0)

    def predictions(self, batch: dict[str, jax.ShapeDtypeStruct] | Batch) -> int:
        """Return P, the capacity for predictions: those of a full row, plus one per sequence if several are packed."""
        sequences = batch["cls_positions"].shape[1] if "cls_positions" in batch else 1
        room = math.ceil(self.rate * batch["input_ids"].shape[1]) + (sequences if sequences > 1 else 0)
        return min(room, sequences * self.max_predictions) if self.max_predictions else room

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Choose positions and replace their tokens.

        In a sequence of n tokens, max(1, round(rate n)) are chosen, but at most `max_predictions` if this is above 0.
        They are drawn uniformly and without replacement. Fewer are chosen if the sequence has fewer tokens to choose
        from, or if no further word fits (`whole_word`).

        Raises:
            UserError: the tokenizer has no [MASK], or does not know the continuations of words.
        """
        if vocabulary.mask < 0:
            raise UserError("Expected a tokenizer with a mask token, found none; train or take a wordpiece tokenizer.")
        if self.whole_word and vocabulary.continuation is None:
            raise UserError(
                "Expected a tokenizer that marks the continuation of words, found one that does not; "
                "set --objective.whole_word False."
            )
        check_rows(batch)
        rows = len(batch["input_ids"])
        if self.masking == "static":
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(self.static_seed), batch["row_ids"])
        else:
            keys = jax.random.split(key, rows)
        room = self.predictions(batch)

        def corrupt_row(key: jax.Array, ids: jax.Array, segments: jax.Array) -> Batch:
            order, replacement = jax.random.split(key)
            chosen = self.choose(order, ids, segments, vocabulary=vocabulary, constants=constants)
            length = len(ids)
            positions = jnp.sort(jnp.where(chosen, jnp.arange(length), length))[:room]
            weights = positions < length
            targets = jnp.where(weights, jnp.take(ids, positions, mode="clip"), 0)
            changed = self._replace(replacement, targets, vocabulary)
            return {
                "input_ids": ids.at[positions].set(changed, mode="drop"),
                "masked_positions": jnp.where(weights, positions, 0),
                "masked_ids": targets,
                "masked_weights": weights.astype(jnp.float32),
            }

        return batch | jax.vmap(corrupt_row)(keys, batch["input_ids"], batch["segment_ids"])

    def choose(
        self, key: jax.Array, ids: jax.Array, segments: jax.Array, *, vocabulary: Vocabulary, constants: Any = ()
    ) -> jax.Array:
        """Return bool [T]: the tokens of a row to predict."""
        eligible = self._eligible(ids, segments, vocabulary)
        budget = self.budget(jax.random.fold_in(key, 1), sequence_lengths(segments), segments)
        budget = jnp.minimum(budget, self.max_predictions) if self.max_predictions else budget
        draws = self.draws(key, ids, constants)
        if not self.whole_word:
            return eligible & (ranks(draws, segments, eligible) <= budget)

        starts = word_starts(ids, segments, eligible, vocabulary)
        words = jnp.where(eligible, jnp.cumsum(starts), 0)
        sizes = jnp.zeros(len(ids) + 1, jnp.int32).at[words].add(1)[words]
        taken = draw_words(jnp.where(starts, sizes, 0), draws, segments, budget)
        return eligible & jnp.zeros(len(ids) + 1, bool).at[words].max(taken)[words]

    def _eligible(self, ids: jax.Array, segments: jax.Array, vocabulary: Vocabulary) -> jax.Array:
        """Return bool [T]: the tokens of a row that may be chosen."""
        return segments > 0 if self.choose_special else eligible_tokens(ids, segments, vocabulary)

    def row_rate(self, key: jax.Array) -> jax.Array | float:
        """Return the rate of a row: a number that is the same for all rows, or a float32 scalar drawn from the key.

        It is at most `rate`, for which a row has room.
        """
        return jax.random.uniform(key, minval=self.lowest_rate, maxval=self.rate) if self.lowest_rate else self.rate

    def draws(self, key: jax.Array, ids: jax.Array, constants: Any) -> jax.Array:
        """Return uint32 [T], no two equal: the tokens or words with the lowest draws are predicted."""
        return strict_draws(key, len(ids))

    def budget(self, key: jax.Array, lengths: jax.Array, segments: jax.Array) -> jax.Array:
        """Return int [T]: predictions in each token's sequence, rounded half to even as in the released code."""
        rate = self.row_rate(key)
        if not isinstance(rate, float):
            return jnp.maximum(1, jnp.round(rate * lengths)).astype(jnp.int32)
        counts = [max(1, round(rate * n)) for n in range(len(lengths) + 1)]
        return jnp.array(counts, jnp.int32)[lengths]

    def _replace(self, key: jax.Array, ids: jax.Array, vocabulary: Vocabulary) -> jax.Array:
        """Return the tokens [P] that the encoder sees in place of the chosen ones."""
        kind, token = jax.random.split(key)
        kind = jax.random.uniform(kind, ids.shape)
        token = self.random_tokens(token, ids.shape, vocabulary)
        other = jnp.where(kind < self.mask_fraction + self.random_fraction, token, ids)
        return jnp.where(kind < self.mask_fraction, vocabulary.mask, other)

    def random_tokens(self, key: jax.Array, shape: tuple[int, ...], vocabulary: Vocabulary) -> jax.Array:
        """Return random tokens; any token may be drawn, including special ones."""
        return jax.random.randint(key, shape, 0, vocabulary.size, jnp.int32)

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        names = ("input_ids", "segment_ids", "positions", "token_type_ids", "masked_positions")
        return {name: batch[name] for name in names if name in batch}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number of predictions. The released code adds 1e-5."""
        return {"mlm": jnp.sum(batch["masked_weights"]) + 1e-5}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        return self.masked_sums(apply(self, module, loss_inputs, batch=batch, key=key, training=training).logits, batch)

    @staticmethod
    def masked_sums(logits: jax.Array, batch: Batch) -> LossSums:
        """Return the masked language model's sums from logits [B P V]."""
        chex.assert_equal_shape([batch["masked_ids"], batch["masked_weights"]])
        chex.assert_shape(logits, (*batch["masked_ids"].shape, None))
        # One axis of positions, as in the head: with two of them libtpu would copy the scores.
        logits = logits.reshape(-1, logits.shape[-1])
        ids, weights = batch["masked_ids"].reshape(-1), batch["masked_weights"].reshape(-1)
        loss = jnp.sum(weights * cross_entropy(logits, ids))
        count = jnp.sum(weights)
        # The prediction is correct iff the target's logit is the largest. The loss has computed this maximum already.
        chosen = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
        hits = jnp.sum(weights * (chosen >= jnp.max(logits, axis=-1)))
        return LossSums({"mlm": loss}, {"mlm_loss": (loss, count), "mlm_accuracy": (hits, count)})

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["masked_ids"], batch["masked_weights"]

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        return config.train_flops(*batch["input_ids"].shape, self.predictions(batch))


def check_rows(batch: Batch) -> None:
    """Check that a clean batch has tokens and segments, integers [B T], and row numbers [B]."""
    rows = batch["input_ids"], batch["segment_ids"]
    chex.assert_rank(rows, 2)
    chex.assert_equal_shape(rows)
    chex.assert_type(rows, int)
    chex.assert_shape(batch["row_ids"], (len(rows[0]),))


def eligible_tokens(ids: jax.Array, segments: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Return bool [T]: the tokens of a row that may be chosen."""
    return (segments > 0) & ~jnp.isin(ids, jnp.array(vocabulary.special, jnp.int32))


def word_starts(ids: jax.Array, segments: jax.Array, eligible: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """Return bool [T]: the first tokens of the words of a row."""
    before = jnp.concatenate([jnp.zeros(1, bool), eligible[:-1] & (segments[1:] == segments[:-1])])
    return eligible & ~(jnp.asarray(vocabulary.continuation)[ids] & before)
