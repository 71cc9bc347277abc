"""Several seeds in one command: runs of their own, mean and deviation, a table."""

import json
import math
import statistics

import pytest

from plmjax.commands import cli
from plmjax.runs import seeds
from plmjax.training.checkpoints import checkpoints


def test_each_seed_is_a_run_and_the_table_sums_them_up(sentiment, small_run, tmp_path, capsys, fails):
    command = [
        *("finetune", "experiments/finetune_sentences.py", "--from", str(small_run), "--workdir", str(tmp_path)),
        *("--data.train", sentiment[0], "--data.validation", sentiment[1], "--data.text", "sentence"),
        *("--finetuning.epochs", "0", "--finetuning.warmup", "0", "--training.steps", "4"),
        *("--data.sequence_length", "24", "--training.unroll", "1"),
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


@pytest.mark.parametrize("values", [(math.nan, 0.5), (math.inf, -math.inf)])
def test_a_value_that_is_not_finite_has_neither_mean_nor_deviation(values: tuple[float, ...]) -> None:
    results = {seed: {"eval/pearson": value, "eval/loss": 1.0} for seed, value in enumerate(values)}
    assert all(map(math.isnan, seeds.summary(results, "eval/pearson")))
    assert seeds.table(results).splitlines()[1].endswith("  nan ± nan")
    assert seeds.table(results).splitlines()[2].endswith("  1.0000 ± 0.0000")
