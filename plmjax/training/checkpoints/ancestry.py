"""The record of a compressed run: the checkpoints that it was made from, and the commands that made it.

WORKDIR/ancestry.json lists the compressions, the oldest first:

    {"ancestors": [{"from": "runs/snli", "step": 1200, "sha256": "...", "by": "prune", "settings": {...}}]}

`sha256` is the digest of the parameters of that checkpoint. If a compressed run is compressed again, its records are
copied and one is added.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from plmjax.files import json_text, storage
from plmjax.files.json_text import COUNT

RECORD = "ancestry.json"
_SHAPE = {"from": str, "step": COUNT, "sha256": str, "by": str, "settings": {str: object}}


@dataclasses.dataclass(frozen=True)
class Ancestor:
    """One compression.

    checkpoint: the path of the checkpoint, as the command named it. step: its number of finished optimizer steps.
    sha256: digest of its parameters. by: the command, such as `prune`. settings: name -> value of its settings.
    """

    checkpoint: str
    step: int
    sha256: str
    by: str
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"from": self.checkpoint} | {name: getattr(self, name) for name in ("step", "sha256", "by", "settings")}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        return cls(found["from"], found["step"], found["sha256"], found["by"], found["settings"])


def digest(params: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of the paths and values of parameters (path -> array), in the order of the paths."""
    found = hashlib.sha256()
    for path in sorted(params):
        found.update(path.encode())
        found.update(np.ascontiguousarray(params[path]).tobytes())
    return found.hexdigest()


def read(workdir: Path) -> list[Ancestor]:
    """Return the records of a run directory, the oldest first; an empty list for a run that was not compressed.

    Raises:
        UserError: the file has other contents.
    """
    path = workdir / RECORD
    if not path.exists():
        return []
    what, advice = "the record of a compression", "restore the file, or take another run"
    found = json_text.read_object(path, what, advice, {"ancestors": [_SHAPE]})
    return [Ancestor.from_json(one) for one in found["ancestors"]]


def same(found: Sequence[Ancestor], expected: Sequence[Ancestor]) -> bool:
    """Return whether two records list the same compressions. The paths of the checkpoints are not compared."""

    def told(record: Sequence[Ancestor]) -> str:
        return json.dumps([one.to_json() | {"from": ""} for one in record], sort_keys=True)

    return told(found) == told(expected)


def write(workdir: Path, ancestors: Sequence[Ancestor]) -> None:
    """Write the records to a run directory."""
    contents = {"ancestors": [one.to_json() for one in ancestors]}
    storage.write(workdir / RECORD, json.dumps(contents, indent=2) + "\n")
