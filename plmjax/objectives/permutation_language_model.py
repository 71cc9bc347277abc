"""XLNet's pretraining objective: predict each token from all tokens before it in a random order.

Yang et al., arXiv 1906.08237, sections 2.2 to 2.5; zihangdai/xlnet data_utils.py, train.py.

Rows are such as `ContinuedPairs` gives: the first half continues a text, the second half is `A [SEP] B [SEP] [CLS]`.
Each half has its own order, and the first half sees nothing of the second. Within a half,

    tokens that are not predicted come first, and see each other; the other tokens follow in a random order. Each sees
    the tokens before it; a predicted token does not see itself.

Spans of 1 to 5 tokens are predicted, p(n) = 1/n / (1/1 + ... + 1/5). Each span lies in a context of 6 n tokens, so that
a sixth of the tokens is predicted, and begins with a word. Single tokens complete the number. [SEP] and [CLS] take part
in the order, but are not predicted.

The memory has the inputs of every layer for the last tokens of the first halves. The second half does not enter the
memory, because the next row reads its text again.

Deviation: every step draws new orders and spans; in the released code spans are drawn once, with the data.
Deviation: the memory before the first row is empty; in the released code it is zeros, which are visible.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_0, FROM_1, UserError, check_choice, check_ranges
from plmjax.models.xlnet.xlnet import XlnetConfig, XlnetMemory
from plmjax.objectives.capabilities import DOCUMENTS, check_memory
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, Objective, apply


@dataclasses.dataclass(frozen=True)
class PermutationLanguageModel(Objective):
    """Mean nats of the predicted tokens, each given the tokens before it in a random order of its row."""

    predictions: int = 0
    """Number of tokens of a row to predict; 0: a sixth of its tokens (85 of 512)."""
    permutation_size: int = 0
    """Number of tokens that are permuted together. Each half of a row is cut into parts of this size, which follow each
    other and have the same order; 0: a half is one part."""
    memory_length: int = 384
    """Number of tokens before a row that it remembers; 0: no memory."""
    documents: str = "joined"
    """joined: the memory goes on from one document to the next, as in the released code; apart: the row that has a
    document's first token in its first half sees no memory, and nothing before the document is remembered."""
    longest_span: int = 5
    """Maximum number of tokens in a span."""
    context: int = 6
    """Number of tokens of a span's context, for each token of the span."""

    def __post_init__(self) -> None:
        check_choice("--objective.documents", self.documents, DOCUMENTS)
        sizes = dict.fromkeys(("predictions", "permutation_size", "memory_length"), FROM_0)
        check_ranges("objective", self, **sizes, longest_span=FROM_1, context=FROM_1)

    def constants(self, config: XlnetConfig, sources: ConstantSources) -> tuple[()]:
        """Return no constants.

        Raises:
            UserError: the training text is shorter than the memory.
        """
        check_memory(self.memory_length, "objective.memory_length", sources)
        return ()

    def goals(self, length: int) -> tuple[int, int]:
        """Return the number of tokens to predict in each half of a row of `length` tokens.

        Raises:
            UserError: the row is too short for the predictions, or the parts do not fill its halves.
        """
        total, half = self.predictions or length // 6, length // 2
        goals = total - total // 2, total // 2
        size = self.permutation_size or half
        if length % 2 or half % size:
            raise UserError(
                f"Expected halves of a row that divide into parts of --objective.permutation_size {size} tokens, found "
                f"rows of {length}; change --data.sequence_length or the size of the parts."
            )
        predictable = half - 3  # without [SEP] twice and [CLS]
        if not (0 < goals[0] < half and goals[1] < predictable):
            raise UserError(
                f"Expected rows whose halves hold more tokens than the {goals[0]} and {goals[1]} to predict, found "
                f"{half} and {max(predictable, 0)}; raise --data.sequence_length or lower --objective.predictions."
            )
        return goals

    def model_inputs(self, batch: Batch) -> dict[str, Any]:
        names = ("input_ids", "token_type_ids", "ranks", "target_positions", "backwards")
        inputs = {name: batch[name] for name in names}
        return inputs | {"attention_mask": batch["segment_ids"], "reuse_length": batch["input_ids"].shape[1] // 2}

    def carry_inputs(self, carry: Any) -> dict[str, Any]:
        return {"memory": carry} if self.memory_length else {}

    def initial_carry(
        self, config: XlnetConfig, batch_size: int, sequence_length: int, dtype: jnp.dtype = jnp.float32
    ) -> Any:
        if not self.memory_length:
            return ()
        memory = XlnetMemory.empty(config, batch_size, self.memory_length, dtype)
        return XlnetMemory(
            nn.LogicallyPartitioned(memory.states, ("layers", "batch", "length", "embed")),
            nn.LogicallyPartitioned(memory.mask, ("batch", "length")),
        )

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Add the order of every row, int32 [B T], and the positions, ids and weights of its predictions, [B P]."""
        ids, length = batch["input_ids"], batch["input_ids"].shape[1]
        goals, half = self.goals(length), length // 2
        functional = (ids == vocabulary.sep) | (ids == vocabulary.cls)
        continues = vocabulary.continuation
        begins = jnp.ones(ids.shape, bool) if continues is None else ~jnp.asarray(continues)[ids]

        def permute_half(
            key: jax.Array, functional: jax.Array, begins: jax.Array, *, backwards: jax.Array, goal: int
        ) -> tuple[jax.Array, jax.Array]:
            spans, permutation = jax.random.split(key)
            forward = jnp.where(backwards, begins[::-1], begins)
            chosen = draw_spans(spans, forward, goal, longest=self.longest_span, context=self.context)
            chosen = jnp.where(backwards, chosen[::-1], chosen)
            order = draw_order(permutation, half, self.permutation_size or half)
            return jnp.where(chosen | functional, 1 + order, 0), chosen & ~functional

        def permute_row(key: jax.Array, functional: jax.Array, begins: jax.Array, backwards: jax.Array) -> tuple:
            ranks, targets = zip(
                *(
                    permute_half(one, functional[part], begins[part], backwards=backwards, goal=goal)
                    for one, part, goal in zip(
                        jax.random.split(key), (slice(half), slice(half, length)), goals, strict=True
                    )
                ),
                strict=True,
            )
            # The second half follows all ranks of the first, 0 to half.
            ranks = jnp.concatenate([ranks[0], ranks[1] + half + 1])
            (places,) = jnp.nonzero(jnp.concatenate(targets), size=sum(goals), fill_value=length)
            return ranks.astype(jnp.int32), places.astype(jnp.int32)

        keys = jax.random.split(key, len(ids))
        ranks, places = jax.vmap(permute_row)(keys, functional, begins, batch["backwards"])
        real = batch["segment_ids"][:, 0] > 0  # false for rows that only fill up a batch
        return batch | {
            "ranks": ranks,
            "target_positions": places,
            "target_ids": jnp.take_along_axis(ids, jnp.minimum(places, length - 1), axis=1),
            "target_weights": ((places < length) & real[:, None]).astype(jnp.float32),
        }

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"permutation_language_model": jnp.maximum(jnp.sum(batch["target_weights"]), 1e-9)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        if self.memory_length and self.documents == "apart":
            loss_inputs = loss_inputs.replace(carry=_without_earlier_documents(loss_inputs.carry, batch))
        outputs = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        ids, weights = self.targets(batch)
        nats, likeliest = outputs.scores.weighted_cross_entropy(ids, weights)
        carry = loss_inputs.carry
        if self.memory_length:
            carry = _from_last_document(outputs.memory, batch) if self.documents == "apart" else outputs.memory
        accuracy = jnp.sum(weights * likeliest), jnp.sum(weights)
        return LossSums({"permutation_language_model": nats}, {"accuracy": accuracy}, carry)

    def targets(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["target_ids"], batch["target_weights"]

    def train_flops(self, config: XlnetConfig, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        rows, length = batch["input_ids"].shape
        return config.train_flops(rows, length, sum(self.goals(length)), self.memory_length)


def draw_spans(key: jax.Array, begins: jax.Array, goal: int, *, longest: int, context: int) -> jax.Array:
    """Draw `goal` tokens of a text to predict, most of them in spans (`_sample_mask` of the release).

    At the end of the last context, n is drawn, and a place in the next context of n * `context` tokens. The span begins
    at the first word from this place on, and has n tokens. The rest of the context follows it. A span that would reach
    the end of the text ends the drawing, and single tokens complete the number.

    Args:
        begins: bool [T], true for tokens that begin a word.
        goal: number of tokens to predict, below T.
        longest: maximum n.
        context: number of tokens of a context for each token of its span.

    Returns:
        bool [T], with `goal` tokens.
    """
    length, places = len(begins), jnp.arange(len(begins))
    # The first word from each place on; T where there is none, also beyond the end.
    following = jax.lax.cummin(jnp.where(begins, places, length), reverse=True)
    following = jnp.concatenate([following, jnp.full(1, length, following.dtype)])

    def span(state: tuple, key: jax.Array) -> tuple[tuple, tuple]:
        place, left, running = state
        size_key, place_key = jax.random.split(key)
        size = 1 + jax.random.categorical(size_key, -jnp.log(jnp.arange(1.0, longest + 1)))
        size = jnp.minimum(size, left)
        before = jnp.floor(jax.random.uniform(place_key) * size * context).astype(jnp.int32)
        begin = following[jnp.minimum(place + before, length)]
        end = begin + size
        running &= (place < length) & (left > 0) & (end < length)
        place = jnp.where(running, end + size * context - before, place)
        taken = jnp.where(running, begin, length), jnp.where(running, end, length)
        return (place, left - size * running, running), taken

    order, spans = jax.random.split(key)
    state = jnp.int32(0), jnp.int32(goal), jnp.bool_(True)
    (_, left, _), (first, end) = jax.lax.scan(span, state, jax.random.split(spans, goal))
    chosen = jnp.any((first[:, None] <= places) & (places < end[:, None]), axis=0)
    single = jnp.argsort(jnp.where(chosen, 2.0, jax.random.uniform(order, (length,))))
    return chosen | (jnp.argsort(single) < left)


def draw_order(key: jax.Array, length: int, size: int) -> jax.Array:
    """Return int32 [T]: each token's place in a random order. Parts of `size` tokens all have the same order."""
    order = jax.random.permutation(key, size)
    return (jnp.arange(0, length, size)[:, None] + order).reshape(-1).astype(jnp.int32)


def _without_earlier_documents(memory: XlnetMemory, batch: Batch) -> XlnetMemory:
    """Return the memory, cleared for rows in which a document begins."""
    has_start = jnp.any(batch["document_starts"], axis=1, keepdims=True)
    return memory.replace(mask=jnp.where(has_start, 0, memory.mask))


def _from_last_document(memory: XlnetMemory, batch: Batch) -> XlnetMemory:
    """Return the memory after a row, without tokens before the last document that begins in the row."""
    half, length = batch["input_ids"].shape[1] // 2, memory.mask.shape[1]
    starts = batch["document_starts"][:, :half]
    last = jnp.max(jnp.where(starts, jnp.arange(half), 0), axis=1, keepdims=True)
    has_start = jnp.any(starts, axis=1, keepdims=True)
    places = jnp.arange(length) + half - length  # of the memory's tokens in the row
    return memory.replace(mask=jnp.where(has_start & (places < last), 0, memory.mask))
