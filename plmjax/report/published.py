"""Comparison of runs with published figures: values from papers and benchmarks, and when in a run they were reached.

A file is a JSON object with a list `figures`. The standard deviation of a point is that of its value, or of the number
of steps, tokens or samples after which the published runs reached that value.

    {"figures": [{
        "name": "MLPerf BERT-Large, batch 256",
        "source": "mlcommons/logging, rcps_bert.json",
        "metric": "eval/mlm_accuracy",
        "points": [
            {"step": 0, "value": 0.34085},
            {"samples": 2552704, "value": 0.72, "deviation": {"samples": 224080}, "seeds": 20}
        ]
    }]}

A point has a step, a number of tokens, or a number of samples (rows). It has none of them if only the value at the end
of training is known.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmjax.errors import UserError, listed, nearest, quoted
from plmjax.files import json_text, storage
from plmjax.report.runs import UNITS, Run

FOLDER = Path(__file__).with_name("published_figures")
"""Folder of the files that are part of plmjax."""
WHAT, ADVICE = "published figures", "correct it as docs/results.md shows"
SMALLER = ("loss", "perplexity", "nats", "bits_per_byte", "bits_per_character")
"""Suffixes of the names of metrics for which smaller is better; for all others larger is better."""
LARGEST = 1e300
"""Largest allowed number, so that sums and ratios stay finite."""

_FIGURE = {"name": str, "source": str, "metric": str, "points": [{"value": float}]}
_OPTIONAL = dict.fromkeys(UNITS, float) | {"deviation": {str: float}, "seeds": range(1, 2**31)}


@dataclasses.dataclass(frozen=True)
class Point:
    """A published value.

    unit, amount: its place in a run, a number of steps, tokens or samples; "" and infinity for the end of a run.
    deviation: standard deviation of the value, or of the amount if `varies` is the unit; None if it is not known.
    varies: "value", or the unit.
    seeds: number of published runs; None if it is not known.
    """

    value: float
    unit: str = ""
    amount: float = math.inf
    deviation: float | None = None
    varies: str = "value"
    seeds: int | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """Published values of one metric, named as in metrics.jsonl."""

    name: str
    source: str
    metric: str
    points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The comparison of a run with a point.

    value: the last value that the run logged at or before the place of the point; None if the run has not reached it.
    reached: first amount, in the unit of the point, at which the run logged the published value or a better one; None
        if it has not.
    deviations: difference from the published value, or from the published amount if that varied, in standard
        deviations; None if it is not known.
    """

    value: float | None
    reached: float | None
    deviations: float | None


def compare(run: Run, metric: str, point: Point) -> Comparison:
    """Compare the values of a metric that a run has logged with a published point."""
    steps, values = run.series(metric)
    place = run.step_at(point.unit, point.amount) if point.unit else run.steps
    before = values[steps <= place]
    value = float(before[-1]) if len(before) and place <= run.steps else None
    good = values <= point.value if metric.endswith(SMALLER) else values >= point.value
    reached = run.amount_until(point.unit or "step", int(steps[good][0])) if good.any() else None
    varied, published = (value, point.value) if point.varies == "value" else (reached, point.amount)
    known = varied is not None and point.deviation
    return Comparison(value, reached, (varied - published) / point.deviation if known else None)


def read_figures(references: Sequence[str], runs: Sequence[Run]) -> list[Figure]:
    """Return the published figures in files.

    references: paths of files, or names of those that are part of plmjax, without suffix.

    Raises:
        UserError: there is no such file, it has other contents, or no run has logged the metric of a figure.
    """
    known = {key for run in runs for record in run.records for key in record} - {"step", "time"}
    found = []
    for reference in references:
        path = _find(reference)
        for figure in _read(path):
            if figure.metric not in known:
                raise UserError(
                    f"Expected a metric of the runs for {quoted(figure.name)} in {path}, found "
                    f"{quoted(figure.metric)}; name one of those that they have logged: {listed(sorted(known))}."
                )
            found.append(figure)
    return found


def names() -> list[str]:
    """Return the names of the files that are part of plmjax, without suffix."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def _find(reference: str) -> Path:
    if reference in names():
        return FOLDER / f"{reference}.json"
    path = storage.path(reference)
    if not path.is_file():
        raise UserError(
            f"Expected a file of {WHAT} for --against, or a name of those in plmjax, found {quoted(reference, 300)}; "
            f"{nearest(reference, names())}"
        )
    return path


def _read(path: Path) -> list[Figure]:
    found = json_text.read_object(path, WHAT, ADVICE)
    try:
        json_text.check(found, {"figures": [_FIGURE]})
        return [
            Figure(one["name"], one["source"], one["metric"], tuple(_point(each) for each in one["points"]))
            for one in found["figures"]
        ]
    except ValueError as error:
        raise UserError(f"Expected {WHAT} in {path}, found: {json_text.reason(error)}; {ADVICE}.") from None


def _point(found: dict[str, Any]) -> Point:
    """Return a point from an object in a file.

    Raises:
        ValueError: the object has another form.
    """
    if unknown := found.keys() - _OPTIONAL.keys() - {"value"}:
        raise ValueError(f"a point with {min(unknown)}, {nearest(min(unknown), ['value', *_OPTIONAL])}")
    json_text.check(found, {name: shape for name, shape in _OPTIONAL.items() if name in found}, "a point")
    units = [unit for unit in UNITS if unit in found]
    if len(units) > 1:
        raise ValueError(f"a point with {' and '.join(units)}, which are two places")
    unit = units[0] if units else ""
    amount = found[unit] if unit else math.inf
    deviation = found.get("deviation", {})
    if not deviation.keys() <= {"value", *units} or len(deviation) > 1 or min(deviation.values(), default=1) <= 0:
        expected = " or of ".join(["value", *units])
        raise ValueError(f"a deviation {quoted(deviation)}, which is not one number above 0 of {expected}")
    if max(abs(number) for number in (found["value"], found.get(unit, 0), *deviation.values())) > LARGEST:
        raise ValueError("a number that is too large")
    if amount < 0:
        raise ValueError(f"a point at {unit} {amount:g}, which is before the first step")
    varies = next(iter(deviation), "value")
    return Point(found["value"], unit, amount, deviation.get(varies), varies=varies, seeds=found.get("seeds"))
