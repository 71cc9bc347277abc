"""Published figures beside runs whose records are written here: the table, the chart, and what is no figure."""

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plmjax.errors import UserError
from plmjax.experiment import Phase
from plmjax.report import published
from plmjax.report.page import report
from plmjax.report.runs import Run
from tests.report.test_page import RUN, SVG, charts, page, words, write

TWO_BATCHES = dataclasses.replace(RUN, phases=(Phase(fraction=0.5), Phase(fraction=0.5, batch_size=16)))
"""100 steps: 50 of 8 rows of 64 tokens, then 50 of 16."""
ACCURACY = "eval/masked_accuracy"


def evaluations(*values: float, first: int = 10) -> list[dict]:
    """A record every ten steps: a loss that falls, and an accuracy that rises, its complement."""
    return [
        {"step": first + 10 * n, "time": float(n), "eval/loss": 1 - value, ACCURACY: value}
        for n, value in enumerate(values)
    ]


def figure(metric: str, *points: dict, **changed: object) -> dict:
    return {"name": f"figure of {metric}", "source": "a paper", "metric": metric, "points": [*points]} | changed


def shown(folder: Path, *figures: dict, runs: tuple[Path, ...] = ()) -> str:
    """The page of runs beside figures."""
    (folder / "figures.json").write_text(json.dumps({"figures": figures}))
    report(runs or [folder / "run"], folder / "page.html", against=[str(folder / "figures.json")])
    return page(folder / "page.html")


def rows(text: str) -> list[list[str]]:
    """The cells of the table of figures, without the names, which a row of a second run lacks."""
    (table,) = re.findall("<h2>Published figures</h2>(.*?)</table>", text, re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", table)[1:]]
    return [[re.sub("<[^>]*>", "", cell).removeprefix("&#9632; ") for cell in row] for row in cells]


def dots(drawing: ElementTree.Element) -> list[tuple[float, float]]:
    """The places of the evaluations, of the markers, and of the ends of their bars."""
    groups = [node for node in drawing.iter(f"{SVG}g") if node.get("clip-path")]
    return [(float(use.get("x")), float(use.get("y"))) for group in groups for use in group.iter(f"{SVG}use")]


def test_a_run_stands_beside_the_value_at_its_place(tmp_path):
    """At a place the last evaluation counts; a deviation is that of the value, or of the rows that it took."""
    write(tmp_path / "run", TWO_BATCHES, evaluations(0.1, 0.3, 0.4, 0.5, 0.6, 0.7))  # to step 60
    text = shown(
        tmp_path,
        figure(
            ACCURACY,
            {"step": 25, "value": 0.25, "deviation": {"value": 0.1}, "seeds": 5},
            {"samples": 400 + 16 * 10 + 8, "value": 0.65, "deviation": {"samples": 40}, "seeds": 20},
            {"tokens": (400 + 160) * 64, "value": 0.9},
            {"value": 0.7},
        ),
        figure("eval/loss", {"step": 20, "value": 0.5}),
    )
    assert rows(text) == [
        ["step 25", "0.25 ± 0.1, 5 seeds", "run", "0.3", "+0.5", "step 20"],
        ["568 samples ± 40, 20 seeds", "0.65", "run", "", "-0.2", "560 samples"],
        ["35,840 tokens", "0.9", "run", "0.7", "", ""],
        ["the end", "0.7", "run", "0.7", "", "step 60"],
        ["step 20", "0.5", "run", "0.7", "", "step 40"],
    ]
    assert "figure of eval/loss, eval/loss<small>a paper</small>" in text


def test_each_unit_becomes_steps_through_the_phases():
    run = Run("run", TWO_BATCHES, [])
    assert [run.step_at("samples", rows) for rows in (0, 400, 408, 1200, 1201)] == [0, 50, 50.5, 100, float("inf")]
    assert run.step_at("step", 70) == 70 and run.step_at("tokens", 64 * 416) == 51
    for unit in ("step", "tokens", "samples"):
        assert [run.step_at(unit, run.amount_until(unit, step)) for step in (0, 50, 51, 100)] == [0, 50, 51, 100]


def test_a_figure_is_drawn_in_the_chart_of_its_metric(tmp_path):
    """With its own name in the legend, where the runs have planned to come; a training loss of several terms too."""
    run = write(tmp_path / "run", RUN, evaluations(0.5, 0.6))
    text = shown(
        tmp_path,
        figure(ACCURACY, {"step": 50, "value": 0.7}, name="<here>"),
        figure(ACCURACY, {"step": 101, "value": 0.7}, name="beyond"),
    )
    drawn = charts(text)
    assert "<here>" in words(drawn["Masked accuracy"]) and "<here>" not in words(drawn["Loss"])
    assert "beyond" not in words(drawn["Masked accuracy"]) and "<here>" not in text
    assert "Published figures" not in (report([run], tmp_path / "page.html") or page(tmp_path / "page.html"))
    terms = [
        {"step": step, "time": 1.0, "train/loss": 9.0, "train/mlm_loss": 5.0, "train/nsp_loss": 4.0, "eval/loss": 5.0}
        | {"eval/mlm_loss": 5.0}
        for step in (10, 20)
    ]
    write(tmp_path / "bert", lines=terms)
    together, term = figure("train/loss", {"value": 8.0}), figure("eval/mlm_loss", {"value": 4.0})
    drawn = charts(shown(tmp_path, together, term, runs=(tmp_path / "bert",)))
    assert together["name"] in words(drawn["Loss, all terms together"]) and term["name"] in words(drawn["Loss"])
    assert together["name"] not in words(drawn["Loss"])


def test_a_marker_stands_at_the_step_of_its_place_between_its_deviations(tmp_path):
    """400 rows are 50 steps of 8. The rows before them are in smaller steps than those after them."""
    write(tmp_path / "run", TWO_BATCHES, evaluations(0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    text = shown(tmp_path, figure(ACCURACY, {"samples": 400, "value": 0.5, "deviation": {"samples": 80}}))
    places = dots(charts(text)["Masked accuracy"])
    curve = sorted(places, key=lambda place: -place[1])
    assert places.count(curve[-2]) == 2  # the evaluation of step 50 and the marker
    at_10, at_50 = curve[0][0], curve[-2][0]
    bars = [at_10 + (at_50 - at_10) * (step - 10) / 40 for step in (40, 55)]
    assert sorted(x for x, y in places if y == curve[-2][1] and x != at_50) == pytest.approx(bars, abs=1e-3)


def test_runs_with_other_batches_have_places_of_their_own(tmp_path):
    small = dataclasses.replace(RUN, training=dataclasses.replace(RUN.training, batch_size=4))
    runs = (
        write(tmp_path / "eight", RUN, evaluations(0.5, 0.6)),
        write(tmp_path / "four", small, evaluations(0.5, 0.8)),
    )
    text = shown(tmp_path, figure(ACCURACY, {"samples": 80, "value": 0.6}), runs=runs)
    assert rows(text) == [["80 samples", "0.6", "eight", "0.5", "", "160 samples"], ["four", "0.8", "", "80 samples"]]


BAD = [
    ([], "a JSON object"),
    ({}, "has no figures"),
    ({"figures": [{"name": "a"}]}, "has no source"),
    (figure(ACCURACY, {"value": "low"}), "value of .* is 'low'"),
    (figure(ACCURACY, {"value": 1, "sampels": 5}), "a point with sampels, did you mean 'samples'?"),
    (figure(ACCURACY, {"value": 1, "step": 5, "tokens": 6}), "step and tokens, which are two places"),
    (figure(ACCURACY, {"value": 1, "step": -5}), "before the first step"),
    (figure(ACCURACY, {"value": 1, "step": 10**400}), "a number that is too large"),
    (figure(ACCURACY, {"value": 1, "seeds": 0}), "no number from 1"),
    (figure(ACCURACY, {"value": 1, "step": 5, "deviation": {"tokens": 1}}), "not one number above 0 of value or of st"),
    (figure(ACCURACY, {"value": 1, "deviation": {"value": 0}}), "not one number above 0 of value"),
    (figure("eval/acuracy", {"value": 1}), f"found 'eval/acuracy'; name one of .*: eval/loss, {ACCURACY}"),
]


@pytest.mark.parametrize(("found", "sentence"), BAD)
def test_what_is_no_figure_is_one_sentence(found, sentence, tmp_path):
    write(tmp_path / "run", lines=evaluations(0.5))
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"figures": [found]} if isinstance(found, dict) and "metric" in found else found))
    with pytest.raises(UserError, match=sentence):
        report([tmp_path / "run"], tmp_path / "page.html", against=[str(file)])
    assert not (tmp_path / "page.html").exists()


def test_figures_that_are_not_there_are_named(tmp_path):
    write(tmp_path / "run")
    with pytest.raises(UserError, match="found 'mlperf_brt'; did you mean 'mlperf_bert'"):
        report([tmp_path / "run"], tmp_path / "page.html", against=["mlperf_brt"])


def test_the_figures_of_plmjax_have_a_source_and_a_place(tmp_path):
    """And stand in docs/results.md."""
    metrics = dict.fromkeys(("eval/loss", "eval/mlm_accuracy", "eval/target_loss", "train/loss"), 1.0)
    run = write(tmp_path / "run", lines=[{"step": 1, "time": 1.0} | metrics])
    report([run], tmp_path / "page.html", against=published.names())
    assert len(rows(page(tmp_path / "page.html"))) > 20
    listed = (Path(published.__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    assert [name for name in published.names() if f"`{name}`" not in listed] == []
