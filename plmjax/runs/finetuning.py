"""Fine-tuning end to end: a pretrained encoder with a new head, trained on a task by the same loop as pretraining.

The result is an ordinary run directory, with the predictions for the validation file and their metrics.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from plmjax import libraries
from plmjax.experiment import Experiment, flatten
from plmjax.files import storage
from plmjax.finetuning.evaluation import TaskEvaluation
from plmjax.models.families.task_heads import TASK_PARTS
from plmjax.parallel import hosts
from plmjax.runs import checks, folder, notes, task
from plmjax.runs.resolve import resolve
from plmjax.training import loop, switches
from plmjax.training.checkpoints import checkpoints
from plmjax.training.metrics import write_evaluation


def finetune(
    experiment: Experiment,
    init_from: str | Path,
    workdir: str | Path,
    *,
    like: str | Path | None = None,
    overrides: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> dict[str, float]:
    """Fine-tune a checkpoint on the task `experiment.data`, or resume the run in WORKDIR.

    The encoder, the model config and the tokenizer are those of the checkpoint. With "random" every parameter is
    initialized from the seed. A file of word vectors initializes the embedding table of the experiment's own model.

    The other arguments are those of `resolve`.

    Returns:
        the metrics of the checkpoint that represents WORKDIR, the last or the best one: "eval/loss", those of the task
        such as "eval/f1", and "eval/unknown_tokens". They are also written to WORKDIR/evaluation.json, beside the
        predictions.

    Raises:
        UserError: the experiment, the checkpoint or a file of the task is wrong.
        loop.Interrupted: SIGTERM or Ctrl-C arrived, and the state was saved.
    """
    # The run: its completed experiment, and its start.
    checks.kind(experiment, text=False)
    run = resolve(experiment, init_from, like=like, overrides=overrides, report=report)
    with hosts.hold_folder(workdir := storage.path(workdir), run.experiment.hosts):
        # Its inputs. The examples determine the labels and the number of steps. All hosts have the same ones.
        inputs = task.inputs(run, workdir)
        unknown = task.unknown_tokens(inputs)
        for line in notes.on_packing(inputs.experiment, inputs.source) if hosts.is_primary() else ():
            report(line)
        switches.check_options(inputs.experiment, loop.devices(inputs.experiment.training.platform)[0])
        hosts.agree("the experiment", json.dumps(flatten(inputs.experiment) | libraries.versions()))

        # Its folder.
        with hosts.host_0_first("the run directory"):
            folder.record_start(workdir, run.init_from.name, run.start_arrays)
            folder.record_experiment(workdir, inputs.experiment, report)
            if hosts.is_primary():
                inputs.tokenizer.save(workdir / "tokenizer")

        # Training, from the last checkpoint in the folder if there is one. A compressed model keeps its head.
        new_head = in_head if inputs.experiment.compression is None else lambda name: False
        initial = run.init_from.initialize(
            inputs.experiment, inputs.params, inputs.tokenizer, in_new_head=new_head, report=report
        )
        files = checkpoints.tokenizer_files(workdir / "tokenizer")
        result = loop.train(
            inputs.experiment, workdir, inputs.source, tokenizer=files, initial=initial, evaluation=inputs.evaluation
        )

        # The metrics, and the predictions for the validation file.
        metrics = preferred_metrics(result, inputs.evaluation, workdir) | {"eval/unknown_tokens": unknown}
        if hosts.is_primary():
            write_evaluation(workdir, metrics | inputs.evaluation.signatures(), inputs.evaluation.predictions)
            for line in notes.on_predictions(inputs.evaluation.predictions):
                report(line)
        hosts.agree("the end")
        return metrics


def in_head(parameter: str) -> bool:
    """Return whether a parameter is in the head of a task, which every fine-tuning initializes anew."""
    return parameter.split("/")[0] in TASK_PARTS


def preferred_metrics(result: loop.Result, evaluation: TaskEvaluation, workdir: Path) -> dict[str, float]:
    """Return the metrics of the checkpoint that represents WORKDIR, the last or the best one."""
    preferred = checkpoints.find(workdir)
    # The loop has evaluated the last step, unless an earlier command had done so already.
    if int(preferred.name) == int(result.state.step) and evaluation.predictions:
        return result.metrics
    loss_inputs = checkpoints.load_loss_inputs(preferred, result.program.state)
    return {f"eval/{name}": value for name, value in evaluation(result.program, loss_inputs).items()}
