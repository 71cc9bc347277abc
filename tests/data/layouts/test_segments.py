"""Segments against a plain transcription of the published procedure: draw for draw, and in distribution."""

import numpy as np
import pytest

from plmjax.data import order
from plmjax.data.layouts import SingleSegment, segments
from tests.data.corpora import documents, write
from tests.data.layouts.rows import WORDS, V, all_fields, rows_of


class CountedDraws:
    """The draws of one (seed, first sentence), taken one by one where the project takes them by the array."""

    def __init__(self, seed):
        self.seed = seed

    def begin(self, sentence):
        self.key = order.fold_in(self.seed, sentence)

    def is_short(self, probability):
        return bool(order.bernoulli(order.fold_in(self.key, segments._IS_SHORT), probability)[0])

    def short_length(self, low, high):
        return low + int(order.randint(order.fold_in(self.key, segments._LENGTH), high - low + 1)[0])

    def is_single(self, probability):
        return bool(order.bernoulli(order.fold_in(self.key, segments._IS_SINGLE), probability)[0])

    def coin(self, number):
        return bool(order.bernoulli(order.fold_in(self.key, segments._COINS + number), 0.5)[0])


def published(texts, longest, layout, draws):
    """(A, B) of every sequence of some documents: google-research/electra, build_pretraining_dataset.py, told again."""

    def target_of(sentence):
        draws.begin(sentence)
        return draws.short_length(5, longest) if draws.is_short(layout.short_probability) else longest

    found, sentence = [], 0
    for document in texts:
        gathered, size, target = [], 0, target_of(sentence)
        for place, tokens in enumerate(document):
            gathered.append(tokens)
            size += len(tokens)
            sentence += 1
            if size < target and place < len(document) - 1:
                continue
            half = 100_000 if draws.is_single(layout.single_probability) else (target - 3) // 2
            a, b = [], []
            for number, part in enumerate(gathered):
                fits = len(a) == 0 or len(a) + len(part) < half
                if fits or (len(b) == 0 and len(a) < half and draws.coin(number)):
                    a = a + part
                else:
                    b = b + part
            a = a[: longest - 2]
            found.append((a, b[: max(0, longest - len(a) - 3)]))
            gathered, size = [], 0
            if place < len(document) - 1:
                target = target_of(sentence)
    return found


def sequences(fields):
    """(A, B) of every sequence in some rows, row after row, checked for its place in the row."""
    found = []
    for row in range(len(fields["input_ids"])):
        ids, segment_ids, types = (fields[name][row] for name in ("input_ids", "segment_ids", "token_type_ids"))
        begin = 0
        for slot in range(int(segment_ids.max(initial=0))):
            here = slice(begin, begin + int((segment_ids == slot + 1).sum()))
            assert (segment_ids[here] == slot + 1).all() and fields["cls_positions"][row, slot] == begin
            np.testing.assert_array_equal(fields["positions"][row, here], np.arange(here.stop - begin))
            second = types[here] == 1
            first, second = ids[here][~second], ids[here][second]
            assert first[0] == WORDS.cls and first[-1] == WORDS.sep
            assert (np.diff(types[here]) >= 0).all() and (not len(second) or second[-1] == WORDS.sep)
            found.append((first[1:-1].tolist(), second[:-1].tolist()))
            begin = here.stop
        for name in ("input_ids", "segment_ids", "positions", "token_type_ids"):
            assert not fields[name][row, begin:].any(), name  # padding; this vocabulary's pad is 0
    return found


@pytest.mark.parametrize(
    ("count", "sentences", "words", "longest", "layout"),
    [
        (10, 30, 40, 64, SingleSegment()),
        (10, 30, 12, 128, SingleSegment(single_probability=0.0)),  # sentences that are put in the first segment late
        (8, 30, 40, 5, SingleSegment()),  # the shortest row: two tokens
        (12, 40, 400, 32, SingleSegment(short_probability=0.5)),  # sentences far longer than the row
        (40, 2, 9, 128, SingleSegment()),  # one sentence a document: no second segment
        (6, 60, 8, 512, SingleSegment(single_probability=1.0)),
        (6, 60, 30, 256, SingleSegment(short_probability=1.0)),
    ],
)
def test_is_the_published_procedure(tmp_path, monkeypatch, count, sentences, words, longest, layout):
    monkeypatch.setattr(segments, "_WINDOW", 50)
    texts = documents(count, V, sentences=sentences, words=words)
    dataset = write(tmp_path, texts, [], vocab_size=V)
    expected = published(texts, longest, layout, CountedDraws(9))
    assert sequences(all_fields(rows_of(dataset, layout, length=longest, seed=9))) == expected
    assert any(b for _, b in expected) == (sentences > 2 and layout.single_probability < 1)


@pytest.mark.parametrize("pack", [4])
def test_packed_segments_are_the_unpacked_ones_and_held_out_ones_the_same_for_every_seed(tmp_path, pack):
    dataset = write(tmp_path, documents(40, V, sentences=6), documents(4, V, seed=1), vocab_size=V)
    single, packed = (rows_of(dataset, SingleSegment(short_probability=0.5, pack=several)) for several in (1, pack))
    assert packed.count < 0.8 * single.count
    assert sorted(sequences(all_fields(packed))) == sorted(sequences(all_fields(single)))
    for split in ("train", "validation"):
        made = SingleSegment(pack=pack)
        first, second = (sequences(all_fields(rows_of(dataset, made, split=split, seed=seed))) for seed in (0, 1))
        assert (first == second) == (split == "validation")
