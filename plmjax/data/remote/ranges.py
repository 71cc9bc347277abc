"""Reads one range of an object in a bucket, verifies it, and retries if the service fails."""

import itertools
from collections.abc import Callable
from typing import NamedTuple

from plmjax.data import checksums
from plmjax.errors import Unavailable, UserError
from plmjax.files import buckets, patience

TRIES = 6
PATIENCE_SECONDS = 2 * 3600.0


_NO_SUCH_RANGE = "416"


class Range(NamedTuple):
    """Bytes start..start + size - 1 of a file of a dataset, with their CRC-32C from the manifest."""

    file: str
    start: int
    size: int
    crc32c: int


class Stopped(Exception):
    """The reader was closed while it waited."""


def read(folder: str, part: Range, wait: Callable[[float], bool]) -> bytes:
    """Return the bytes of a range of `folder`/file, verified with its checksum.

    Temporary errors are retried for PATIENCE_SECONDS, short answers and wrong checksums TRIES times. The client itself
    retries requests that the service refuses temporarily: its six requests of one try take half a minute.

    wait: function that waits for some seconds, and returns true if the bytes are not needed any more.

    Raises:
        UserError: the object is shorter or gone, or its bytes differ from the manifest.
        Unavailable: the service does not answer.
        Stopped: `wait` returned true.
    """
    path = f"{folder.rstrip('/')}/{part.file}"
    where = f"bytes {part.start:,} to {part.start + part.size:,} of {path}"

    def pause(seconds: float) -> None:
        if wait(seconds):
            raise Stopped

    def answer() -> bytes:
        try:
            return buckets.client().cat_file(path, start=part.start, end=part.start + part.size)
        except Exception as error:
            if isinstance(error, FileNotFoundError) or str(getattr(error, "code", "")) == _NO_SUCH_RANGE:
                raise UserError(
                    f"Expected {where}, found that the object is shorter or gone; copy the dataset again."
                ) from error
            raise buckets.explain(error) or error from error

    for seconds in itertools.islice(patience.waits(), TRIES):
        data = patience.insist(answer, f"reading {where}", PATIENCE_SECONDS, pause)
        if len(data) == part.size and checksums.crc32c(data) == part.crc32c:
            return data
        found = f"{len(data):,} bytes" if len(data) != part.size else "another checksum"
        pause(seconds)
    if found == "another checksum":
        raise UserError(
            f"Expected {where} as they were prepared, found that their checksum differs in {TRIES} tries: the object "
            "is damaged or was replaced; copy the dataset again or prepare it again."
        )
    raise Unavailable(
        f"Expected {where}, found no whole answer in {TRIES} tries (the last: {found}); check the network and the "
        "bucket, and run the same command again."
    )
