"""Continued pairs against a plain transcription of the published procedure, draw for draw."""

import numpy as np
import pytest

from plmjax.data import order
from plmjax.data.layouts import ContinuedPairs, continued_pairs
from tests.data.corpora import documents, write
from tests.data.layouts.rows import WORDS, V, rows_of, shapes


class CountedDraws:
    """The draws of one row, as the layout makes them."""

    def __init__(self, seed, direction, number):
        self.key = order.fold_in(order.fold_in(np.uint64(seed), direction), number)

    def is_random(self, probability):
        return bool(order.bernoulli(order.fold_in(self.key, continued_pairs._IS_RANDOM), probability)[0])

    def choice(self, places):
        return places[int(order.randint(order.fold_in(self.key, continued_pairs._CUT), len(places))[0])]

    def begin(self, size):
        draw = order.fold_in(self.key, continued_pairs._BEGIN)[0]
        return int(float(draw >> np.uint64(11)) * 2.0**-53 * size)


def joined(texts):
    """The tokens of all documents with the token between them, and the number of each one's sentence."""
    data, sentences, number = [], [], 0
    for document in texts:
        for sentence in [*document, [WORDS.document_end]]:
            data += sentence
            sentences += [number] * len(sentence)
            number += 1
    return np.array(data), np.array(sentences)


def split_a_and_b(data, sentences, begin, *, room, probability, draws):
    """zihangdai/xlnet data_utils.py's `_split_a_and_b`, told again."""
    end, cuts = begin + 1, []
    while end < len(data):
        if sentences[end] != sentences[end - 1]:
            if end - begin >= room:
                break
            cuts.append(end)
        end += 1
    if not cuts or draws.is_random(probability):
        a_end = draws.choice(cuts) if cuts else end
        b_begin = draws.begin(len(data) - max(1, room - (a_end - begin)))
        b_end = b_begin + max(1, room - (a_end - begin))
        while b_begin > 0 and sentences[b_begin - 1] == sentences[b_begin]:
            b_begin -= 1
        while b_end < len(data) and sentences[b_end - 1] == sentences[b_end]:
            b_end += 1
    else:
        a_end = b_begin = draws.choice(cuts)
        b_end = end
    while a_end - begin + b_end - b_begin > room:
        if a_end - begin > b_end - b_begin:
            a_end -= 1
        else:
            b_end -= 1
    return data[begin:a_end], data[b_begin:b_end]


def published(texts, length, layout, seed):
    """ids, types and document starts of every row, first those that read forward."""
    rows = []
    data, sentences = joined(texts)
    for direction in range(1 + layout.both_directions):
        if direction:
            data, sentences = data[::-1], sentences[::-1]
        half, number = length // 2, 0
        while number * half + length < len(data):
            draws, begin = CountedDraws(seed, direction, number), number * half
            a, b = split_a_and_b(
                data, sentences, begin + half, room=half - 3, probability=layout.random_probability, draws=draws
            )
            ids = [*data[begin : begin + half], *a, WORDS.sep, *b, WORDS.sep, WORDS.cls]
            types = [0] * (half + len(a) + 1) + [1] * (len(b) + 1) + [2]
            begins = np.r_[not direction, data[:-1] == WORDS.document_end][begin : begin + half]
            rows.append((ids, types, [*begins.tolist(), *[False] * half], bool(direction)))
            number += 1
    return rows


@pytest.mark.parametrize(
    ("count", "sentences", "words", "length", "layout"),
    [
        (10, 30, 20, 64, ContinuedPairs()),
        (10, 20, 20, 128, ContinuedPairs(random_probability=0.0)),
        (6, 10, 400, 32, ContinuedPairs()),  # sentences longer than the row
        (60, 2, 4, 20, ContinuedPairs(random_probability=1.0)),  # documents of a few tokens
        (8, 30, 12, 10, ContinuedPairs(both_directions=False)),  # the shortest row
    ],
)
def test_is_the_published_procedure(tmp_path, count, sentences, words, length, layout):
    texts = documents(count, V, sentences=sentences, words=words)
    rows = rows_of(write(tmp_path, texts, [], vocab_size=V), layout, length=length, seed=9)
    fields, expected = rows.fields(np.arange(rows.count)), published(texts, length, layout, 9)
    assert rows.count == len(expected) > 5
    for row, (ids, types, starts, backwards) in enumerate(expected):
        assert fields["input_ids"][row].tolist() == ids, row
        assert fields["token_type_ids"][row].tolist() == types, row
        assert fields["document_starts"][row].tolist() == starts, row
        assert fields["backwards"][row] == backwards
    promised = shapes(layout.batch(rows.count, length))
    assert shapes(fields) == {name: promised[name] for name in promised if name not in ("row_ids", "is_first")}
    assert fields["segment_ids"].all() and (fields["positions"] == np.arange(length)).all()


def test_rows_continue_those_of_the_batch_before(tmp_path):
    """In both directions, until the text ends."""
    texts, length, half = documents(12, V, seed=3), 32, 16
    rows = rows_of(write(tmp_path, texts, [], vocab_size=V), ContinuedPairs(), length=length)
    data, _ = joined(texts)
    batch, key = 6, order.fold_in(0, 0)
    steps = rows.count // 2 // 3
    places, firsts = np.arange(batch), []
    for step in range(steps):
        assert rows.is_first(step, batch) == (step == 0)
        fields = rows.fields(rows.train(step, batch, places, key))
        assert fields["backwards"].tolist() == [False] * 3 + [True] * 3
        firsts.append(fields["input_ids"][:, :half])
        for place in range(3):
            first = (place * steps + step) * half
            np.testing.assert_array_equal(firsts[-1][place], data[first : first + half])
    read = np.concatenate(firsts, axis=1)  # what each place of a batch reads, as one text
    np.testing.assert_array_equal(read[3], data[::-1][: steps * half])
    assert rows.is_first(steps, batch)
    np.testing.assert_array_equal(rows.train(steps, batch, places, key), rows.train(0, batch, places, key))
    odd = rows.fields(rows.train(0, 5, np.arange(5), key))["backwards"].tolist()  # one row more forward
    assert odd == ContinuedPairs().synthetic(5, length, V, 0)["backwards"].tolist() == [False] * 3 + [True] * 2
