"""The losses of packed rows, worked out by hand: which outputs count for which sequence, and with which weight."""

import math
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.choices import MultipleChoice
from plmjax.finetuning.tasks.crf_tagging import CrfTagging
from plmjax.finetuning.tasks.label_sets import MultiLabelClassification
from plmjax.finetuning.tasks.questions import SpanExtraction
from plmjax.finetuning.tasks.sentences import Regression, SequenceClassification
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.finetuning.tasks.task import TaskObjective
from plmjax.finetuning.tasks.text_generation import Translation
from plmjax.models.bert import BertConfig
from plmjax.models.families.task_heads import TaggingOutput
from plmjax.models.gpt import GptConfig

LOG2, LOG3 = math.log(2), math.log(3)


def fields(**arrays: Any) -> dict[str, np.ndarray]:
    """Fields of a batch: whole numbers are int32, others float32."""
    found = {name: np.array(array) for name, array in arrays.items()}
    return {name: one.astype(np.int32 if one.dtype.kind == "i" else np.float32) for name, one in found.items()}


def total(objective: TaskObjective, outputs: Any, batch: dict[str, np.ndarray]) -> tuple[float, float, Any]:
    """(sum of the task's loss, its weight, the sums of metrics)."""
    sums = objective.sums_of(outputs, batch)
    return float(sums.losses["task"]), float(objective.weights(batch)["task"]), sums.metrics


def test_a_place_without_a_sequence_costs_nothing() -> None:
    batch = fields(example_ids=[[4, 7], [2, -1]], labels=[[1, 0], [0, 0]])
    logits = jnp.array([[[0.0, LOG3], [0.0, LOG3]], [[0.0, 0.0], [5.0, 0.0]]])
    nats, weight, metrics = total(SequenceClassification(("a", "b")), SimpleNamespace(logits=logits), batch)
    assert (nats, weight) == (pytest.approx(math.log(4 / 3) + math.log(4) + LOG2), 3.0)
    assert tuple(map(float, metrics["accuracy"])) == (2.0, 3.0)
    numbers = batch | fields(labels=[[1.0, 2.5], [0.0, 9.0]])
    outputs = SimpleNamespace(logits=jnp.array([[[3.0], [2.0]], [[0.5], [1.0]]]))
    squares, weight, _ = total(Regression(), outputs, numbers)
    assert (squares, weight) == (4.0 + 0.25 + 0.25, 3.0)


def test_choices_compete_with_those_of_their_question() -> None:
    """Two questions and an empty place stand side by side; each choice is a row."""
    batch = fields(example_ids=[[[0, 2, -1], [1, 3, -1]]], labels=[[[1, 0, 0], [1, 0, 0]]])
    logits = jnp.array([[[0.0, LOG2, 9.0], [LOG3, LOG2, 0.0]]])
    nats, weight, metrics = total(MultipleChoice(), SimpleNamespace(logits=logits), batch)
    assert (nats, weight) == (pytest.approx(math.log(4 / 3) + LOG2), 2.0)
    assert tuple(map(float, metrics["accuracy"])) == (2.0, 2.0)
    wrong = batch | fields(labels=[[[0, 0, 0], [0, 0, 0]]])
    assert tuple(map(float, MultipleChoice().counts(SimpleNamespace(logits=logits), wrong)["accuracy"])) == (1.0, 2.0)


def test_every_label_of_a_set_is_asked_for_itself() -> None:
    """Chances of a half, three quarters and a quarter, where all three are right."""
    batch = fields(example_ids=[[3, -1]], labels=[[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]])
    outputs = SimpleNamespace(logits=jnp.array([[[0.0, LOG3, -LOG3], [-9.0, -9.0, -9.0]]]))
    objective = MultiLabelClassification(("a", "b", "c"))
    nats, weight, metrics = total(objective, outputs, batch)
    assert (nats, weight) == (pytest.approx(math.log(2 * 4 / 3 * 4) / 3), 1.0)
    assert tuple(map(float, metrics["accuracy"])) == (0.0, 1.0)
    metrics = total(MultiLabelClassification(("a", "b", "c"), threshold=0.2), outputs, batch)[2]
    assert tuple(map(float, metrics["accuracy"])) == (1.0, 1.0)


def test_ends_of_an_answer_compete_with_the_tokens_of_their_sequence() -> None:
    """A row has two sequences and one of padding, whose score is the highest."""
    batch = fields(
        example_ids=[[0, 1]], segment_ids=[[1, 1, 1, 2, 2, 0]], sequence_starts=[[0, 3]],
        starts=[[1, 1]], ends=[[2, 0]],
    )  # fmt: skip
    starts, ends = jnp.log(jnp.array([[1.0, 2, 1, 3, 1, 99], [1.0, 1, 2, 1, 1, 99]]))
    outputs = SimpleNamespace(start_logits=starts[None], end_logits=ends[None])
    nats, weight, _ = total(SpanExtraction(), outputs, batch)
    assert (nats, weight) == (pytest.approx(LOG2 + (math.log(4) + LOG2) / 2), 2.0)
    np.testing.assert_array_equal(SpanExtraction().outputs_for_prediction(outputs, batch)[0, 1], [starts[1], ends[1]])


def test_labels_are_asked_at_first_pieces_and_mixes_in_every_row() -> None:
    batch = fields(labels=[[0, 1, 1]], label_weights=[[1.0, 0.0, 1.0]])
    logits = jnp.array([[[0.0, 0.0], [9.0, 0.0], [LOG3, 0.0]]])
    mixes = jnp.array([[0.5, -1.0], [2.0, 0.0]])
    objective = TokenTagging(("a", "b"), mix_penalty=0.25)
    nats, weight, metrics = total(objective, TaggingOutput(logits, mixes), batch)
    assert (nats, weight) == (pytest.approx(LOG2 + math.log(4)), 2.0)
    assert tuple(map(float, metrics["accuracy"])) == (1.0, 2.0)
    two = {name: np.repeat(array, 2, axis=0) for name, array in batch.items()}
    sums = objective.sums_of(TaggingOutput(jnp.repeat(logits, 2, axis=0), mixes), two)
    assert float(sums.losses["mix"] / objective.weights(two)["mix"]) == 0.25 + 1.0 + 4.0
    assert objective.coefficients() == {"mix": 0.25}


LABELS = ("a", "b", "c")
PLAIN, BOTH = (SequenceClassification(("a", "b"), language_model=factor) for factor in (0.0, 0.5))


def test_a_step_costs_the_products_of_the_encoder_and_of_the_head() -> None:
    """Six FLOPs for each product: for a model of width 5, two rows of 7 tokens and 3 labels."""
    config, decoder = BertConfig.tiny(hidden_size=5, num_attention_heads=1), GptConfig.tiny()
    shapes = {"input_ids": np.empty((2, 7)), "example_ids": np.empty((2, 4, 3)), "next_ids": np.empty((2, 3))}
    beyond = {
        MultipleChoice(): 6 * 24 * (25 + 5), SequenceClassification(LABELS): 6 * 24 * (25 + 15),
        TokenTagging(LABELS): 6 * 14 * 15, CrfTagging(LABELS): 6 * 14 * (15 + 9), SpanExtraction(): 12 * 14 * 5,
        AnswerSearch(): 6 * 2 * (7 * (25 + 10) + 75 + 5),
    }  # fmt: skip
    for objective, expected in beyond.items():
        assert objective.train_flops(config, shapes) == config.train_flops(2, 7, 0) + expected
    next_tokens = decoder.train_flops(2, 7, 7) - decoder.train_flops(2, 7, 0)
    assert BOTH.train_flops(decoder, shapes) == PLAIN.train_flops(decoder, shapes) + next_tokens > next_tokens
    assert Translation().train_flops(decoder, shapes) == decoder.train_flops(2, 7, 3)


@pytest.fixture
def searched() -> tuple[dict[str, np.ndarray], Any]:
    """Two rows that are padded on the left, of which the second has no answer, and what a search makes of them."""
    batch = fields(
        example_ids=[[0], [1]], sequence_starts=[[1], [2]], starts=[[1], [3]], ends=[[2], [3]],
        cls_positions=[[5], [5]], input_ids=np.arange(12).reshape(2, 6), answer_mask=np.ones((2, 6), int),
    )  # fmt: skip
    outputs = SimpleNamespace(
        start_logits=jnp.log(jnp.array([[1.0, 1, 2, 2, 1, 1], [1.0, 1, 1, 1, 1, 5]])),
        end_logits=jnp.log(jnp.array([[1.0, 1, 1, 4, 1, 0.5], [1.0, 1, 1, 1, 1, 5]])),
        impossible_logits=jnp.array([LOG3, 0.0]),
        starts=jnp.array([[2, 3], [4, 3]]),
        start_probabilities=jnp.array([[0.5, 0.25], [0.5, 0.25]]),
        ends=jnp.array([[3, 4, 2, 5], [4, 5, 3, 2]]),
        end_probabilities=jnp.array([[0.5, 0.5, 0.0, 0.25], [0.5, 0.5, 0.25, 0.25]]),
    )
    return batch, outputs


def test_having_no_answer_is_a_choice_of_its_own(searched: tuple) -> None:
    batch, outputs = searched
    objective = AnswerSearch(impossible=True)
    sums, weights = objective.sums_of(outputs, batch), objective.weights(batch)
    first = (math.log(8 / 2) + math.log(8.5 / 4)) / 2
    assert float(sums.losses["task"]) == pytest.approx(first + LOG2) and float(weights["task"]) == 2.0
    # The first has an answer, at a chance of three quarters of having none; the second has none, at a half.
    assert float(sums.losses["impossible"]) == pytest.approx(math.log(4) + LOG2)
    assert objective.coefficients() == {"impossible": 0.5}
    always = AnswerSearch()
    assert always.sums_of(outputs, batch).losses.keys() == {"task"} and always.coefficients() == {}
    assert objective.model_inputs(batch)["start_positions"].tolist() == [2, 5]
    asked = {name: field for name, field in batch.items() if name != "starts"}
    assert "start_positions" not in objective.model_inputs(asked)


def test_a_search_tells_ends_with_the_start_that_they_belong_to(searched: tuple) -> None:
    """Places count from the first token of a sequence; ends of the likeliest rank come first, one for each start."""
    found = AnswerSearch().outputs_for_prediction(searched[1], searched[0])
    assert found.shape == (2, 1, 5, 4)
    np.testing.assert_allclose(np.exp(found[0, 0, 0]), [0.5, 0.25, 0.5, 0.25], rtol=1e-6)
    assert found[:, 0, 1].tolist() == [[1, 2, 1, 2], [2, 1, 2, 1]]
    np.testing.assert_allclose(np.exp(found[0, 0, 2]), [0.5, 0.5, 1e-30, 0.25], rtol=1e-5)
    assert found[:, 0, 3].tolist() == [[2, 3, 1, 4], [2, 3, 1, 0]]
    np.testing.assert_allclose(found[:, 0, 4], [[LOG3] * 4, [0.0] * 4], rtol=1e-6)
