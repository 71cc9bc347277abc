"""One range of an object in a bucket: checked, and read again if the service fails."""

import os
from collections.abc import Callable
from typing import NamedTuple

from plmjax import buckets
from plmjax.data import checksums, order
from plmjax.errors import Unavailable, UserError

TRIES = 6
FIRST_WAIT = 1.0
"""Seconds before the second try, about. Every wait is twice as long as the one before."""


_NO_SUCH_RANGE = "416"


class Range(NamedTuple):
    """Bytes start..start + size of a file of a dataset, with the CRC-32C of the ledger."""

    file: str
    start: int
    size: int
    crc32c: int


class Stopped(Exception):
    """The reader was closed while it waited."""


def read(folder: str, part: Range, wait: Callable[[float], bool]) -> bytes:
    """Return the bytes of a range of `folder`/file, after a comparison with its checksum.

    An error that may pass, a short answer and a wrong checksum are tried again, `TRIES` times altogether. The waits
    before the tries double, each times a factor from 0.5 to 1.5 so that many hosts do not return at once. The client
    itself repeats a request that the service refuses for the moment: its six requests of one try take half a minute.

    wait: function that waits for some seconds, and returns true if nobody needs the bytes any more.

    Raises:
        UserError: the object cannot be read, or its bytes are not those of the ledger.
        Exception: an error of the client that no other try can change, such as a lack of rights (`storage.explain`).
        Stopped: `wait` returned true.
    """
    path = f"{folder.rstrip('/')}/{part.file}"
    where = f"bytes {part.start:,} to {part.start + part.size:,} of {path}"
    key, found = order.fold(os.getpid(), part.start), ""
    for attempt in range(TRIES):
        spread = 0.5 + float(order.fold(key, attempt)[0]) * 2.0**-64
        if attempt and wait(FIRST_WAIT * 2 ** (attempt - 1) * spread):
            raise Stopped
        try:
            data = buckets.client().cat_file(path, start=part.start, end=part.start + part.size)
        except Exception as error:
            if isinstance(error, FileNotFoundError) or str(getattr(error, "code", "")) == _NO_SUCH_RANGE:
                raise UserError(
                    f"Expected {where}, found that the object is shorter or gone; copy the dataset again."
                ) from error
            if not buckets.may_pass(error):
                raise
            found = _reason(error)
            continue
        if len(data) != part.size:
            found = f"{len(data):,} bytes"
        elif checksums.crc32c(data) != part.crc32c:
            found = "another checksum"
        else:
            return data
    if found == "another checksum":
        raise UserError(
            f"Expected {where} as they were prepared, found that their checksum differs in {TRIES} tries: the object "
            "is damaged or was replaced; copy the dataset again or prepare it again."
        )
    raise Unavailable(
        f"Expected {where}, found no whole answer in {TRIES} tries (the last: {found}); check the network and the "
        "bucket, and run the same command again."
    )


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:160]
