"""The output folder of a preparation: it may contain the finished dataset, another one, or a part of this one."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmjax.data import checksums, cleaning, store
from plmjax.data.preparation import files
from plmjax.data.tokenizers import Tokenizer
from plmjax.errors import UserError
from plmjax.files import json_text, locks, seals, storage

BEGUN = "begun.json"
"""File that is in the output folder from the start. It marks the folder as plmjax's, and as unfinished while there is
no manifest. It has a digest of all inputs of the dataset, so that finished units are used only for the same dataset.
"""


def is_finished(output: Path, sources: list[dict], description: dict, tokenizer: Tokenizer) -> bool:
    """Return whether `output` holds exactly this dataset, complete. Raise UserError if it holds another one."""
    if not (output / store.MANIFEST).is_file():
        return False
    try:
        manifest = json_text.parse(storage.contents(output / store.MANIFEST))
        json_text.check(
            manifest, {"sources": [{str: object}], "description": {str: object}, "tokenizer": {str: object}}
        )
        known = manifest["sources"], manifest["description"], manifest["tokenizer"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"Expected a manifest in {output}, found a damaged one; remove the folder and repeat."
        ) from error
    differing = [
        name
        for name, same in (
            ("text", len(known[0]) == len(sources) and all(map(_same, known[0], sources))),
            ("tokenizer", known[2].get("fingerprint") == tokenizer.fingerprint),
            # A key that only one of them has is a difference too, such as the rules of a cleaning.
            *((key, known[1].get(key) == description.get(key)) for key in {**description, **known[1]}),
        )
        if not same
    ]
    if differing:
        raise UserError(
            f"Expected {output} to be new or made from the same, found a finished dataset with another "
            f"{', another '.join(differing)}; name another output or remove it."
        )
    try:
        store.open_dataset(output)
    except UserError:  # damaged since it was written: it is prepared again
        return False
    return True


def _content(source: dict) -> dict:
    """Return the entries of a source that determine the dataset: not its path, if it has a digest."""
    return {key: value for key, value in source.items() if key != "path" or "digest" not in source}


def _same(known: dict, source: dict) -> bool:
    """Return whether a source equals the one in a manifest, also if it was copied into or out of a bucket."""
    before, now = (str(each.get("digest", "")) for each in (known, source))
    if before and now and before.startswith(storage.CRC32C) != now.startswith(storage.CRC32C):
        source = source | {"digest": storage.file(storage.path(source["path"])).digest(like=before)}
    return _content(known) == _content(source)


def digest(sources: list[dict], description: dict[str, Any], tokenizer: Tokenizer) -> str:
    """Return a digest of all inputs of the dataset."""
    made_from = [[_content(source) for source in sources], description, tokenizer.fingerprint]
    return seals.digest(made_from)


@contextlib.contextmanager
def lock(output: Path, made_from: str) -> Iterator[None]:
    """Lock and clear the output folder.

    Units of an earlier attempt with the same inputs are kept, and its other files are removed. Foreign files are an
    error.

    made_from: result of `digest`.
    """
    with locks.lock(output):
        _clear(output, made_from)
        yield
        tidy(output)


def tidy(output: Path) -> None:
    """Remove the files that a finished dataset does not need."""
    storage.remove(output / files.FOLDER)
    storage.remove(output / BEGUN)


def tidy_after_kill(output: Path) -> None:
    """Remove the temporary files of a command that was killed after it had written the manifest."""
    if any((output / name).exists() for name in (files.FOLDER, BEGUN, locks.NAME)):
        with locks.lock(output):
            tidy(output)


def _clear(output: Path, made_from: str) -> None:
    begun = json.dumps({"made_from": made_from}) + "\n"
    before = storage.contents(output / BEGUN).decode(errors="replace") if (output / BEGUN).is_file() else ""
    ours = before or (output / store.MANIFEST).is_file()
    if not ours and not locks.is_unused(output):
        raise UserError(f"Expected a new or empty folder for the dataset, found files in {output}; name another.")
    storage.write(output / BEGUN, begun)
    for path in output.iterdir():
        generated = (
            path.name.startswith((store.MANIFEST, "corpus-"))
            or path.suffix == ".npy"
            or path.name in ("tokenizer", checksums.FOLDER, *store.TFDS_METADATA, cleaning.REPORT)
        )
        if generated or (path.name == files.FOLDER and before != begun):
            storage.remove(path)
