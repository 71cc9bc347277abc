"""Folders as programs leave them: of `datasets.save_to_disk`, of Spark, and of a hub."""

import json
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from plmjax.data import formats
from tests.data.formats.samples import write_table
from tests.data.mistakes import refused


def arrow(path: Path, *texts: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, pyarrow.table({"text": texts}))


def save_to_disk(folder: Path, *shards: str) -> Path:
    """A folder as the library writes it, and a file that its `map` left there."""
    names = [f"data-{number:05}-of-{len(shards):05}.arrow" for number in range(len(shards))]
    for name, text in zip(names, shards, strict=True):
        arrow(folder / name, text)
    arrow(folder / "cache-cc8787f0a78af78f.arrow", "A stale row.")
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "a8e8", "_split": None}
    (folder / "state.json").write_text(json.dumps(state, indent=2))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}, indent=2))
    return folder


def texts(*inputs: Path, format: str = "auto") -> list[str]:
    return [document.text for document in formats.documents(inputs, format=format)]


def test_a_folder_of_save_to_disk_has_the_rows_of_its_state(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save_to_disk(tmp_path / "several" / split, f"Of {split}.", "More.")
    (tmp_path / "several" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for format in ("auto", "arrow"):
        assert texts(tmp_path / "several", format=format) == ["Of test.", "More.", "Of train.", "More."]
        assert texts(tmp_path / "several" / "train", format=format) == ["Of train.", "More."]
    state = tmp_path / "several" / "train" / "state.json"
    for contents in ("{", '{"_data_files": []}'):
        state.write_text(contents)
        refused(lambda: texts(state.parent), "state.json")
    (state.parent / "data-00001-of-00002.arrow").unlink()
    state.write_text((tmp_path / "several" / "test" / "state.json").read_text())
    refused(lambda: texts(state.parent), "data-00001-of-00002.arrow .. state.json")


def test_marks_and_working_files_of_spark_are_no_text(tmp_path: Path) -> None:
    for name in (
        *("_SUCCESS", "._SUCCESS.crc", ".part-00000.crc", "_committed_1234", "_started_1234", "_metadata"),
        *("_common_metadata", "_temporary/0/part-00000", "_delta_log/0.json", "_spark_metadata/0", ".hidden/a.txt"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if name in ("_SUCCESS", "_started_1234") else "No text.")
    (tmp_path / "part-00000").write_text("One.\n")
    (tmp_path / "part-00001").write_text("")
    (tmp_path / "lang=en").mkdir()
    (tmp_path / "lang=en" / "part-00002").write_text("Two.\n")
    (tmp_path / "_about.txt").write_text("A text of a user.\n")
    assert sorted(text.strip() for text in texts(tmp_path)) == ["A text of a user.", "One.", "Two."]
    (tmp_path / "_SUCCESS").unlink()
    refused(lambda: texts(tmp_path), "part-00001 .. an empty file")


def test_descriptions_beside_tables_are_no_text_and_beside_text_they_are(tmp_path: Path) -> None:
    """Nor are results of `map` in the cache of `datasets`."""
    arrow(tmp_path / "json-train.arrow", "One.")
    arrow(tmp_path / "cache-cc8787f0a78af78f_00001_of_00004.arrow", "A stale row.")
    for name in ("README.md", "LICENSE", "dataset_infos.json", "dataset_info.json", ".gitattributes"):
        (tmp_path / name).write_text("---\nlicense: mit\n---\n")
    assert texts(tmp_path) == ["One."]
    (tmp_path / "text").mkdir()
    for name in ("README.md", "a.txt"):
        (tmp_path / "text" / name).write_text("Words.\n")
    assert len(texts(tmp_path / "text")) == 2
