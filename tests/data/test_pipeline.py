"""The source of batches: the same batches for any host count and any start, every row once, closed without a hang."""

import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import layouts, tensorflow_runtime
from plmjax.data.pipeline import DatasetSource
from tests.data.corpora import assert_same, documents, phase, take, write
from tests.data.layouts.rows import shapes
from tests.data.mistakes import refused

V = 300
LAYOUTS = [
    layouts.SentencePairs(duplicates=2),
    layouts.SentencePairs(duplicates=2, pack=3),
    layouts.SingleSegment(pack=2),
    layouts.Chunks(),
    layouts.ContiguousStreams(),
    layouts.FullSentences(),
    layouts.Documents(pack=3, shortest_length=5),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), documents(60, V), documents(8, V, seed=1), vocab_size=V)


def source(dataset, layout, **settings):
    return DatasetSource(layout, dataset, Vocabulary.placeholder(V), **({"seed": 3} | settings))


def assert_shares(parts, every, whole) -> None:
    """The batches of hosts are their places of the whole ones."""
    for places, part in zip(every, parts, strict=True):
        for share, expected in zip(part, whole, strict=True):
            assert_same(share, expected, places)


@pytest.mark.parametrize("layout", [*LAYOUTS, layouts.Windows(overlap=5), layouts.BidirectionalStreams()], ids=repr)
def test_batches_have_the_promised_fields_and_hosts_share_them(dataset, layout):
    """A host may have no row of the last held-out batch."""
    one, promised = phase(32, 10), layout.batch(10, 32)
    whole, held_out = take(source(dataset, layout).train(one, 50), 3), list(source(dataset, layout).evaluation(one))
    for batch in (whole[0], held_out[0]):
        assert shapes(batch) == shapes(promised)
    unused = np.flatnonzero(held_out[-1]["row_ids"] < 0)
    assert unused.size
    every = np.split(np.random.default_rng(0).permutation(10), [4, 7])  # as a mesh may lie over three hosts
    assert_shares((take(source(dataset, layout).train(one, 50, own), 3) for own in every), every, whole)
    every.append(unused)
    assert_shares((source(dataset, layout).evaluation(one, own) for own in every), every, held_out)


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_a_restart_goes_on_with_the_same_batches_also_from_a_thread(dataset, layout, monkeypatch):
    """Without TensorFlow, a thread makes them."""
    straight = take(source(dataset, layout).train(phase(32, 8), 0), 12)
    held_out = list(source(dataset, layout).evaluation(phase(32, 8)))
    assert_shares([take(source(dataset, layout).train(phase(32, 8), 5), 7)], [slice(None)], straight[5:])
    monkeypatch.setattr(tensorflow_runtime, "is_installed", lambda: False)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    batches = source(dataset, layout).train(phase(32, 8), 5)
    assert_shares([[next(batches) for _ in range(7)]], [slice(None)], straight[5:])
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)
    assert_shares([source(dataset, layout).evaluation(phase(32, 8))], [slice(None)], held_out)


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_an_epoch_holds_every_row_once_by_its_number_and_the_next_follows_without_a_seam(dataset, layout):
    made, seen = source(dataset, layout), {}
    count = made.rows("train", 64).count
    batches = take(made.train(phase(64, 7), 0), -(-2 * count // 7))
    for batch in batches:
        for row, ids in zip(batch["row_ids"].tolist(), batch["input_ids"], strict=True):
            np.testing.assert_array_equal(seen.setdefault(row, ids), ids)
    if not isinstance(layout, layouts.ContiguousStreams):
        first, second = np.concatenate([batch["row_ids"] for batch in batches])[: 2 * count].reshape(2, -1)
        np.testing.assert_array_equal(np.sort([first, second]), [np.arange(count)] * 2)
        assert not np.array_equal(first, second)


def test_phases_and_seeds_have_orders_of_their_own(dataset):
    def ids(seed, index):
        return take(source(dataset, layouts.Chunks(), seed=seed).train(phase(32, 64, index), 0), 1)[0][
            "row_ids"
        ].tolist()

    assert len({tuple(ids(seed, index)) for seed in (0, 1) for index in (0, 1)}) == 4
    assert ids(0, 0) == ids(0, 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_evaluation_holds_every_row_once_and_marks_what_fills_the_batch(dataset, layout):
    batches = list(source(dataset, layout).evaluation(phase(32, 10)))
    ids = np.concatenate([batch["row_ids"] for batch in batches])
    count = source(dataset, layout).rows("validation", 32).count
    assert count % 10 and len(ids) == -(-count // 10) * 10
    np.testing.assert_array_equal(np.sort(ids[ids >= 0]), np.arange(count))
    if not isinstance(layout, layouts.ContiguousStreams):
        np.testing.assert_array_equal(ids[:count], np.arange(count))
    other_seed = list(source(dataset, layout, seed=99).evaluation(phase(32, 10)))
    for batch, expected in zip(other_seed, batches, strict=True):
        assert_same(batch, expected)


def test_evaluation_without_held_out_text_is_empty(tmp_path):
    dataset = write(tmp_path, documents(6, V), [], vocab_size=V)
    for layout in LAYOUTS:
        assert list(source(dataset, layout).evaluation(phase(32, 4))) == []


@pytest.mark.nightly
def test_a_closed_iterator_ends_and_an_open_one_does_not_hang_the_exit(dataset):
    batches = source(dataset, layouts.Chunks()).train(phase(32, 8), 0)
    next(batches)
    batches.close()
    assert next(batches, None) is None
    program = f"""
import sys
from plmjax.data import layouts
from plmjax.data.pipeline import DatasetSource
from plmjax.data.store import open_dataset
from plmjax.experiment import Data
from plmjax.contracts.vocabulary import Vocabulary
from tests.data.corpora import phase
dataset = open_dataset({str(dataset.directory)!r})
source = DatasetSource(layouts.SentencePairs(duplicates=2), dataset, Vocabulary.placeholder({V}), seed=0)
batches = source.train(phase(64, 512), 0)
next(batches)
assert not {{"keras", "sklearn"}} & set(sys.modules), "TensorFlow's import brings seconds of what no pipeline needs"
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=300, capture_output=True).returncode == 0


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_a_text_of_just_one_batch_is_a_batch(dataset, layout):
    count = source(dataset, layout).rows("train", 32).count
    (batch,) = take(source(dataset, layout).train(phase(32, count), 0), 1)
    assert sorted(batch["row_ids"].tolist()) == list(range(count))
    more = phase(32, count + 1)
    refused(
        lambda: source(dataset, layout).train(more, 0), f"a batch of {count + 1} rows .. fills {count}; prepare more"
    )
    if isinstance(layout, layouts.Chunks) and not isinstance(layout, layouts.ContiguousStreams):
        refused(lambda: source(dataset, layout).train(phase(100_000, 1), 0), "fills 0;")


@pytest.mark.parametrize(
    ("layout", "pad"), [*((layout, 0) for layout in LAYOUTS), (layouts.Chunks(), 7), (layouts.Chunks(), -1)], ids=repr
)
def test_rows_that_fill_a_batch_are_padding(dataset, layout, pad):
    """Tokens are the padding token, which need not be 0, or 0 where there is none; all else is 0."""
    vocabulary = dataclasses.replace(Vocabulary.placeholder(V), pad=pad)
    (*_, batch) = DatasetSource(layout, dataset, vocabulary, 3).evaluation(phase(32, 10))
    empty = batch["row_ids"] < 0
    assert empty.any() and not empty.all()
    for name, array in batch.items():
        expected = -1 if name == "row_ids" else max(pad, 0) if name in ("input_ids", "next_ids") else 0
        assert (array[empty] == expected).all(), name


def test_a_row_has_a_number_of_32_bits(dataset):
    most, layout = 2**31 - 1, SimpleNamespace(rows=lambda *arguments, **named: SimpleNamespace(count=count))
    made = DatasetSource(layout, dataset, Vocabulary.placeholder(V), 3)
    count = most
    assert made.epoch_rows(32) == made.held_out(32) == most
    count = most + 1
    refused(lambda: made.rows("train", 31), f"at most {most} rows .. {most + 1} of 31 tokens")
