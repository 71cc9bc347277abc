"""docs/metrics.md explains every metric that a run or a command can show."""

from plmjax import experiment as experiments
from plmjax.finetuning.tasks.task import Task
from tests.experiment_names import EXPERIMENTS
from tests.metric_names import undocumented
from tests.paths import ROOT


def test_every_metric_of_a_task_is_explained() -> None:
    tasks = [run for run in (experiments.load(str(ROOT / name)) for name in EXPERIMENTS) if isinstance(run.data, Task)]
    assert len(tasks) > 10
    for run in tasks:
        assert not undocumented(run.objective.evaluation_metrics(run.data)), run.objective
        assert not undocumented(run.objective.signatures(run.data)), run.objective


def test_a_name_that_the_page_lacks_is_found() -> None:
    names = ["train/loss", "eval/nsp_loss", "eval/de/bleu", "eval/forward_perplexity", "blimp/syntax/islands"]
    assert undocumented([*names, "eval/entropy", "eval/x_loss", "blimp/x/y/z", "eval/de/entropy"]) == [
        "eval/entropy", "eval/x_loss", "blimp/x/y/z", "eval/de/entropy",
    ]  # fmt: skip
