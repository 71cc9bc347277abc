"""The labels of a config.json are those that transformers reads."""

import pytest

from plmjax.errors import UserError
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


@pytest.mark.parametrize("number", [0, -1, 10**6 + 1, True, 2.0, "2", None])
def test_a_number_of_labels_that_is_none_is_named(number: object) -> None:
    with pytest.raises(UserError, match="a number of labels as num_labels of the config"):
        labels.count({"num_labels": number})
    assert labels.count({"num_labels": 10**6}) == 10**6


@pytest.mark.parametrize("named", [["a", "b"], {"1": "a", "2": "b"}, {"0": "a", "1": "a"}, {"0": "a", "1": 1}])
def test_names_of_labels_are_different_texts_by_numbers_from_zero(named: object) -> None:
    for read in (labels.count, labels.names):
        with pytest.raises(UserError, match="different names of labels in the config"):
            read({"id2label": named, "num_labels": 2})
