"""Several seeds in one command: runs of their own, mean and deviation, a table."""

import json
import math
import statistics

import pytest

from plmjax.commands import cli
from plmjax.files import json_text
from plmjax.runs import seeds
from plmjax.training.checkpoints import checkpoints


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


@pytest.mark.parametrize("values", [(math.nan, 0.5), (math.inf, -math.inf), (1.0, math.inf), (math.nan,)])
def test_a_value_that_is_not_finite_has_neither_mean_nor_deviation(values: tuple[float, ...]) -> None:
    results = {seed: {"eval/pearson": value, "eval/loss": 1.0} for seed, value in enumerate(values)}
    assert all(map(math.isnan, seeds.summary(results, "eval/pearson")))
    assert seeds.table(results).splitlines()[1].endswith("  nan ± nan")
    assert seeds.table(results).splitlines()[2].endswith("  1.0000 ± 0.0000")


@pytest.mark.nightly  # the table of seeds is shown above, and early stopping in tests/training
def test_scores_that_are_all_alike_have_no_correlation_in_any_record(small_run, tmp_path, capsys) -> None:
    """In the table of seeds, the choice of the best, early stopping, a resume, the report and the card."""
    (tmp_path / "constant.tsv").write_text("label\ttext\n" + "2.5\ta film\n1.5\ta plot\n2.5\ta film\n" * 3)
    (tmp_path / "alike.tsv").write_text("label\ttext\n" + "2.5\ta film\n" * 3)
    command = [
        *("finetune", "experiments/finetune_glue.py:stsb", "--from", str(small_run)),
        *("--workdir", str(tmp_path / "run")),
        *("--data.folder", "", "--data.text", "text", "--data.text_pair", "", "--data.label", "label"),
        *("--data.train", str(tmp_path / "constant.tsv"), "--data.validation", str(tmp_path / "alike.tsv")),
        *("--finetuning.epochs", "0", "--finetuning.warmup", "0", "--training.steps", "6"),
        *("--training.batch_size", "2", "--data.sequence_length", "16", "--data.pack", "1"),
        *("--finetuning.evaluations", "0", "--training.evaluate_every", "1", "--checkpoint.every", "1"),
        *("--training.patience", "3", "--checkpoint.best=-eval/pearson", "--checkpoint.prefer", "best"),
        *("--seeds", "0", "1"),
    ]
    cli.run(command)
    said = capsys.readouterr().out
    assert said.count("stopped    eval/pearson has not had a finite value for 3 evaluations") == 2
    (line,) = [line for line in said.splitlines() if line.startswith("eval/pearson")]
    assert line.split() == ["eval/pearson", "nan", "nan", "nan", "±", "nan"]
    record = json_text.parse((tmp_path / "run" / "seeds.json").read_text())
    assert record["mean"]["eval/pearson"] is record["seeds"]["1"]["eval/pearson"] is None
    assert record["mean"]["eval/mean_squared_error"] > 0
    run = tmp_path / "run" / "seed_0"
    assert checkpoints.find(run).name == "3"  # no evaluation is the best, so it is the last one
    cli.run(command)
    assert json_text.parse((tmp_path / "run" / "seeds.json").read_text()) == record
    cli.run(["report", str(run), "--output", str(tmp_path / "report.html")])
    cli.run(["card", str(run), str(tmp_path / "card.md")])
    assert "| mean_squared_error |" in (card := (tmp_path / "card.md").read_text()) and "pearson |" not in card
