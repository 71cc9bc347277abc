"""A search over starts and ends: its answers, and questions without one."""

from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.answers import Candidate, Window
from plmjax.finetuning.tasks.questions import QuestionExamples


@pytest.mark.parametrize(("threshold", "said"), [(-1.5, ""), (-1.0, "bc"), (0.0, "bc")])
def test_the_window_that_is_surest_of_an_answer_decides_whether_there_is_one(threshold: float, said: str) -> None:
    spans, context = np.array([[place, place + 1] for place in range(9)]), "abcdefghi"
    windows = [Window(0, 0, 6, begin=0, nowhere=8), Window(0, 3, 6, begin=0, nowhere=8)]
    outputs = [
        np.array([[-0.25, -0.5], [1, 0], [-0.5, -2.0], [2, 3], [0.5, 0.5]], np.float32),
        np.array([[-1.0, -3.0], [4, 5], [-1.0, -3.0], [5, 5], [-1.0, -1.0]], np.float32),
    ]
    objective = AnswerSearch(impossible=True, null_threshold=threshold, best=2, answer_length=2)
    best, null = objective.candidates(windows, outputs, context, spans)
    assert best == [Candidate("bc", -0.75), Candidate("hi", -2.0)] and null == -1.0
    examples = QuestionExamples("", [3], [context], [0], ["a"], ["q"], [[]])
    encoded = SimpleNamespace(windows=windows, spans=[spans])
    (record,) = objective.records(examples, encoded, outputs)
    assert record["prediction"] == said and record["null_odds"] == -1.0
    assert [one["text"] for one in record["nbest"]] == ["bc", "hi"]  # no log probability of a span is that of none


def test_a_search_costs_starts_ends_given_one_start_and_the_choice_of_none() -> None:
    shapes = {"input_ids": np.empty((3, 7))}
    assert AnswerSearch().head_flops(SimpleNamespace(width=5), shapes) == 6 * 3 * (7 * (25 + 10) + 75 + 5)


def test_a_model_is_given_the_starts_in_the_row_in_training_alone() -> None:
    batch = {
        name: np.array([[2]]) for name in ("cls_positions", "answer_mask", "input_ids", "segment_ids", "positions")
    }
    batch |= {"sequence_starts": np.array([[3], [0]]), "starts": np.array([[4], [5]])}
    inputs = AnswerSearch().model_inputs(batch)
    assert inputs["start_positions"].tolist() == [7, 5] and {"answer_mask", "cls_positions"} <= {*inputs}
    del batch["starts"]
    assert "start_positions" not in AnswerSearch().model_inputs(batch)
