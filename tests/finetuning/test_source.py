"""Rows as batches: special tokens, truncation, order and filling."""

import itertools

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.finetuning.objectives import SequenceClassification
from plmjax.finetuning.source import Rows, TaskSource, join, room
from plmjax.finetuning.tasks import Examples
from plmjax.training.phases import ResolvedPhase
from plmjax.vocabulary import Vocabulary

VOCABULARY = Vocabulary.placeholder(1000)


class Numbers:
    """A tokenizer of texts that are numbers already."""

    vocabulary = VOCABULARY

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]


def cut_one_by_one(first: int, second: int, tokens: int) -> tuple[int, int]:
    """google-research/bert run_classifier.py, _truncate_seq_pair, on lengths."""
    while first + second > tokens:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return first, second


def test_the_longer_text_is_cut_first():
    for first, second, tokens in itertools.product(range(1, 9), range(1, 9), range(2, 17)):
        assert room(first, second, tokens) == cut_one_by_one(first, second, tokens)


def test_a_row_begins_with_cls_and_every_text_ends_with_sep():
    assert join([[7, 8, 9]], 8, VOCABULARY) == ([2, 7, 8, 9, 3], 5)
    assert join([[7, 8, 9]], 4, VOCABULARY) == ([2, 7, 8, 3], 4)
    assert join([[7, 8, 9], [5]], 8, VOCABULARY) == ([2, 7, 8, 9, 3, 5, 3], 5)
    assert join([[7, 8, 9], [5, 6]], 6, VOCABULARY) == ([2, 7, 8, 3, 5, 3], 4)


def rows(count: int) -> Rows:
    texts = [(f"{100 + row}", f"{500 + row} {500 + row}") for row in range(count)]
    labels = ["b" if row % 3 else "a" for row in range(count)]
    return Rows(
        Examples("rows.tsv", texts, labels, list(range(2, count + 2))), Numbers(), SequenceClassification(("a", "b")), 8
    )


def source(seed: int = 0) -> TaskSource:
    return TaskSource(rows(10), rows(7), VOCABULARY, seed)


PHASE = ResolvedPhase(index=0, first_step=0, steps=100, sequence_length=8, batch_size=4, accumulation=1)


def test_evaluation_passes_over_the_file_once_and_fills_the_last_batch():
    batches = list(source().evaluation(PHASE))
    assert [batch["row_ids"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, -1]]
    shapes = source().batch(PHASE)
    assert all({n: (x.shape, x.dtype) for n, x in b.items()} == {n: (s.shape, s.dtype) for n, s in shapes.items()}
               for b in batches)  # fmt: skip
    assert batches[0]["input_ids"][1].tolist() == [2, 101, 3, 501, 501, 3, 0, 0]
    assert batches[0]["token_type_ids"][1].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert batches[0]["segment_ids"][1].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    assert batches[0]["labels"].tolist() == [0, 1, 1, 0]
    empty = {name: array[3] for name, array in batches[1].items()}
    assert not empty["input_ids"].any() and not empty["segment_ids"].any() and empty["labels"] == 0


def test_every_epoch_holds_every_row_once_in_an_order_of_its_own():
    batches = itertools.islice(source().train(PHASE, 0), 10)
    order = np.concatenate([batch["row_ids"] for batch in batches]).reshape(4, 10)
    assert all(sorted(epoch) == list(range(10)) for epoch in order)
    assert len({tuple(epoch) for epoch in order}) == 4


def test_a_batch_follows_from_seed_and_step_alone():
    fifth = list(itertools.islice(source().train(PHASE, 0), 6))[5]
    again = next(source().train(PHASE, 5))
    for name in fifth:
        np.testing.assert_array_equal(fifth[name], again[name])
    assert any((next(source(seed).train(PHASE, 5))["row_ids"] != fifth["row_ids"]).any() for seed in range(1, 4))


def test_the_fingerprint_follows_texts_and_labels():
    assert source(0).fingerprint == source(1).fingerprint
    assert TaskSource(rows(9), rows(7), VOCABULARY, 0).fingerprint != source().fingerprint


def test_a_label_that_training_never_saw_is_named():
    with pytest.raises(UserError, match=r"found 'c' in line 2 of dev.tsv; known: a, b"):
        SequenceClassification(("a", "b")).encode(Examples("dev.tsv", [("x",)], ["c"], [2]))


def test_rows_need_special_tokens_and_room():
    few = Numbers()
    few.vocabulary = Vocabulary(size=10)
    examples = Examples("rows.tsv", [("1",)], ["a"], [2])
    with pytest.raises(UserError, match="Expected a tokenizer with tokens that begin and end a text"):
        Rows(examples, few, SequenceClassification(("a", "b")), 8)
    with pytest.raises(UserError, match="sequence_length of at least 5"):
        Rows(examples, Numbers(), SequenceClassification(("a", "b")), 4)
