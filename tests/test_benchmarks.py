"""The programs of benchmarks/ on small inputs: they run, and print the figures that pages quote."""

import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from plmjax.commands import cli
from tests.paths import ROOT

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Run:
    """Runs a program of benchmarks/ with arguments, and returns what it prints."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: None)

    def told(name: str, *arguments: Any) -> str:
        monkeypatch.setattr(sys, "argv", [f"benchmarks/{name}.py", *map(str, arguments)])
        with mock.patch.dict(os.environ):
            importlib.import_module(name).main()
        return capsys.readouterr().out

    return told


def rows(printed: str) -> list[list[str]]:
    """The cells of each line of the tables, without the lines under their headers."""
    lines = [line for line in printed.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


PROGRAMS = {
    "memory": ("--remembered 8 --rows 1 --windows 1 --turns 1", r"\| 8 \| [\d,]+ \| .* \| \de-0[67] \|"),
    "vocabulary": ("--rows 1 --length 8 --vocabulary 50 --features 8 --repeats 1", r"\| all scores at once \| \d+ "),
    "cleaning": (
        "{prose} --megabytes 0.1 --vocab_size 300 --rules c4_lines", r"\| c4_lines \| \d+% \| \d+% \| [\d.]+ "
    ),
    "pipeline": ("{run}/dataset --seconds 0.01", r"pairs +128 +[\d.]+ M tokens/s and core .* not padding"),
    "polysemy": ("BERT={run}", r"\| BERT \| 1 \| [\d.]+ ± [\d.]+ \|"),
    "prepare": ("{prose} --vocab_size 300 --processes 1", r"ratio +[\d.]+ by the clock +[\d.]+ by CPU time"),
    "text_to_text": ("{run}/dataset --steps 2", r"\| SpanCorruption \| 568 \| 512, 114 \| [\d.]+% \| [\d.]+% \|"),
    "checkpoint": (
        "--hidden 64 --layers 1 --saves 1",
        r"wait of an asynchronous save +[\d.]+ s .* steps\)\n(.*\n)*a synchronous save +[\d.]+ s",
    ),
    "questions": ("{squad} --count 20", r"20 questions, 20 windows(.*\n)*.*together +[\d.]+ s"),
}  # fmt: skip
"""Program -> its arguments, and what it prints."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in ("memory", "vocabulary") else pytest.mark.nightly) for one in PROGRAMS],
)
def test_a_program_prints_its_figures(
    run: Run, name: str, prose: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asked = {"id": "1", "question": "Who came?", "answers": [{"text": "Normans", "answer_start": 4}]}
    paragraphs = [{"context": "The Normans came by sea.", "qas": [asked]}]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"title": "Normans", "paragraphs": paragraphs}]}))
    arguments, figures = PROGRAMS[name]
    finished = request.getfixturevalue("small_run") if "{run}" in arguments else None
    arguments = arguments.format(prose=prose, run=finished, squad=tmp_path / "squad.json")
    assert re.search(figures, run(name, *arguments.split()))


@pytest.mark.nightly
def test_steps_of_two_forms_take_turns(run: Run) -> None:
    printed = rows(run("steps", "transformer_xl", "--layers", 1, "--rows", 1, "--repeats", 1))
    assert [row[1] for row in printed[1:]] == ["positions", "without positions", "times as fast as the others together"]
    with_positions, without = (list(map(float, row[4:])) for row in printed[1:3])
    assert with_positions[0] == without[0] and with_positions[1] > without[1]


@pytest.mark.nightly
def test_twice_the_tokens_and_twice_the_layers_have_their_time_and_memory(run: Run, tmp_path: Path) -> None:
    """A Reformer's layers keep no activations: two more add their gradients alone, and a little for buckets."""
    printed = rows(run("long_attention", "--lengths", 128, 256, "--repeats", 1, "--kinds", "LSH"))
    assert [row[:2] for row in printed[1:]] == [["128", "LSH"], ["256", "LSH"]] and float(printed[2][4]) > 0
    depths = rows(run("long_attention", "--lengths", 512, "--kinds", "LSH", "--layers", 2, 4))[1:]
    parameters, memory = ([float(row[place]) for row in depths] for place in (3, 4))
    added = parameters[1] - parameters[0]
    assert added - 1 <= memory[1] - memory[0] <= added + 1 + 0.05 * memory[0]
    run("long_attention", "--picture", tmp_path / "rows.png")  # of the table of the page
    assert (tmp_path / "rows.png").stat().st_size > 10_000


# 500 steps of training take 30 s: pytest -m slow tests/test_benchmarks.py
@pytest.mark.slow
def test_a_word_is_copied_with_enough_rounds_of_hashing(run: Run) -> None:
    """trax's length and symbols."""
    (cells,) = rows(run("copying", "--rounds", 4))[1:]
    one, two, _, eight = (float(cell.removesuffix(" %")) for cell in cells[1:])
    assert one < two < eight and eight > 99


@pytest.mark.parametrize("name", ["cheap_attention", "context_length"])
@pytest.mark.nightly
def test_decoders_are_trained_with_the_same_flops(run: Run, name: str, prose: Path, tmp_path: Path) -> None:
    (books := tmp_path / "books").mkdir()
    for number, document in enumerate(prose.read_text(encoding="utf-8").split("\n\n")[:120]):
        (books / f"{number}.txt").write_text(document, encoding="utf-8")
    given = [books, books, "--output", tmp_path / "runs", "--budget"]
    if name == "cheap_attention":
        given += [4e10, "--models", "GPT-2, window", "Transformer-XL"]
    else:
        given += [1e11, "--places", 32, "--picture", tmp_path / "context.png"]
    flops = {float(row[4]) for row in rows(run(name, *given)) if len(row) == 8 and row[4] != "FLOPs"}
    assert all(0.5 * given[5] < each <= given[5] for each in flops) and flops


@pytest.mark.nightly
def test_lists_of_operators_have_a_line_for_each_model(run: Run, tmp_path: Path) -> None:
    """The guess without reading is the most frequent label of the trees that are held out."""
    sizes = ["--examples", 80, "--held_out", 10, "--tasks", "ListOps"]
    printed = rows(run("long_range_arena", tmp_path, "--output", tmp_path / "runs", *sizes))
    assert [row[0] for row in printed[1:4]] == ["Transformer", "local attention", "Reformer"]
    held_out = [line.split("\t") for line in (tmp_path / "runs/listops/validation.tsv").read_text().splitlines()[1:]]
    labels = [label for _, label in held_out]
    most = max(map(labels.count, labels))
    assert printed[4] == ["most frequent label", f"{100 * most / 10:.1f}", "-"]
    assert all(125 < len(symbols) < 500 for symbols, _ in held_out)


def test_language_models_have_a_page_with_bits_of_the_same_text(run: Run, decoder_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A line of text.\n\nAnd another one, of ten words or nearly.\n")
    run("language_models", decoder_run, "--data", tmp_path / "text.txt", "--docs", tmp_path)
    page = (tmp_path / "language_models.md").read_text(encoding="utf-8")
    table = rows(page)
    assert "    python benchmarks/language_models.py runs/run --data" in page
    assert [row[0].partition(" of ")[0] for row in table] == ["model", "frequencies", "run", "model", "run"]
    assert table[4][1] == "23,232" and table[4][-2:] == ["24", "12"] and float(table[2][-1]) > 0


@pytest.mark.nightly
def test_ngrams_are_counted_in_the_text_of_a_model(run: Run, prose: Path, tmp_path: Path) -> None:
    """More words before each help; equal shares of two models give at least half of either's probability."""
    sizes = ["--model.vocab_size", "2000", "--tokenizer.vocab_size", "2000", "--training.steps", "200"]
    files = ["--workdir", str(tmp_path / "nnlm"), "--data.input", str(prose), "--data.format", "text"]
    cli.run(["pretrain", "experiments/nnlm_tiny.py", *files, *sizes])
    printed = rows(run("ngrams", tmp_path / "nnlm"))
    alone, mixed = ([float(row[place].replace(",", "")) for row in printed[1:5]] for place in (1, 2))
    own = float(printed[5][1].replace(",", ""))
    assert printed[5][0] == "nnlm" and alone[0] > alone[1] > 1
    assert all(1 < both <= 2 * min(one, own) for one, both in zip(alone, mixed, strict=True))


@pytest.mark.nightly
def test_the_forward_pass_of_a_compressed_run_is_measured(
    run: Run, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the heads of a fine-tuned run are removed; its own line is the teacher's."""
    text = "sentence\tlabel\n" + "a fine example\tgood\na poor example\tbad\n" * 8
    (tmp_path / "finetune" / "subjectivity").mkdir(parents=True)
    for name in ("train", "dev"):
        (tmp_path / "finetune" / "subjectivity" / f"{name}.tsv.gz").write_text(text)
    compression = importlib.import_module("compression")
    ways = {"half of the heads": ["prune", "--method", "heads", "--sparsity", "0.5", "--rows", "2"]}
    monkeypatch.setattr(compression, "TASKS", {"subjectivity": ("sentence", None)})
    monkeypatch.setattr(compression, "WAYS", ways)
    monkeypatch.setattr(compression, "ROUNDS", 1)
    options = ["--output", tmp_path / "runs", "--seeds", 1, "--epochs", 1, "--picture", tmp_path / "picture.png"]
    printed = rows(run("compression", small_run, tmp_path, *options))
    assert [row[0] for row in printed[1:]] == ["teacher", "teacher, trained again", "half of the heads"]
    parameters = [int(row[2].replace(",", "")) for row in printed[1:]]
    assert parameters[0] == parameters[1] > parameters[2]
    assert (tmp_path / "picture.png").stat().st_size > 1000


@pytest.fixture
def finished(tmp_path: Path) -> Callable[[dict[str, dict[str, Any]]], Path]:
    """Writes the results of pieces, as the processes do that make them, and returns their folder."""

    def written(results: dict[str, dict[str, Any]]) -> Path:
        for name, result in results.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "result.json").write_text(json.dumps({"seconds": 30.0} | result))
        return tmp_path

    return written


def judged(system: str, metrics: dict[str, str], better: float) -> dict[str, dict[str, float]]:
    """Fine-tunings with two seeds; the pretrained model is better. metrics: task -> its metric."""
    return {
        f"{system}-{task}-{start}-{seed}": {
            f"eval/{metric}": (0.5 + gain + seed / 10) * (100 if task == "squad" else 1)
        }
        for task, metric in metrics.items()
        for start, gain in (("pretrained", better), ("random", 0.0))
        for seed in range(2)
    }


METRICS = {"subjectivity": "accuracy", "snli": "accuracy", "pos": "accuracy", "wnut17": "f1", "squad": "f1"}
PRETRAINED = {"parameters": 1000, "steps": 8, "tokens": 2e6, "flops": 1e13, "losses": {"32": [5.0, 6.5]}}


def test_the_comparison_has_a_page_and_a_picture(run: Run, finished: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is bold if every seed is above all seeds of the random model."""
    found = {"bert": PRETRAINED, "gpt": PRETRAINED, "bert-directions": {"directions": [12.3, 4.6]}}
    of_text = {task: METRICS[task] for task in ("subjectivity", "snli", "squad")}
    folder = finished(found | judged("bert", METRICS, 0.2) | judged("gpt", of_text, 0.05))
    given = ["DATA", "--output", folder, "--docs", folder, "--systems", "bert", "gpt", "--seeds", 2]
    run("comparison", *given, "--report")
    page = (folder / "comparison.md").read_text(encoding="utf-8")
    table = rows(page)
    assert ["bert, pretrained"] + ["**75.0 ± 7.1**"] * 5 in table
    assert ["gpt, pretrained", "60.0 ± 7.1", "60.0 ± 7.1", "-", "-", "60.0 ± 7.1"] in table
    assert [row[1:] for row in table if row[0] == "bert"] == [
        ["1,000", "8", "2.0 M", "1e+13", "0.5"], ["5.00 of 6.50"], ["12, 5"]
    ]  # fmt: skip
    assert "Pretraining helps each system on each task\n" in page and "made so far" not in page
    assert (folder / "pictures" / "comparison.png").stat().st_size > 10_000
    printed = rows(run("comparison", *given, "--report", "--tables"))
    assert printed == table


def test_the_history_has_the_pieces_and_the_rows_of_a_page(run: Run, finished: Callable) -> None:
    """--rows takes BERT from docs/comparison.md; what NNLM's step was worth is its gain from pretraining."""
    folder = finished(judged("nnlm", {task: METRICS[task] for task in ("subjectivity", "snli", "pos")}, 0.1))
    given = ["DATA", "--output", folder, "--rows", "docs/comparison.md", "--systems", "nnlm", "bert", "t5"]
    listed = rows(run("history", *given, "--list", "--share", "2/3"))
    assert listed[1][1:3] == ["1/3", "nnlm"] and listed[1][-1] == "ready" and len(listed) == 33
    printed = run("history", *given, "--report")
    table = [row for row in rows(printed) if row[0].startswith("20")]
    worth = {row[0]: row[1:] for row in rows(printed) if not row[0].startswith("20")}
    assert [row[1] for row in table] == ["NNLM", "BERT", "T5"]
    assert table[0][3:] == ["65.0 ± 7.1 (55.0)"] * 3 and worth["NNLM"][3] == "+10.0"
    assert table[1][3:] == ["90.6 ± 0.3 (89.7)", "55.7 ± 1.7 (55.9)", "85.6 ± 0.1 (76.9)"]
    assert worth["BERT"][:4] == ["975,618", "10.3 M", "4e+13", "+3.1"]
    assert "\n12 of 32 pieces, 6 minutes of one core\n" in printed
    assert (folder / "history.png").stat().st_size > 10_000
