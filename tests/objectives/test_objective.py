"""Rules for every objective: rows are corrupted each by draws of its own, and modules get the carry."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.finetuning.tasks.choices import MultipleChoice
from plmjax.finetuning.tasks.questions import SpanExtraction
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.bidirectional_language_model import BidirectionalLanguageModel
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import LossInputs, Objective, apply, apply_and_collect
from plmjax.objectives.permutation_language_model import PermutationLanguageModel
from plmjax.objectives.prefix_language_model import NextTokenAfterPrefix, PrefixLanguageModel
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from plmjax.objectives.text_to_text.independent_noise import DroppedTokens, MaskedText, ReplacedSpans
from plmjax.objectives.text_to_text.prefix_language_model import TextToTextPrefixLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption
from plmjax.objectives.text_to_text.whole_text import Deshuffling, TextToTextLanguageModel
from plmjax.objectives.weighted_least_squares import WeightedLeastSquares
from tests.families import STEPS
from tests.third_party import experiments

# At T5's own rate a row of 16 tokens has one span, which always ends it.
SETTINGS = {"bert": {}, "albert": {}, "electra": {}, "t5": {"rate": 0.5}}


# ALBERT's rows have their keys from the class of BERT's objective.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name == "albert" else ()) for name in SETTINGS]
)
def test_equal_rows_are_corrupted_apart(name: str) -> None:
    """By another key otherwise than by the first one, too."""
    make, source = STEPS[name]
    run = experiments.changed(make(), objective=SETTINGS[name])
    source, (phase, *_) = source(run.data), run.resolved_phases
    batch = next(source.train(phase, 0))
    equal = {field: np.repeat(array[:1], len(array), axis=0) for field, array in batch.items()}
    corrupt = jax.jit(lambda key: run.objective.corrupt(equal, key, source.vocabulary)["input_ids"])
    first, second = (np.asarray(corrupt(jax.random.key(seed))) for seed in range(2))
    for found in (first, second):
        assert len({row.tobytes() for row in found}) > len(found) // 2
    assert (first != second).any(axis=1).sum() > len(first) // 2


def test_a_module_is_given_the_carry() -> None:
    run = experiments.recurrent()
    objective, module = run.objective, run.objective.module(run.model, Execution())
    batch = {"input_ids": np.ones((2, 3), np.int32)}
    carry = tuple(np.full((run.model.depth, 2, run.model.width), value, np.float32) for value in (0.5, -0.5))
    key = jax.random.key(0)
    init = jax.jit(lambda: objective.init(module, key, batch, constants=(), carry=carry))
    loss_inputs = LossInputs(nn.meta.unbox(init())["params"], carry=carry)
    read = jax.jit(lambda loss_inputs: apply(objective, module, loss_inputs, batch=batch, key=key, training=False))
    plain = jax.jit(lambda variables, carry: module.apply(variables, batch["input_ids"], carry, deterministic=True))
    found, expected = read(loss_inputs), plain(loss_inputs.variables, carry)
    chex.assert_trees_all_equal(found, expected)
    other = read(loss_inputs.replace(carry=carry[::-1]))
    assert not np.allclose(found[0], other[0])


class Told(nn.Module):
    """Says what it is given, and counts its calls."""

    @nn.compact
    def __call__(self, input_ids: jax.Array, memory: jax.Array, *, deterministic: bool) -> tuple:
        calls = self.variable("state", "calls", lambda: jnp.zeros((), jnp.int32))
        if self.is_mutable_collection("state"):
            calls.value += 1
        return input_ids, memory, deterministic, {name: self.make_rng(name) for name in RANDOM if self.has_rng(name)}


RANDOM = ("dropout", "sampling")


class OfTold(Objective):
    def model_inputs(self, batch):
        return {"input_ids": batch["input_ids"]}

    def carry_inputs(self, carry):
        return {"memory": carry}


def test_dropout_is_drawn_in_training_alone_and_another_key_than_that_of_samples() -> None:
    """Further collections may change in training alone."""
    key, batch = jax.random.key(7), {"input_ids": 3, "next_ids": 4}
    loss_inputs = LossInputs({}, carry="before", collections={"state": {"calls": jnp.asarray(1)}})
    (*given, drawn), after = apply_and_collect(OfTold(), Told(), loss_inputs, batch=batch, key=key, training=True)
    assert given == [3, "before", False] and after["state"]["calls"] == 2 and drawn.keys() == set(RANDOM)
    (*given, sampled), kept = apply_and_collect(OfTold(), Told(), loss_inputs, batch=batch, key=key, training=False)
    assert given == [3, "before", True] and kept["state"]["calls"] == 1 and sampled.keys() == {"sampling"}
    assert sampled["sampling"] == drawn["sampling"] != drawn["dropout"]


ASKED = {
    ElectraPretraining: "masked",
    MaskedLanguageModel: "masked",
    SequenceToSequence: "next",
    NextToken: "next",
    PermutationLanguageModel: "target",
}


@pytest.mark.parametrize(("kind", "name"), ASKED.items())
def test_targets_are_the_tokens_that_are_asked_for(kind: type[Objective], name: str) -> None:
    """The unigram entropy is that of them."""
    assert kind().targets({f"{name}_ids": "tokens", f"{name}_weights": "weights"}) == ("tokens", "weights")


OF_TOKENS = (
    AwdLstmPretraining, BertPretraining, BidirectionalLanguageModel, HierarchicalSoftmax, NextToken,
    TextToTextLanguageModel, TextToTextPrefixLanguageModel,
)  # fmt: skip
OF_NONE = (
    Denoising, Deshuffling, DroppedTokens, MaskedText, NegativeSampling, ReplacedSpans, SpanCorruption,
    WeightedLeastSquares,
)  # fmt: skip


@pytest.mark.parametrize("kind", [*OF_TOKENS, *OF_NONE])
def test_the_exponential_of_a_loss_is_a_perplexity_where_it_is_that_of_tokens(kind: type[Objective]) -> None:
    assert kind.perplexity == (kind in OF_TOKENS)


def test_a_language_model_names_the_objective_of_the_next_token() -> None:
    assert NextToken().language_model_task() == NextToken()
    assert PrefixLanguageModel().language_model_task() == NextTokenAfterPrefix()


ROW = ("input_ids", "segment_ids", "positions")
OF_TASKS = (*ROW, "characters", "token_type_ids")
MASKED = (*ROW, "token_type_ids", "masked_positions")
INPUTS = {
    MaskedLanguageModel(): MASKED,
    BertPretraining(): (*MASKED, "cls_positions"),
    ElectraPretraining(): MASKED,
    NextToken(): ROW,
    PermutationLanguageModel(): ("input_ids", "token_type_ids", "ranks", "target_positions", "backwards"),
    SequenceToSequence(): (*ROW, *(f"decoder_{name}" for name in ROW)),
    SequenceClassification(("a", "b")): (*OF_TASKS, "cls_positions"),
    MultipleChoice(): (*OF_TASKS, "cls_positions"),
    TokenTagging(("a", "b")): OF_TASKS,
    SpanExtraction(): OF_TASKS,
}


@pytest.mark.parametrize("objective", INPUTS, ids=[type(objective).__name__ for objective in INPUTS])
def test_a_model_gets_each_of_its_inputs_and_no_target(objective: Objective) -> None:
    """Types, positions and the rest are optional in a batch, so that no error would tell of a lost one."""
    names = {name for inputs in INPUTS.values() for name in inputs}
    targets = ("labels", "original_ids", "next_ids", "next_weights", "masked_weights", "row_ids", "is_first")
    batch = {name: np.full((2, 4), number) for number, name in enumerate((*sorted(names), *targets))}
    found = objective.model_inputs(batch)
    assert all(found[name] is batch[name] for name in INPUTS[objective])
    more = {"attention_mask", "reuse_length"} if isinstance(objective, PermutationLanguageModel) else set()
    assert found.keys() - set(INPUTS[objective]) == more
    if more:
        assert found["attention_mask"] is batch["segment_ids"] and found["reuse_length"] == 2
