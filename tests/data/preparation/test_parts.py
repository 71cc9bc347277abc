"""The folder of a preparation: which dataset counts as the same, and which files are of an unfinished one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plmjax.data import store
from plmjax.data.preparation import files, output_folder
from plmjax.errors import UserError
from plmjax.files import locks

SOURCES = [{"path": f"{number}.txt", "bytes": number, "digest": f"sha256:{number}"} for number in range(12)]
DESCRIPTION = {"format": "text", "validation": 0.1, "clean": ["c4"]}
WORDS = SimpleNamespace(fingerprint="f00d")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder with a ledger, which holds no more of a dataset."""
    ledger = {"sources": SOURCES, "description": DESCRIPTION, "tokenizer": {"fingerprint": "f00d"}}
    (tmp_path / store.LEDGER).write_text(json.dumps(ledger))
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"description": DESCRIPTION | {"split": "test"}}, "split"),
        ({"description": {"format": "text", "validation": 0.1}}, "clean"),
        ({"description": DESCRIPTION | {"validation": 0.2, "format": "auto"}}, "format, another validation"),
        ({"sources": SOURCES[:11]}, "text"),
        ({"sources": [*SOURCES, SOURCES[0]]}, "text"),
        ({"sources": [*SOURCES[:11], SOURCES[11] | {"digest": "sha256:x"}]}, "text"),
        ({"sources": [SOURCES[1], SOURCES[0], *SOURCES[2:]]}, "text"),
        ({"tokenizer": SimpleNamespace(fingerprint="beef")}, "tokenizer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_either_of_two_datasets_has_alone_is_a_difference(changes: dict[str, Any], named: str, finished: Path):
    asked = {"sources": SOURCES, "description": DESCRIPTION, "tokenizer": WORDS} | changes
    with pytest.raises(UserError, match=f"found a finished dataset with another {named}; name another output"):
        output_folder.is_finished(finished, **asked)
    assert output_folder.digest(**asked) != output_folder.digest(SOURCES, DESCRIPTION, WORDS)


def test_a_file_that_was_moved_is_the_same_text(finished: Path) -> None:
    moved = [source | {"path": f"elsewhere/{source['path']}"} for source in SOURCES]
    # The folder holds no sound dataset, so that it is made again; its text is no other one.
    assert not output_folder.is_finished(finished, moved, DESCRIPTION, WORDS)
    assert output_folder.digest(moved, DESCRIPTION, WORDS) == output_folder.digest(SOURCES, DESCRIPTION, WORDS)
    without, elsewhere = ([{"path": name, "bytes": 3}] for name in ("a", "b"))  # such as a dataset of TFDS
    assert output_folder.digest(without, {}, WORDS) != output_folder.digest(elsewhere, {}, WORDS)
    assert not output_folder.is_finished(finished / "new", SOURCES, DESCRIPTION, WORDS)


@pytest.mark.parametrize(("begun", "units_stay"), [("same", True), ("other", False)])
def test_units_of_the_same_stay_and_all_other_files_of_a_preparation_are_removed(
    begun: str, units_stay: bool, tmp_path: Path
) -> None:
    (tmp_path / output_folder.BEGUN).write_text(json.dumps({"made_from": begun}) + "\n")
    for name in (
        "corpus-train.tfrecord-00011",
        "train.text.sentences.npy",
        "ledger.json.writing",
        *store.TFDS_METADATA,
    ):
        (tmp_path / name).write_text("x")
    for name in ("tokenizer", "checked", files.FOLDER):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "letter.txt").write_text("dear")
    with output_folder.locked(tmp_path, "same"):
        left = {path.name for path in tmp_path.iterdir()} - {locks.NAME}
        assert left == {"letter.txt", output_folder.BEGUN, *([files.FOLDER] if units_stay else [])}
        assert json.loads((tmp_path / output_folder.BEGUN).read_text()) == {"made_from": "same"}
    assert {path.name for path in tmp_path.iterdir()} - {locks.NAME} == {"letter.txt"}


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="found files in"), output_folder.locked(tmp_path, "same"):
        raise AssertionError
    assert not (tmp_path / output_folder.BEGUN).exists()


@pytest.mark.parametrize(
    "contents", ["{", "[]", '{"sources": [], "description": {}}', '{"sources": [], "description": {}, "tokenizer": 3}']
)
def test_a_damaged_ledger_is_one_sentence(contents: str, tmp_path: Path) -> None:
    (tmp_path / store.LEDGER).write_text(contents)
    with pytest.raises(UserError, match="found a damaged one; remove the folder and repeat"):
        output_folder.is_finished(tmp_path, SOURCES, DESCRIPTION, WORDS)
