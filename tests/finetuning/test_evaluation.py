"""Evaluation on a whole file: the sums and outputs of the run's own program, put in the order of the sequences."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.finetuning.evaluation import Forward, TaskEvaluation
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.objectives.objective import LossInputs

EXAMPLES = np.array([[[2, 0], [1, -1]], [[-1, -1], [3, -1]]])
"""Two rows with two choices each, which hold sequences of one, two and three tokens, and what fills them up."""
STARTS = np.array([[[0, 3], [1, 0]], [[0, 0], [2, 0]]])
OFFSETS = np.array([0, 1, 3, 6, 8])


class Sequences:
    offsets = OFFSETS

    def __len__(self) -> int:
        return len(OFFSETS) - 1


def evaluated(objective: Any, sums: dict[str, tuple[float, float]], collected: np.ndarray) -> tuple[dict, list]:
    """What is made of a program that evaluates one batch to this."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {"row_ids": jax.ShapeDtypeStruct((1,), np.int32, sharding=place)}
    shapes |= {"example_ids": jax.ShapeDtypeStruct((2, 2, 2), np.int32)}
    program = SimpleNamespace(
        evaluation_phase=None, evaluation_batch={"row_ids": shapes["row_ids"]},
        evaluate=lambda loss_inputs, batch, key: ((), sums, (collected, EXAMPLES, STARTS)),
    )  # fmt: skip
    source = SimpleNamespace(
        evaluation=lambda phase, rows: iter([{"row_ids": np.zeros(1, np.int32)}]),
        validation_rows=SimpleNamespace(encoded=Sequences()),
    )
    run = SimpleNamespace(objective=objective, training=SimpleNamespace(seed=0))
    return Forward(run, None)(program, LossInputs(()), source)


class OfTerms:
    """Objectives whose batches have these terms."""

    terms = ("task",)

    def weights(self, batch: Any) -> dict[str, jax.Array]:
        return dict.fromkeys(self.terms, jnp.zeros(()))


class Labels(OfTerms, SequenceClassification):
    pass


class Tags(OfTerms, TokenTagging):
    pass


def test_each_sequence_has_the_outputs_of_its_own_tokens() -> None:
    places = np.arange(2 * 2 * 4, dtype=np.float32).reshape(2, 2, 4)
    collected, sums = np.stack([places, -places], axis=-1), {"loss": (12.0, 4.0), "accuracy": (0.0, 1.0)}
    means, outputs = evaluated(Tags(), sums, collected)
    assert means == {"loss": 3.0} and [one[:, 0].tolist() for one in outputs] == [[3], [5, 6], [0, 1, 2], [14, 15]]
    assert all((one[:, 1] == -one[:, 0]).all() for one in outputs)
    _, outputs = evaluated(Labels(), sums, collected[:, :, :2])
    assert [one.tolist() for one in outputs] == [[1, -1], [4, -4], [0, 0], [12, -12]]


def test_a_term_that_does_not_occur_in_a_file_has_no_loss() -> None:
    """Every batch has a little weight of it. The loss is that of the first term that occurs."""

    class Both(Labels):
        terms = ("one", "two")

    sums = {"loss": (0.0, 2e-9), "one_loss": (0.0, 2e-9), "two_loss": (6.0, 4.0)}
    assert evaluated(Both(), sums, np.zeros((2, 2, 2, 1)))[0] == {"two_loss": 1.5, "loss": 1.5}


@pytest.mark.parametrize(
    ("terms", "losses"), [(("a",), ["loss"]), (("a", "b"), ["loss", "a_loss", "b_loss", "joint_loss"])]
)
def test_several_terms_have_a_loss_each_and_a_joint_one(terms: tuple[str, ...], losses: list[str]) -> None:
    objective = type("Several", (Labels,), {"terms": terms})(labels=("x", "y"))
    evaluation = TaskEvaluation(SimpleNamespace(objective=objective, data=None), None, None, None)
    found = evaluation.names(SimpleNamespace(evaluation_batch={}))
    assert found == [*losses, *objective.metric_names]
