"""The history of the lineage: its steps, their budgets, the list of its pieces, and the table from results."""

import argparse
import importlib
import json
from pathlib import Path

import pytest

from plmjax import experiment as experiments
from plmjax.errors import UserError
from tests.paths import ROOT

with pytest.MonkeyPatch.context() as patched:
    patched.syspath_prepend(ROOT / "benchmarks")
    comparison, history = (importlib.import_module(name) for name in ("comparison", "history"))


def options(*arguments: str) -> argparse.Namespace:
    return history.arguments().parse_args(["DATA", *arguments])


@pytest.mark.parametrize("pretraining", dict.fromkeys(step.candidate.pretraining for step in history.STEPS))
def test_every_pretraining_takes_the_budget_or_the_tokens(pretraining: str) -> None:
    run = comparison.within(experiments.load(pretraining), 1e13, 1e7)
    steps = run.training.steps
    flops, tokens = comparison.flops(run, steps), comparison.tokens(run, steps)
    assert flops <= 1e13 and tokens <= 1e7 and (flops > 0.98e13 or tokens > 0.98e7)
    more = comparison.EVALUATIONS
    assert comparison.flops(run, steps + more) > 1e13 or comparison.tokens(run, steps + more) > 1e7
    cheap = {"word2vec", "glove"}  # the others end at the budget
    assert (flops < 0.98e13) == (pretraining.partition(":")[2] in cheap)


def test_every_task_has_a_model_that_can_learn_it() -> None:
    for step in history.STEPS:
        candidate = step.candidate
        model = experiments.load(candidate.pretraining).model
        for task, name in candidate.tasks.items():
            run = experiments.load(name)
            judged = run.start.model(model) if run.start is not None else model
            assert run.objective.purpose in judged.system, (candidate.name, task)
    assert [step.year for step in history.STEPS] == sorted(step.year for step in history.STEPS)
    assert {step.candidate.name for step in history.STEPS} > set(comparison.SYSTEMS)
    without_words = {step.title for step in history.STEPS if "pos" not in step.candidate.tasks}
    assert without_words == {"ULMFiT", "GPT", "BART", "T5"}


def test_the_list_has_the_steps_and_flops_of_each_piece(tmp_path: Path, capsys) -> None:
    command = ["--output", str(tmp_path), "--list", "--budget", "1e12", "--tokens", "1e6", "--seeds", "2"]
    command += ["--systems", "glove", "taglm", "elmo", "--share", "2/3", "--steps", "7"]
    (tmp_path / "glove").mkdir()
    (tmp_path / "glove" / "result.json").write_text("{}")
    history.run(options(*command))
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert lines[2] == ["0", "1/3", "glove", "120", "1.0 M", "5.9e+08", "done"]
    assert lines[3] == ["1", "2/3", "elmo", "510", "0.7 M", "9.9e+11", "ready"]
    assert lines[4][:4] == ["2", "3/3", "glove-subjectivity-pretrained-0", "7"] and lines[4][-1] == "ready"
    taggers = [f"{name}-pos-{start}-0" for name in ("taglm", "elmo") for start in comparison.STARTS]
    assert [line[2] for line in lines[10:14]] == taggers and lines[10][-1] == "after elmo"
    assert lines[-1] == ["2 pretrainings with 9.9e+11 FLOPs, 20 fine-tunings of 3 systems"]
    assert [path.name for path in tmp_path.iterdir()] == ["glove"]


def finished(better: float, name: str = "", tasks: tuple[str, ...] = history.JUDGED) -> dict:
    """The results of a system's fine-tunings with two seeds; those of the pretrained model are better."""
    return {
        f"{name}-{task}-{start}-{seed}": {"eval/accuracy": 0.5 + (better if start == "pretrained" else 0) + seed / 10}
        for task in tasks
        for start in comparison.STARTS
        for seed in range(2)
    }


def test_the_table_shows_what_each_step_was_worth() -> None:
    asked = options("--seeds", "2", "--systems", "nnlm", "taglm", "gpt", "bert")
    steps = history.chosen(asked)
    run = {"parameters": 1000, "tokens": 2e6, "flops": 1e13}
    found = {"nnlm": run, "elmo": run, **finished(0.1, "nnlm"), **finished(0.3, "taglm", ("pos",))}
    found |= finished(0.05, "gpt", ("subjectivity", "snli")) | finished(0.25, "bert", ("subjectivity", "snli"))
    rows = history.made_rows(asked, steps, found)
    lines = history.table(rows, asked.tasks).splitlines()
    assert lines[0].endswith("| subjectivity | snli | pos | from pretraining | above all before |")
    cell = "65.0 ± 7.1 (55.0)"
    first = ["2003", "NNLM", "vectors of words from the next word", "1,000", "2 M", "1e+13", *[cell] * 3, "+10.0"]
    assert lines[2] == f"| {' | '.join(first)} |  |"
    assert lines[3].endswith("| 1,000 | 2 M | 1e+13 |  |  | 85.0 ± 7.1 (55.0) | +30.0 | pos +20.0 |")
    assert lines[4].endswith("| - | - | - | 60.0 ± 7.1 (55.0) | 60.0 ± 7.1 (55.0) |  | +5.0 |  |")
    assert lines[5].endswith("80.0 ± 7.1 (55.0) |  | +25.0 | subjectivity +15.0, snli +15.0 |")


def test_one_seed_has_no_deviation() -> None:
    asked = options("--seeds", "1", "--systems", "taglm")
    rows = history.made_rows(asked, history.chosen(asked), finished(0.3, "taglm", ("pos",)))
    assert history.table(rows, ["pos"]).splitlines()[2].endswith("| - | - | - | 80.0 (50.0) | +30.0 |  |")


def test_the_rows_of_a_page_are_taken_as_they_are() -> None:
    page = ROOT / "docs" / "comparison.md"
    asked = options("--rows", str(page))
    steps = history.chosen(asked)
    rows = {row.step.title: row for row in history.rows_of_page(page, asked, steps)}
    assert list(rows) == ["BERT", "XLNet", "RoBERTa", "ALBERT", "ELECTRA"]
    assert rows["BERT"].judged["pretrained", "pos"] == (85.6, 0.1) and rows["BERT"].judged["random", "pos"] == (
        76.9,
        0.2,
    )
    assert rows["BERT"].cost == ("975,618", "10.3 M", "4e+13")
    with pytest.raises(UserError, match=r"Expected a page with 1e\+13 FLOPs and 3 seeds in .*, found 4e\+13 and 3;"):
        history.rows_of_page(page, options("--budget", "1e13"), steps)
    with pytest.raises(UserError, match=r"Expected a page of benchmarks/comparison.py at .*none.md, found none"):
        history.rows_of_page(ROOT / "none.md", asked, steps)


def test_the_table_and_the_picture_have_the_pieces_and_the_rows_of_the_page(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    page = ROOT / "docs" / "comparison.md"
    command = ["--output", str(tmp_path), "--rows", str(page), "--report", "--systems", "nnlm", "bert", "t5"]
    for name, result in finished(0.1, "nnlm").items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result | {"seconds": 30.0}))
    history.run(options(*command))
    printed = capsys.readouterr().out
    titles = [line.split(" | ")[1] for line in printed.splitlines() if line.startswith("| 20")]
    assert titles == ["NNLM", "BERT", "T5"]
    assert "| 65.0 ± 7.1 (55.0) | +10.0 |  |\n" in printed
    assert "| 975,618 | 10.3 M | 4e+13 | 90.6 ± 0.3 (89.7) | 55.7 ± 1.7 (55.9) | 85.6 ± 0.1 (76.9) | +3.1 |" in printed
    assert "\n12 of 32 pieces, 6 minutes of one core\n" in printed
    assert (tmp_path / "history.png").stat().st_size > 10_000


def test_a_budget_that_is_too_small_is_one_sentence(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["history.py", "DATA", "--budget", "1e9", "--list"])
    with pytest.raises(SystemExit) as ended:
        history.main()
    assert ended.value.code == 2
    assert "Expected a budget of at least 1.4e+10 FLOPs, for 10 steps of a NnlmConfig" in capsys.readouterr().err
