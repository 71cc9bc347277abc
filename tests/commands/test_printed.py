"""The text that a command prints about the results of the library."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plmjax.commands import cli, planning
from plmjax.inference import evaluate, fill_gaps, fill_mask
from plmjax.inference import predict as predictions
from plmjax.plan import report, search
from plmjax.runs import bench, finetuning
from plmjax.training.checkpoints import averaging

RECORD = {"phase": 0, "step_seconds": 0.123456, "device": "cpu", "mfu": None, "tokens_per_second": 42000.0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "",
            f"{'phase':<24} 0\n{'step_seconds':<24} 0.1235\n{'device':<24} cpu\n{'tokens_per_second':<24} 42.0k\n",
        ),
        ("--json", json.dumps(RECORD) + "\n"),
    ],
)
def test_a_bench_leaves_out_what_this_machine_cannot_measure(
    options: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """But in JSON, where every record has the same keys."""
    monkeypatch.setattr(bench, "bench", lambda run, steps: [RECORD] * 2)
    cli.run(["bench", "bert_tiny", *options.split()])
    assert capsys.readouterr().out == expected * 2


@pytest.mark.parametrize("options", ["", "--json"])
def test_an_evaluation_is_a_table_or_json(options: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    found = {"eval/loss": 2.3456789, "examples": 1234567, "a/name/of/more/than/24/letters": float("nan")}
    monkeypatch.setattr(evaluate, "settings_of", lambda checkpoint, overrides: {})
    monkeypatch.setattr(evaluate, "evaluate", lambda *_, **__: found)
    cli.run(["evaluate", "some/run", *options.split()])
    said = capsys.readouterr().out
    if options:
        assert json.loads(said) == found | {"a/name/of/more/than/24/letters": None}
    else:
        assert said == f"{'eval/loss':<30} 2.34568\n{'examples':<30} 1234567\na/name/of/more/than/24/letters nan\n"


def test_predictions_are_alone_on_the_standard_output(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The way in which they are written is told beside them, and their number only if they are in a file."""
    monkeypatch.setattr(predictions, "settings_of", lambda checkpoint, overrides: {overrides[0]: overrides[1]})
    monkeypatch.setattr(predictions, "decoding", lambda checkpoint, settings: f"beams {settings['--objective.beams']}")
    monkeypatch.setattr(predictions, "write", lambda *_, **__: 5)
    for options, expected in (([], ""), (["--output", "out"], "5 predictions in out\n")):
        cli.run(["predict", "some/run", "--input", "a.tsv", *options, "--objective.beams", "3"])
        assert capsys.readouterr() == (expected, "decoding   beams 3\n")


def test_what_is_generated_is_written_at_once_and_notes_beside_it(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def run(*given: Any) -> None:
        write, note = given[6:8]
        assert write.keywords == {"end": "", "flush": True}
        write("a ")
        note("temperature 1")
        write("text")

    monkeypatch.setattr("plmjax.commands.generate.generate", run)
    cli.run(["generate", "some/run", "a prompt"])
    assert capsys.readouterr() == ("a text", "temperature 1\n")


def test_candidates_of_a_gap_and_texts_with_filled_gaps(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(fill_gaps, "writes_gaps", lambda checkpoint: False)
    monkeypatch.setattr(fill_mask, "fill_mask", lambda *_: [[("fox", 0.75), ("dog", 0.125)], [("a", 1.0)]])
    cli.run(["fill-mask", "some/run", "[MASK] [MASK]"])
    assert capsys.readouterr().out == "[MASK] 1  'fox' 0.750  'dog' 0.125\n[MASK] 2  'a' 1.000\n"
    monkeypatch.setattr(fill_gaps, "writes_gaps", lambda checkpoint: True)
    spans, whole = (SimpleNamespace(probability=0.5, spans=of, text="a\nfox") for of in (("a", "fox"), ()))
    monkeypatch.setattr(fill_gaps, "fill_gaps", lambda *_: [spans, whole])
    cli.run(["fill-mask", "some/run", "[MASK] [MASK]"])
    first, *rest = capsys.readouterr().out.split("\n", 1)
    assert first == "0.500  'a'  'fox'" and rest[0].startswith("0.500  a") and "fox" in rest[0]


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_search_of_several_slices_is_a_page_or_a_list(options: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(planning, "planned", lambda run: (run.experiment, None))
    monkeypatch.setattr(search, "search", lambda run, name, *_, **__: {"topology": name})
    monkeypatch.setattr(report, "search", lambda found: f"the page of {found['topology']}")
    slices = "--topology v5e:2x2 --topology v5e:4x4"
    cli.run(["plan", "bert_tiny", "--search", *slices.split(), *options.split()])
    said = capsys.readouterr().out
    if options:
        assert json.loads(said) == [{"topology": "v5e:2x2"}, {"topology": "v5e:4x4"}]
    else:
        assert said == "the page of v5e:2x2\nthe page of v5e:4x4\n"


def test_metrics_of_a_task_and_steps_of_a_mean_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(finetuning, "finetune", lambda *_, **__: {"accuracy": 0.87654321, "examples": 12})
    cli.run(["finetune", "finetune_sentences", "--from", "random", "--workdir", "w"])
    assert capsys.readouterr().out == "accuracy 0.8765  examples 12\n"
    monkeypatch.setattr(averaging, "average", lambda *_: [900, 1000])
    cli.run(["average", "some/run", "--output", "out"])
    assert capsys.readouterr().out == "averaged  the parameters of steps 900, 1,000 in out\n"


def test_a_tokenizer_is_written_to_a_new_folder_alone(tmp_path: Path, fails) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    said = fails("tokenizer", "train", "--input", tmp_path / "a.txt", "--output", tmp_path)
    assert f"Expected a new folder for the tokenizer, found {tmp_path}; name another --output." in said
