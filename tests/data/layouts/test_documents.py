"""Documents cut into sequences: all of the text once, in packed rows of one document a sequence."""

import numpy as np
import pytest

from plmjax.data.layouts import Documents
from tests.data.corpora import documents, write
from tests.data.layouts.rows import WORDS, V, all_fields, rows_of

CLS, SEP = WORDS.cls, WORDS.sep


def sequences(layout: Documents, dataset, length: int = 32, seed: int = 0) -> list[np.ndarray]:
    """The tokens of every sequence of all rows, without special tokens."""
    fields, found = all_fields(rows_of(dataset, layout, length=length, seed=seed)), []
    for ids, segments, positions in zip(*(fields[n] for n in ("input_ids", "segment_ids", "positions")), strict=True):
        for number in range(1, segments.max() + 1):
            (places,) = np.nonzero(segments == number)
            assert ids[places[0]] == CLS and ids[places[-1]] == SEP
            assert (positions[places] == np.arange(len(places))).all() and (np.diff(places) == 1).all()
            found.append(ids[places[1:-1]])
    assert "token_type_ids" not in fields
    return found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), documents(50, V, seed=2), documents(4, V), vocab_size=V)


@pytest.mark.parametrize("shortest", [0, 5, 32])
def test_every_token_is_in_one_sequence_of_its_document(shortest, dataset) -> None:
    split = dataset.split("train")
    found = sequences(Documents(pack=1, shortest_length=shortest), dataset)
    assert np.array_equal(np.concatenate(found), split.tokens(0, split.token_count))
    assert set(split.document_tokens[1:].tolist()) <= set(np.cumsum([len(one) for one in found]).tolist())
    assert max(map(len, found)) == 30
    packed = sequences(Documents(pack=4, shortest_length=shortest), dataset)
    assert sorted(one.tolist() for one in packed) == sorted(one.tolist() for one in found)


def test_lengths_are_drawn_between_the_shortest_and_a_rows(tmp_path) -> None:
    """Of one long document, so that few pieces end with it."""
    long = [[np.full(5000, 9, np.int32)] * 20]
    dataset = write(tmp_path, long, long, vocab_size=V)
    lengths = np.array([len(one) + 2 for one in sequences(Documents(pack=1, shortest_length=12), dataset, 64)])
    assert lengths[:-1].min() == 12 and lengths.max() == 64
    assert abs(lengths.mean() - 38) < 1.5  # five standard errors of 2,700 draws
    other = np.array([len(one) + 2 for one in sequences(Documents(pack=1, shortest_length=12), dataset, 64, seed=1)])
    assert len(other) != len(lengths) or (other != lengths).any()
