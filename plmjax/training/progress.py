"""WORKDIR/progress.json: the progress of a run, in a small record of constant size."""

import dataclasses
import time
from pathlib import Path

from plmjax.errors import UserError
from plmjax.files import json_text, storage
from plmjax.training.metrics import compact, duration, to_json

NAME = "progress.json"


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a run, for programs that follow it."""

    step: int
    steps: int
    worker: int = 0
    """Number of the host whose process prints, among all hosts of the run."""
    checkpoint: int | None = None
    """Step of the newest finished checkpoint."""
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    time: float | None = None
    """Time of the record, in seconds since 1970."""

    def __str__(self) -> str:
        parts = [f"step {self.step:,} of {self.steps:,}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.tokens_per_second:
            parts.append(f"{compact(self.tokens_per_second)} tok/s")
        if self.seconds_left is not None and self.step < self.steps:
            parts.append(f"ETA {duration(self.seconds_left)}")
        return "  ".join(parts)

    def write(self, folder: Path) -> None:
        """Replace the record in a local folder, with the current time."""
        record = dataclasses.asdict(self) | {"time": round(time.time(), 3)}
        # The rename shows complete records only. They are not synced: one may be lost, and no step waits for the disk.
        file = folder / f"{NAME}{storage.WRITING}"
        file.write_text(to_json(record) + "\n", encoding="utf-8")
        file.replace(folder / NAME)


_STEP, _NUMBER = range(2**62), (float, type(None))
_SHAPE = {
    "step": _STEP,
    "steps": _STEP,
    "worker": range(2**31),
    "checkpoint": (_STEP, type(None)),
    **dict.fromkeys(("loss", "tokens_per_second", "seconds_left", "time"), _NUMBER),
}


def read(workdir: Path) -> Progress | None:
    """Return the progress in a run directory, or None if there is none yet.

    Raises:
        UserError: the file has other contents.
    """
    path = workdir / NAME
    try:
        fields = json_text.parse(storage.contents(path))
        json_text.check(fields, _SHAPE)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(
            f"Expected the progress of a run in {path}, found another file ({json_text.reason(error)}); remove it, the "
            f"run writes it again."
        ) from None
    return Progress(**{name: fields[name] for name in _SHAPE})
