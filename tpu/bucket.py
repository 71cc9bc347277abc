"""Objects of a bucket, or of a local folder that replaces it, by name."""

import functools
from pathlib import Path

from plmjax.errors import UserError
from plmjax.files import storage


class Bucket:
    """`gs://NAME`, `gs://NAME/PREFIX`, or a local folder. It is not accessed before its first use.

    All methods that access it raise:
        UserError: the local folder does not exist.
        Unavailable: the bucket does not answer, or refuses temporarily.
    """

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self.local = not storage.in_bucket(root)

    def url(self, name: str) -> str:
        """Return the full name of an object."""
        return f"{self.root}/{name}"

    def read(self, name: str) -> bytes | None:
        """Return the contents of an object, or None."""
        try:
            with storage.explain_errors():
                return storage.contents(self._path / name)
        except FileNotFoundError:
            return None

    def write(self, name: str, contents: bytes) -> None:
        """Write an object atomically."""
        with storage.explain_errors():
            path = self._path / name
            if self.local:
                path.parent.mkdir(parents=True, exist_ok=True)
            storage.write(path, contents)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted."""
        with storage.explain_errors():
            path = self._path / folder
            return sorted(entry.name for entry in path.iterdir() if entry.name[0] != ".") if path.is_dir() else []

    def remove(self, folder: str) -> None:
        """Remove a folder with all its contents, if it exists."""
        with storage.explain_errors():
            storage.remove(self._path / folder)

    @functools.cached_property
    def _path(self) -> Path:
        path = storage.path(self.root)
        if self.local and not path.is_dir():
            raise UserError(
                f"Expected a bucket such as gs://NAME or a folder that exists, found {self.root!r}; create it or "
                f"correct --bucket."
            )
        return path
