"""The comparison's budget and its page; the runs themselves are those of pretraining and fine-tuning."""

import argparse
import importlib
import json
import sys

import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.errors import UserError
from tests.paths import ROOT

with pytest.MonkeyPatch.context() as patched:
    patched.syspath_prepend(ROOT / "benchmarks")
    comparison = importlib.import_module("comparison")


@pytest.mark.parametrize("system", comparison.SYSTEMS)
def test_every_system_takes_the_same_budget(system):
    run = comparison.within(experiments.load(f"{comparison.EXPERIMENTS}:{system}"), 1e13)
    assert 0.99e13 < comparison.flops(run, run.training.steps) <= 1e13
    assert not any(phase.last_step % run.training.evaluate_every for phase in run.resolved_phases)


def test_a_limit_of_tokens_ends_a_run_before_its_budget():
    run = comparison.within(experiments.load(f"{comparison.EXPERIMENTS}:bert"), 1e13, 1e6)
    assert 0.98e6 < comparison.tokens(run, run.training.steps) <= 1e6
    assert comparison.flops(run, run.training.steps) < 0.5e13 and run.training.steps % comparison.EVALUATIONS == 0
    with pytest.raises(UserError, match=r"at least 4e\+10 FLOPs, for 10 steps of a BertConfig, found 1e\+09 FLOPs"):
        comparison.within(run, 1e9)


def options(tmp_path) -> argparse.Namespace:
    command = ["x.py", "DATA"]
    return argparse.Namespace(
        systems=["bert", "electra"], tasks=list(comparison.TASKS), seeds=2, budget=1e13, command=command, static=None
    )


def results(better: float) -> dict:
    pretrained = {"parameters": 1000, "steps": 8, "tokens": 2e6, "flops": 1e13, "seconds": 60.0}
    pretrained["losses"] = {"32": [5.0, 6.5], "128": [4.5, 6.6]}
    found = {system: pretrained for system in ("bert", "electra")}
    found["electra-directions"] = {"seconds": 1, "directions": [12.3, 4.6]}
    for system in ("bert", "electra"):
        for task, (metric, *_) in comparison.TASKS.items():
            factor = 100 if task == "squad" else 1
            for seed in range(2):
                for start, value in (("pretrained", 0.5 + better), ("random", 0.5)):
                    found[f"{system}-{task}-{start}-{seed}"] = {
                        f"eval/{metric}": factor * (value + seed / 10),
                        "seconds": 1,
                    }
    return found


def test_the_page_says_who_was_helped(tmp_path):
    text = comparison.page(results(0.2), options(tmp_path))
    assert "Pretraining helps each system on each task\n" in text and "python x.py DATA" in text
    for start, score in (("pretrained", "**75.0 ± 7.1**"), ("random", "55.0 ± 7.1")):
        assert f"| bert, {start} | {' | '.join([score] * 5)} |" in text
    assert "| electra | 1,000 | 8 | 2.0 M | 1e+13 | 1.0 | 12, 5 | 5.00 of 6.50 | 4.50 of 6.60 |" in text
    overlapping = comparison.page(results(0.05), options(tmp_path))
    assert f"| bert, pretrained | {' | '.join(['60.0 ± 7.1'] * 5)} |" in overlapping
    worse = results(0.2)
    worse["bert-snli-pretrained-0"]["eval/accuracy"] = 0.1
    assert "Pretraining does not help bert on snli\n" in comparison.page(worse, options(tmp_path))
    unfinished = {name: run for name, run in worse.items() if not name.startswith("electra-")}
    text = comparison.page(unfinished, options(tmp_path))
    assert "| electra, random | - |" in text and "20 of the 40 fine-tunings are made so far" in text
    assert "made so far" not in comparison.page(worse, options(tmp_path))


def test_tables_of_one_system_alone_are_printed_for_a_page_that_has_others(tmp_path, monkeypatch, capsys):
    found = {name: run for name, run in results(0.2).items() if name.startswith("electra")}
    monkeypatch.setattr(comparison.pieces, "results", lambda pieces: found)
    monkeypatch.setattr(comparison, "storage", None)  # writes nothing
    arguments = "x.py DATA --systems electra --seeds 2 --report --tables".split()
    monkeypatch.setattr(sys, "argv", arguments)
    comparison.main()
    printed = capsys.readouterr().out
    assert f"| electra, pretrained | {' | '.join(['**75.0 ± 7.1**'] * 5)} |\n" in printed
    assert "| electra | 1,000 | 8 | 2.0 M | 1e+13 | 1.0 | 12, 5 | 5.00 of 6.50 | 4.50 of 6.60 |\n" in printed
    assert "bert" not in printed


def test_static_vectors_are_the_first_rows(tmp_path):
    asked = options(tmp_path)
    assert comparison.STATIC not in comparison.page(results(0.2), asked)
    for task, (metric, *_) in comparison.TASKS.items():
        for kind, better in (("frozen", 0), ("trained", 0.1)):
            values = {seed: {f"eval/{metric}": (100 if task == "squad" else 1) * (0.3 + better)} for seed in (0, 1)}
            (tmp_path / f"{task}-{kind}").mkdir()
            (tmp_path / f"{task}-{kind}" / "seeds.json").write_text(json.dumps({"seeds": values}))
    asked.static = tmp_path
    text = comparison.page(results(0.2), asked)
    frozen = f"| static vectors, frozen | {' | '.join(['30.0 ± 0.0'] * 5)} |"
    trained = f"| static vectors, trained | {' | '.join(['40.0 ± 0.0'] * 5)} |"
    assert comparison.STATIC in text and f"---|\n{frozen}\n{trained}\n| bert, pretrained" in text


def test_the_picture_shows_the_table_of_the_page(tmp_path, monkeypatch):
    found = {name: run for name, run in results(0.1).items() if name != "bert-pos-random-1"}
    text = comparison.page(
        {name: run for name, run in found.items() if "electra-wnut17" not in name}, options(tmp_path)
    )
    shown = comparison.page_scores(text)
    assert list(shown) == [(system, start) for system in ("bert", "electra") for start in comparison.STARTS]
    assert shown["bert", "pretrained"] == [(65.0, 7.1)] * 5
    assert shown["bert", "random"][2] == (50.0, 0.0) and shown["electra", "random"][3] is None
    (tmp_path / "comparison.md").write_text(text)
    monkeypatch.setattr(sys, "argv", f"x.py DATA --docs {tmp_path} --picture".split())
    comparison.main()
    assert (tmp_path / "pictures" / "comparison.png").stat().st_size > 10_000


def test_a_model_is_compared_on_the_tasks_that_it_has_a_head_for(tmp_path):
    asked = options(tmp_path)
    asked.systems = ["electra", "gpt"]
    tasks = [task for system, task in comparison.possible(asked) if system == "gpt"]
    assert tasks == ["subjectivity", "snli", "squad"] and len(comparison.possible(asked)) == 8


def test_snli_is_split_by_premise(tmp_path, shared_data):
    train, validation = comparison.split_by_premise(shared_data / "finetune/snli/dev.tsv.gz", tmp_path)
    premises = [
        {line.split("\t")[0].strip().lower() for line in path.open()} - {"premise"} for path in (train, validation)
    ]
    assert not premises[0] & premises[1] and 0.05 < len(premises[1]) / len(premises[0]) < 0.2
    assert comparison.split_files(tmp_path) == (train, validation)
    header, first, *_ = (line.rstrip("\n").split("\t") for line in train.open())
    row = dict(zip(header, first, strict=True))
    assert row["pair"] == f"premise: {row['premise']} hypothesis: {row['hypothesis']}"


def test_a_fine_tuning_has_its_files_its_start_and_its_length(tmp_path, monkeypatch):
    calls = []

    def finetune(run, *origin):
        calls.append((run, *origin))
        return {"eval/mean": 62.5}

    monkeypatch.setattr(comparison, "finetune", finetune)
    arguments = ("a.tsv", "b.tsv"), 7, comparison.RANDOM, tmp_path / "bert", 0, tmp_path / "run"
    assert comparison.finetuning(f"{comparison.EXPERIMENTS}:snli", *arguments) == {"eval/mean": 62.5}
    run, *origin = calls.pop()
    assert origin == [comparison.RANDOM, tmp_path / "run", tmp_path / "bert"]
    assert (run.data.train, run.data.validation, run.training.seed) == ("a.tsv", "b.tsv", 7)
    assert (run.finetuning.epochs, run.training.steps) == (3, 0)
    arguments = ("a.tsv", "b.tsv"), 0, "pretrained", tmp_path / "t5", 20, tmp_path / "run"
    in_words = f"{comparison.EXPERIMENTS.with_name('history.py')}:t5_snli"
    assert comparison.finetuning(in_words, *arguments) == {"eval/mean": 62.5, "eval/accuracy": 0.625}
    run, *origin = calls.pop()
    assert origin == [tmp_path / "t5", tmp_path / "run", None]
    assert (run.finetuning.epochs, run.training.steps) == (0, 20)
    (task,) = run.data.tasks
    assert (task.train, task.validation, task.source) == ("a.tsv", "b.tsv", "pair")


def test_a_loss_is_beside_that_of_a_model_without_context():
    assert comparison.without_context({"eval/unigram_entropy": 6.5}) == 6.5
    assert comparison.without_context({"eval/unigram_entropy": 6.5, "eval/unigram_loss": 2.6}) == 2.6


def test_directions_are_those_that_vectors_spread_over():
    vectors = np.random.default_rng(0).standard_normal((20_000, 6)) * [1, 1, 1, 1e-4, 1e-4, 1e-4] + 5
    assert comparison.directions(vectors) == pytest.approx(3, rel=1e-3)
