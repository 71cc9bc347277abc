"""The folder of `plmjax tokenizer train`: it may contain this tokenizer, or an unfinished one.

begun.json      exists while the tokenizer is trained and written. A killed command leaves it; the next one trains again
trained.json    the seal (plmjax/files/seals.py) of the tokenizer's files, written last
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plmjax.data import formats
from plmjax.errors import UserError
from plmjax.files import locks, seals, storage

BEGUN = "begun.json"
TRAINED = "trained.json"


def state_of(inputs: Sequence[str], format: str) -> list[Any]:
    """Return plain data that changes when a file of the text is changed. The files are not read.

    Raises:
        UserError: an error of `formats.files`.
    """
    if format == formats.DOCUMENTATION or format.startswith(formats.TFDS):
        return formats.sources(inputs, format)
    return [[str(path), storage.state(path)] for path in formats.files(inputs, format)]


@contextlib.contextmanager
def open_for_training(output: Path, made_from: str) -> Iterator[bool]:
    """Lock a folder. Yield true if the body must train the tokenizer and write it there, false if it exists already.

    made_from: digest of the text and the settings.

    Raises:
        UserError: the folder has other contents.
    """
    with locks.lock(output):
        ours = (output / BEGUN).exists()
        if not ours and seals.read(output / TRAINED, made_from):
            yield False
            return
        if not ours and not locks.is_unused(output):
            raise UserError(f"Expected a new folder for the tokenizer, found {output}; name another --output.")
        storage.write(output / BEGUN, "{}\n")
        _clear(output)
        try:
            yield True
            names = [name for name in storage.files(output) if name not in (BEGUN, locks.NAME)]
            seals.write(output / TRAINED, made_from, names)
        except BaseException:
            _clear(output)
            raise
        finally:
            storage.remove(output / BEGUN)


def _clear(output: Path) -> None:
    for path in output.iterdir():
        if path.name not in (BEGUN, locks.NAME):
            storage.remove(path)
