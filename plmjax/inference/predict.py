"""Predictions of a fine-tuned checkpoint for unlabeled examples, in order, while the file is read."""

import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plmjax.data.unknown_tokens import MAX_UNKNOWN
from plmjax.errors import UserError, check_choice
from plmjax.experiment import Experiment
from plmjax.files import json_text, storage
from plmjax.finetuning.tasks.tagging import WordColumns
from plmjax.finetuning.tasks.task import Record, Task
from plmjax.inference import members, task_settings
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description

log = logging.getLogger(__name__)

FORMATS = ("jsonl", "official")
PART = 1024
"""Number of examples that are read, computed and written at once."""


def predict(
    checkpoint: str | Path,
    input: str | Path | Sequence[str | Sequence[str]],
    ensemble: Sequence[str | Path] = (),
    *,
    max_unknown: float = MAX_UNKNOWN,
    **settings: Any,
) -> Iterator[Record]:
    """Yield the prediction of every example of a file, or of every text of a list, in order.

    The file has the format of the checkpoint's task, but needs no labels. Single sentences, and sentences to tag, may
    also be lines of a .txt file, or the texts of a list; a sentence to tag may be the list of its words. Files may be
    compressed (.gz).

    Args:
        ensemble: further runs on the same task, whose predictions are averaged with those of this run: probabilities of
            labels and of choices, or numbers.
        max_unknown: largest fraction of unknown tokens in the examples read so far.
        settings: settings of the task, which change how the file is read (`text="review"`), and settings of the
            objective, which change how a prediction is chosen (`null_threshold=1.5`). A setting with the name of
            another argument is given by its full name, as for `evaluate`.

    Returns:
        dicts of plain data, with the keys that the objective's `records` documents.

    Raises:
        UserError: no checkpoint, one that was not fine-tuned, or a file that does not fit its task or its tokenizer.
    """
    directory = checkpoints.find(checkpoint)
    description = _describe(directory)
    run = task_settings.with_settings(description.experiment, settings, labelled=False)
    first = members.Member(directory, run, max_unknown)
    return _predict(run, [first, *members.further_members(first, ensemble, max_unknown)], input)


def _predict(
    run: Experiment, runs: Sequence[members.Member], input: str | Path | Sequence[str | Sequence[str]]
) -> Iterator[Record]:
    with _file(input, run.data) as path:
        for examples in run.data.parts(path, PART):
            yield from run.objective.records(examples, *members.average_predictions(runs, examples))
    unknown = runs[0].unknown
    if unknown.count:
        log.warning("%s", unknown)


@contextlib.contextmanager
def _file(input: str | Path | Sequence[str | Sequence[str]], task: Task) -> Iterator[str]:
    """Yield the path of the examples. A list of texts is written to a temporary file, one text per line."""
    if isinstance(input, str | os.PathLike):
        yield str(input)
        return
    of_words = isinstance(task, WordColumns)
    texts = [" ".join(text) if of_words and isinstance(text, list | tuple) else text for text in input]
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(
                f"Expected a text{' or a list of words' if of_words else ''}, found {text!r} as number {number} of the "
                f"list; write pairs and other examples to a file."
            )
        if len(text.splitlines()) != 1:
            raise UserError(
                f"Expected texts of one line, found {len(text.splitlines())} lines in text {number} of the list; "
                f"replace the line breaks."
            )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.txt"
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        yield str(path)


def write(
    checkpoint: str | Path,
    input: str | Path,
    *,
    output: str | Path | None = None,
    format: str = "jsonl",
    ensemble: Sequence[str | Path] = (),
    max_unknown: float = MAX_UNKNOWN,
    **settings: Any,
) -> int:
    """Write the predictions to a file as they are made, or to standard output. Return their number.

    format: "jsonl" for one JSON object per line, "official" for the format of the task's scripts
    (`TaskObjective.submission`).

    Raises:
        UserError: an error of `predict`, an unknown format, or an output that cannot be written.
    """
    check_choice("--format", format, FORMATS)
    output = None if output is None else storage.path(output)
    if output is not None and not (storage.in_bucket(output) or output.absolute().parent.is_dir()):
        raise UserError(f"Expected a file in a folder that exists for --output, found {output}; make the folder first.")
    if output is not None and format == "jsonl" and output.suffix in (".csv", ".tsv"):
        raise UserError(
            f"Expected --output that ends in .jsonl for predictions as lines of JSON, found {output}; name another, or "
            f"add --format official."
        )
    if output is not None:
        storage.check_file(output, "--output", _are_predictions)
    count = 0

    def counted() -> Iterator[Record]:
        nonlocal count
        for record in predict(checkpoint, input, ensemble, max_unknown=max_unknown, **settings):
            count += 1
            yield record

    run = task_settings.with_settings(_describe(checkpoints.find(checkpoint)).experiment, settings, labelled=False)
    lines = run.objective.submission(counted()) if format == "official" else map(_line, counted())
    with contextlib.ExitStack() as stack:
        file = sys.stdout
        if output is not None:
            file = stack.enter_context(stack.enter_context(storage.replace_file(output)).open("w", encoding="utf-8"))
        file.writelines(lines)
    return count


def _are_predictions(beginning: bytes) -> bool:
    """Return whether a file starts like either format. Among the official formats only GLUE's can be recognized."""
    return beginning.startswith(b"index\tprediction\n") or (beginning[:1] == b"{" and b'"prediction": ' in beginning)


def _line(record: Record) -> str:
    return json.dumps(json_text.finite(record), ensure_ascii=False) + "\n"


def settings_of(checkpoint: str | Path, options: Sequence[str]) -> dict[str, Any]:
    """Return the settings of `predict` from command-line options such as `--data.text review`.

    Raises:
        UserError: an option that does not change predictions, or a value of the wrong type.
    """
    run = _describe(checkpoints.find(checkpoint)).experiment
    return task_settings.from_options(run, options, "plmjax predict", labelled=False)


def describe_decoding(checkpoint: str | Path, settings: dict[str, Any]) -> str:
    """Return a description of how `predict` decodes with these settings; empty if predictions are not texts."""
    run = _describe(checkpoints.find(checkpoint)).experiment
    run = task_settings.with_settings(run, settings, labelled=False)
    return run.objective.signatures(run.data).get("decoding", "")


def _describe(checkpoint: Path) -> Description:
    description = checkpoints.describe(checkpoint)
    if not isinstance(description.experiment.data, Task):
        raise UserError(
            f"Expected a checkpoint that was fine-tuned on a task, found one of pretraining in {checkpoint}; fine-tune "
            f"it with plmjax finetune first."
        )
    return description
