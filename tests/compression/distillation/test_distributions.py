"""The predictions that a student takes over from its teacher: as many as the batch has, each among its own classes."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.compression.distillation.distributions import distributions_of
from plmjax.finetuning.tasks.choices import MultipleChoice
from plmjax.finetuning.tasks.questions import SpanExtraction
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.tagging import TokenTagging

DRAWS = np.random.default_rng(0)
NONE = -1
"""The number of an example that is not there."""


def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(DRAWS.normal(size=shape), jnp.float32)


EXAMPLES = jnp.array([[4, 7], [2, NONE]])
CASES: dict[str, tuple[Any, Any, dict[str, Any], int, int]] = {
    "texts": (
        SequenceClassification(labels=("a", "b", "c")), types.SimpleNamespace(logits=drawn(2, 2, 3)),
        {"example_ids": EXAMPLES}, 3, 3,
    ),
    "words": (
        TokenTagging(labels=("a", "b")), types.SimpleNamespace(logits=drawn(2, 5, 2)),
        {"label_weights": jnp.array([[1.0, 0, 1, 0, 0], [1, 0, 0, 0, 0]])}, 3, 2,
    ),
    "choices": (
        MultipleChoice(), types.SimpleNamespace(logits=drawn(2, 4, 2)),
        {"example_ids": jnp.repeat(EXAMPLES[:, None], 4, axis=1)}, 3, 4,
    ),
    "ends": (
        SpanExtraction(), types.SimpleNamespace(start_logits=drawn(2, 6), end_logits=drawn(2, 6)),
        {"example_ids": EXAMPLES, "segment_ids": jnp.array([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0]])}, 6, 6,
    ),
}  # fmt: skip
"""Name -> (objective, outputs, batch, number of predictions, number of classes)."""


def of_case(name: str) -> tuple[jax.Array, jax.Array]:
    """(the logits of every prediction, their weights)."""
    objective, outputs, batch, *_ = CASES[name]
    kind = distributions_of(objective)
    return kind.logits(outputs, batch), kind.weights(batch)


@pytest.mark.parametrize("name", CASES)
def test_every_prediction_counts_once_and_padding_does_not(name: str) -> None:
    logits, weights = of_case(name)
    *_, count, classes = CASES[name]
    assert logits.shape == (*weights.shape, classes)
    assert set(np.unique(weights)) == {0, 1} and weights.sum() == count


def test_a_question_is_answered_by_its_choices_and_an_answer_is_within_its_own_example() -> None:
    """The first end and the last one, over the tokens of the example alone."""
    np.testing.assert_array_equal(of_case("choices")[0][0, 1], CASES["choices"][1].logits[0, :, 1])
    _, outputs, batch, *_ = CASES["ends"]
    logits, weights = of_case("ends")
    for row, slot in zip(*np.nonzero(np.asarray(weights[..., 0])), strict=True):
        own = np.asarray(batch["segment_ids"][row]) == slot + 1
        for end, scores in enumerate((outputs.start_logits, outputs.end_logits)):
            np.testing.assert_allclose(
                np.asarray(jax.nn.softmax(logits[row, slot, end]))[own], jax.nn.softmax(scores[row][own]), rtol=1e-6
            )
