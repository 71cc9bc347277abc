"""Rows of cells: each cell once an epoch, the held-out ones with their mirrors, and counts of something else."""

import dataclasses

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import cooccurrence, pipeline
from plmjax.data.layouts import Cooccurrences
from tests.data.corpora import documents, phase, write
from tests.data.layouts.rows import shapes

SIZE, LENGTH, ROWS = 40, 16, 4
VOCABULARY = dataclasses.replace(Vocabulary.placeholder(SIZE), continuation=np.zeros(SIZE, bool))
LAYOUT = Cooccurrences(window=3, min_count=2, held_out=0.1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), documents(20, SIZE), [], vocab_size=SIZE)


def cells_of(batches, steps: int) -> list[tuple[int, int, float]]:
    """The cells of some batches, without what fills them."""
    found = []
    for _, batch in zip(range(steps), batches, strict=False):
        real = batch["cooccurrences"] > 0
        assert (batch["input_ids"][~real] == 0).all()
        parts = (batch[name][real].tolist() for name in ("input_ids", "context_ids", "cooccurrences"))
        found += zip(*parts, strict=True)
    return found


def test_every_cell_is_there_once(dataset):
    LAYOUT.prepare(dataset, VOCABULARY)
    cells = cooccurrence.open_cells(dataset.directory / "cooccurrence")
    source = pipeline.DatasetSource(LAYOUT, dataset, VOCABULARY, 0)
    one = phase(LENGTH, ROWS)
    batch = next(train := source.train(one, 0))
    train.close()
    made = LAYOUT.synthetic(ROWS, LENGTH, SIZE, 0)
    assert shapes(made) == shapes(batch) == shapes(LAYOUT.batch(ROWS, LENGTH))
    assert made["context_ids"].min() >= 5 and made["cooccurrences"].min() > 0 < np.ptp(made["cooccurrences"])
    assert sorted(made["input_ids"].ravel()) == sorted(made["context_ids"].ravel())  # words of the same counts
    steps = LAYOUT.rows(dataset, "train", LENGTH, vocabulary=VOCABULARY, seed=0).count // ROWS
    trained, held_out = cells_of(source.train(one, 0), steps), cells_of(source.evaluation(one), 10**6)
    assert len(trained) == steps * ROWS * LENGTH
    every = {tuple(cell) for cell in cells.read(0, cells.count).tolist()}
    assert len(set(trained)) == len(trained) and set(trained) < every
    assert len(set(held_out)) == len(held_out) == pytest.approx(0.1 * cells.count, abs=2)
    assert not set(trained) & set(held_out)
    assert {(j, i, x) for i, j, x in held_out} == set(held_out)
    # A batch is a function of its step; another epoch has another order.
    np.testing.assert_array_equal(next(source.train(one, 0))["input_ids"], batch["input_ids"])
    assert (next(source.train(one, steps))["input_ids"] != batch["input_ids"]).any()
    weight = source.unigram_counts
    assert weight.sum() == pytest.approx(cells.total, rel=0.01) and not weight[:5].any()


def test_a_word_is_a_target_as_often_as_its_share_of_the_counted_words(tmp_path):
    """Unknown tokens stand beside no word, and have no share of the weight."""
    texts = [[[*sentence, 1, 1] for sentence in document] for document in documents(20, SIZE)]
    dataset = write(tmp_path / "set", texts, [], vocab_size=SIZE)
    times, words = np.array(dataset.unigram_counts()), np.isin(np.arange(SIZE), VOCABULARY.special, invert=True)
    assert not words[1] and times[1] > times[words].max()
    for min_count in (2, int(np.median(times[words]))):
        folder = tmp_path / str(min_count)
        layout = dataclasses.replace(LAYOUT, path=str(folder), min_count=min_count)
        settings = cooccurrence.Counting(layout.window, layout.symmetric, min_count)
        cells = cooccurrence.count(dataset, VOCABULARY.special, folder, settings, processes=1)
        counted = np.where(words & (times >= min_count), times, 0)
        assert (np.count_nonzero(counted) < words.sum()) == (min_count > 2)
        found = layout.target_counts(dataset, VOCABULARY)
        np.testing.assert_allclose(found, counted * (cells.total / counted.sum()), atol=0.5)
        assert not np.isin(cells.read(0, cells.count)["row"], VOCABULARY.special).any()
