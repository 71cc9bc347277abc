"""The report: one self-contained HTML page with the curves and results of one or more runs, side by side.

Charts are SVG drawn by matplotlib and set inline; their neutral parts take the page's own text colour, so that the page
follows the reader's light or dark scheme. The page fetches nothing.
"""

import dataclasses
import functools
import html
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax import experiment, json_text, storage
from plmjax.errors import UserError, in_file
from plmjax.training import metrics, phases

PARTS = ("train", "eval")
TITLES = {
    "loss": "Loss",
    "joint_loss": "Loss, all terms together",
    "learning_rate": "Learning rate",
    "tokens_per_second": "Tokens per second",
    "mfu": "Model FLOP/s utilisation",
    "input_wait": "Share of the step spent waiting for input",
}
"""Titles of measures whose names are not clear enough."""
ACRONYMS = {"mlm": "MLM", "nsp": "NSP"}
UNITS = {"loss": "nats a target"}
POINTS = 500
"""Most points of a drawn curve; a longer series is averaged over spans of steps."""
COLOURS = ("#2f7ed8", "#e0662b", "#2a9d6a", "#b0569b", "#b58a1b", "#5f6fd1", "#d04a5a", "#3a9fb0")
"""Distinct, and readable on white and on black."""
SAMPLES = "samples.jsonl"
"""File of a run directory with texts that the model has written, as `plmjax generate --output` writes them."""
MADE_BY = '<meta name="generator" content="plmjax report">'
"""Tells a page that was written before, which may be written again."""
PICTURES = ("png", "svg", "pdf")
"""Formats of a picture, by the ending of its name."""
INK = "#767676"
"""Colour of frames, ticks and text while matplotlib draws; `currentColor` in the page."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a run directory: its experiment, its logged records and the texts that its model has written."""

    name: str
    experiment: experiment.Experiment
    records: list[dict[str, Any]]
    samples: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values), float64, of the records that have the key."""
        points = [(record["step"], record[key]) for record in self.records if key in record]
        return tuple(np.array(points, np.float64).reshape(-1, 2).T)

    def last(self, key: str) -> float | None:
        """The last logged value."""
        return next((record[key] for record in reversed(self.records) if key in record), None)

    def comparable(self) -> "Run":
        """The same run, where "loss" means the same in training and in evaluation.

        Where a training loss is the sum of several terms, `train/loss` is all of them, but `eval/loss` the one that is
        counted in nats a target: that term takes its place, and the sum becomes `train/joint_loss`.
        """
        keys = {key for record in self.records for key in record}
        terms = {key.removeprefix("train/") for key in keys if key.startswith("train/") and key.endswith("_loss")}
        if len(terms) < 2:
            return self
        evaluations = [record for record in self.records if "eval/loss" in record]

        def is_target(term: str) -> bool:
            return bool(evaluations) and all(line.get(f"eval/{term}") == line["eval/loss"] for line in evaluations)

        names, same = {"train/loss": "train/joint_loss"}, ""
        if term := next(filter(is_target, sorted(terms)), None):
            names[f"train/{term}"], same = "train/loss", f"eval/{term}"
        renamed = [{names.get(key, key): r[key] for key in r if key != same} for r in self.records]
        return dataclasses.replace(self, records=renamed)

    @property
    def steps(self) -> int:
        """Steps done."""
        return self.records[-1]["step"]

    @property
    def tokens(self) -> int:
        """Tokens of the steps done, padding included."""
        return sum(
            min(max(self.steps - phase.first_step, 0), phase.steps)
            * self.experiment.data.tokens(phase.batch_size, phase.sequence_length)
            for phase in phases.resolve(self.experiment)
        )

    @property
    def seconds(self) -> float:
        """From the first logged record to the last."""
        return self.records[-1]["time"] - self.records[0]["time"]


def report(
    workdirs: Sequence[str | Path],
    output: str | Path,
    *,
    curve: str | Path | None = None,
    places: Sequence[dict[str, Sequence[float]]] = (),
) -> None:
    """Writes the page of these runs to `output`, and their loss as a picture to `curve` when one is named.

    places: for each run the words of a picture, each with its two coordinates; empty for no picture.

    Raises:
        UserError: a folder is no run or has logged nothing yet, its records are not those of a run, the picture's name
            has no ending of PICTURES, or a file cannot be written or is somebody else's.
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
    runs = [_read(storage.path(workdir), name) for workdir, name in zip(workdirs, _names(workdirs), strict=True)]
    if curve is not None:
        _write(storage.path(curve), _picture(runs, kind))
    _write(page, _page(runs, places).encode("utf-8"))


def _names(workdirs: Sequence[str | Path]) -> list[str]:
    """Folder names, or whole paths where two folders have the same name."""
    short = [storage.absolute(storage.path(workdir)).name for workdir in workdirs]
    return short if len(set(short)) == len(short) else [str(workdir) for workdir in workdirs]


def _read(workdir: Path, name: str) -> Run:
    file = workdir / "experiment.json"
    described = experiment.read(file)
    if not all(hasattr(described.data, asked) for asked in ("sequence_length", "tokens")):
        raise UserError(
            f"Expected the data of a run in {file}, found {type(described.data).__name__}; restore the file."
        )
    with in_file(file, "--"):
        phases.resolve(described)
    path = workdir / "metrics.jsonl"
    records = metrics.read(path)
    if not records:
        raise UserError(f"Expected logged steps in {path}, found none yet; report on the run once it has logged some.")
    for number, record in enumerate(records, start=1):
        numbers = isinstance(record, dict) and all(isinstance(value, int | float | None) for value in record.values())
        if not (numbers and {"step", "time"} <= record.keys()):
            raise UserError(
                f"Expected a step, a time and numbers in line {number} of {path}, found something else; remove the "
                f"line."
            )
    return Run(name, described, records, _samples(workdir / SAMPLES))


def _samples(path: Path) -> list[dict[str, Any]]:
    """The texts of a run, each an object with its `prompt` and `text`; none where nothing was written."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(storage.contents(path).removesuffix(b"\n").split(b"\n"), start=1):
        try:
            sample = json_text.parse(line)
        except ValueError:
            sample = None
        if not (isinstance(sample, dict) and all(isinstance(sample.get(name), str) for name in ("prompt", "text"))):
            raise UserError(
                f"Expected a prompt and a text in line {number} of {path}, found something else; remove the file or "
                f"write it again with plmjax generate."
            )
        found.append(sample)
    return found


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write(path, content)
    except OSError as error:
        if error.strerror is None:  # of a bucket
            raise
        raise UserError(f"Expected to write {path}, found: {error.strerror}; name another file.") from error


def _measures(runs: list[Run]) -> list[str]:
    """Names to chart, one for `train/x` and `eval/x` together: losses, accuracies, then the rest in logged order."""
    keys = {key: None for run in runs for record in run.records for key in record}
    names = {_measure(key): None for key in keys if key not in ("step", "time", "eval/unigram_entropy")}
    last = ["joint_loss", "gradient_norm", "learning_rate", "tokens_per_second", "mfu", "input_wait"]

    def rank(name: str) -> tuple[int, bool, bool]:
        return (last.index(name) + 1 if name in last else 0, name != "loss", "accuracy" not in name)

    return sorted(names, key=rank)


def _measure(key: str) -> str:
    part, _, name = key.partition("/")
    return name if part in PARTS else key


def _title(measure: str) -> str:
    words = [ACRONYMS.get(word, word) for word in measure.replace("/", "_").split("_")]
    return TITLES.get(measure, " ".join(words)[:1].upper() + " ".join(words)[1:])


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS points, each the mean of an equal share of the points; one that is not finite leaves a gap."""
    if len(steps) <= POINTS:
        return steps, values
    spans = zip(np.array_split(steps, POINTS), np.array_split(values, POINTS), strict=True)
    return tuple(np.array([(some.mean(), mean.mean()) for some, mean in spans]).T)


def _draw(axes: Any, runs: list[Run], measure: str) -> None:
    """One measure of every run: training as a line, evaluation as a line with dots, the unigram entropy as a level."""
    drawn = []  # (line, label): matplotlib would leave out of its own legend a run whose name begins with _
    for run, colour in zip(runs, _colours(runs), strict=True):
        label = f"{run.name}, " if len(runs) > 1 else ""
        for key, part in ((measure, ""), (f"train/{measure}", "train"), (f"eval/{measure}", "eval")):
            steps, values = _thin(*run.series(key))
            if not len(steps):
                continue
            line = (
                {"linewidth": 2, "linestyle": "--", "marker": "o", "markersize": 4, "zorder": 3}
                if part == "eval"
                else {}
            )
            if len(steps) == 1:
                line["marker"] = "o"
            lines = axes.plot(steps, values, color=colour, **{"linewidth": 1.2} | line)
            drawn += [(lines[0], (label + part).removesuffix(", "))]
    if measure == "loss":
        entropies = {run.last("eval/unigram_entropy"): colour for run, colour in zip(runs, _colours(runs), strict=True)}
        entropies.pop(None, None)
        for entropy, colour in entropies.items():
            ink = colour if len(entropies) > 1 else INK
            level = axes.axhline(entropy, color=ink, linewidth=1.2, linestyle=":")
            drawn += [(level, f"unigram entropy {entropy:.2f}")]
    if measure in ("learning_rate", "tokens_per_second", "mfu"):
        axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel(UNITS.get(measure, ""))
    axes.set_title(_title(measure), loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    if len(drawn) > 1:
        columns = 3 if len(runs) == 1 else 2
        axes.figure.set_figheight(axes.figure.get_figheight() + 0.22 * math.ceil(len(drawn) / columns))
        axes.figure.legend(*zip(*drawn, strict=True), loc="outside lower left", ncols=columns, frameon=False)


def _colours(runs: list[Run]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(runs))]


def _draw_words(axes: Any, places: dict[str, Sequence[float]], title: str, colour: str) -> None:
    """Words beside the dots of their places; only distances mean something, so that the axes have no numbers."""
    x, y = np.array(list(places.values()), np.float64).T
    axes.scatter(x, y, s=12, color=colour)
    for word, place in places.items():
        axes.annotate(word, place, xytext=(4, 2), textcoords="offset points", fontsize=8)
    axes.margins(0.12)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_alpha(0.25)
    axes.set_title(title, loc="left", fontweight="bold")


def _figure(draw: Callable[[Any], None], salt: str, **save: Any) -> bytes:
    """A picture of what `draw` draws on its axes. salt: makes the names within an SVG differ from another's."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {name: INK for name in ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")}
    style |= {"grid.color": INK, "font.size": 10, "svg.fonttype": "none", "svg.hashsalt": salt}
    style |= {"text.parse_math": False}  # a name may hold a $
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        draw(figure.add_subplot())
        image = io.BytesIO()
        figure.savefig(image, **save)
    return image.getvalue()


def _picture(runs: list[Run], kind: str) -> bytes:
    dates = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same runs give the same picture
    comparable = [run.comparable() for run in runs]
    draw = lambda axes: _draw(axes, comparable, "loss")  # noqa: E731
    return _figure(draw, "loss", format=kind, dpi=150, facecolor="white", metadata=dates[kind])


def _svg(draw: Callable[[Any], None], title: str) -> str:
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    drawn = _figure(draw, title, format="svg", transparent=True, metadata=metadata).decode("utf-8")
    labelled = f'<svg role="img" aria-label="{html.escape(title)}"'
    return drawn[drawn.index("<svg") :].replace("<svg", labelled, 1).replace(INK, "currentColor")


def _results(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """Rows of the table below the settings: (name, one cell per run)."""

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
    for measure in _measures(runs):
        keys = [*(f"{part}/{measure}" for part in PARTS), measure]
        rows += [
            row(key, [run.last(key) for run in runs]) for key in keys if any(run.last(key) is not None for run in runs)
        ]
    rows.append(row("eval/unigram_entropy", [run.last("eval/unigram_entropy") for run in runs]))
    rows.append(row("eval/loss below the unigram entropy", [below(run) for run in runs]))
    return [(name, cells) for name, cells in rows if any(cells)]


def _settings(runs: list[Run]) -> list[tuple[str, list[str]]]:
    """The fields of the experiment in which the runs differ: (dotted name, one cell per run)."""
    flat = [experiment.flatten(run.experiment) for run in runs]
    names = {name: None for fields in flat for name in fields}
    rows = [(name, ["" if name not in fields else json.dumps(fields[name]) for fields in flat]) for name in names]
    return [(name, cells) for name, cells in rows if len(set(cells)) > 1]


STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1200px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 1rem; }
figure { margin: 0; } svg { width: 100%; height: auto; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; border-bottom: 1px solid #7676763f; }
tbody th { font-weight: normal; } td { text-align: right; }
thead th:not(:first-child) { text-align: right; }
pre { overflow-x: auto; font-size: 12px; }
blockquote { margin: .75rem 0; padding-left: .9rem; border-left: 3px solid #7676763f; white-space: pre-wrap; }
blockquote span { opacity: .6; }
"""


def _written(runs: list[Run]) -> str:
    """What the models have written, each text after its prompt."""
    parts = []
    for run in runs:
        texts = "\n".join(
            f"<blockquote><span>{html.escape(one['prompt'])}</span>{html.escape(one['text'])}</blockquote>"
            for one in run.samples
        )
        parts += [f"<h3>{html.escape(run.name)}</h3>\n{texts}"] if texts else []
    return "\n".join(["<h2>Written by the model</h2>", *parts]) if parts else ""


def _words(runs: list[Run], places: Sequence[dict[str, Sequence[float]]]) -> str:
    """The picture of each run's word vectors."""
    figures = []
    for run, of_run, colour in zip(runs, places, _colours(runs), strict=True):
        title = f"Words of {run.name}"
        draw = functools.partial(_draw_words, places=of_run, title=title, colour=colour)
        figures.append(f"<figure>{_svg(draw, title)}</figure>")
    return "\n".join(["<h2>Vectors of words</h2>", '<div class="charts">', *figures, "</div>"])


def _page(runs: list[Run], places: Sequence[dict[str, Sequence[float]]]) -> str:
    title = html.escape(" and ".join(run.name for run in runs))
    comparable = [run.comparable() for run in runs]
    draws = [(functools.partial(_draw, runs=comparable, measure=one), _title(one)) for one in _measures(comparable)]
    charts = "\n".join(f"<figure>{_svg(*draw)}</figure>" for draw in draws)
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
<title>{title}</title>
{MADE_BY}
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<h2>Results</h2>
{_table(runs, _results(runs))}
{f"<h2>Settings that differ</h2>{settings}" if settings else ""}
<h2>Curves</h2>
<div class="charts">
{charts}
</div>
{_words(runs, places) if places else ""}
{_written(runs)}
<h2>Experiments</h2>
{experiments}
</body>
</html>
"""


def _table(runs: list[Run], rows: list[tuple[str, list[str]]]) -> str:
    """An HTML table with one column per run; empty without rows."""
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col"><span style="color:{colour}">&#9632;</span> {html.escape(run.name)}</th>'
        for run, colour in zip(runs, _colours(runs), strict=True)
    )
    body = "\n".join(
        f'<tr><th scope="row">{html.escape(name)}</th>{"".join(f"<td>{html.escape(cell)}</td>" for cell in cells)}</tr>'
        for name, cells in rows
    )
    head = f"<thead><tr><th></th>{heads}</tr></thead>"
    return f'<div class="table"><table>{head}<tbody>\n{body}\n</tbody></table></div>'
