"""The text files of a folder, without the files that programs write beside them."""

import re
from pathlib import Path

from plmjax.errors import UserError, quoted
from plmjax.files import json_text, storage

# Hidden files, working files of Spark, Hadoop and Databricks, and cached results of `map` in datasets.
_NO_TEXT = re.compile(
    r"(?:^|/)(?:\.|_(?:SUCCESS|metadata|common_metadata)$|_(?:started|committed)_|"
    r"_(?:temporary|delta_log|spark_metadata)/|cache-[0-9a-f]{16}(?:_\d{5}_of_\d{5})?\.arrow$)"
)
_DATA = re.compile(r"\.(?:parquet|arrow|feather|jsonl|ndjson|tsv)(?:\.(?:gz|bz2|xz|zst))?$", re.IGNORECASE)
_ABOUT = re.compile(
    r"(?:^|/)(?:(?:readme|licen[cs]e|citation|notice)(?:\.[a-z]{2,4})?|dataset_infos?\.json|dataset_dict\.json)$",
    re.IGNORECASE,
)
"""Files that describe the data, left out of a folder that has files of `_DATA`."""
_STATE, _INFO = "state.json", "dataset_info.json"


def files(folder: Path) -> list[Path]:
    """Return the text files in a folder and its subfolders, sorted.

    Left out are hidden files; marker and working files of Spark, with the empty parts beside its marker; descriptions
    (README.md) beside tables; results of `map` in the cache of datasets; and in a folder of `datasets.save_to_disk` all
    files that its state does not name.

    Raises:
        UserError: such a folder lacks a file that its state names, or no file is left.
    """
    every = storage.files(folder)
    names = {name for name in every if not _NO_TEXT.search(name)}
    for name in sorted(names):
        within = name.removesuffix(_STATE)
        if name == within + _STATE and within + _INFO in names:
            named = {within + part for part in _data_files(folder / name)}
            if absent := named - names:
                raise UserError(
                    f"Expected {quoted(min(absent))} in {folder}, which {folder / name} names, found no such file; "
                    "copy the folder again."
                )
            names = {one for one in names if one.rpartition("/")[0] != within.rstrip("/")} | named
    if any(map(_DATA.search, names)):
        names = {name for name in names if not _ABOUT.search(name)}
    for mark in every:
        if mark.rpartition("/")[2] == "_SUCCESS":
            parts = mark.removesuffix("_SUCCESS") + "part-"
            names -= {name for name in names if name.startswith(parts) and not storage.size(folder / name)}
    if not names:
        raise UserError(f"Expected files of text in the folder {folder}, found none; check the path.")
    return sorted(folder / name for name in names)


def _data_files(state: Path) -> list[str]:
    """Return the names of the files in the state of a dataset (huggingface/datasets, src/datasets/arrow_dataset.py)."""
    found = json_text.read_object(state, "the state of a dataset", "copy the folder again").get("_data_files")
    names = [file.get("filename") for file in found if isinstance(file, dict)] if isinstance(found, list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f'Expected the names of files in "_data_files" of {state}, found none; copy the folder again.')
    return names
