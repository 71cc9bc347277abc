"""The names of metrics that docs/metrics.md explains."""

import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"


@functools.cache
def documented() -> list[re.Pattern]:
    """The names in the first columns of the page's tables; one in capitals stands for any name."""
    cells = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    anything = {"TASK/METRIC", "TASK", "TERM_loss", "TERM_accuracy", "METRIC_signature"}
    return [re.compile(re.sub(r"[A-Z]{2,}", r"[^/]+", name)) for name in names if name not in anything]


def undocumented(names: Iterable[str], tasks: Sequence[str] = ()) -> list[str]:
    """Those of the names that the page does not explain.

    For a loss with terms the name of the term must stand there, for one of several tasks the metric.

    tasks: their names.
    """

    def explained(name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in documented())

    left = []
    for name in names:
        bare = re.sub("^(train|eval)/", "", name)
        if bare.removesuffix("_loss") in tasks:
            continue
        bare = re.sub("_(loss|accuracy|signature)$", "", bare) if not explained(bare) else bare
        forms = [bare, bare.partition("/")[2]]
        if not any(explained(form) for form in forms if form):
            left.append(name)
    return left
