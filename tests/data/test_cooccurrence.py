"""The count of cooccurrences: every pair, the same from any processes and any memory, and on after a kill."""

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import cooccurrence, store
from plmjax.data.cooccurrence import Counting, cells, counting, runs
from tests.data.corpora import documents, write
from tests.data.mistakes import refused

SIZE = 60
SPECIAL = Vocabulary.placeholder(SIZE).special
TRAIN = documents(30, SIZE, sentences=6, words=30)
TRAIN[3] = [[1, 7] * 40]  # one pair over and over, at every other distance


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> store.Dataset:
    return write(tmp_path_factory.mktemp("dataset"), TRAIN, documents(2, SIZE, seed=1), vocab_size=SIZE)


@pytest.fixture
def small(monkeypatch):
    """Sizes at which a text of some thousand tokens is cut into many ranges, pieces and merges."""
    monkeypatch.setattr(counting, "PIECE", 64)
    monkeypatch.setattr(counting, "LOOK_BACK", 3)
    monkeypatch.setattr(
        counting, "_divide_memory", lambda memory, processes, window: (processes or 1, 8 * window * memory)
    )
    monkeypatch.setattr(runs, "FAN_IN", 3)
    monkeypatch.setattr(runs, "SORTED_AT_ONCE", 50)
    monkeypatch.setattr(runs, "BYTES_OF_A_MERGED_SUM", 1)
    monkeypatch.setattr(cells.Writer, "SHARD_CELLS", 1000)


def silent(line: str) -> None:
    """Says nothing."""


def brute_force(train: list, window: int, symmetric: bool, min_count: int) -> dict[tuple[int, int], float]:
    """The definition, one pair at a time."""
    texts = [[word for sentence in document for word in sentence] for document in train]
    times = np.bincount([word for text in texts for word in text], minlength=SIZE)
    found: dict[tuple[int, int], float] = {}
    for text in texts:
        words = [word for word in text if word not in SPECIAL and times[word] >= min_count]
        for place, row in enumerate(words):
            for distance in range(1, window + 1):
                sides = (place - distance, place + distance) if symmetric else (place - distance,)
                for other in sides:
                    if 0 <= other < len(words):
                        found[row, words[other]] = found.get((row, words[other]), 0) + 1 / distance
    return found


def table(counted: cells.Cells) -> dict[tuple[int, int], float]:
    every = counted.read(0, counted.count)
    assert len(np.unique(every[["row", "column"]])) == len(every)
    return {(int(row), int(column)): float(value) for row, column, value in every}


@pytest.mark.parametrize("made", [Counting(5, True, 1), Counting(5, False, 1), Counting(4, True, 20)], ids=repr)
def test_every_pair_is_counted(dataset, small, made, tmp_path):
    counted = cooccurrence.count(dataset, SPECIAL, tmp_path, made, memory=211, processes=1, report=silent)
    expected = brute_force(TRAIN, made.window, made.symmetric, made.min_count)
    found = table(counted)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[pair] for pair in expected], list(expected.values()), rtol=1e-6)
    assert counted.total == pytest.approx(sum(expected.values())) and counted.words == len({r for r, _ in expected})
    every = counted.read(0, counted.count)
    if made.symmetric:  # a cell and its mirror stand together
        rest = every[every["row"] != every["column"]]
        assert (rest["row"][::2] == rest["column"][1::2]).all() and (rest["value"][::2] == rest["value"][1::2]).all()
    order = every["row"].astype(int) * SIZE + every["column"]
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.1  # shuffled
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".bin"] * (
        -(-counted.count // 1000)
    ) + [".json"]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_no_bit_depends_on_processes_or_memory(dataset, small, tmp_path):
    """Two processes count with the real sizes: they do not see what the fixture sets."""
    for name, processes, memory in (("a", 1, 97), ("b", 1, 5000), ("c", 2, 700)):
        cooccurrence.count(dataset, SPECIAL, tmp_path / name, memory=memory, processes=processes, report=silent)
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")


KILLED = """
import os, signal, sys
from plmjax.data import cooccurrence, store
from plmjax.data.cooccurrence import counting, runs
counting._divide_memory = lambda memory, processes, window: (processes, 8 * window * memory)
where, after = sys.argv[3], int(sys.argv[4])
room = getattr(runs, where)
def doomed(*arguments, **named):
    global after
    after -= 1
    if after < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return room(*arguments, **named)
setattr(runs, where, doomed)
runs.FAN_IN = 3
cooccurrence.count(store.open_dataset(sys.argv[1]), tuple(range(5)), sys.argv[2], memory=97, processes=1)
"""


@pytest.mark.parametrize(
    ("where", "after"), [("write_counted", 4), pytest.param("merge", 2, marks=pytest.mark.nightly), ("merge_sums", 6)]
)
def test_a_killed_count_goes_on(dataset, small, tmp_path, where, after):
    """After it was killed while it counted, merged, and wrote the cells; what was counted is not counted again."""
    arguments = [str(dataset.directory), str(tmp_path / "killed"), where, str(after)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    refused(lambda: cooccurrence.open_cells(tmp_path / "killed"), "unfinished .. plmjax cooccurrence")
    wider = Counting(window=3)
    refused(lambda: cooccurrence.count(dataset, SPECIAL, tmp_path / "killed", wider, report=silent), "another window")
    (tmp_path / "killed" / "sums-000000000000000-000000000000007.run.writing").write_bytes(b"half")
    said: list[str] = []
    cooccurrence.count(dataset, SPECIAL, tmp_path / "killed", memory=150, processes=1, report=said.append)
    assert "tokens were counted before" in said[0]
    cooccurrence.count(dataset, SPECIAL, tmp_path / "whole", memory=5000, processes=1, report=silent)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    cooccurrence.count(dataset, SPECIAL, tmp_path / "whole", report=said.append)
    assert said[-1].endswith("was counted before from the same text; nothing to do")


def test_damaged_and_changed_runs_are_counted_again(dataset, small, tmp_path, monkeypatch):
    """Also runs of another count under the name of one of this."""
    for name, made in (("killed", Counting()), ("other", Counting(window=3))):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(counting, "_write", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
            patch.setattr(runs, "FAN_IN", 100)
            cooccurrence.count(dataset, SPECIAL, tmp_path / name, made, memory=97, processes=1, report=silent)
    left = runs.find(tmp_path / "killed")
    assert len(left) > 4
    left[0].path(tmp_path / "killed").write_bytes(left[1].path(tmp_path / "killed").read_bytes())
    content = left[1].path(tmp_path / "killed").read_bytes()
    left[1].path(tmp_path / "killed").write_bytes(content[: len(content) // 2])
    left[2].seal(tmp_path / "killed").unlink()
    for path in (tmp_path / "other").glob(f"{left[3].path(tmp_path).stem}.*"):
        path.rename(tmp_path / "killed" / path.name)
    cooccurrence.count(dataset, SPECIAL, tmp_path / "killed", memory=97, processes=1, report=silent)
    cooccurrence.count(dataset, SPECIAL, tmp_path / "whole", memory=5000, processes=1, report=silent)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_what_cannot_be_counted(dataset, tmp_path, monkeypatch, bucket):
    def counted(options: str, vocabulary: Vocabulary) -> None:
        monkeypatch.setattr("plmjax.data.tokenizers.load", lambda path: SimpleNamespace(vocabulary=vocabulary))
        cli.run(["cooccurrence", str(dataset.directory), "--output", str(tmp_path / "a"), *options.split()])

    words, pieces = (Vocabulary(SIZE, continuation=np.arange(SIZE) > last) for last in (SIZE, SIZE // 2))
    for options, vocabulary, parts in (
        ("--min_count 9999", words, "at least 9999 occurrences"),
        ("--window 23", words, "from 1 to 22 words .. 23"),
        ("--memory 200 --processes 2", words, "at least 266 MiB for 2 processes and a window of 10 .. 200"),
        ("--memory 138 --window 22 --processes 1", words, "at least 139 MiB .. 22"),
        ("--processes 0", words, "at least one process"),
        ("", pieces, "whole words .. parts of words"),
        ("", Vocabulary(SIZE), "whole words .. parts of words"),
    ):
        refused(lambda options=options, vocabulary=vocabulary: counted(options, vocabulary), parts)
    assert not (tmp_path / "a").exists()
    count = functools.partial(cooccurrence.count, counting=Counting(min_count=1), processes=1, report=silent)
    alone = write(tmp_path / "alone", [[[7]], [[8]]], [], vocab_size=SIZE, shards=1)
    for of, output, parts in (
        (dataset, dataset.directory, "a count of cooccurrences"),
        (dataset, f"gs://{bucket}/counts", f"a folder on a disk .. gs://{bucket}/counts"),
        (alone, tmp_path / "out", "words beside each other .. alone"),
    ):
        refused(lambda of=of, output=output: count(of, SPECIAL, output), parts)


def test_counts_that_cannot_be_opened(dataset, tmp_path):
    for folder, parts in ((tmp_path / "none", "no folder"), (dataset.directory, "something else")):
        refused(lambda folder=folder: cooccurrence.open_cells(folder), parts)
    counted = cooccurrence.count(dataset, SPECIAL, tmp_path, Counting(min_count=1), processes=1, report=silent)
    manifest = json.loads((tmp_path / cells.MANIFEST).read_text())

    (tmp_path / cells.MANIFEST).write_text(json.dumps(manifest | {"cells": 3}))
    refused(lambda: cooccurrence.open_cells(tmp_path), "damaged")
    for other in (counted.count - 1, counted.count + 1):
        sealed = manifest | {"cells": other}
        sealed["crc32c"] = cells.manifest_checksum(sealed)
        (tmp_path / cells.MANIFEST).write_text(json.dumps(sealed))
        refused(lambda: cooccurrence.open_cells(tmp_path), f"the files hold other than {other} cells")
    (tmp_path / cells.MANIFEST).write_text(json.dumps(manifest))
    os.truncate(tmp_path / "cells-00000.bin", 12 * counted.count - 1)
    refused(lambda: cooccurrence.open_cells(tmp_path), f"{12 * counted.count} bytes")
