"""The report: one self-contained HTML page with the curves and results of one or more runs, side by side.

The page loads no other files.
"""

import functools
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.report.curves import PARTS, colours, draw, draw_words, is_curve, measures, picture, svg, title
from plmjax.report.published import Comparison, Figure, Point, compare, read_figures
from plmjax.report.runs import Run, read_runs
from plmjax.training import metrics

MADE_BY = '<meta name="generator" content="plmjax report">'
"""Text that marks the page of an earlier report. Only a file with it is overwritten."""
OF_PART = {"train": ", training", "eval": ", held-out"}
"""Part of the data -> words for it after the title of a metric."""
PICTURES = ("png", "svg", "pdf")
"""Formats of a picture, by the extension of its file name."""
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 1rem; }
figure { margin: 0; } svg { width: 100%; height: auto; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; border-bottom: 1px solid #7676763f; }
tbody th { font-weight: normal; } td { text-align: right; overflow-wrap: anywhere; max-width: 22rem; }
th small { display: block; max-width: 26rem; opacity: .7; }
thead th:not(:first-child) { text-align: right; }
pre { overflow-x: auto; font-size: 12px; }
blockquote { margin: .75rem 0; padding-left: .9rem; border-left: 3px solid #7676763f; white-space: pre-wrap; }
blockquote span { opacity: .6; }
"""


def report(
    workdirs: Sequence[str | Path],
    output: str | Path,
    *,
    curve: str | Path | None = None,
    places: Sequence[dict[str, Sequence[float]]] = (),
    against: Sequence[str] = (),
) -> None:
    """Write the page of these runs to `output`, and their loss as a picture to `curve` if it is given.

    places: for each run, words to draw -> their two coordinates; empty for no picture of words.
    against: files of published figures, or names of those that plmjax comes with.

    Raises:
        UserError: a folder is no run or has logged nothing yet, its records are not those of a run, `curve` has no
            extension of `PICTURES`, a file cannot be written or was not made by plmjax, or published figures cannot be
            read or have a metric that no run has logged.
    """
    if not workdirs:
        raise UserError("Expected at least one run to report on, found none; give the folders of runs.")
    kind = "" if curve is None else Path(str(curve)).suffix.lower().removeprefix(".")
    if curve is not None and kind not in PICTURES:
        raise UserError(
            f"Expected a picture that ends in .{', .'.join(PICTURES[:-1])} or .{PICTURES[-1]} for --curve, found "
            f"{curve}; name one."
        )
    page = storage.path(output)
    storage.check_file(page, "--output", lambda beginning: MADE_BY.encode() in beginning)
    if curve is not None:
        storage.check_file(storage.path(curve), "--curve", lambda beginning: b"atplotlib" in beginning)
    runs = read_runs(workdirs)
    figures = read_figures(against, runs)
    if curve is not None:
        _write(storage.path(curve), picture(runs, kind, figures))
    _write(page, _page(runs, places, figures).encode("utf-8"))


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write(path, content)
    except OSError as error:
        if error.strerror is None:  # of a bucket
            raise
        raise UserError(f"Expected to write {path}, found: {error.strerror}; name another file.") from error


def _results(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """Return rows of the table of results: (name, one cell per run). A second line of a name is its logged key."""

    def row(name: str, cells: list[float | None], form: Any = metrics.compact) -> tuple[str, list[str]]:
        return name, ["" if cell is None else form(cell) for cell in cells]

    def below(run: Run) -> float | None:
        entropy, loss = run.last("eval/unigram_entropy"), run.last("eval/loss")
        return None if entropy is None or loss is None else entropy - loss

    rows = [
        ("steps", [f"{run.steps} of {run.experiment.training.steps}" for run in runs]),
        row("tokens", [run.tokens for run in runs]),
        row("wall clock, first to last record", [run.seconds for run in runs], metrics.duration),
    ]
    for measure in measures(runs):
        keys = [*(f"{part}/{measure}" for part in PARTS), measure]
        rows += [
            row(f"{title(measure)}{OF_PART.get(key.partition('/')[0], '')}\n{key}", [run.last(key) for run in runs])
            for key in keys
            if any(run.last(key) is not None for run in runs)
        ]
    rows.append(row("Unigram entropy\neval/unigram_entropy", [run.last("eval/unigram_entropy") for run in runs]))
    rows.append(row("Loss below the unigram entropy", [below(run) for run in runs]))
    return [(name, cells) for name, cells in rows if any(cells)]


def _settings(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """Return the fields of the experiment in which the runs differ: (dotted name, one cell per run)."""
    flat = [experiment.flatten(run.experiment) for run in runs]
    names = {name: None for fields in flat for name in fields}
    rows = [(name, ["" if name not in fields else _setting(name, fields[name]) for fields in flat]) for name in names]
    return [(name, cells) for name, cells in rows if len(set(cells)) > 1]


def _setting(name: str, value: Any) -> str:
    """Return the value of a setting as text; a class as its name without the module."""
    is_class = (name == "type" or name.endswith(".type")) and isinstance(value, str)
    return value.rpartition(":")[2] if is_class else json.dumps(value)


def _generated_texts(runs: list[Run]) -> str:
    """Return the texts that the models have generated, each after its prompt."""
    parts = []
    for run in runs:
        texts = "\n".join(
            f"<blockquote><span>{html.escape(one['prompt'])}</span>{html.escape(one['text'])}</blockquote>"
            for one in run.samples
        )
        parts += [f"<h3>{html.escape(run.name)}</h3>\n{texts}"] if texts else []
    return "\n".join(["<h2>Written by the model</h2>", *parts]) if parts else ""


def _words(runs: list[Run], places: Sequence[dict[str, Sequence[float]]]) -> str:
    """Return a section with a picture of each run's word embeddings."""
    figures = []
    for run, of_run, colour in zip(runs, places, colours(runs), strict=True):
        label = f"Words of {run.name}"
        chart = functools.partial(draw_words, places=of_run, title=label, colour=colour)
        figures.append(f"<figure>{svg(chart, label)}</figure>")
    return "\n".join(["<h2>Vectors of words</h2>", '<div class="charts">', *figures, "</div>"])


def _published(runs: list[Run], figures: Sequence[Figure]) -> str:
    """Return the table of published figures, with a row for each point and run."""
    heads = ["figure", "place", "published", "run", "there", "standard deviations", "first reached at"]
    rows = []
    for figure in figures:
        for point in figure.points:
            name = (
                f"{html.escape(figure.name)}, {html.escape(figure.metric)}<small>{html.escape(figure.source)}</small>"
            )
            cells = "".join(f'<td rowspan="{len(runs)}">{html.escape(cell)}</td>' for cell in _point_cells(point))
            first = f'<th scope="row" rowspan="{len(runs)}">{name}</th>{cells}'
            for run, colour in zip(runs, colours(runs), strict=True):
                found = _compared_cells(compare(run, figure.metric, point), point)
                named = f'<td><span style="color:{colour}">&#9632;</span> {html.escape(run.name)}</td>'
                rows.append(f"<tr>{first}{named}{''.join(f'<td>{cell}</td>' for cell in found)}</tr>")
                first = ""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "\n".join(rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _point_cells(point: Point) -> tuple[str, str]:
    """Return the place and the value of a published point. The one that varied has the deviation and the seeds."""
    deviation = f" ± {point.deviation:,.6g}" if point.deviation else ""
    seeds = f", {point.seeds} seeds" if point.seeds else ""
    place = _amount(point.unit, point.amount) if point.unit else "the end"
    value = f"{point.value:.6g}"
    return (place, value + deviation + seeds) if point.varies == "value" else (place + deviation + seeds, value)


def _compared_cells(found: Comparison, point: Point) -> list[str]:
    return [
        "" if found.value is None else f"{found.value:.6g}",
        "" if found.deviations is None else f"{found.deviations:+.1f}",
        "" if found.reached is None else _amount(point.unit or "step", found.reached),
    ]


def _amount(unit: str, amount: float) -> str:
    number = f"{amount:,.15g}"
    return f"step {number}" if unit == "step" else f"{number} {unit}"


def _page(runs: list[Run], places: Sequence[dict[str, Sequence[float]]], figures: Sequence[Figure]) -> str:
    *others, last = (run.name for run in runs)
    heading = html.escape(f"{', '.join(others)} and {last}" if others else last)
    comparable = [run.comparable() for run in runs]
    drawn = [
        (functools.partial(draw, runs=comparable, measure=one, figures=figures), title(one))
        for one in measures(comparable)
        if is_curve(comparable, one)
    ]
    charts = "\n".join(f"<figure>{svg(*chart)}</figure>" for chart in drawn)
    settings = _table(runs, _settings(runs)) if len(runs) > 1 else ""
    experiments = "\n".join(
        f"<details><summary>{html.escape(run.name)}</summary>"
        f"<pre>{html.escape(json.dumps(experiment.to_dict(run.experiment), indent=2))}</pre></details>"
        for run in runs
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{heading}</title>
{MADE_BY}
<style>{STYLE}</style>
</head>
<body>
<h1>{heading}</h1>
<h2>Results</h2>
{_table(runs, _results(runs))}
{f"<h2>Published figures</h2>{_published(runs, figures)}" if figures else ""}
{f"<h2>Settings that differ</h2>{settings}" if settings else ""}
<h2>Curves</h2>
<div class="charts">
{charts}
</div>
{_words(runs, places) if places else ""}
{_generated_texts(runs)}
<h2>Experiments</h2>
{experiments}
</body>
</html>
"""


def _table(runs: list[Run], rows: list[tuple[str, list[str]]]) -> str:
    """Return an HTML table with one column per run; empty without rows."""
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col"><span style="color:{colour}">&#9632;</span> {html.escape(run.name)}</th>'
        for run, colour in zip(runs, colours(runs), strict=True)
    )
    body = "\n".join(
        f'<tr><th scope="row">{_name(name)}</th>{"".join(f"<td>{html.escape(cell)}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    head = f"<thead><tr><th></th>{heads}</tr></thead>"
    return f'<div class="table"><table>{head}<tbody>\n{body}\n</tbody></table></div>'


def _name(name: str) -> str:
    """Return the name of a row in HTML, with its second line small."""
    first, _, second = map(html.escape, name.partition("\n"))
    return f"{first}<small>{second}</small>" if second else first
