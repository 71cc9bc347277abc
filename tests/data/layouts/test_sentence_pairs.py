"""Sentence pairs against a plain transcription of the published procedure: draw for draw, and in distribution."""

import numpy as np
import pytest

from plmjax.data import order
from plmjax.data.layouts import SentenceOrder, SentencePairs
from plmjax.data.layouts import sentence_pairs as pairs
from tests.data.corpora import documents, write
from tests.data.layouts.rows import V


class CountedDraws:
    """The draws of one (seed, pass, document), taken one by one where the project takes them by the array."""

    def __init__(self, seed, pass_, document):
        self.document_key = order.fold_in(order.fold_in(seed, pass_), document)
        self.number = 2

    def next_pair(self):
        self.key = order.fold_in(self.document_key, self.number)
        self.number += 1
        self.coins = {part: {"bits": [], "words": 0} for part in (pairs._A_FRONT, pairs._B_FRONT)}

    def is_short(self, probability):
        return bool(order.bernoulli(order.fold_in(self.document_key, 0), probability)[0])

    def short_length(self, low, high):
        return low + int(order.randint(order.fold_in(self.document_key, 1), high - low + 1)[0])

    def split_at(self, low, high):
        return low + int(order.randint(order.fold_in(self.key, pairs._SPLIT_AT), high - low + 1)[0])

    def is_random(self, probability):
        return bool(order.bernoulli(order.fold_in(self.key, pairs._IS_RANDOM), probability)[0])

    def is_swapped(self, probability):
        return bool(order.bernoulli(order.fold_in(self.key, pairs._IS_SWAPPED), probability)[0])

    def document(self, attempt, high):
        return int(order.randint(order.fold_in(self.key, pairs._DOCUMENT + attempt), high + 1)[0])

    def start(self, high):
        return int(order.randint(order.fold_in(self.key, pairs._START), high + 1)[0])

    def front(self, part):
        tossed = self.coins[part]
        if not tossed["bits"]:  # 64 more of them
            bits = int(order.fold_in(order.fold_in(self.key, part), tossed["words"])[0])
            tossed["words"] += 1
            tossed["bits"] = list(f"{bits:064b}")
        return tossed["bits"].pop(0) == "1"


def published(texts, index, sequence_length, *, layout, draws):
    """(A, B, label) of one document: google-research/bert and albert, create_pretraining_data.py, told again."""
    longest = sequence_length - 3
    target = longest
    if draws.is_short(layout.short_probability):
        target = draws.short_length(2, longest)
    found, chunk, gathered, sentence = [], [], 0, 0
    document = texts[index]
    while sentence < len(document):
        chunk.append(document[sentence])
        gathered += len(document[sentence])
        if sentence == len(document) - 1 or gathered >= target:
            draws.next_pair()
            a_end = draws.split_at(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a = [token for part in chunk[:a_end] for token in part]
            is_random = len(chunk) == 1 or draws.is_random(layout.random_next_probability)
            if is_random:
                b = []
                for attempt in range(10):
                    other = draws.document(attempt, len(texts) - 1)
                    if other != index:
                        break
                for part in texts[other][draws.start(len(texts[other]) - 1) :]:
                    b += part
                    if len(b) >= target - len(a):
                        break
                sentence -= len(chunk) - a_end
            else:
                b = [token for part in chunk[a_end:] for token in part]
            is_swapped = not is_random and draws.is_swapped(layout.swap_probability)
            if is_swapped:
                a, b = b, a
            while len(a) + len(b) > longest:
                part, which = (a, pairs._A_FRONT) if len(a) > len(b) else (b, pairs._B_FRONT)
                del part[0 if draws.front(which) else -1]
            found.append((a, b, is_random or is_swapped))
            chunk, gathered = [], 0
        sentence += 1
    return found


def drawn(split, layout, sequence_length, *, seed, passes):
    """The pairs that the project draws, as token lists."""
    found = np.concatenate(list(pairs.draw_pairs(split, layout, sequence_length, seed=seed, passes=passes)))
    return [
        (
            split.tokens(pair["a_start"], pair["a_start"] + pair["a_length"]).tolist(),
            split.tokens(pair["b_start"], pair["b_start"] + pair["b_length"]).tolist(),
            bool(pair["label"]),
        )
        for pair in found
    ]


@pytest.mark.parametrize(
    "count, sentences, words, sequence_length, layout",
    [
        (10, 30, 40, 64, SentencePairs()),
        (8, 30, 40, 5, SentencePairs()),  # the shortest row: one token each
        (6, 20, 400, 32, SentencePairs(short_probability=0.5)),  # sentences far longer than the row
        (40, 2, 9, 128, SentencePairs()),  # one sentence each: B is always from elsewhere
        (1, 30, 20, 64, SentencePairs()),  # no other document: ten tries, then the same one
        (2, 20, 20, 64, SentencePairs(random_next_probability=0.9)),
        (10, 30, 20, 512, SentencePairs(random_next_probability=0.0)),
        (6, 20, 400, 32, SentenceOrder(short_probability=0.5)),  # shortened after they are swapped
        (40, 2, 9, 128, SentenceOrder()),  # one sentence each: B is from elsewhere, label 1
        (10, 30, 20, 64, SentenceOrder(random_next_probability=0.5, swap_probability=0.2)),
    ],
)
def test_equals_the_published_procedure_draw_for_draw(
    tmp_path, monkeypatch, count, sentences, words, sequence_length, layout
):
    texts = documents(count, V, seed=4, sentences=sentences, words=words)
    split = write(tmp_path, texts, [], vocab_size=V).split("train")
    expected = [
        pair
        for document in range(count)
        for pass_ in range(3)
        for pair in published(texts, document, sequence_length, layout=layout, draws=CountedDraws(9, pass_, document))
    ]
    assert drawn(split, layout, sequence_length, seed=9, passes=3) == expected
    monkeypatch.setattr(pairs, "_TASK_PAIRS", 100)  # however the work is dealt
    monkeypatch.setattr(pairs, "_LANES", 7)
    assert drawn(split, layout, sequence_length, seed=9, passes=3) == expected
