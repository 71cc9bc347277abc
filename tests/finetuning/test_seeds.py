"""Several seeds in one command: runs of their own, mean and deviation, a table."""

import json
import statistics
from pathlib import Path

import pytest

from plmjax import cli
from plmjax.experiment import Experiment
from plmjax.finetuning import seeds
from plmjax.training.checkpoints import checkpoints
from tests.strangers import experiments


def test_each_seed_is_a_run_and_the_table_sums_them_up(sentiment, small_run, tmp_path, capsys, fails):
    command = [
        *("finetune", "experiments/finetune_sentences.py", "--from", str(small_run), "--workdir", str(tmp_path)),
        *("--data.train", sentiment[0], "--data.validation", sentiment[1], "--data.text", "sentence"),
        *("--finetuning.epochs", "0", "--finetuning.warmup", "0", "--training.steps", "4"),
        *("--data.sequence_length", "24"),
    ]
    cli.run([*command, "--seeds", "0", "7"])
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "seeds.json").read_text())
    losses = []
    for seed in (0, 7):
        own = json.loads((tmp_path / f"seed_{seed}" / "evaluation.json").read_text())
        assert own == record["seeds"][str(seed)]
        assert checkpoints.describe(checkpoints.find(tmp_path / f"seed_{seed}")).experiment.training.seed == seed
        losses.append(own["eval/loss"])
    assert losses[0] != losses[1]
    assert record["mean"]["eval/loss"] == pytest.approx(statistics.fmean(losses))
    assert record["deviation"]["eval/loss"] == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5)
    (line,) = [line for line in said.splitlines() if line.startswith("eval/loss")]
    assert line.endswith(f"{record['mean']['eval/loss']:.4f} ± {record['deviation']['eval/loss']:.4f}")
    assert "--seeds that differ, found 3 3" in fails(*command, "--seeds", "3", "3")


def test_one_seed_deviates_by_nothing():
    assert seeds.summary({3: {"f1": 0.5}}, "f1") == (0.5, 0.0)


def test_runs_differ_in_their_seed_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called = []

    def finetune(run: Experiment, *arguments: object) -> dict[str, float]:
        called.append((run, *arguments))
        return {"eval/f1": run.training.seed / 2}

    monkeypatch.setattr(seeds, "finetune", finetune)
    run, twin = experiments.classification(), tmp_path / "twin"
    assert seeds.finetune_seeds(run, "random", tmp_path, [4, 1], twin) == {4: {"eval/f1": 2.0}, 1: {"eval/f1": 0.5}}
    assert called == [
        (experiments.changed(run, training={"seed": seed}), "random", tmp_path / f"seed_{seed}", twin)
        for seed in (4, 1)
    ]
    assert json.loads((tmp_path / "seeds.json").read_text())["mean"] == {"eval/f1": 1.25}
