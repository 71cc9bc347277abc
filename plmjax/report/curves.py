"""The curves of runs as pictures: inline SVG, or a separate file.

matplotlib draws the charts. In the page, frames and text have the colour of the page's text, so they follow the
reader's light or dark theme.
"""

import html
import io
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plmjax.report.published import Figure, Point
from plmjax.report.runs import Run

PARTS = ("train", "eval")
TITLES = {
    "loss": "Loss",
    "joint_loss": "Loss, all terms together",
    "learning_rate": "Learning rate",
    "tokens_per_second": "Tokens per second",
    "mfu": "Model FLOP/s utilisation",
    "input_wait": "Share of the step spent waiting for input",
}
"""Metric -> title, if its name is not clear enough."""
WRITTEN = {
    "mlm": "MLM",
    "nsp": "NSP",
    "sop": "SOP",
    "bleu": "BLEU",
    "chrf": "chrF",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
    "f1": "F1",
    "mrr": "MRR",
    "ndcg": "nDCG",
    "uas": "UAS",
    "las": "LAS",
}
"""Word in the name of a metric -> its usual spelling."""
UNITS = {"loss": "nats a target"}
POINTS = 500
"""Maximum number of points of a curve; a longer series is averaged over spans of steps."""
COLOURS = ("#2f7ed8", "#e0662b", "#2a9d6a", "#b0569b", "#b58a1b", "#5f6fd1", "#d04a5a", "#3a9fb0")
"""Colours that are distinct, and readable on white and on black."""
MARKERS = "Ds^vP*Xp<>h8"
"""Markers of published figures, as matplotlib names them."""
LEGEND_WIDTH = 88
"""Number of characters in a row of a legend; each entry takes 8 more than its label, for its line."""
INK = "#767676"
"""Colour of frames, ticks and text in matplotlib; it becomes `currentColor` in the page."""


def measures(runs: list[Run]) -> list[str]:
    """Return the metrics to draw, x for both train/x and eval/x: loss, accuracies, others, then rates and speeds."""
    keys = {key: None for run in runs for record in run.records for key in record}
    names = {_measure(key): None for key in keys if key not in ("step", "time", "eval/unigram_entropy")}
    last = [
        "joint_loss",
        "gradient_norm",
        "learning_rate",
        "tokens_per_second",
        "model_flops_per_second",
        "mfu",
        "input_wait",
    ]

    def rank(name: str) -> tuple[int, bool, bool]:
        return (last.index(name) + 1 if name in last else 0, name != "loss", "accuracy" not in name)

    return sorted(names, key=rank)


def title(measure: str) -> str:
    """Return the title of a metric's chart."""
    words = []
    for word in measure.replace("/", "_").split("_"):
        name, at, number = word.partition("@")
        words.append(f"{WRITTEN.get(name, name)}{at}{number}")
    text = " ".join(words)
    return TITLES.get(measure, text if text.startswith(tuple(WRITTEN.values())) else text[:1].upper() + text[1:])


def is_curve(runs: list[Run], measure: str) -> bool:
    """Return whether any run has logged a metric at more than one step."""
    return any(
        len(run.series(key)[0]) > 1 for run in runs for key in (measure, *(f"{part}/{measure}" for part in PARTS))
    )


def colours(runs: list[Run]) -> list[str]:
    """Return the colour of each run."""
    return [COLOURS[index % len(COLOURS)] for index in range(len(runs))]


def draw(axes: Any, runs: list[Run], measure: str, figures: Sequence[Figure] = ()) -> None:
    """Draw a metric of every run, and its published figures.

    Training is a line, evaluation a dashed line with dots, and the unigram entropy a horizontal line.
    """
    drawn = []  # (line, label): the default legend of matplotlib leaves out labels that begin with _
    for run, colour in zip(runs, colours(runs), strict=True):
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
        entropies = {run.last("eval/unigram_entropy"): colour for run, colour in zip(runs, colours(runs), strict=True)}
        entropies.pop(None, None)
        for entropy, colour in entropies.items():
            ink = colour if len(entropies) > 1 else INK
            level = axes.axhline(entropy, color=ink, linewidth=1.2, linestyle=":")
            drawn += [(level, f"unigram entropy {entropy:.2f}")]
    drawn += _draw_figures(axes, runs, measure, figures)
    if measure in ("learning_rate", "tokens_per_second", "mfu"):
        axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel(UNITS.get(measure, ""))
    axes.set_title(title(measure), loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    if len(drawn) > 1:
        longest = max(len(label) for _, label in drawn)
        columns = max(1, min(3 if len(runs) == 1 else 2, LEGEND_WIDTH // (longest + 8)))
        axes.figure.set_figheight(axes.figure.get_figheight() + 0.22 * math.ceil(len(drawn) / columns))
        axes.figure.legend(*zip(*drawn, strict=True), loc="outside lower left", ncols=columns, frameon=False)


def _draw_figures(axes: Any, runs: list[Run], measure: str, figures: Sequence[Figure]) -> list[tuple[Any, str]]:
    """Draw the published figures of a metric, each with its own marker. Return (line, label) for the legend."""
    drawn = []
    for figure, marker in zip(figures, itertools.cycle(MARKERS), strict=False):
        keys = [run.renamed.get(figure.metric, figure.metric) for run in runs]
        logged = [
            (run, colour)
            for run, key, colour in zip(runs, keys, colours(runs), strict=True)
            if _measure(key) == measure and len(run.series(key)[0])
        ]
        lines = [line for point in figure.points for line in _draw_point(axes, logged, point, marker)] if logged else []
        drawn += [(line, figure.name) for line in lines[:1]]
    return drawn


def _draw_point(axes: Any, runs: list[tuple[Run, str]], point: Point, marker: str) -> list[Any]:
    """Draw a published point at its place in each run, in the colour of the run, or once if all places are the same.

    A point without a place is a horizontal line. A point beyond the planned end of a run is not drawn, because it would
    make the curve small.
    """
    if not point.unit:
        return [axes.axhline(point.value, color=INK, linewidth=1.2, linestyle="-.")]
    places = {}  # (step, the steps one deviation before and after it) -> colours
    for run, colour in runs:
        width = point.deviation if point.varies == point.unit and point.deviation else 0.0
        before, step, after = (run.step_at(point.unit, point.amount + shift) for shift in (-width, 0, width))
        if step < math.inf:
            places.setdefault((step, step - before, min(after, run.planned_steps) - step), []).append(colour)
    drawn = []
    for (step, *widths), inks in places.items():
        bars = {"yerr": point.deviation} if point.varies == "value" else {"xerr": [[width] for width in widths]}
        colour = inks[0] if len(places) > 1 else INK
        style = {"markersize": 7, "markerfacecolor": "none", "capsize": 3, "zorder": 4}
        drawn.append(axes.errorbar(step, point.value, fmt=marker, color=colour, **style, **bars))
    return drawn


def draw_words(axes: Any, places: dict[str, Sequence[float]], title: str, colour: str) -> None:
    """Draw a dot and a label for each word. Only distances have a meaning, so the axes have no ticks."""
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


def picture(runs: list[Run], kind: str, figures: Sequence[Figure] = ()) -> bytes:
    """Return a picture of the losses of the runs and of published ones: the bytes of a file in the format `kind`."""
    dates = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}  # the same runs give the same picture
    comparable = [run.comparable() for run in runs]
    return _figure(
        lambda axes: draw(axes, comparable, "loss", figures),
        "loss",
        format=kind,
        dpi=150,
        facecolor="white",
        metadata=dates[kind],
    )


def svg(draw: Callable[[Any], None], title: str) -> str:
    """Return an inline SVG of what `draw` draws on matplotlib axes."""
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    drawn = _figure(draw, title, format="svg", transparent=True, metadata=metadata).decode("utf-8")
    labelled = f'<svg role="img" aria-label="{html.escape(title)}"'
    return drawn[drawn.index("<svg") :].replace("<svg", labelled, 1).replace(INK, "currentColor")


def _measure(key: str) -> str:
    part, _, name = key.partition("/")
    return name if part in PARTS else key


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `POINTS` points, each the mean of about equally many points.

    A point that is not finite leaves a gap.
    """
    if len(steps) <= POINTS:
        return steps, values
    spans = zip(np.array_split(steps, POINTS), np.array_split(values, POINTS), strict=True)
    return tuple(np.array([(some.mean(), mean.mean()) for some, mean in spans]).T)


def _figure(draw: Callable[[Any], None], salt: str, **save: Any) -> bytes:
    """Return a picture of what `draw` draws on matplotlib axes. salt: makes the ids inside an SVG unique."""
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
