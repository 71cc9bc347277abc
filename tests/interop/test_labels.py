"""The labels of a config.json are those that transformers reads."""

import pytest

from plmjax.interop import labels
from tests.optional import transformers


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"num_labels": 3},
        {"num_labels": 1},
        {"id2label": {"0": "no", "1": "yes", "2": "so"}, "num_labels": 3},
        {"id2label": {"0": "no", "1": "yes", "2": "so"}},
        {"id2label": {str(number): f"kind {number % 7} {number}" for number in (10, *range(10), 11)}},
    ],
)
def test_labels_are_those_of_transformers(found: dict) -> None:
    theirs = transformers.BertConfig.from_dict(found)
    assert labels.count(found) == theirs.num_labels
    assert labels.names(found) == tuple(theirs.id2label[number] for number in range(theirs.num_labels))
