"""Predictions of a fine-tuned checkpoint for examples without labels, in their order, while they are read."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plmjax import experiment as experiments
from plmjax import storage
from plmjax.errors import UserError, check_choice, nearest, quoted
from plmjax.experiment import Experiment
from plmjax.finetuning.task import Record, Task
from plmjax.inference import members
from plmjax.training import checkpoints
from plmjax.training.checkpoints import Description

FORMATS = ("jsonl", "official")
PART = 1024
"""Examples read, computed and written at once."""


def predict(
    checkpoint: str | Path, input: str | Path, ensemble: Sequence[str | Path] = (), **settings: Any
) -> Iterator[Record]:
    """The prediction of every example of a file, in its order.

    The file is like those of the checkpoint's task, but needs no label; single sentences, and
    sentences to tag, may also be the lines of a .txt file. Any of them may end in .gz.

    ensemble: further runs on the same task, whose predictions are averaged with this one's: probabilities of labels and
        of choices, or numbers.
    settings: of the task, how this file is read (`text="review"`); of the objective, how a prediction is chosen
        (`null_threshold=1.5`).

    Returns:
        dicts of plain data, with the keys that the objective's `records` documents.

    Raises:
        UserError: no checkpoint, one that was not fine-tuned, or a file that does not fit its task.
    """
    directory = checkpoints.find(checkpoint)
    description = _described(directory)
    run = _with(description.experiment, settings)
    return _predicted(run, [members.Member(directory, run), *members.others(run, ensemble)], str(input))


def _predicted(run: Experiment, runs: Sequence[members.Member], input: str) -> Iterator[Record]:
    for examples in run.data.parts(input, PART):
        yield from run.objective.records(examples, *members.together(runs, examples))


def write(
    checkpoint: str | Path,
    input: str | Path,
    output: str | Path | None = None,
    format: str = "jsonl",
    ensemble: Sequence[str | Path] = (),
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
        for record in predict(checkpoint, input, ensemble, **settings):
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
    known = [f"--{group}.{name}" for name, group in _groups(run).items()]
    given = [option.partition("=")[0] for option in options if option.startswith("--")]
    for name in given:
        if name not in known:
            raise UserError(
                f"Expected an option of plmjax predict for this task, found {quoted(name)}; {nearest(name, known)}"
            )
    composed = experiments.override(run, options, "plmjax predict")
    paths = [name.removeprefix("--").partition(".")[::2] for name in given]
    return {name: getattr(getattr(composed, group), name) for group, name in paths}


def decoding(checkpoint: str | Path, settings: dict[str, Any]) -> str:
    """How the texts of `predict` are written with these settings, in words; empty where predictions are no texts."""
    run = _with(_described(checkpoints.find(checkpoint)).experiment, settings)
    return run.objective.signatures(run.data).get("decoding", "")


def _described(checkpoint: Path) -> Description:
    description = checkpoints.describe(checkpoint)
    if not isinstance(description.experiment.data, Task):
        raise UserError(
            f"Expected a checkpoint that was fine-tuned on a task, found one of pretraining in {checkpoint}; fine-tune "
            f"it with plmjax finetune, or look at it with plmjax fill-mask or plmjax embed."
        )
    return description


def _groups(run: Experiment) -> dict[str, str]:
    """Setting of a prediction -> the part of the experiment that it belongs to."""
    parts = {"data": run.data, "objective": run.objective}
    return {name: part for part, settings in parts.items() for name in settings.prediction_settings}


def _with(run: Experiment, settings: dict[str, Any]) -> Experiment:
    """The experiment with settings of its task and its objective."""
    groups = _groups(run)
    for name in settings:
        if name not in groups:
            raise UserError(
                f"Expected a setting of this task's predictions, found {quoted(name)}; {nearest(name, groups)}"
            )
    own = {part: {name: settings[name] for name in settings if groups[name] == part} for part in ("data", "objective")}
    return dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, **own["data"]),
        objective=run.objective.predicting(own["objective"]),
    )
