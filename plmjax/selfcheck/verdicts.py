"""The verdicts of a selfcheck, one for each check, as a table and as a file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from plmjax.files import json_text, storage

OK, DIFFERS, FAILED, UNAVAILABLE, SLOWER, SKIPPED = (
    "ok", "differs", "failed", "unavailable", "slower than planned", "skipped",
)  # fmt: skip
WORST_FIRST = (FAILED, DIFFERS, UNAVAILABLE, SLOWER, SKIPPED, OK)
WRONG = (FAILED, DIFFERS)
"""Verdicts with which a selfcheck fails. A plan is an estimate, so a slow row is shown and does not fail."""


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of one check: a verdict, a short sentence, and figures in bytes, seconds or fractions."""

    verdict: str
    sentence: str
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)


class Skipped(Exception):
    """Exception of a check that does not apply to this machine; the text is the reason."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table: name, result and seconds of a check."""

    name: str
    found: Found
    seconds: float


@dataclasses.dataclass
class Report:
    """A description of the machine, and the results so far; `finished` after the last one."""

    machine: dict[str, Any]
    rows: list[Row] = dataclasses.field(default_factory=list)
    finished: bool = False

    @property
    def wrong(self) -> list[str]:
        """The names and verdicts of the checks that failed."""
        return [f"{row.name} {row.found.verdict}" for row in self.rows if row.found.verdict in WRONG]

    @property
    def verdict(self) -> str:
        """Running, passed, failed, or unavailable if a service did not answer and no check failed."""
        if not self.finished:
            return "running"
        reached = all(row.found.verdict != UNAVAILABLE for row in self.rows)
        return "failed" if self.wrong else "passed" if reached else "unavailable"

    def to_dict(self) -> dict[str, Any]:
        rows = [{"name": row.name, **dataclasses.asdict(row.found), "seconds": row.seconds} for row in self.rows]
        return json_text.finite({"verdict": self.verdict, "wrong": self.wrong, "machine": self.machine, "rows": rows})

    def write(self, path: Path) -> None:
        """Write the report as JSON, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write(path, json.dumps(self.to_dict(), indent=2) + "\n")

    def summary(self) -> str:
        """Return the last line of the table."""
        told = self.wrong or [f"{row.name} {row.found.verdict}" for row in self.rows if row.found.verdict != OK]
        return self.verdict + (f": {', '.join(told)}" if told else "")


def line(row: Row, width: int) -> str:
    """Return a row of the table. width: number of characters of the longest name."""
    longest = max(map(len, WORST_FIRST))
    return f"{row.name:<{width}}  {row.found.verdict:<{longest}}  {row.seconds:6.1f} s  {row.found.sentence}"
