"""Blocks and streams against the joined text: every token asked for once, overlaps, where documents and runs begin."""

import gzip
import itertools

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Blocks, Streams
from plmjax.data.pipeline import DatasetSource
from plmjax.errors import UserError
from tests.data.corpora import documents, phase, write

V = 300
WORDS = Vocabulary.placeholder(V)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), documents(40, V), documents(8, V, seed=1), V)


def rows_of(dataset, layout, length=64, split="train", vocabulary=WORDS):
    return layout.rows(dataset, split, length, vocabulary, seed=0)


def all_fields(rows):
    return rows.fields(np.arange(rows.count))


def joined(texts, end):
    return [token for document in texts for token in [*(t for sentence in document for t in sentence), end]]


def test_packed_rows_of_real_text_waste_less_than_three_percent(shared_data, tmp_path):
    """Shares of all tokens that are read, and of the positions of all rows: left out, padded, or not asked for."""
    text = gzip.decompress((shared_data / "pretrain" / "wikipedia_en" / "sample_blankline_docs.txt.gz").read_bytes())
    documents = [[[5 + len(word) % 9 for word in line.split()]] for line in text.decode()[:500_000].split("\n\n")]
    cut = len(documents) * 19 // 20
    dataset = write(tmp_path / "real", documents[:cut], documents[cut:], V)
    for split, texts in (("train", documents[:cut]), ("validation", documents[cut:])):
        asked = all_fields(rows_of(dataset, Blocks(), 128, split))["next_weights"]
        tokens = len(joined(texts, WORDS.end)) - 1
        assert tokens > 5000 and asked.sum() >= 0.97 * tokens and asked.mean() >= 0.97


@pytest.mark.parametrize("length", [1, 7, 64, 1000])
def test_blocks_are_cut_from_the_joined_documents(dataset, length):
    text = joined(documents(40, V), WORDS.end)
    rows = rows_of(dataset, Blocks(), length)
    assert rows.count == (len(text) - 1) // length
    fields = all_fields(rows)
    np.testing.assert_array_equal(fields["input_ids"].ravel(), text[: rows.count * length])
    np.testing.assert_array_equal(fields["next_ids"].ravel(), text[1 : rows.count * length + 1])
    assert (fields["segment_ids"] == 1).all() and (fields["next_weights"] == 1).all()
    np.testing.assert_array_equal(fields["positions"], np.tile(np.arange(length), (rows.count, 1)))


def test_a_text_that_just_fills_a_row_is_one_row(dataset):
    """With the token that its last one asks for."""
    size = len(joined(documents(40, V), WORDS.end))
    assert [rows_of(dataset, Blocks(), length).count for length in (size - 2, size - 1, size)] == [1, 1, 0]


def test_held_out_blocks_ask_for_every_token_once(dataset):
    text = joined(documents(8, V, seed=1), WORDS.end)
    fields = all_fields(rows_of(dataset, Blocks(), 64, "validation"))
    asked = fields["next_weights"] > 0
    assert not asked.all()  # the last row is not full
    np.testing.assert_array_equal(fields["next_ids"][asked], text[1:])
    np.testing.assert_array_equal(fields["input_ids"][asked], text[:-1])
    np.testing.assert_array_equal(fields["segment_ids"], asked)
    for name in ("input_ids", "next_ids", "positions"):
        assert not fields[name][~asked].any(), name


def test_documents_join_with_the_separator_where_there_is_no_end_token(dataset):
    vocabulary = Vocabulary(size=V, sep=4)
    fields = all_fields(rows_of(dataset, Blocks(), 64, vocabulary=vocabulary))
    text = joined(documents(40, V), 4)
    np.testing.assert_array_equal(fields["input_ids"].ravel(), text[: fields["input_ids"].size])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_streams_go_on_from_batch_to_batch(dataset, split):
    rows, size, length = rows_of(dataset, Streams(), 16, split), 6, 16
    places, key = np.arange(size), np.zeros(1, np.uint64)
    steps = rows.count // size if split == "train" else rows.evaluation_steps(size)

    def at(step):
        return rows.train(step, size, places, key) if split == "train" else rows.evaluation(step, size, places)

    for step in range(steps - 1):
        now, after = at(step), at(step + 1)
        now, after = now[after >= 0], after[after >= 0]
        now, after = rows.fields(now), rows.fields(after)
        np.testing.assert_array_equal(now["next_ids"][:, -1], after["input_ids"][:, 0])
        assert now["input_ids"].shape[1] == length
    seen = np.concatenate([at(step) for step in range(steps)])
    assert len(set(seen[seen >= 0].tolist())) == (steps * size if split == "train" else rows.count)
    if split == "train":
        np.testing.assert_array_equal(at(steps), at(0))


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize(("length", "overlap"), [(2, 1), (7, 3), (64, 16), (64, 63), (1000, 1), (9000, 4000)])
def test_an_overlap_repeats_tokens_as_context_and_asks_for_each_once(dataset, split, length, overlap):
    texts = documents(40, V) if split == "train" else documents(8, V, seed=1)
    text, stride = joined(texts, WORDS.end), length - overlap
    rows = rows_of(dataset, Blocks(overlap=overlap), length, split)
    fields, asked = all_fields(rows), []
    for row in range(rows.count):
        here = text[row * stride : row * stride + length + 1]
        size = len(here) - 1
        assert size == length or (split == "validation" and row == rows.count - 1)
        assert fields["input_ids"][row, :size].tolist() == here[:-1]
        assert fields["next_ids"][row, :size].tolist() == here[1:]
        assert not fields["next_weights"][row, size:].any() and not fields["segment_ids"][row, size:].any()
        asked += fields["next_ids"][row][fields["next_weights"][row] > 0].tolist()
    left_out = len(text) - 1 - len(asked)
    assert asked == text[1 : len(text) - left_out]
    assert 0 <= left_out < (stride if rows.count else length) if split == "train" else left_out == 0


@pytest.mark.parametrize("overlap", [0, 5])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_stream_tells_where_documents_begin(dataset, split, overlap):
    texts = documents(40, V) if split == "train" else documents(8, V, seed=1)
    text = joined(texts, WORDS.end)
    rows = rows_of(dataset, Streams(overlap=overlap), 16, split)
    first = np.cumsum([0, *(sum(map(len, document)) + 1 for document in texts)])[:-1]
    starts = all_fields(rows)["document_starts"]
    assert starts.dtype == bool
    for row in range(rows.count):
        places = np.arange(row * (16 - overlap), row * (16 - overlap) + 16)
        np.testing.assert_array_equal(starts[row], np.isin(places, first))
    assert starts.sum() > 0 and len(text) > 16


@pytest.mark.parametrize("layout", [Streams(), Streams(overlap=4)], ids=repr)
def test_a_row_of_a_stream_begins_or_goes_on_from_the_batch_before(dataset, layout):
    source, size, length = DatasetSource(layout, dataset, WORDS, seed=0), 6, 16
    steps = rows_of(dataset, layout, length).count // size
    batches = source.train(phase(length, size), steps - 3)  # over the end of an epoch
    run = [next(batches) for _ in range(steps + 3)]
    batches.close()
    assert [batch["begins"].tolist() for batch in run] == [
        [int(step in (3, steps + 3))] * size for step in range(steps + 3)
    ]
    for before, batch in itertools.pairwise(run):
        goes_on = batch["begins"] == 0
        overlap = layout.overlap
        np.testing.assert_array_equal(batch["row_ids"][goes_on], before["row_ids"][goes_on] + 1)
        np.testing.assert_array_equal(
            batch["input_ids"][goes_on, : overlap + 1],
            np.concatenate([before["input_ids"], before["next_ids"][:, -1:]], axis=1)[goes_on, length - overlap :],
        )
        assert (batch["row_ids"][~goes_on] < before["row_ids"][~goes_on]).all()
    held_out = list(source.evaluation(phase(length, size)))
    assert held_out[0]["begins"].tolist() == (held_out[0]["row_ids"] >= 0).astype(int).tolist()
    assert len(held_out) > 1 and not any(batch["begins"].any() for batch in held_out[1:])


@pytest.mark.parametrize("layout", [Blocks(), Streams()], ids=repr)
def test_what_cannot_be_cut_is_named(dataset, layout):
    with pytest.raises(UserError, match=r"tokenizer with an end or separator token .* found one with neither"):
        rows_of(dataset, layout, vocabulary=Vocabulary(size=V))
    with pytest.raises(UserError, match=r"overlap below the sequence length, found 16 tokens of 16; lower it"):
        rows_of(dataset, type(layout)(overlap=16), 16)
    with pytest.raises(UserError, match=r"--data.layout.overlap of 0 or more, found -1"):
        type(layout)(overlap=-1)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_backwards_every_text_runs_from_its_end_and_stands_behind_the_token_after_it(dataset, split):
    text = joined(documents(*((40, V) if split == "train" else (8, V, 1))), WORDS.end)[::-1]
    rows = rows_of(dataset, Streams(backwards=True), 7, split)
    fields = all_fields(rows)
    real = fields["segment_ids"].ravel() > 0
    np.testing.assert_array_equal(fields["input_ids"].ravel()[real], text[: real.sum()])
    np.testing.assert_array_equal(fields["next_ids"].ravel()[real], text[1 : real.sum() + 1])
    after_an_end = np.roll(np.array(text[: real.sum()]) == WORDS.end, 1)
    np.testing.assert_array_equal(fields["document_starts"].ravel()[real], after_an_end & (np.arange(real.sum()) > 0))
    if split == "validation":
        assert real.sum() == len(text) - 1 and not fields["input_ids"].ravel()[~real].any()
