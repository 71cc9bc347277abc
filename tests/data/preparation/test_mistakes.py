"""What cannot be prepared, and folders that hold something else: one sentence, and nothing is lost."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plmjax.data import store, tokenizers
from plmjax.data.preparation import prepare, run
from plmjax.data.preparation.conversion import Sizes
from tests.data.mistakes import refused
from tests.data.random_texts import document

JUNK = "lorem ipsum and what not follows here.\n" + document(1)


@pytest.fixture
def prepared(tokenizer, tmp_path: Path) -> Callable[..., store.Dataset]:
    """Prepares some text into a folder `out`, with other options than usual."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "0.txt").write_text("\n\n".join(map(document, range(20))))
    (tmp_path / "corpus" / "1.txt").write_text("\n\n".join(map(document, range(20, 40))))
    (tmp_path / "blank.txt").write_text(" \n\n \n")
    (tmp_path / "junk.txt").write_text(JUNK)
    (tmp_path / "river.txt").write_text("river\n")
    (tmp_path / "words.txt").write_text("lorem\n")

    def call(**options: Any) -> store.Dataset:
        usual = {"inputs": ["corpus"], "format": "auto", "tokenizer": tokenizer, "progress": False, "processes": 1}
        options = usual | options
        options["inputs"] = [tmp_path / name for name in options["inputs"]]
        if options.get("bad_words"):
            options["bad_words"] = tmp_path / options["bad_words"]
        return prepare(output=tmp_path / "out", **options)

    return call


OPTIONS = [
    ({"validation": 1.0}, "fraction of validation .. 1.0"),
    ({"processes": 0}, "at least one process .. 0"),
    ({"piece_tokens": 0}, "at least one token .. 0"),
    ({"inputs": ["blank.txt"]}, "blank.txt .. no running text"),
    ({"inputs": ["junk.txt"], "clean": ["c4_lines"]}, "--clean dropped all 1, 1 of them by c4_lorem_ipsum"),
    ({"inputs": ["corpus/0.txt"], "validation": 1 - 1e-9}, "all 20 held out"),
    ({"clean": ["c4_line"]}, "--clean .. 'c4_line' .. did you mean"),
    ({"clean": ["c4_lines"], "format": "enwik8"}, "--clean .. the corpus enwik8"),
    ({"clean": ["c4_bad_words"]}, "--bad_words .. c4_bad_words .. no list"),
    ({"clean": ["c4_lines"], "bad_words": "words.txt"}, "a list without it"),
    ({"clean": ["c4_bad_words"], "bad_words": "absent.txt"}, "absent.txt .. no file"),
]


@pytest.mark.parametrize(("options", "parts"), OPTIONS, ids=str)
def test_options(options: dict[str, Any], parts: str, prepared, tmp_path: Path) -> None:
    refused(lambda: prepared(**options), parts)
    assert not (tmp_path / "out" / store.MANIFEST).exists()


def test_a_finished_dataset_of_something_else_is_kept(prepared, tmp_path: Path) -> None:
    settings = {"clean": ["c4_bad_words"], "bad_words": "words.txt"}
    prepared(**settings)
    manifest = (tmp_path / "out" / store.MANIFEST).read_bytes()
    other = tokenizers.train("word", 100, [document(0)], tmp_path / "other")
    for changed, named in (
        ({"tokenizer": other}, "tokenizer"),
        ({"inputs": ["corpus/0.txt"]}, "text"),
        ({"validation": 0.1}, "validation"),
        ({"language": "de"}, "language"),
        ({"piece_tokens": 50}, "piece_tokens"),
        ({"bad_words": "river.txt"}, "bad_words"),
        ({"clean": ["c4_bad_words", "c4_lines"]}, "cleaning"),
    ):
        refused(lambda changed=changed: prepared(**settings | changed), f"another .. {named} .. name another output")
    assert (tmp_path / "out" / store.MANIFEST).read_bytes() == manifest


def test_a_full_disk(prepared, tmp_path: Path, monkeypatch) -> None:
    def full(self, *arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store.ShardWriter, "extend", full)
    refused(prepared, f"room for the dataset in {tmp_path / 'out'} .. the disk full")


def test_an_error_of_a_document_reaches_the_user(prepared, tmp_path: Path, monkeypatch) -> None:
    """From the process that reads it."""
    monkeypatch.setattr(run, "SIZES", Sizes(batch_characters=2000))
    lines = [json.dumps({"text": document(seed)}) for seed in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"txet": 1}', *lines]))
    refused(lambda: prepared(inputs=["a.jsonl"], processes=2), "a.jsonl line 41 .. txet")


def test_a_folder_of_others_is_left_alone_and_a_damaged_ledger_is_named(prepared, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "features.json").write_text("mine")
    refused(prepared, "new or empty folder")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["features.json"]
    (tmp_path / "out" / "features.json").unlink()
    for contents in ("[]", '{"sources": [], "description": {}, "tokenizer": 3}'):
        (tmp_path / "out" / store.MANIFEST).write_text(contents)
        refused(prepared, "a damaged one; remove the folder")
