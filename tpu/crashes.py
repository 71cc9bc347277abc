"""Files about a command that failed: the logs of libtpu, and the raw standard error that `plmjax` adds.

libtpu writes its log to the folder TPU_LOG_DIR. Each start of the command has its own folder.
"""

import itertools
import shutil
import time
from pathlib import Path

from tpu.bucket import Bucket

KEPT = 3
"""Number of newest folders that stay on the machine."""
FILES = 10
"""Maximum number of files that are copied, newest first."""
LARGEST = 1 << 20
"""Maximum number of bytes that are copied from the end of a file."""


def folder(parent: Path) -> Path:
    """Make and return the folder for a start of the command, and remove old ones."""
    made = parent / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns():020d}"
    made.mkdir(parents=True)
    for old in sorted(parent.iterdir())[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return made


def copy(source: Path, bucket: Bucket, target: str) -> list[str]:
    """Copy the ends of the newest files of a folder to TARGET/FILE in the bucket, and return their names."""
    files = [file for file in source.rglob("*") if file.is_file() and not file.is_symlink() and file.stat().st_size]
    newest = sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)
    names = []
    for file in itertools.islice(newest, FILES):
        with file.open("rb") as contents:
            contents.seek(max(0, contents.seek(0, 2) - LARGEST))
            name = file.relative_to(source).as_posix()
            bucket.write(f"{target}/{name}", contents.read(LARGEST))
            names.append(name)
    return names
