"""Tokens by their roles."""

import pytest

from plmjax.contracts.vocabulary import Vocabulary


@pytest.mark.parametrize(
    ("ids", "end"),
    [
        ({}, -1),
        ({"sep": 3}, 3),
        ({"sep": 3, "end": 4}, 4),
        ({"sep": 3, "end": 0}, 0),
        ({"sep": 3, "end": 4, "others": {"between": 5}}, 5),
    ],
)
def test_a_document_ends_with_the_token_between_documents_or_else_with_that_of_a_text(ids: dict, end: int) -> None:
    vocabulary = Vocabulary(9, **ids)
    assert vocabulary.document_end == vocabulary.id_of("document_end") == end


def test_roles_that_few_systems_have_are_found_beside_the_usual_ones() -> None:
    vocabulary = Vocabulary(9, cls=2, others={"extract": 7, "cls": 8})
    assert [vocabulary.id_of(role) for role in ("cls", "mask", "extract", "delimiter")] == [2, -1, 7, -1]


def test_a_placeholder_has_distinct_special_tokens_and_sentinels_of_any_size() -> None:
    for size in (6, 400, 1000):
        found = Vocabulary.placeholder(size)
        assert {found.pad, found.unknown, found.cls, found.sep, found.mask} == {*found.special} == {*range(5)}
        assert found.document_end == found.sep and len(found.continuation) == size and found.full_stop == 5
        assert found.sentinels == tuple(range(size - 1, size - 1 - min(100, size // 4), -1))
