"""Pairs of streams: each text where its document is, shifted by one for the decoder, packed and not."""

import functools
import operator

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import store
from plmjax.data.layouts import PairedStreams
from plmjax.data.pipeline import DatasetSource
from tests.data.corpora import Words, documents, phase
from tests.data.layouts.rows import shapes

V = 300
WORDS = Vocabulary(size=V, pad=0, begin=2, end=3)
COUNTS = {"train": 90, "validation": 17}


def text_of(split, seed):
    return documents(COUNTS[split], V, seed=seed + 10 * (split == "validation"), sentences=3, words=12)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder, records = tmp_path_factory.mktemp("dataset"), {}
    for split in store.SPLITS:
        writer = store.ShardWriter(folder, split, 0, vocab_size=V, streams=("english", "german"))
        for english, german in zip(text_of(split, 1), text_of(split, 2), strict=True):
            writer.add({"english": english, "german": german})
        records[split] = [writer.close()]
    store.finish(folder, records, Words(V), sources=[], description={})
    return store.open_dataset(folder)


def layout(**settings):
    return PairedStreams(source="english", target="german", **settings)


def pairs_of(split):
    joined = [[functools.reduce(operator.iadd, document, []) for document in text_of(split, seed)] for seed in (1, 2)]
    return list(zip(*joined, strict=True))


def pairs_in(fields, start=2):
    """(source, target) of every pair in some rows, checked for its place and its special tokens."""
    found = []
    for row in range(len(fields["input_ids"])):
        for segment in range(1, fields["segment_ids"][row].max(initial=0) + 1):
            here = fields["segment_ids"][row] == segment
            there = fields["decoder_segment_ids"][row] == segment
            source, target = fields["input_ids"][row][here], fields["next_ids"][row][there]
            given = fields["decoder_input_ids"][row][there]
            assert source[-1] == target[-1] == 3 and given[0] == start
            np.testing.assert_array_equal(given[1:], target[:-1])
            assert (np.diff(np.flatnonzero(here)) == 1).all() and (np.diff(np.flatnonzero(there)) == 1).all()
            np.testing.assert_array_equal(fields["positions"][row][here], np.arange(here.sum()))
            np.testing.assert_array_equal(fields["decoder_positions"][row][there], np.arange(there.sum()))
            found.append((source[:-1].tolist(), target[:-1].tolist()))
    np.testing.assert_array_equal(fields["next_weights"], fields["decoder_segment_ids"] > 0)
    for name in ("input_ids", "positions", "decoder_input_ids", "decoder_positions"):
        prefix = "decoder_" * name.startswith("decoder")
        assert not fields[name][fields[f"{prefix}segment_ids"] == 0].any()
    return found


@pytest.mark.parametrize("split", store.SPLITS)
@pytest.mark.parametrize("pack", [1, 5])
def test_every_pair_is_in_one_row(dataset, split, pack):
    """Packed by the seed where a run trains, and alike for all runs where they are evaluated."""
    rows = layout(pack=pack).rows(dataset, split, 48, vocabulary=WORDS, seed=3)
    found = pairs_in(rows.fields(np.arange(rows.count)))
    expected = pairs_of(split)
    assert found == expected if pack == 1 else sorted(found) == sorted(expected)
    assert rows.count == len(expected) if pack == 1 else rows.count < 0.8 * len(expected)
    other = layout(pack=pack).rows(dataset, split, 48, vocabulary=WORDS, seed=4)
    assert (pairs_in(other.fields(np.arange(other.count))) == found) == (pack == 1 or split == "validation")


def test_held_out_batches_hold_every_row_once(dataset):
    source = DatasetSource(layout(pack=3), dataset, WORDS, seed=3)
    held_out = list(source.evaluation(phase(48, 8)))
    joined = {name: np.concatenate([batch[name] for batch in held_out]) for name in held_out[0]}
    assert shapes(held_out[0]) == shapes(layout(pack=3).batch(8, 48))
    assert sorted(pairs_in(joined)) == sorted(pairs_of("validation"))
    assert not joined["decoder_segment_ids"][joined["row_ids"] < 0].any()
    asked = np.concatenate([target for _, target in pairs_of("train")] + [[WORDS.end] * COUNTS["train"]])
    np.testing.assert_array_equal(source.unigram_counts, np.bincount(asked, minlength=V))


def test_the_decoder_starts_with_the_token_that_its_system_takes_and_what_is_too_long_is_cut_off(dataset):
    for start, token in (("begin", 2), ("end", 3), ("pad", 0)):
        rows = layout(start=start).rows(dataset, "validation", 8, vocabulary=WORDS, seed=3)
        assert pairs_in(rows.fields(np.arange(rows.count)), token) == [
            (x[:7], y[:7]) for x, y in pairs_of("validation")
        ]
