"""Evaluate a checkpoint on held-out text, or on labeled examples of a task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError
from plmjax.experiment import Data
from plmjax.files import storage
from plmjax.finetuning.tasks.task import Task
from plmjax.inference import evaluate_task, evaluate_text, task_settings
from plmjax.training.checkpoints import checkpoints
from plmjax.training.metrics import write_evaluation


def evaluate(
    checkpoint: str | Path,
    data: str | Path | None = None,
    output: str | Path | None = None,
    *,
    ensemble: Sequence[str | Path] = (),
    window: int | None = None,
    stride: int | None = None,
    memory: int | None = None,
    split: str | None = None,
    max_unknown: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Evaluate a checkpoint on its run's held-out data, or on `data`.

    For a pretraining checkpoint, `data` is a prepared dataset (its validation split) or raw text (all of it, of a
    published corpus one split). The result has "eval/loss", "eval/unigram_entropy" and the other metrics of its
    objective. It has "eval/perplexity" if the loss is the mean nats of tokens over the vocabulary.

    For a fine-tuned checkpoint, `data` is a file of labeled examples like its validation file; for a run on a mixture
    it is NAME=FILE, a file of the task NAME. The result has "eval/loss" and the metrics of the task, for a mixture
    "eval/TASK/METRIC" and "eval/mean", and for BLEU and similar metrics also their signatures.

    A language model reads raw text in rows of `window` tokens. Each row scores `stride` further tokens
    (`perplexity.with_sliding_window`). The defaults are the row length and stride of the run. If one of them is given,
    held-out data of the run is read in the same way. The result then has "eval/window", "eval/stride" and
    "eval/tokens", the number of scored tokens. For raw text it also has "eval/bits_per_byte", "eval/bits_per_character"
    and "eval/word_perplexity"; "eval/bytes", "eval/characters" and "eval/words", counted before any normalization
    (`TextSize`); and "eval/lowercased", true if the tokenizer lowercases text. A bidirectional language model has the
    perplexity and the bits of each direction, "eval/forward_perplexity", "eval/backward_bits_per_byte" and so on;
    "eval/tokens" is the number for one direction.

    Every result has "eval/unknown_tokens", the number of tokens that the tokenizer maps to the unknown token. Their
    nats and bits do not measure the original text, and many unknown tokens make a text look easy to a model.

    A prefix language model has a prefix with bidirectional attention. For rows of its own run the prefix is drawn as in
    training. For rows of a window it is the part before the first scored token. "eval/prefix" describes it.

    Args:
        output: folder for evaluation.json and, for a task, its predictions. By default a task writes them to
            WORKDIR/evaluations/NAME, where NAME is the name of the file. For an ensemble, _with_RUN is added for each
            further run.
        memory: number of tokens that a model with a memory remembers; by default as in the evaluations of its run.
        split: split of a published corpus to read, "train", "validation" or "test"; by default validation.
        ensemble: further runs on the same task, whose predictions are averaged with those of this run. The result has
            the metrics of the task and no loss.
        max_unknown: largest fraction of unknown tokens of raw text or of examples; 0.2 by default. A prepared dataset
            was checked when it was prepared.
        settings: for a run on a task, settings of the task, which change how the file is read (`text="review"`,
            `label="stars"`), and settings of the objective, which change how a prediction is chosen. For a run on text,
            settings that change how raw text is read (`text_key="body"`). A setting with the name of another argument
            is given by its full name: `**{"data.stride": 32}`.

    Raises:
        UserError: no checkpoint, no data, data that does not fit it, too many unknown tokens, or a window, a stride, a
            split or a setting that does not fit.
    """
    directory = checkpoints.find(checkpoint)
    description = checkpoints.describe(directory)
    settings = task_settings.full_names(description.experiment, settings, labelled=True)
    run = task_settings.with_settings(description.experiment, settings, labelled=True)
    of_text = {"window": window, "stride": stride, "memory": memory, "split": split}
    if isinstance(run.data, Task):
        for name, value in of_text.items():
            if value is not None:
                own = f", or give --data.{name}" if name in run.data.settings(labelled=True) else ""
                raise UserError(
                    f"--{name} needs a run on text, found one on a task in {checkpoint}; leave it out{own}."
                )
        limit = MAX_UNKNOWN if max_unknown is None else max_unknown
        metrics, predictions, folder = evaluate_task.evaluate(
            run, description, directory, data=data, ensemble=ensemble, max_unknown=limit
        )
        output = output or folder
    elif isinstance(run.data, Data):
        if ensemble:
            raise UserError(f"--ensemble needs a run on a task, found {checkpoint}; leave it out.")
        chosen = evaluate_text.Choice(**of_text, max_unknown=max_unknown, settings=settings)
        metrics, predictions = evaluate_text.evaluate(run, description, directory, data=data, choice=chosen), {}
    else:
        raise UserError(
            f"Expected a run on text or on a task, found one on {type(run.data).__name__}; name another run."
        )
    if output is not None:
        storage.path(output).mkdir(parents=True, exist_ok=True)
        write_evaluation(storage.path(output), metrics, predictions)
    return metrics


def settings_of(checkpoint: str | Path, options: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `evaluate` from command-line options such as `--data.label stars`.

    Raises:
        UserError: an option that does not change how a file is read or scored, or a value of the wrong type.
    """
    if not options:
        return {}
    run = checkpoints.describe(checkpoints.find(checkpoint)).experiment
    return task_settings.from_options(run, options, "plmjax evaluate", labelled=True)
