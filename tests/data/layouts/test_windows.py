"""Windows against the joined text: rows that repeat the end of the row before them, and say how much."""

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Windows
from plmjax.data.pipeline import DatasetSource
from plmjax.errors import UserError
from tests.data.corpora import documents, phase, write

WORDS = Vocabulary.placeholder(300)
LENGTH, OVERLAP, ROWS = 32, 10, 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> DatasetSource:
    dataset = write(tmp_path_factory.mktemp("dataset"), documents(40, 300), documents(8, 300, seed=1), 300)
    return DatasetSource(Windows(overlap=OVERLAP), dataset, WORDS, seed=0)


def test_a_place_of_a_batch_goes_on_with_the_tokens_that_it_repeats(source: DatasetSource) -> None:
    batches = source.train(phase(batch_size=ROWS, sequence_length=LENGTH), 0)
    before, after = next(batches), next(batches)
    batches.close()
    np.testing.assert_array_equal(before["input_ids"][:, -OVERLAP:], after["input_ids"][:, :OVERLAP])
    np.testing.assert_array_equal(before["begins"], np.ones(ROWS))
    np.testing.assert_array_equal(after["begins"], np.zeros(ROWS))
    assert (before["overlap"] == OVERLAP).all() and before["overlap"].dtype == np.int32
    np.testing.assert_array_equal(after["next_weights"], np.tile(np.arange(LENGTH) >= OVERLAP, (ROWS, 1)))


def test_synthetic_batches_have_every_field() -> None:
    layout = Windows(overlap=OVERLAP)
    found, shapes = layout.synthetic(ROWS, LENGTH, 300, 0), layout.batch(ROWS, LENGTH)
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        name: (shape.shape, shape.dtype) for name, shape in shapes.items()
    }


def test_an_overlap_that_leaves_no_window_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"overlap of at least 1 .* found 0; .* the layout Streams"):
        Windows(overlap=0)
    Windows(overlap=15).check(32)
    with pytest.raises(UserError, match=r"overlap below half the sequence length, found 16 tokens of 32; lower it."):
        Windows(overlap=16).check(32)
