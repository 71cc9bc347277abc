"""Rows of two-way streams: what each direction is given and asked for, where documents begin, what goes on."""

import itertools
import math

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import BidirectionalStreams
from plmjax.data.pipeline import DatasetSource
from tests.data.corpora import documents, phase, write

V = 100
WORDS = Vocabulary.placeholder(V)
TEXTS = {"train": documents(9, V, sentences=6, words=9), "validation": documents(4, V, seed=1, sentences=6, words=9)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), TEXTS["train"], TEXTS["validation"], vocab_size=V)


def gaps(split: str) -> list[tuple[int, int, bool, bool]]:
    """Every pair of neighbours within a sentence and its marks, and whether its document begins or ends with it."""
    found = []
    for document in TEXTS[split]:
        pairs = []
        for sentence in document:
            marked = [WORDS.begin, *sentence, WORDS.end]
            pairs += itertools.pairwise(marked)
        last = len(pairs) - 1
        found += [(*pair, place == 0, place == last) for place, pair in enumerate(pairs)]
    return found


def fields(rows, prefix: str) -> list[list[int]]:
    """input, target, whether a document starts: of all rows in order, without padding."""
    read = rows.fields(np.arange(rows.count))
    names = ("input_ids", "next_ids", "document_starts", "next_weights", "segment_ids")
    *found, weights, segments = (read[prefix + name].ravel().astype(int) for name in names)
    np.testing.assert_array_equal(weights, segments)
    return np.stack(found, axis=1)[segments > 0].tolist()


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_each_direction_reads_every_sentence_and_asks_for_its_next_token(dataset, split, length):
    rows, text = BidirectionalStreams().rows(dataset, split, length, vocabulary=WORDS, seed=0), gaps(split)
    whole = len(text) // length * length if split == "train" else len(text)
    text = text[:whole]
    assert rows.count == -(-whole // length)
    assert fields(rows, "") == [[before, after, opens] for before, after, opens, _ in text]
    assert fields(rows, "backward_") == [[after, before, closes] for before, after, _, closes in text[::-1]]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_both_directions_go_on_from_batch_to_batch(dataset, split):
    source, size, length = DatasetSource(BidirectionalStreams(), dataset, WORDS, seed=0), 3, 5
    text = gaps(split)
    runs = {"": [tuple(gap[:2]) for gap in text], "backward_": [gap[1::-1] for gap in text[::-1]]}
    batches = source.train(phase(length, size), 0) if split == "train" else source.evaluation(phase(length, size))
    steps = len(text) // length // size if split == "train" else math.ceil(math.ceil(len(text) / length) / size)
    seen = [next(batches) for _ in range(steps)]
    batches.close()
    assert [batch["is_first"].tolist() for batch in seen] == [[1] * size] + [[0] * size] * (steps - 1)
    for prefix, run in runs.items():
        for place in range(size):
            read = []
            for batch in seen:
                there = batch[f"{prefix}segment_ids"][place] > 0
                read += zip(
                    *(batch[prefix + name][place][there].tolist() for name in ("input_ids", "next_ids")), strict=True
                )
            assert any(run[first : first + len(read)] == read for first in range(len(run))) and len(read) > length
