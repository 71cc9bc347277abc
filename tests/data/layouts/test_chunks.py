"""Blocks and streams against the joined text: every token asked for once, overlaps, where documents and runs begin."""

import itertools

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Chunks, ContiguousStreams, Windows
from plmjax.data.pipeline import DatasetSource
from tests.data.corpora import phase
from tests.data.layouts.rows import TEXTS, WORDS, V, all_fields, rows_of


def joined(split: str, end: int = WORDS.end) -> list[int]:
    """The tokens of all documents, with a token behind each."""
    return [token for document in TEXTS[split] for token in [*itertools.chain(*document), end]]


def test_a_text_that_just_fills_a_row_is_one_row_and_a_separator_may_join_documents(dataset):
    """A row goes with the token that its last one asks for."""
    size = len(joined("train"))
    assert [rows_of(dataset, Chunks(), length=length).count for length in (size - 2, size - 1, size)] == [1, 1, 0]
    found = all_fields(rows_of(dataset, Chunks(), vocabulary=Vocabulary(size=V, sep=4)))["input_ids"].ravel()
    np.testing.assert_array_equal(found, joined("train", 4)[: found.size])


CUTS = [(1, 0), (64, 0), (2, 1), (7, 3), (64, 16), (9000, 4000)]


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize(("length", "overlap"), CUTS)
def test_blocks_are_cut_from_the_joined_documents_and_ask_for_each_token_once(dataset, split, length, overlap):
    """An overlap repeats tokens as context. The last held-out row is filled with padding."""
    text, stride = joined(split), length - overlap
    rows = rows_of(dataset, Chunks(overlap=overlap), length=length, split=split)
    fields, asked = all_fields(rows), []
    for row in range(rows.count):
        here = text[row * stride : row * stride + length + 1]
        size = len(here) - 1
        assert size == length or (split == "validation" and row == rows.count - 1)
        assert fields["input_ids"][row, :size].tolist() == here[:-1]
        assert fields["next_ids"][row, :size].tolist() == here[1:]
        assert fields["positions"][row, :size].tolist() == list(range(size))
        assert (fields["segment_ids"][row, :size] == 1).all()
        assert not any(array[row, size:].any() for array in fields.values())
        asked += fields["next_ids"][row][fields["next_weights"][row] > 0].tolist()
    left_out = len(text) - 1 - len(asked)
    assert asked == text[1 : len(text) - left_out]
    assert 0 <= left_out < (stride if rows.count else length) if split == "train" else left_out == 0


@pytest.mark.parametrize(("split", "overlap"), [("train", 0), ("validation", 5)])
def test_a_stream_tells_where_documents_begin(dataset, split, overlap):
    rows = rows_of(dataset, ContiguousStreams(overlap=overlap), length=16, split=split)
    first = np.cumsum([0, *(sum(map(len, document)) + 1 for document in TEXTS[split])])[:-1]
    places = np.arange(rows.count)[:, None] * (16 - overlap) + np.arange(16)
    np.testing.assert_array_equal(all_fields(rows)["document_starts"], np.isin(places, first))


@pytest.mark.parametrize("layout", [ContiguousStreams(overlap=4), Windows(overlap=4)], ids=repr)
def test_a_row_of_a_stream_begins_or_goes_on_from_the_batch_before(dataset, layout):
    source, size, length = DatasetSource(layout, dataset, WORDS, seed=0), 6, 16
    steps = rows_of(dataset, layout, length=length).count // size
    batches = source.train(phase(length, size), steps - 3)  # over the end of an epoch
    run = [next(batches) for _ in range(steps + 3)]
    batches.close()
    firsts = [[int(step in (3, steps + 3))] * size for step in range(steps + 3)]
    assert [batch["is_first"].tolist() for batch in run] == firsts
    for before, batch in itertools.pairwise(run):
        goes_on = batch["is_first"] == 0
        overlap = layout.overlap
        np.testing.assert_array_equal(batch["row_ids"][goes_on], before["row_ids"][goes_on] + 1)
        np.testing.assert_array_equal(
            batch["input_ids"][goes_on, : overlap + 1],
            np.concatenate([before["input_ids"], before["next_ids"][:, -1:]], axis=1)[goes_on, length - overlap :],
        )
        assert (batch["row_ids"][~goes_on] < before["row_ids"][~goes_on]).all()
        if isinstance(layout, Windows):  # they say how much they repeat
            assert (batch["overlap"] == overlap).all() and batch["overlap"].dtype == np.int32
            weights = np.tile(np.arange(length) >= overlap, (goes_on.sum(), 1))
            np.testing.assert_array_equal(batch["next_weights"][goes_on], weights)
    held_out = list(source.evaluation(phase(length, size)))
    assert held_out[0]["is_first"].tolist() == (held_out[0]["row_ids"] >= 0).astype(int).tolist()
    assert len(held_out) > 1 and not any(batch["is_first"].any() for batch in held_out[1:])
    for before, batch in itertools.pairwise(held_out):
        real = batch["row_ids"] >= 0
        np.testing.assert_array_equal(before["next_ids"][real, -1], batch["input_ids"][real, layout.overlap])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_backwards_every_text_runs_from_its_end_and_stands_behind_the_token_after_it(dataset, split):
    text = joined(split)[::-1]
    rows = rows_of(dataset, ContiguousStreams(backwards=True), length=7, split=split)
    fields = all_fields(rows)
    real = fields["segment_ids"].ravel() > 0
    np.testing.assert_array_equal(fields["input_ids"].ravel()[real], text[: real.sum()])
    np.testing.assert_array_equal(fields["next_ids"].ravel()[real], text[1 : real.sum() + 1])
    after_an_end = np.roll(np.array(text[: real.sum()]) == WORDS.end, 1)
    np.testing.assert_array_equal(fields["document_starts"].ravel()[real], after_an_end & (np.arange(real.sum()) > 0))
    if split == "validation":
        assert real.sum() == len(text) - 1 and not fields["input_ids"].ravel()[~real].any()
