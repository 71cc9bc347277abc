"""The model card of a run: README.md in the form of the Hugging Face Hub, from the records of the run alone.

It begins with metadata in YAML: library, language, tags, task and results. The text has the model and its sizes, the
data, the training with its tokens, FLOPs and time, the results, and the checkpoints from which the run was made.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Kind, Purpose, System
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment
from plmjax.files import json_text, storage
from plmjax.report.runs import Run, read_runs
from plmjax.runs import folder as folders
from plmjax.runs.init_from import RANDOM
from plmjax.training.checkpoints import ancestry
from plmjax.training.metrics import duration

MADE_BY = "<!-- plmjax card -->"
"""Text that marks a card. Only a file with it is overwritten."""
TRAINING = "training"
"""Folder in a compressed run with the records of the compression's training."""
EVALUATION = "evaluation.json"
ADVICE = "restore the file, or take another run"

Results = dict[str, dict[str, float]]
"""Data -> name of a metric -> its value."""


def write(workdir: str | Path, output: str | Path) -> Path:
    """Write the model card of a run, and return its path.

    Args:
        workdir: run directory.
        output: a file, or a folder for README.md, such as that of an export.

    Raises:
        UserError: the folder is no run or has no record of a training, or the file is not a card.
    """
    workdir, output = storage.path(workdir), storage.path(output)
    file = output / "README.md" if output.is_dir() else output
    storage.check_file(file, "the card", lambda beginning: MADE_BY.encode() in beginning)
    storage.write(file, card(workdir, _library(file.parent)))
    return file


def _library(folder: Path) -> str:
    """Return the name of the library that loads the model in a folder."""
    if (folder / "modules.json").exists():
        return "sentence-transformers"
    return "transformers" if (folder / "config.json").exists() else "plmjax"


def card(workdir: str | Path, library: str) -> str:
    """Return the text of the model card of a run. library: the library that loads the model."""
    folder = storage.path(workdir)
    (run,) = read_runs([_training_folder(folder)])
    run = dataclasses.replace(run, name=storage.absolute(folder).name)
    results = _results(run, folder)
    parts = [f"# {run.name}", *_model(run.experiment), *_data(run.experiment), *_training(run)]
    parts += [*_result_tables(results), *_ancestry(folder)]
    metadata = json.dumps(_metadata(run, results, library), indent=2, ensure_ascii=False)  # JSON is YAML
    return f"---\n{metadata}\n---\n{MADE_BY}\n\n" + "\n\n".join(parts) + "\n"


def _training_folder(workdir: Path) -> Path:
    """Return the folder with the training records: `workdir`, or for a compressed run the folder `TRAINING` in it."""
    for folder in (workdir, workdir / TRAINING):
        if (folder / "metrics.jsonl").exists():
            return folder
    raise UserError(
        f"Expected the record of a training in {workdir}, found no metrics.jsonl; name the run directory in which the "
        "model was trained."
    )


def _metadata(run: Run, results: Results, library: str) -> dict[str, Any]:
    model, data = run.experiment.model, run.experiment.data
    task = "sentence-similarity" if library == "sentence-transformers" else _task(run.experiment)
    entries = [
        {
            "task": {"type": task},
            "dataset": {"name": name, "type": "text"},
            "metrics": [{"type": metric, "name": metric, "value": value} for metric, value in table.items()],
        }
        for name, table in results.items()
    ]
    language = {"language": data.language} if isinstance(data, Data) else {}
    return {
        "library_name": library,
        **language,
        "tags": ["plmjax", "jax", type(model).__name__.removeprefix("Compressed").removesuffix("Config").lower()],
        "pipeline_tag": task,
        "model-index": [{"name": run.name, "results": entries}],
    }


PIPELINES = {
    Purpose.SEQUENCE_CLASSIFICATION: "text-classification",
    Purpose.TOKEN_CLASSIFICATION: "token-classification",
    Purpose.MULTIPLE_CHOICE: "multiple-choice",
    Purpose.QUESTION_ANSWERING: "question-answering",
    Purpose.MASKED_TOKENS: "fill-mask",
}
"""Purpose of a module -> name of its task on the Hugging Face Hub."""


def _task(run: Experiment) -> str:
    """Return the name of the trained module's task on the Hugging Face Hub."""
    system: System = run.model.system
    if getattr(run.objective, "purpose", None) is Purpose.EMBEDDING:
        return "sentence-similarity"
    module = run.objective.module(run.model, Execution())
    found = next((PIPELINES[one] for one in system.purposes(module) if one in PIPELINES), None)
    if found is not None:
        return found
    if Purpose.CAUSAL_LM in system:
        return "text2text-generation" if system.kind is Kind.ENCODER_DECODER else "text-generation"
    return "fill-mask" if Purpose.MASKED_TOKENS in system else "feature-extraction"


def _model(run: Experiment) -> Iterator[str]:
    yield "## Model"
    yield f"{type(run.model).__name__}, trained as {type(run.objective).__name__}."
    yield _table("size", {name: value for name, value in vars(run.model).items() if value not in (None, (), "")})


def _data(run: Experiment) -> Iterator[str]:
    yield "## Data"
    settings = dict(vars(run.data))
    if isinstance(run.data, Data) and run.data.mixture.sources:
        settings |= {f"mixture.{name}": value for name, value in vars(run.data.mixture).items()}
    plain = {name: value for name, value in settings.items() if isinstance(value, str | int | float | tuple) and value}
    kind = type(run.data.layout).__name__ if isinstance(run.data, Data) else type(run.data).__name__
    yield f"Rows are made by {kind}."
    yield _table("setting", plain)


def _training(run: Run) -> Iterator[str]:
    yield "## Training"
    flops, seconds = _spent(run)
    settings = {
        "steps": f"{run.steps:,}",
        "tokens, with padding": f"{run.tokens:,}",
        "model FLOPs": f"{flops:.3g}",
        "time of the steps": duration(seconds),
        "optimizer": type(run.experiment.optimizer).__name__,
        "learning rate": run.experiment.optimizer.learning_rate,
        "seed": run.experiment.training.seed,
    }
    for phase in run.experiment.resolved_phases:
        name = f"batch, steps {phase.first_step:,} to {phase.last_step:,}"
        settings[name] = f"{phase.batch_size:,} rows of {phase.sequence_length:,} tokens"
    yield _table("setting", settings)


def _spent(run: Run) -> tuple[float, float]:
    """Return the model FLOPs and the seconds of the finished steps, without pauses and evaluations."""
    logged = [record for record in run.records if "tokens_per_second" in record]
    flops = seconds = 0.0
    for before, record in itertools.pairwise([{"step": 0}, *logged]):
        spent = (run.tokens_until(record["step"]) - run.tokens_until(before["step"])) / record["tokens_per_second"]
        seconds += spent
        flops += spent * record["model_flops_per_second"]
    return flops, seconds


def _results(run: Run, folder: Path) -> Results:
    """Return the metrics of the last evaluation in training, and those that `plmjax evaluate` has written."""
    names = sorted({key for record in run.records for key in record if key.startswith("eval/")})
    last = {name.removeprefix("eval/"): run.last(name) for name in names}
    # A value that was not finite is None in the records.
    found = {"held-out data of the training": {name: value for name, value in last.items() if value is not None}}
    for file in sorted(folder.glob(f"evaluations/*/{EVALUATION}")):
        metrics = json_text.read_object(file, "an evaluation", ADVICE)
        found[file.parent.name] = {
            name: value
            for name, value in metrics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
    return {name: table for name, table in found.items() if table}


def _result_tables(results: Results) -> Iterator[str]:
    yield "## Results"
    for name, table in results.items():
        yield _table(name, {metric: f"{value:.6g}" for metric, value in table.items()})


def _ancestry(folder: Path) -> Iterator[str]:
    """Yield a section with the checkpoints from which the run was made, if there are any."""
    made = [
        {"checkpoint": one.checkpoint, "step": one.step, "by": one.by, "SHA-256": one.sha256}
        for one in ancestry.read(folder)
    ]
    record = folder / folders.START
    found = {"from": RANDOM}
    if record.exists():
        found = json_text.read_object(record, "the start of a run", ADVICE, folders.START_SHAPE)
    if found["from"] != RANDOM:
        made.append({"checkpoint": found["from"], "step": "", "by": "start", "SHA-256": found["sha256"]})
    if made:
        yield "## Ancestry"
        head = "| checkpoint | step | by | SHA-256 of its parameters |\n|---|---|---|---|\n"
        yield head + "\n".join(f"| {' | '.join(str(value) for value in one.values())} |" for one in made)


def _table(head: str, rows: Mapping[str, Any]) -> str:
    lines = [f"| {head} | value |", "|---|---|"]
    for name, value in rows.items():
        text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        lines.append(f"| {name} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)
