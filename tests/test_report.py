"""The page of runs whose records are written here, read back as a reader would: tables, curves, no network."""

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plmjax import experiment
from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Optimizer, Phase, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.objective import Objective
from plmjax.report import POINTS, report

SVG = "{http://www.w3.org/2000/svg}"
RUN = Experiment(
    model=BertConfig.tiny(),
    objective=Objective(),
    data=Data(layout=SentencePairs(), sequence_length=64),
    training=Training(steps=100, batch_size=8),
)


def records(steps: int = 100, **changed: float) -> list[dict]:
    """A record every ten steps and an evaluation at the end."""
    training = {"train/loss": 7.5, "train/masked_accuracy": 0.25, "learning_rate": 1e-4, "tokens_per_second": 4000.0}
    lines = [{"step": s, "time": 1000.0 + s, **training, **changed} for s in range(10, steps + 1, 10)]
    evaluation = {"eval/loss": 5.25, "eval/masked_accuracy": 0.125, "eval/unigram_entropy": 6.75}
    return [*lines, {"step": steps, "time": 1000.0 + steps + 5, **evaluation}]


def write(workdir: Path, run: Experiment = RUN, lines: list[dict] | None = None) -> Path:
    workdir.mkdir()
    experiment.write(run, workdir / "experiment.json")
    text = "".join(json.dumps(line) + "\n" for line in (records() if lines is None else lines))
    (workdir / "metrics.jsonl").write_text(text, encoding="utf-8")
    return workdir


def page(output: Path) -> str:
    return output.read_text(encoding="utf-8")


def rows(text: str) -> dict[str, list[str]]:
    found = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    return {name: re.findall("<td>(.*?)</td>", cells) for name, cells in found}


def charts(text: str) -> dict[str, ElementTree.Element]:
    """Title -> drawing."""
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    return {drawing.get("aria-label"): drawing for drawing in drawings}


def words(drawing: ElementTree.Element) -> list[str]:
    return [node.text for node in drawing.iter(f"{SVG}text")]


def curves(drawing: ElementTree.Element) -> list[list[str]]:
    """Commands of every clipped line: what is drawn inside the axes, grid and levels included."""
    paths = [node.get("d") for node in drawing.iter(f"{SVG}path") if node.get("clip-path") and node.get("d")]
    return [re.findall("[ML]", path) for path in paths]


def test_one_run_shows_its_results_and_curves(tmp_path):
    report([write(tmp_path / "tiny")], tmp_path / "report.html")
    table = rows(page(tmp_path / "report.html"))
    assert table["steps"] == ["100 of 100"]
    assert table["tokens"] == ["51.2k"]  # 100 x 8 x 64
    assert table["wall clock, first to last record"] == ["1:35 min"]
    assert table["train/loss"] == ["7.5"] and table["eval/loss"] == ["5.25"]
    assert table["eval/masked_accuracy"] == ["0.125"] and table["tokens_per_second"] == ["4000"]
    assert table["eval/loss below the unigram entropy"] == ["1.5"]
    drawn = charts(page(tmp_path / "report.html"))
    assert list(drawn) == ["Loss", "Masked accuracy", "Learning rate", "Tokens per second"]
    assert {"train", "eval", "unigram entropy 6.75"} <= set(words(drawn["Loss"]))
    assert ["M", *"L" * 9] in curves(drawn["Loss"])
    assert "Settings that differ" not in page(tmp_path / "report.html")


def test_two_runs_stand_side_by_side_with_what_differs(tmp_path):
    other = dataclasses.replace(RUN, optimizer=Optimizer(name="lamb", learning_rate=1e-3))
    first, second = write(tmp_path / "adam"), write(tmp_path / "lamb", other, records(50, **{"train/loss": 6.5}))
    report([first, second], tmp_path / "report.html")
    text = page(tmp_path / "report.html")
    table = rows(text)
    assert table["optimizer.name"] == ["&quot;bert_adamw&quot;", "&quot;lamb&quot;"]
    assert table["optimizer.learning_rate"] == ["0.0001", "0.001"]
    assert not any(name.startswith(("model.", "training.")) for name in table)
    assert table["steps"] == ["100 of 100", "50 of 100"] and table["train/loss"] == ["7.5", "6.5"]
    assert {"adam, train", "lamb, train", "adam, eval", "lamb, eval"} <= set(words(charts(text)["Loss"]))


def test_a_measure_that_one_run_lacks_is_an_empty_cell(tmp_path):
    lines = [line | {"train/next_sentence_accuracy": 0.5} for line in records()]
    report([write(tmp_path / "mlm"), write(tmp_path / "nsp", lines=lines)], tmp_path / "report.html")
    assert rows(page(tmp_path / "report.html"))["train/next_sentence_accuracy"] == ["", "0.5"]


def test_a_training_loss_of_several_terms_says_so(tmp_path):
    lines = [line | {"train/mlm_loss": 7.0, "train/nsp_loss": 0.5} for line in records()]
    report([write(tmp_path / "bert", lines=lines)], tmp_path / "report.html")
    drawn = charts(page(tmp_path / "report.html"))
    assert "train, all terms" in words(drawn["Loss"])
    assert {"MLM loss", "NSP loss"} <= drawn.keys()


def test_tokens_are_counted_phase_by_phase(tmp_path):
    phases = (Phase(fraction=0.9), Phase(fraction=0.1, sequence_length=256, batch_size=2))
    run = dataclasses.replace(RUN, phases=phases, training=dataclasses.replace(RUN.training, steps=100))
    report([write(tmp_path / "run", run, records(95))], tmp_path / "report.html")
    assert rows(page(tmp_path / "report.html"))["tokens"] == ["48.6k"]  # 90 x 8 x 64 + 5 x 2 x 256 = 48,640


def test_the_page_fetches_nothing_and_follows_the_colour_scheme(tmp_path):
    report([write(tmp_path / "tiny")], tmp_path / "report.html")
    text = page(tmp_path / "report.html")
    assert not re.search(r"<script|<link|<img|<iframe|@import|src=|url\((?!#)|href=\"(?!#)", text)
    assert "color-scheme: light dark" in text and "currentColor" in text
    assert not re.search(r"(?:fill|stroke): #(?:000000|ffffff|767676)", text)


def test_names_are_escaped_and_namesakes_told_apart(tmp_path):
    for folder in ("a<b>", "c"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "run")
    report([tmp_path / "a<b>" / "run", tmp_path / "c" / "run"], tmp_path / "report.html")
    text = page(tmp_path / "report.html")
    assert "a&lt;b&gt;/run" in text and "<b>" not in text


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_a_long_series_is_averaged_and_what_is_no_number_leaves_a_gap(tmp_path, nothing):
    steps = 4 * POINTS
    lines = [{"step": s, "time": float(s), "train/loss": float(s % 4)} for s in range(steps)]
    lines[steps // 2]["train/loss"] = nothing
    report([write(tmp_path / "long", lines=lines)], tmp_path / "report.html")
    drawn = charts(page(tmp_path / "report.html"))["Loss"]
    longest = max(curves(drawn), key=len)
    assert longest.count("M") == 2  # every mean of four steps is 1.5: a level line, interrupted once


def test_the_same_runs_give_the_same_page(tmp_path):
    run = write(tmp_path / "tiny")
    report([run], tmp_path / "first.html")
    report([run], tmp_path / "second.html")
    assert page(tmp_path / "first.html") == page(tmp_path / "second.html")


def test_the_loss_is_written_as_a_picture_on_request(tmp_path):
    report([write(tmp_path / "tiny")], tmp_path / "deep" / "report.html", curve=tmp_path / "deep" / "loss.png")
    assert (tmp_path / "deep" / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_bad_input_is_one_sentence(tmp_path):
    cases = {
        "nothing": ([], "at least one run"),
        "missing": ([tmp_path / "missing"], "Expected experiment.json"),
        "no step": ([write(tmp_path / "fresh", lines=[])], "found none yet"),
        "no number": ([write(tmp_path / "words", lines=[{"step": 1, "time": 2.0, "train/loss": "low"}])], "Line 1 of"),
        "no time": ([write(tmp_path / "timeless", lines=[{"step": 1, "train/loss": 1.0}])], "Line 1 of"),
    }
    for workdirs, message in cases.values():
        with pytest.raises(UserError, match=message):
            report(workdirs, tmp_path / "report.html")
    (tmp_path / "fresh" / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        report([tmp_path / "fresh"], tmp_path / "report.html")
    with pytest.raises(UserError, match="name another file"):
        report([write(tmp_path / "good")], tmp_path / "good")
