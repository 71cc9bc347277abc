"""The parts of a preparation: its folder, units of about equal size, batches, the held-out share, and its progress."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from plmjax.data import formats, store
from plmjax.data.preparation import files, output_folder, prepare, run
from plmjax.data.preparation import units as module
from plmjax.data.preparation.units import units
from plmjax.files import locks
from tests.data.random_texts import CLEAN, document


@pytest.mark.parametrize(("begun", "units_stay"), [("same", True), ("other", False)])
def test_units_of_the_same_stay_and_all_other_files_of_a_preparation_are_removed(begun, units_stay, tmp_path) -> None:
    (tmp_path / output_folder.BEGUN).write_text(json.dumps({"made_from": begun}) + "\n")
    written = ("corpus-train.tfrecord-00011", "train.text.sentences.npy", "manifest.json.writing")
    for name in (*written, *store.TFDS_METADATA):
        (tmp_path / name).write_text("x")
    for name in ("tokenizer", "checked", files.FOLDER):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "letter.txt").write_text("dear")
    with output_folder.lock(tmp_path, "same"):
        left = {path.name for path in tmp_path.iterdir()} - {locks.NAME}
        assert left == {"letter.txt", output_folder.BEGUN, *([files.FOLDER] if units_stay else [])}
        assert json.loads((tmp_path / output_folder.BEGUN).read_text()) == {"made_from": "same"}
    assert {path.name for path in tmp_path.iterdir()} - {locks.NAME} == {"letter.txt"}


def test_small_files_share_a_unit_and_large_ones_are_cut(tmp_path, monkeypatch):
    """A unit ends with the range that makes it large enough."""
    for name, lines in (("a", 10), ("b", 10), ("c", 300), ("d", 1)):
        (tmp_path / f"{name}.txt").write_text("A line of text.\n\n" * lines)
    source = formats.Input((str(tmp_path),))
    found = units(source, 321 * 17, 1000)
    assert [unit.index for unit in found] == list(range(len(found)))
    assert [part for unit in found for part in unit.ranges] == source.ranges(1000)
    assert all(unit.bytes >= 1000 and unit.bytes - unit.ranges[-1].bytes < 1000 for unit in found[:-1])
    assert len(found[0].ranges) == 3 and len(found) == 6
    small = formats.Input((str(tmp_path / "a.txt"), str(tmp_path / "b.txt")))
    for size, count in ((170, 2), (171, 1)):  # just full, and not yet
        assert len(units(small, 340, size)) == count
    monkeypatch.setattr(module, "MOST", 4)
    assert len(units(source, 321 * 17, 100)) <= 4


def test_a_piece_ends_with_the_document_that_reaches_its_size_in_all_streams(tokenizer, tmp_path: Path) -> None:
    """The documents have 4, 6, 4, 11 and 4 tokens of both streams: 10, 25 and 29 up to an end."""
    counts = {"source": [3, 2, 3, 5, 1], "target": [1, 4, 1, 6, 3]}
    texts = [{name: " ".join(["river"] * own[n]) for name, own in counts.items()} | {"n": n} for n in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, texts)))
    options = {"streams": {name: name for name in counts}, "fields": ["n"], "validation": 0, "progress": False}
    for size, documents in ((10, [2, 2, 1]), (11, [3, 1, 1]), (None, [5])):
        dataset = prepare([tmp_path / "a.jsonl"], "auto", tokenizer, tmp_path / str(size), piece_tokens=size, **options)
        (shard,) = dataset.manifest["splits"]["train"]["shards"]
        assert [piece["source/document_lengths"][1] for piece in shard["pieces"]] == documents
        assert [np.diff(dataset.split("train", name).document_tokens).tolist() for name in counts] == [*counts.values()]
        assert dataset.fields("train")["n"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("clean", "processes"), [(CLEAN, 1), pytest.param((), 2, marks=pytest.mark.nightly)])
def test_as_many_bytes_are_shown_as_there_are(clean, processes, tokenizer, tmp_path: Path, monkeypatch, capsys) -> None:
    """Whatever the number of stages and of processes, the input counts once; a log has a line every ten seconds."""
    for part in range(3):
        (tmp_path / f"{part}.txt").write_text("\n\n".join(document(seed) for seed in range(100)))
    monkeypatch.setattr("time.monotonic", itertools.count(0.0, 11.0).__next__)
    monkeypatch.setattr(run, "UNIT_BYTES", 45_000)
    prepare([tmp_path], "text", tokenizer, tmp_path / "out", clean=clean, processes=processes)
    lines = [line for line in capsys.readouterr().out.splitlines() if " MB  " in line]
    assert lines[-1].split("MB")[0] == "prepare    0.2 of 0.2 " and "  0 tokens" not in lines[-1]
