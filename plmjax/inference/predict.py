"""Predictions of a fine-tuned checkpoint for examples without labels, in their order, while they are read."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plmjax import storage
from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError, check_choice
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.task import Record, Task
from plmjax.inference import members, task_settings
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description

log = logging.getLogger(__name__)

FORMATS = ("jsonl", "official")
PART = 1024
"""Examples read, computed and written at once."""


def predict(
    checkpoint: str | Path,
    input: str | Path,
    ensemble: Sequence[str | Path] = (),
    *,
    max_unknown: float = MAX_UNKNOWN,
    **settings: Any,
) -> Iterator[Record]:
    """The prediction of every example of a file, in its order.

    The file is like those of the checkpoint's task, but needs no label; single sentences, and
    sentences to tag, may also be the lines of a .txt file. Any of them may end in .gz.

    ensemble: further runs on the same task, whose predictions are averaged with this one's: probabilities of labels and
        of choices, or numbers.
    max_unknown: largest share of unknown tokens, of the examples read so far.
    settings: of the task, how this file is read (`text="review"`); of the objective, how a prediction is chosen
        (`null_threshold=1.5`).

    Returns:
        dicts of plain data, with the keys that the objective's `records` documents.

    Raises:
        UserError: no checkpoint, one that was not fine-tuned, or a file that does not fit its task or its tokenizer.
    """
    directory = checkpoints.find(checkpoint)
    description = _described(directory)
    run = task_settings.with_settings(description.experiment, settings, labelled=False)
    first = members.Member(directory, run, max_unknown)
    return _predicted(run, [first, *members.others(first, ensemble, max_unknown)], str(input))


def _predicted(run: Experiment, runs: Sequence[members.Member], input: str) -> Iterator[Record]:
    for examples in run.data.parts(input, PART):
        yield from run.objective.records(examples, *members.together(runs, examples))
    unknown = runs[0].unknown
    if unknown.count:
        log.warning("%s", unknown)


def write(
    checkpoint: str | Path,
    input: str | Path,
    output: str | Path | None = None,
    format: str = "jsonl",
    ensemble: Sequence[str | Path] = (),
    *,
    max_unknown: float = MAX_UNKNOWN,
    **settings: Any,
) -> int:
    """Writes the predictions as they are made to a file, or without one to standard output; returns their number.

    format: "jsonl" for a JSON object a line, "official" for that of the task's scripts (`TaskObjective.official`).

    Raises:
        UserError: what `predict` raises, an unknown format, or an output that cannot be written.
    """
    check_choice("--format", format, FORMATS)
    output = None if output is None else storage.path(output)
    if output is not None and not (storage.in_bucket(output) or output.absolute().parent.is_dir()):
        raise UserError(f"Expected a file in a folder that exists for --output, found {output}; make the folder first.")
    if output is not None:
        storage.check_file(output, "--output", _are_predictions)
    count = 0

    def counted() -> Iterator[Record]:
        nonlocal count
        for record in predict(checkpoint, input, ensemble, max_unknown=max_unknown, **settings):
            count += 1
            yield record

    objective = _described(checkpoints.find(checkpoint)).experiment.objective
    lines = objective.official(counted()) if format == "official" else map(_line, counted())
    with contextlib.ExitStack() as stack:
        file = sys.stdout
        if output is not None:
            file = stack.enter_context(stack.enter_context(storage.replacing(output)).open("w", encoding="utf-8"))
        file.writelines(lines)
    return count


def _are_predictions(beginning: bytes) -> bool:
    """Whether a file of either format begins so; of the official ones GLUE's alone tells what it is."""
    return beginning.startswith(b"index\tprediction\n") or (beginning[:1] == b"{" and b'"prediction": ' in beginning)


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def settings_of(checkpoint: str | Path, options: Sequence[str]) -> dict[str, Any]:
    """The settings of `predict` that options of a command line stand for: `--data.text review`.

    Raises:
        UserError: an option that does not change predictions, or a value of the wrong type.
    """
    run = _described(checkpoints.find(checkpoint)).experiment
    return task_settings.from_options(run, options, "plmjax predict", labelled=False)


def decoding(checkpoint: str | Path, settings: dict[str, Any]) -> str:
    """How the texts of `predict` are written with these settings, in words; empty where predictions are no texts."""
    run = _described(checkpoints.find(checkpoint)).experiment
    run = task_settings.with_settings(run, settings, labelled=False)
    return run.objective.signatures(run.data).get("decoding", "")


def _described(checkpoint: Path) -> Description:
    description = checkpoints.describe(checkpoint)
    if not isinstance(description.experiment.data, Task):
        raise UserError(
            f"Expected a checkpoint that was fine-tuned on a task, found one of pretraining in {checkpoint}; fine-tune "
            f"it with plmjax finetune first."
        )
    return description
