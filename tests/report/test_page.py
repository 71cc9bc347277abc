"""The page of runs whose records are written here, read back as a reader would: tables, curves, no network."""

import dataclasses
import html
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plmjax import experiment
from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Phase, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.objective import Objective
from plmjax.report.curves import POINTS, title
from plmjax.report.page import report
from plmjax.training import metrics
from plmjax.training.optimizers import BertAdamW, Lamb

SVG = "{http://www.w3.org/2000/svg}"
RUN = Experiment(
    model=BertConfig.tiny(),
    objective=Objective(),
    data=Data(layout=SentencePairs(), sequence_length=64),
    optimizer=BertAdamW(),
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
    text = "".join(metrics.to_line(line) for line in (records() if lines is None else lines))
    (workdir / "metrics.jsonl").write_text(text, encoding="utf-8")
    return workdir


def page(output: Path) -> str:
    return output.read_text(encoding="utf-8")


def rows(text: str) -> dict[str, list[str]]:
    """Key of a row, or its name without one -> its cells."""
    found = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    keys = {name: re.search("<small>(.*?)</small>", name) for name, _ in found}
    return {keys[name][1] if keys[name] else name: re.findall("<td>(.*?)</td>", cells) for name, cells in found}


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
    assert table["Loss below the unigram entropy"] == ["1.5"]
    drawn = charts(page(tmp_path / "report.html"))
    assert list(drawn) == ["Loss", "Masked accuracy", "Learning rate", "Tokens per second"]
    assert {"train", "eval", "unigram entropy 6.75"} <= set(words(drawn["Loss"]))
    assert ["M", *"L" * 9] in curves(drawn["Loss"])
    assert "Settings that differ" not in page(tmp_path / "report.html")


def test_what_the_model_has_written_is_text_and_no_markup(tmp_path):
    first, second = write(tmp_path / "silent"), write(tmp_path / "decoder")
    samples = [
        {"prompt": "<script>alert(1)</script>", "text": "</blockquote><img src=x onerror=alert(2)> & \u2603"},
        {"prompt": "", "text": "a document"},
    ]
    (second / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    report([first, second], tmp_path / "report.html")
    text = page(tmp_path / "report.html")
    assert "<script" not in text and "<img" not in text
    assert [
        html.unescape(re.sub("</?span>", "", one)) for one in re.findall("<blockquote>(.*?)</blockquote>", text)
    ] == [sample["prompt"] + sample["text"] for sample in samples]
    assert text.index("<h3>decoder</h3>") < text.index("a document") and "<h3>silent</h3>" not in text
    for damage in ('{"prompt": "a"}', "[]", "no JSON"):
        (second / "samples.jsonl").write_text(damage + "\n")
        with pytest.raises(UserError, match=r"in line 1 of .*samples\.jsonl"):
            report([second], tmp_path / "report.html")


def test_words_of_each_run_stand_where_their_vectors_are(tmp_path):
    """To the right where the first coordinate is larger, and above where the second one is."""
    places = [{"fox": (0.0, 0.0), "dog": (4.0, 1.0), "cat": (1.0, 3.0)}, {"fox": (2.0, 0.0), "dog": (0.0, 5.0)}]
    report([write(tmp_path / "first"), write(tmp_path / "second")], tmp_path / "report.html", places=places)
    drawn, names = charts(page(tmp_path / "report.html")), ("first", "second")
    for name, of_run in zip(names, places, strict=True):
        drawing = drawn[f"Words of {name}"]
        found = {
            node.text: [float(number) for number in re.findall(r"-?[\d.]+", node.get("transform", ""))[-2:]]
            for node in drawing.iter(f"{SVG}text")
            if node.text in of_run
        }
        assert found.keys() == of_run.keys()
        assert sorted(found, key=lambda word: found[word][0]) == sorted(of_run, key=lambda word: of_run[word][0])
        assert sorted(found, key=lambda word: -found[word][1]) == sorted(of_run, key=lambda word: of_run[word][1])
    dots = [
        re.search("fill: (#[0-9a-f]+)", ElementTree.tostring(drawn[f"Words of {name}"], "unicode")) for name in names
    ]
    assert dots[0][1] != dots[1][1]
    report([tmp_path / "first"], tmp_path / "report.html")
    assert "Vectors of words" not in page(tmp_path / "report.html")


def test_two_runs_stand_side_by_side_with_what_differs(tmp_path):
    other = dataclasses.replace(RUN, optimizer=Lamb(learning_rate=1e-3))
    less = records(50, **{"train/loss": 6.5, "train/next_sentence_accuracy": 0.5})
    first, second = write(tmp_path / "adam"), write(tmp_path / "lamb", other, less)
    report([first, second], tmp_path / "report.html")
    text = page(tmp_path / "report.html")
    table = rows(text)
    assert table["optimizer.type"] == [
        "BertAdamW",
        "Lamb",
    ]
    assert table["optimizer.learning_rate"] == ["0.0001", "0.001"]
    assert not any(name.startswith(("model.", "training.")) for name in table)
    assert table["steps"] == ["100 of 100", "50 of 100"] and table["train/loss"] == ["7.5", "6.5"]
    assert table["train/next_sentence_accuracy"] == ["", "0.5"]
    assert {"adam, train", "lamb, train", "adam, eval", "lamb, eval"} <= set(words(charts(text)["Loss"]))


def heights(drawing: ElementTree.Element) -> list[float]:
    """The height at which each line of ten points ends, larger lower down."""
    paths = [node.get("d") for node in drawing.iter(f"{SVG}path") if node.get("clip-path") and node.get("d")]
    return [float(path.split()[-1]) for path in paths if path.count("L") == 9]


def test_a_training_loss_of_several_terms_is_compared_term_by_term(tmp_path):
    terms = {"train/loss": 9.0, "train/mlm_loss": 5.25, "train/nsp_loss": 3.75}
    *lines, judged = records(**terms)
    lines = [*lines, *(line | judged | {"step": line["step"], "eval/mlm_loss": 5.25} for line in lines)]
    lines = [
        {key: line[key] for key in line if not (key.startswith("train") and "eval/loss" in line)} for line in lines
    ]
    report([write(tmp_path / "bert", lines=lines)], tmp_path / "report.html")
    drawn = charts(page(tmp_path / "report.html"))
    assert {"train", "eval"} <= set(words(drawn["Loss"]))
    training, evaluation = heights(drawn["Loss"])
    assert training == evaluation  # both are 5.25 nats a target
    assert "Loss, all terms together" in drawn and "NSP loss" in drawn and "MLM loss" not in drawn
    assert rows(page(tmp_path / "report.html"))["train/loss"] == ["9"]  # as metrics.jsonl names it


def test_without_an_evaluation_the_terms_stay_apart(tmp_path):
    lines = [line | {"train/mlm_loss": 7.0, "train/nsp_loss": 0.5} for line in records()[:-1]]
    report([write(tmp_path / "bert", lines=lines)], tmp_path / "report.html")
    drawn = charts(page(tmp_path / "report.html")).keys()
    assert {"Loss, all terms together", "MLM loss", "NSP loss"} <= drawn and "Loss" not in drawn


def test_the_legend_stands_below_the_lines(tmp_path):
    first, second = write(tmp_path / "first"), write(tmp_path / "second")
    report([first, second], tmp_path / "report.html")
    for name, drawing in charts(page(tmp_path / "report.html")).items():
        labels = [node for node in drawing.iter(f"{SVG}text") if node.text.startswith(("first", "second"))]
        axis = next(node for node in drawing.iter(f"{SVG}text") if node.text == "step")
        assert labels, name
        assert min(map(place, labels)) > place(axis), name


def place(text: ElementTree.Element) -> float:
    """Return the distance of a text from the top."""
    moved = re.search(r"translate\([-\d.]+ ([-\d.]+)\)", text.get("transform", ""))
    return float(moved[1] if moved else text.get("y"))


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


@pytest.mark.nightly
def test_a_name_is_shown_as_it_is_whatever_it_means_to_the_drawing(tmp_path):
    runs = [write(tmp_path / "$x^2$"), write(tmp_path / "_hidden"), write(tmp_path / "$\\nothing$")]
    report(runs, tmp_path / "report.html", curve=tmp_path / "loss.pdf")
    drawn = words(charts(page(tmp_path / "report.html"))["Loss"])
    assert {"$x^2$, train", "_hidden, train", "$\\nothing$, train"} <= set(drawn)


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_a_long_series_is_averaged_and_what_is_no_number_leaves_a_gap(tmp_path, nothing):
    steps = 4 * POINTS
    lines = [{"step": s, "time": float(s), "train/loss": float(s % 4)} for s in range(steps)]
    lines[steps // 2]["train/loss"] = nothing
    report([write(tmp_path / "long", lines=lines)], tmp_path / "report.html")
    drawn = charts(page(tmp_path / "report.html"))["Loss"]
    longest = max(curves(drawn), key=len)
    assert longest.count("M") == 2  # every mean of four steps is 1.5: a level line, interrupted once


@pytest.mark.parametrize(("name", "begins"), [("loss.png", b"\x89PNG\r\n"), ("loss.svg", b"<?xml"), ("L.PDF", b"%PDF")])
def test_the_loss_is_written_as_a_picture_of_the_kind_asked_for(tmp_path, name, begins):
    run = write(tmp_path / "tiny")
    for folder in ("deep", "again"):
        report([run], tmp_path / folder / "report.html", curve=tmp_path / folder / name)
    assert (tmp_path / "deep" / name).read_bytes().startswith(begins)
    for file in (name, "report.html"):  # the same runs give the same page
        assert (tmp_path / "deep" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def damaged(folder: Path, group: str, name: str, value: object) -> Path:
    """A run whose experiment.json has another value."""
    file = write(folder) / "experiment.json"
    found = json.loads(file.read_text())
    (found[group] if group else found)[name] = value
    file.write_text(json.dumps(found))
    return folder


def with_a_folder(folder: Path, name: str) -> Path:
    """A run with a folder in the place of a file."""
    (write(folder) / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    return folder


PHASE = {"type": "plmjax.experiment.settings:Phase", "fraction": 0.5}
BAD_RUNS = [
    (lambda path: path, "Expected experiment.json"),
    (lambda path: write(path, lines=[]), "found none yet"),
    (lambda path: write(path, lines=[{"step": 1, "time": 2.0, "train/loss": "low"}]), "in line 1 of"),
    (lambda path: write(path, lines=[{"step": 1, "train/loss": 1.0}]), "in line 1 of"),
    *(
        (lambda path, name=name: with_a_folder(path, name), rf"{name}, found")
        for name in ("experiment.json", "samples.jsonl", "metrics.jsonl")
    ),
    *(
        (lambda path, place=place: damaged(path, *place), r"run/experiment\.json")
        for place in (
            ("training", "steps", "many"), ("training", "steps", None), ("training", "steps", 0),
            ("training", "batch_size", [8]), ("data", "sequence_length", True), ("data", "sequence_length", -5),
            ("model", "vocab_size", {"a": 1}), ("", "data", 3), ("", "phases", [1]), ("", "phases", [PHASE]),
            ("", "model", [None]),
        )
    ),
]  # fmt: skip
"""What makes a run that cannot be read, and the sentence on it."""


@pytest.mark.parametrize(("make", "sentence"), BAD_RUNS)
def test_a_run_that_cannot_be_read_is_one_sentence(make, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        report([make(tmp_path / "run")], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path):
    run = write(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="at least one run"):
        report([], tmp_path / "report.html")
    with pytest.raises(UserError, match="name a file in it"):
        report([run], run)
    with pytest.raises(UserError, match=r"Expected to write .*file/report\.html, found: File exists; name another"):
        report([run], tmp_path / "file" / "report.html")
    for name in ("loss.gif", "loss"):
        with pytest.raises(UserError, match=rf"ends in \.png, \.svg or \.pdf for --curve, found .*{name}; name one"):
            report([run], tmp_path / "report.html", curve=tmp_path / name)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("bleu", "BLEU"),
        ("chrf", "chrF"),
        ("rougeL", "ROUGE-L"),
        ("ndcg@10", "nDCG@10"),
        ("mlm_loss", "MLM loss"),
        ("gradient_norm", "Gradient norm"),
    ],
)
def test_measures_have_the_names_that_people_write(key: str, name: str) -> None:
    assert title(key) == name


def test_a_measure_of_one_step_is_in_the_table_and_has_no_chart(tmp_path):
    once = {"step": 50, "time": 1050.0, "eval/bleu": 31.5}
    report([write(tmp_path / "tiny", lines=[*records(), once])], tmp_path / "report.html")
    text = page(tmp_path / "report.html")
    assert rows(text)["eval/bleu"] == ["31.5"] and "BLEU" not in charts(text) and "Loss" in charts(text)
