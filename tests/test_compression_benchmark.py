"""The table of the ways to compress a model; its runs are those of the commands."""

import importlib.util
import sys
from pathlib import Path

import pytest

from plmjax.commands import cli
from plmjax.commands import compression as commands
from plmjax.commands.command_line import parse

FILE = Path(__file__).parents[1] / "benchmarks" / "compression.py"
SPECIFICATION = importlib.util.spec_from_file_location("compression_benchmark", FILE)
benchmark = sys.modules["compression_benchmark"] = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(benchmark)


@pytest.mark.parametrize("way", benchmark.WAYS)
def test_every_way_is_a_command(way: str) -> None:
    verb, *words = benchmark.WAYS[way]
    parse(getattr(commands, verb), f"plmjax compress {verb}", ["TEACHER", "--output", "out", *words])
    assert f"compress {verb}" in cli.VERBS


def test_the_teacher_is_trained_again_from_itself(tmp_path: Path, monkeypatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(benchmark.cli, "run", commands.append)
    monkeypatch.setattr(benchmark, "files_of", lambda task, data, folder: (Path("train.tsv"), Path("dev.tsv")))
    monkeypatch.setattr(benchmark, "TASKS", {"subjectivity": ("sentence", None)})
    options = ["encoder", "data", "--output", str(tmp_path), "--seeds", "1"]
    benchmark.make(benchmark.parsed(options))
    first, again, *ways = commands
    teacher = str(tmp_path / "subjectivity" / "0" / "teacher")
    places = {index for index, (one, other) in enumerate(zip(first, again, strict=True)) if one != other}
    assert {first[index - 1] for index in places} == {"--from", "--workdir"}
    assert again[again.index("--from") + 1] == first[first.index("--workdir") + 1] == teacher
    assert len(ways) == len(benchmark.WAYS) and all(command[2] == teacher for command in ways)


def test_the_table_has_means_and_ratios(tmp_path: Path) -> None:
    def measured(seconds: float) -> benchmark.Measured:
        return benchmark.Measured(1000, 400, 4000, 2e6, {1: seconds, 32: 20 * seconds})

    found = {"teacher": measured(0.01), "smaller": measured(0.004)}
    accuracies = {name: {task: [0.8, 0.9] for task in benchmark.TASKS} for name in found}
    _, _, teacher, smaller = benchmark.table(accuracies, found)
    assert teacher.startswith(
        "| teacher | 85.0 ± 7.1 | 85.0 ± 7.1 | 1,000 | 400 | 4,000 | 2e+06 | 10.00 | 200.00 | 20.5 | 1.00 |"
    )
    assert smaller.endswith("| 4.00 | 80.00 | 51.2 | 2.50 |")
    benchmark.picture(accuracies, found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


@pytest.mark.nightly
def test_the_forward_pass_of_a_run_is_measured(small_run: Path, tmp_path: Path, monkeypatch) -> None:
    """A fine-tuned run and the one that it becomes without half of its features."""
    rows = "sentence\tlabel\n" + "a fine example\tgood\na poor example\tbad\n" * 8
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(rows)
    files = ["--data.train", str(tmp_path / "train.tsv"), "--data.validation", str(tmp_path / "dev.tsv")]
    columns = ["--data.text", "sentence", "--data.label", "label", "--data.sequence_length", "32"]
    start = ["finetune", "experiments/finetune_sentences.py", "--from", str(small_run), "--workdir"]
    cli.run([*start, str(tmp_path / "run"), *files, *columns])
    words = ["--method", "heads", "--rows", "2"]
    cli.run(["compress", "prune", str(tmp_path / "run"), "--output", str(tmp_path / "pruned"), *words])
    monkeypatch.setattr(benchmark, "LENGTH", 32)
    monkeypatch.setattr(benchmark.os, "sched_setaffinity", lambda process, cores: None)
    found = benchmark.measure({name: tmp_path / name for name in ("run", "pruned")}, rounds=1)
    assert found["pruned"].parameters < found["run"].parameters
    assert found["pruned"].products < found["run"].products
    assert min(found["run"].seconds.values()) > 0 and found["run"].bytes > 4 * found["run"].parameters / 2
    assert benchmark.metrics_of(tmp_path / "run") >= 0
