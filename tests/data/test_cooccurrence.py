"""The count of cooccurrences: every pair, the same from any processes and any memory, and on after a kill."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import cooccurrence, store
from plmjax.data.cooccurrence import Counting, cells, counting, pairs, runs
from plmjax.data.store.ledger import sum_ledger
from plmjax.errors import UserError
from tests.data.corpora import documents, write

SIZE = 60
SPECIAL = Vocabulary.placeholder(SIZE).special
TRAIN = documents(30, SIZE, sentences=6, words=30)
TRAIN[3] = [[1, 7] * 40]  # one pair over and over, at every other distance


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> store.Dataset:
    return write(tmp_path_factory.mktemp("dataset"), TRAIN, documents(2, SIZE, seed=1), SIZE)


@pytest.fixture
def small(monkeypatch):
    """Sizes at which a text of some thousand tokens is cut into many ranges, pieces and merges."""
    monkeypatch.setattr(counting, "PIECE", 64)
    monkeypatch.setattr(counting, "LOOK_BACK", 3)
    monkeypatch.setattr(counting, "_shares", lambda memory, processes, window: (processes or 1, 8 * window * memory))
    monkeypatch.setattr(runs, "FAN_IN", 3)
    monkeypatch.setattr(runs, "SORTED_AT_ONCE", 50)
    monkeypatch.setattr(runs, "BYTES_OF_A_MERGED_SUM", 1)
    monkeypatch.setattr(cells.Writer, "SHARD_CELLS", 1000)


def silent(line: str) -> None:
    """Says nothing."""


def brute_force(train: list, window: int, symmetric: bool, least: int) -> dict[tuple[int, int], float]:
    """The definition, one pair at a time."""
    texts = [[word for sentence in document for word in sentence] for document in train]
    times = np.bincount([word for text in texts for word in text], minlength=SIZE)
    found: dict[tuple[int, int], float] = {}
    for text in texts:
        words = [word for word in text if word not in SPECIAL and times[word] >= least]
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
    expected = brute_force(TRAIN, made.window, made.symmetric, made.least)
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


def test_a_merged_run_stands_for_all_that_it_was_made_of(tmp_path):
    """A merge that was killed may have left any of them, the last one too."""
    whole, other = runs.Run(0, 30), runs.Run(30, 40)
    for run in (whole, *(runs.Run(start, start + 10) for start in (0, 10, 20)), other):
        run.path(tmp_path).touch()
    assert runs.found(tmp_path) == [whole, other]
    assert {*tmp_path.iterdir()} == {whole.path(tmp_path), other.path(tmp_path)}


def test_a_bijection_numbers_the_pairs():
    for size in (2, 17, 64):
        numbering = pairs.Numbering(size)
        rows, columns = (grid.ravel().astype(np.uint64) for grid in np.meshgrid(*[np.arange(size)] * 2))
        numbers = numbering.numbers(rows, columns)
        assert len(np.unique(numbers)) == size**2 and int(numbers.max()) < 1 << numbering.bits
        np.testing.assert_array_equal(numbering.pairs(numbers), (rows, columns))
    largest = np.array([0, pairs.LARGEST_VOCABULARY - 1], np.uint64)
    numbering = pairs.Numbering(pairs.LARGEST_VOCABULARY)
    np.testing.assert_array_equal(numbering.pairs(numbering.numbers(largest, largest[::-1])), (largest, largest[::-1]))


KILLED = """
import os, signal, sys
from plmjax.data import cooccurrence, store
from plmjax.data.cooccurrence import counting, runs
counting._shares = lambda memory, processes, window: (processes, 8 * window * memory)
where, after = sys.argv[3], int(sys.argv[4])
room = getattr(runs, where)
def doomed(*arguments):
    global after
    after -= 1
    if after < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return room(*arguments)
setattr(runs, where, doomed)
runs.FAN_IN = 3
cooccurrence.count(store.open_dataset(sys.argv[1]), tuple(range(5)), sys.argv[2], memory=97, processes=1)
"""


def test_a_merge_holds_as_many_sums_as_the_memory_has_room_for(tmp_path):
    """Two runs of 40 sums each, with room for 10 sums: 5 of each run at once."""
    paths = [tmp_path / "even", tmp_path / "odd"]
    for first, path in enumerate(paths):
        sums = np.zeros(40, runs.SUM)
        sums["number"], sums["sum"] = 2 * np.arange(40) + first, 1
        sums.tofile(path)
    parts = list(runs.merged(paths, memory=10 * runs.BYTES_OF_A_MERGED_SUM))
    assert np.concatenate(parts)["number"].tolist() == list(range(80))
    assert 5 < max(map(len, parts)) <= 10


@pytest.mark.parametrize(("where", "after"), [("write_counted", 4), ("merge", 2), ("merged", 6)])
def test_a_killed_count_goes_on(dataset, small, tmp_path, where, after):
    """After it was killed while it counted, merged, and wrote the cells; what was counted is not counted again."""
    arguments = [str(dataset.directory), str(tmp_path / "killed"), where, str(after)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    killed = subprocess.run([sys.executable, "-c", KILLED, *arguments], env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(UserError, match="found an unfinished one; run plmjax cooccurrence"):
        cooccurrence.open_cells(tmp_path / "killed")
    with pytest.raises(UserError, match="found a count with another window; name another"):
        cooccurrence.count(dataset, SPECIAL, tmp_path / "killed", Counting(window=3), report=silent)
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
    left = runs.found(tmp_path / "killed")
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


def test_what_cannot_be_counted_or_opened_is_named(dataset, fails, tmp_path, monkeypatch):
    def made_with(vocabulary: Vocabulary) -> None:
        monkeypatch.setattr("plmjax.data.tokenizers.load", lambda path: SimpleNamespace(vocabulary=vocabulary))

    command = ["cooccurrence", dataset.directory, "--output"]
    for vocabulary in (Vocabulary(SIZE), Vocabulary(SIZE, continuation=np.arange(SIZE) > SIZE // 2)):
        made_with(vocabulary)
        said = fails(*command, tmp_path / "a")
        assert f"Expected a dataset of whole words to count, found that {dataset.directory} has parts of words" in said
    made_with(Vocabulary(SIZE, continuation=np.zeros(SIZE, bool)))
    assert "Expected words with at least 9999 occurrences" in fails(*command, tmp_path / "a", "--least", 9999)
    assert "Expected a window from 1 to 22 words, found 23" in fails(*command, tmp_path / "a", "--window", 23)
    assert "Expected a memory of at least 133 MiB for 1 processes" in fails(*command, tmp_path / "a", "--memory", 132)
    said = fails(*command, tmp_path / "a", "--memory", 200, "--processes", 2)
    assert "Expected a memory of at least 266 MiB for 2 processes and a window of 10, found 200" in said
    assert "Expected at least one process" in fails(*command, tmp_path / "a", "--processes", 0)
    assert not (tmp_path / "a").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    assert "found files in" in fails(*command, tmp_path / "full", "--processes", 1)
    assert "Expected a count of cooccurrences" in fails(*command, dataset.directory, "--processes", 1)
    for folder, message in ((tmp_path / "none", "found no folder"), (dataset.directory, "found something else")):
        with pytest.raises(UserError, match=message):
            cooccurrence.open_cells(folder)
    counted = cooccurrence.count(dataset, SPECIAL, tmp_path / "b", processes=1, report=silent)
    with (tmp_path / "b" / "cells-00000.bin").open("r+b") as file:
        file.truncate(12 * counted.count - 1)
    with pytest.raises(UserError, match=rf"to have {12 * counted.count} bytes, found"):
        cooccurrence.open_cells(tmp_path / "b")
    ledger = json.loads((tmp_path / "b" / "ledger.json").read_text()) | {"cells": 3}
    (tmp_path / "b" / "ledger.json").write_text(json.dumps(ledger))
    with pytest.raises(UserError, match="found it damaged"):
        cooccurrence.open_cells(tmp_path / "b")
    for changed, reason in (
        ({"counting": {"window": "3"}}, "window of counting is no number from 1 to 22 but '3'"),
        ({"counting": ledger["counting"] | {"more": 1}}, "counting has 'more'"),
        ({"total": None}, "total is None"),
        ({"files": {"cells-00000.bin": 1}}, "cells-00000.bin of files is no object but 1"),
        ({"cells": 3}, "the files hold other than 3 cells"),
    ):
        sealed = ledger | changed
        (tmp_path / "b" / "ledger.json").write_text(json.dumps(sealed | {"crc32c": sum_ledger(sealed)}))
        with pytest.raises(UserError, match=rf"a ledger as plmjax writes it at .*ledger.json, found .*{reason}"):
            cooccurrence.open_cells(tmp_path / "b")
    begun = tmp_path / "c"
    begun.mkdir()
    (begun / "begun.json").write_text('{"counting": 3}')
    with pytest.raises(UserError, match=r"Expected a count in .*c, found a damaged one"):
        cooccurrence.count(dataset, SPECIAL, begun, processes=1, report=silent)


def test_the_memory_is_shared_by_all_processes(monkeypatch):
    """Each needs 128 MiB and the pairs of a piece: 8 bytes times 65,536 tokens times 10 words, 5 MiB."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert counting._shares(265, None, 10) == (1, (265 - 128) * 2**20)
    assert counting._shares(266, None, 10) == (2, (133 - 128) * 2**20)
    assert counting._shares(9000, None, 10) == (8, (1125 - 128) * 2**20)
    assert counting._shares(1024, 3, 10) == (3, (341 - 128) * 2**20)
    with pytest.raises(UserError, match="at least 133 MiB for 1 processes and a window of 10, found 132"):
        counting._shares(132, None, 10)


@pytest.mark.parametrize(("runner", "processes", "expected"), [("FlinkRunner", None, 1), ("", None, None), ("", 3, 3)])
def test_each_process_of_a_runner_has_the_whole_memory(dataset, tmp_path, monkeypatch, runner, processes, expected):
    asked, shares = [], counting._shares

    def stop(*given):
        asked.extend(given[3:])
        raise UserError("Expected no counting, found some; stop.")

    monkeypatch.setattr(counting, "_shares", lambda *given: asked.append(given) or shares(*given))
    monkeypatch.setattr(counting, "_workers", stop)
    with pytest.raises(UserError, match="Expected no counting"):
        cooccurrence.count(
            dataset, SPECIAL, tmp_path / "a", Counting(7, True, 1), memory=900, processes=processes, runner=runner,
            runner_options=["a=b"],
        )  # fmt: skip
    assert asked == [(900, expected, 7), runner, ["a=b"]]


def test_settings_and_texts_that_cannot_be_counted(dataset, tmp_path, monkeypatch) -> None:
    with pytest.raises(UserError, match="at least 1 occurrence to count a word, found 0; raise least"):
        Counting(least=0)
    with pytest.raises(UserError, match="a folder on a disk for a count of cooccurrences, found gs://bucket/counts"):
        monkeypatch.setattr(cells.storage, "path", str)
        monkeypatch.setattr(cells.storage, "in_bucket", lambda path: path.startswith("gs://"))
        cells.on_disk("gs://bucket/counts")
    monkeypatch.undo()
    split = SimpleNamespace(token_count=2**32)
    endless = SimpleNamespace(
        unigram_counts=lambda: np.full(9, 7), split=lambda name: split, directory=Path("text")
    )  # fmt: skip
    assert counting._work_of(endless, (), Counting(22), 2**20, 1).tokens == 2**32
    split.token_count = 2**33
    with pytest.raises(UserError, match="whose sums fit 64 bits for 8,589,934,592 tokens, found 22 words"):
        counting._work_of(endless, (), Counting(22), 2**20, 1)
    monkeypatch.setattr(pairs, "LARGEST_VOCABULARY", 8)
    split.token_count = 9
    with pytest.raises(UserError, match="a vocabulary of at most 8 tokens, found 9; use another"):
        counting._work_of(endless, (), Counting(), 2**20, 1)


def test_a_text_without_two_words_beside_each_other_has_no_cells(tmp_path) -> None:
    alone = write(tmp_path / "alone", [[[7]], [[8]]], [], SIZE, shards=1)
    with pytest.raises(UserError, match=r"Expected words beside each other in .*alone, found none; give longer"):
        cooccurrence.count(alone, SPECIAL, tmp_path / "out", Counting(3, True, 1), processes=1, report=silent)


@pytest.mark.parametrize(
    ("contents", "message"),
    [("[]", "found it damaged; count again"), ('{"kind": "dataset"}', "found something else; name another folder")],
)
def test_a_ledger_of_something_else(contents: str, message: str, tmp_path) -> None:
    (tmp_path / cells.LEDGER).write_text(contents)
    with pytest.raises(UserError, match=message):
        cells.read_ledger(tmp_path)


def test_a_runner_takes_the_place_of_the_processes(monkeypatch, tmp_path) -> None:
    beam = SimpleNamespace(Beam=lambda *given, output: (*given, output))
    monkeypatch.setitem(sys.modules, "plmjax.data.beam", beam)
    made = counting._workers("work", 3, tmp_path, "FlinkRunner", ["a=b"])
    assert made == ("FlinkRunner", ["a=b"], counting._Counter, "work", tmp_path)
