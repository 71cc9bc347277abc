"""The comparison's budget and its page; the runs themselves are those of pretraining and fine-tuning."""

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.training import phases

FILE = Path(__file__).parents[1] / "benchmarks" / "comparison.py"
SPECIFICATION = importlib.util.spec_from_file_location("comparison", FILE)
comparison = sys.modules["comparison"] = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(comparison)


@pytest.mark.parametrize("system", comparison.SYSTEMS)
def test_every_system_takes_the_same_budget(system):
    run = comparison.within(experiments.load(f"{comparison.EXPERIMENTS}:{system}"), 1e13)
    assert 0.99e13 < comparison.flops(run, run.training.steps) <= 1e13
    assert not any(phase.last_step % run.training.evaluate_every for phase in phases.resolve(run))


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
    monkeypatch.setattr(comparison, "results", lambda options: found)
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


def test_directions_are_those_that_vectors_spread_over():
    vectors = np.random.default_rng(0).standard_normal((20_000, 6)) * [1, 1, 1, 1e-4, 1e-4, 1e-4] + 5
    assert comparison.directions(vectors) == pytest.approx(3, rel=1e-3)


def test_a_piece_leaves_its_result_and_what_it_took(tmp_path):
    piece = comparison.Piece(tmp_path / "piece", lambda workdir: {"value": 3}, ())
    seconds = comparison.make(piece)
    assert json.loads(piece.result.read_text()) == {"value": 3, "seconds": seconds}


def test_every_worker_has_cores_of_its_own():
    assert comparison.shares({0, 1, 2, 5}, 2) == [{0, 2}, {1, 5}]
    assert comparison.shares({3, 4}, 3) == [{3}, {4}, {3, 4}]


def test_pieces_left_are_made_in_fresh_processes_now_and_then(tmp_path, monkeypatch):
    (tmp_path / "pieces.py").write_text(
        "import os\n\n\ndef process(workdir):\n"
        "    return {'process': os.getpid(), 'cores': list(os.sched_getaffinity(0))}\n"
    )
    for folder in (tmp_path, FILE.parent):  # where the processes import their pieces from
        monkeypatch.syspath_prepend(folder)
    make = importlib.import_module("pieces").process
    pieces = [comparison.Piece(tmp_path / str(number), make, ()) for number in range(5)]
    pieces[0].workdir.mkdir()
    pieces[0].result.write_text('{"process": "another day"}')
    monkeypatch.setattr(comparison, "PIECES_A_PROCESS", 2)
    monkeypatch.setattr(comparison, "stages", lambda options: ([], pieces))
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(comparison, "shares", lambda cores, workers: [{core}])
    comparison.work(argparse.Namespace(workers=1))
    results = [json.loads(piece.result.read_text()) for piece in pieces]
    assert all(result["cores"] == [core] for result in results[1:])
    processes = [result["process"] for result in results]
    assert processes[0] == "another day"
    assert processes[1] == processes[2] != processes[3] == processes[4]
