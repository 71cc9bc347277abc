"""The project in one archive: what git tracks, as it lies in the working tree."""

import gzip
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

from plmjax.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
"""Folder of the project that is packed: the one that this file belongs to."""
WITHOUT_GIT = ("plmjax", "experiments", "tpu", "setup.py", "pyproject.toml", "README.md")
"""What is packed of a project that is not a git checkout."""
LARGEST = 64 * 2**20
"""Largest file in bytes that is packed; data belongs into the bucket."""


def files(root: Path) -> list[str]:
    """Names of the files to pack, sorted.

    Raises:
        UserError: there is no project at `root`, or one of its files is too large to be a program.
    """
    if not (root / "setup.py").is_file() or not (root / "plmjax").is_dir():
        raise UserError(f"Expected the project (setup.py and plmjax/) in {root}, found none; run python -m tpu there.")
    if (root / ".git").exists():
        names = [name for name in _tracked(root) if (root / name).is_file()]
    else:
        found = [path for name in WITHOUT_GIT for path in ((root / name), *(root / name).rglob("*"))]
        names = [str(path.relative_to(root)) for path in found if path.is_file() and "__pycache__" not in path.parts]
    for name in names:
        if (size := (root / name).stat().st_size) > LARGEST:
            raise UserError(
                f"Expected files of a program in {root}, found {name} of {size:,} bytes; put data into the bucket "
                f"and take it out of git."
            )
    return sorted(names)


def _tracked(root: Path) -> list[str]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise UserError(f"Expected git, which knows the files of {root}, found none here; install it.") from None
    except subprocess.CalledProcessError as error:
        raise UserError(
            f"Expected git to list the files of {root}, found: {error.stderr.strip().splitlines()[0]}; fix it."
        ) from None
    return listed.stdout.split("\0")


def pack(names: list[str], root: Path) -> tuple[str, bytes]:
    """(name in the bucket, contents) of the archive; equal files give equal bytes, whenever and wherever packed."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            contents = (root / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(contents)
            entry.mode = 0o755 if (root / name).stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(contents))
    contents = packed.getvalue()
    return f"packages/{hashlib.sha256(contents).hexdigest()[:16]}.tar.gz", contents
