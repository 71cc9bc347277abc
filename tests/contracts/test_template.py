"""Tokens by their roles, and rows of one text or a pair as the published systems lay them out."""

import dataclasses
import itertools

import pytest

from plmjax.contracts.template import Template, longer_first
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from tests.models.declared import CONFIGS


def test_a_document_ends_with_the_token_between_documents_or_else_with_that_of_a_text() -> None:
    between = {"sep": 3, "end": 4, "others": {"between": 5}}
    for ids, end in (({}, -1), ({"sep": 3}, 3), ({"sep": 3, "end": 0}, 0), (between, 5)):
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


VOCABULARY = Vocabulary(size=100, pad=0, unknown=1, cls=2, sep=3, end=4)
SINGLE, PAIR = [[7, 8, 9]], [[7, 8, 9], [5, 6]]


def cut_one_by_one(first: int, second: int, tokens: int) -> tuple[int, int]:
    """google-research/bert run_classifier.py, _truncate_seq_pair, on lengths."""
    while first + second > tokens:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return first, second


def test_the_longer_text_is_cut_first():
    for first, second, tokens in itertools.product(range(1, 9), range(1, 9), range(2, 17)):
        assert longer_first(first, second, tokens) == cut_one_by_one(first, second, tokens)


BERTS = ("Bert", "Albert", "Electra", "MobileBert")
FAIRSEQS = (("Roberta", "first"), ("Longformer", "first"), ("Bart", "last"), ("Led", "last"))
ROWS = [
    *((kind, [2, 7, 8, 9, 3], [2, 7, 8, 9, 3, 5, 6, 3], (1, 5), "first", [0] * 5 + [1] * 3) for kind in BERTS),
    ("DistilBert", [2, 7, 8, 9, 3], [2, 7, 8, 9, 3, 5, 6, 3], (1, 5), "first", None),
    *((kind, [2, 7, 8, 9, 3], [2, 7, 8, 9, 3, 3, 5, 6, 3], (1, 6), read, None) for kind, read in FAIRSEQS),
    ("Xlnet", [7, 8, 9, 3, 2], [7, 8, 9, 3, 5, 6, 3, 2], (0, 4), "last", [0] * 4 + [1] * 3 + [2]),
    ("T5", [7, 8, 9, 4], [7, 8, 9, 5, 6, 4], (0, 3), "last", None),
    ("Transformer", [7, 8, 9, 4], [7, 8, 9, 4, 5, 6, 4], (0, 4), "last", None),
    ("Cove", [7, 8, 9, 4], [7, 8, 9, 4, 5, 6, 4], (0, 4), "last", [0] * 4 + [1] * 3),
    ("AwdLstm", [10, 7, 8, 9], [10, 7, 8, 9, 10, 5, 6], (1, 5), "last", None),
    ("Elmo", [11, 7, 8, 9, 4], [11, 7, 8, 9, 4, 11, 5, 6, 4], (1, 6), "first", None),
    ("TransformerXl", [7, 8, 9], [7, 8, 9, 5, 6], (0, 3), "last", None),
]
"""A system, and its rows of a text and of a pair: tokens, where the texts begin, the token to read, the token types."""


@pytest.mark.parametrize(("name", "single", "pair", "starts", "summary", "types"), ROWS)
def test_rows_of_systems(name: str, single: list[int], pair: list[int], starts: tuple, summary: str, types):
    """fairseq and transformers: two </s> between texts; recurrent models: the token that they read between texts.

    XLNet's [CLS] has a token type of its own, and its rows are padded on the left.
    """
    vocabulary = dataclasses.replace(VOCABULARY, begin=11, others={"between": 10})
    template = CONFIGS[name].tiny().template
    first, second = (template.lay_out(texts, vocabulary) for texts in (SINGLE, PAIR))
    assert (first.tokens, second.tokens, second.starts) == (single, pair, starts) and first.starts == starts[:1]
    assert [first.summary, second.summary] == ([0, 0] if summary == "first" else [len(single) - 1, len(pair) - 1])
    assert second.token_types == types
    assert first.token_types == (types and [0] * (len(single) - (types[-1] == 2)) + [2] * (types[-1] == 2))
    assert template.padding == ("left" if name == "Xlnet" else "right") and not template.backwards


def test_a_row_is_cut_to_its_length():
    template = Template()
    assert template.lay_out(SINGLE, VOCABULARY, 4).tokens == [2, 7, 8, 3]
    assert template.lay_out(SINGLE, VOCABULARY, 8).tokens == [2, 7, 8, 9, 3]
    row = template.lay_out(PAIR, VOCABULARY, 6)
    assert row.tokens == [2, 7, 8, 3, 5, 3] and row.starts == (1, 4) and row.token_types == [0, 0, 0, 0, 1, 1]
    template = CONFIGS["Roberta"].tiny().template
    assert template.lay_out(PAIR, VOCABULARY, 7).tokens == [2, 7, 8, 3, 3, 5, 3]
    assert (template.specials(1), template.specials(2)) == (2, 4)


def test_gpts_rows_are_read_at_their_last_token():
    """Radford et al. 2018, section 3.3: start A extract and start A delimiter B extract, with tokens of their own."""
    template = Template("start A extract", "start A delimiter B extract", summary="last")
    vocabulary = Vocabulary(size=100, others={"start": 97, "delimiter": 98, "extract": 99})
    template.check(vocabulary)
    single, pair = (template.lay_out(texts, vocabulary) for texts in (SINGLE, PAIR))
    assert (single.tokens, single.summary) == ([97, 7, 8, 9, 99], 4)
    assert (pair.tokens, pair.starts, pair.summary) == ([97, 7, 8, 9, 98, 5, 6, 99], (1, 5), 7)
    assert pair.token_types is None and template.position(3) == 2


def test_a_tokenizer_without_the_special_tokens_is_named():
    with pytest.raises(UserError, match=r"rows \(begin, end\), found none for begin; use the tokenizer"):
        Template("begin A end", "begin A end B end").check(VOCABULARY)


def test_roles_are_those_of_pairs_and_then_those_of_single_texts_alone():
    assert Template("begin A end", "cls A sep B sep").roles == ("cls", "sep", "begin", "end")


def test_each_text_of_a_row_that_is_read_from_the_end_is_cut_first_and_then_reversed():
    row = Template("A", "A B", "last", backwards=True).lay_out(PAIR, VOCABULARY, 4)
    assert (row.tokens, row.starts, row.summary) == ([8, 7, 6, 5], (0, 2), 3)


@pytest.mark.parametrize("wrong", [{"single": "cls sep"}, {"pair": "B A"}, {"summary": "middle"}, {"padding": "top"}])
def test_a_template_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="Expected a"):
        Template(**wrong)


def test_a_pair_without_an_order_makes_two_rows():
    """Ibid.: similarity is of both; a single text has one order."""
    template = CONFIGS["Gpt"].tiny(both_orders=True).template
    assert template.orders(PAIR) == [(PAIR[0], PAIR[1]), (PAIR[1], PAIR[0])]
    assert template.orders(SINGLE) == [(SINGLE[0],)]
    assert CONFIGS["Gpt"].tiny().template.orders(PAIR) == [(PAIR[0], PAIR[1])]
