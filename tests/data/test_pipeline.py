"""The source of batches: the same batches for any host count and any start, every row once, closed without a hang."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import layouts, tensorflow_runtime
from plmjax.data.pipeline import DatasetSource
from tests.data.corpora import assert_same, documents, phase, take, write
from tests.data.layouts.rows import shapes
from tests.data.mistakes import refused
from tests.paths import ROOT

V = 300
WORDS = Vocabulary.placeholder(V)
LAYOUTS = [
    layouts.SentencePairs(duplicates=2, pack=3),
    layouts.SingleSegment(pack=2),
    layouts.Chunks(),
    layouts.ContiguousStreams(),
    layouts.ContinuedPairs(),
    layouts.Documents(pack=3, shortest_length=5),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write(tmp_path_factory.mktemp("dataset"), documents(60, V), documents(7, V, seed=1), vocab_size=V)


def assert_shares(parts, every, whole) -> None:
    """The batches of hosts are their places of the whole ones."""
    for places, part in zip(every, parts, strict=True):
        for share, expected in zip(part, whole, strict=True):
            assert_same(share, expected, places)


@pytest.mark.parametrize("layout", [*LAYOUTS, layouts.Windows(overlap=5), layouts.FullSentences()], ids=repr)
def test_batches_have_the_promised_fields_and_any_host_and_any_start_have_their_share(dataset, layout, monkeypatch):
    """Without TensorFlow, a thread makes them. A host may have no row of the last held-out batch."""

    def source():
        return DatasetSource(layout, dataset, WORDS, 3)

    one, promised = phase(32, 10), layout.batch(10, 32)
    whole, held_out = take(source().train(one, 50), 7), list(source().evaluation(one))
    for batch in (whole[0], held_out[0], layout.synthetic(10, 32, V, 0)):
        assert shapes(batch) == shapes(promised)
    unused = np.flatnonzero(held_out[-1]["row_ids"] < 0)
    assert unused.size
    every = np.split(np.random.default_rng(0).permutation(10), [4, 7])  # as a mesh may lie over three hosts
    assert_shares((take(source().train(one, 50, own), 7) for own in every), every, whole)
    every.append(unused)
    assert_shares((source().evaluation(one, own) for own in every), every, held_out)
    assert_shares([take(source().train(one, 53), 4)], [slice(None)], whole[3:])
    monkeypatch.setattr(tensorflow_runtime, "is_installed", lambda: False)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    batches = source().train(one, 53)
    assert_shares([[next(batches) for _ in range(4)]], [slice(None)], whole[3:])
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)
    assert_shares([source().evaluation(one)], [slice(None)], held_out)


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_an_epoch_holds_every_row_once_and_a_batch_has_at_most_all_of_them(dataset, layout):
    """By its number; the next epoch follows without a seam."""
    made, seen = DatasetSource(layout, dataset, WORDS, 3), {}
    count = made.rows("train", 64).count
    batches = take(made.train(phase(64, 7), 0), -(-2 * count // 7))
    for batch in batches:
        for row, ids in zip(batch["row_ids"].tolist(), batch["input_ids"], strict=True):
            np.testing.assert_array_equal(seen.setdefault(row, ids), ids)
    if not layout.continues:
        first, second = np.concatenate([batch["row_ids"] for batch in batches])[: 2 * count].reshape(2, -1)
        np.testing.assert_array_equal(np.sort([first, second]), [np.arange(count)] * 2)
        assert not np.array_equal(first, second)
    (batch,) = take(made.train(phase(64, count), 0), 1)
    assert sorted(batch["row_ids"].tolist()) == list(range(count))
    refused(lambda: made.train(phase(64, count + 1), 0), f"a batch of {count + 1} rows .. fills {count}; prepare more")


@pytest.mark.parametrize(
    ("layout", "pad"), [*((layout, 0) for layout in LAYOUTS), (layouts.Chunks(), 7), (layouts.Chunks(), -1)], ids=repr
)
def test_evaluation_holds_every_row_once_and_fills_the_last_batch_with_padding(dataset, layout, pad):
    """Tokens are the padding token, which need not be 0, or 0 where there is none; all else is 0."""
    made = DatasetSource(layout, dataset, dataclasses.replace(WORDS, pad=pad), 3)
    batches = list(made.evaluation(phase(32, 10)))
    ids = np.concatenate([batch["row_ids"] for batch in batches])
    count = made.rows("validation", 32).count
    assert count % 10 and len(ids) == -(-count // 10) * 10
    np.testing.assert_array_equal(np.sort(ids[ids >= 0]), np.arange(count))
    if not layout.continues:
        np.testing.assert_array_equal(ids[:count], np.arange(count))
    empty = batches[-1]["row_ids"] < 0
    assert empty.any() and not empty.all()
    for name, array in batches[-1].items():
        expected = -1 if name == "row_ids" else max(pad, 0) if name in ("input_ids", "next_ids") else 0
        assert (array[empty] == expected).all(), name
    other_seed = DatasetSource(layout, dataset, made.vocabulary, 99).evaluation(phase(32, 10))
    for batch, expected in zip(other_seed, batches, strict=True):
        assert_same(batch, expected)


@pytest.mark.nightly
def test_an_open_iterator_does_not_hang_the_exit(dataset):
    program = f"""
import sys
from plmjax.data import layouts
from plmjax.data.pipeline import DatasetSource
from plmjax.data.store import open_dataset
from plmjax.contracts.vocabulary import Vocabulary
from tests.data.corpora import phase
dataset = open_dataset({str(dataset.directory)!r})
source = DatasetSource(layouts.SentencePairs(duplicates=2), dataset, Vocabulary.placeholder({V}), seed=0)
batches = source.train(phase(64, 512), 0)
next(batches)
assert not {{"keras", "sklearn"}} & set(sys.modules), "TensorFlow's import brings seconds of what no pipeline needs"
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=300, capture_output=True).returncode == 0


def test_triton_is_loaded_before_tensorflow(tmp_path: Path) -> None:
    """Each has an LLVM of its own, and Triton crashes if it comes second."""
    files = {"tensorflow/__init__.py": "from tensorflow import config\nprint('tensorflow')\n"}
    files["tensorflow/config.py"] = "def set_visible_devices(devices, kind):\n    pass\n"
    files |= {"triton/__init__.py": "", "triton/_C/__init__.py": "", "triton/_C/libtriton.py": "print('triton')\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", "from plmjax.data import tensorflow_runtime; tensorflow_runtime.tensorflow()"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["triton", "tensorflow"], done.stderr
