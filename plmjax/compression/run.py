"""A compression, from its checkpoint to the run directory of its result.

OUTPUT/             a run directory with one checkpoint, the smaller model, and the record of its ancestry
OUTPUT/training/    the run that trained the smaller model, if the method trains. A stopped run continues only from the
                    model that its source.json names
"""

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np

from plmjax import experiment as experiments
from plmjax.compression.compression import Compression, Params
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError, quoted
from plmjax.experiment import Data, Experiment, WeightMapping
from plmjax.files import json_text, locks, storage
from plmjax.objectives.wrapper import model_parameters
from plmjax.parallel import hosts
from plmjax.runs import epochs
from plmjax.runs.finetuning import finetune
from plmjax.runs.pretraining import pretrain
from plmjax.training.checkpoints import ancestry, checkpoints, items
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.metrics import to_json

TRAINING = "training"
"""Folder of the output for the run that trains the smaller model."""
SOURCE = "source.json"
"""File of the training run that names the checkpoint to compress, with the digest of its parameters."""


def hold_output(command: Callable) -> Callable:
    """Wrap `command` so that it locks the folder of its argument `output` until it returns."""

    @functools.wraps(command)
    def holding(*positional: Any, **named: Any) -> Any:
        output = storage.path(inspect.signature(command).bind(*positional, **named).arguments["output"])
        with locks.lock(output) if hosts.is_primary() else contextlib.nullcontext():
            return command(*positional, **named)

    return holding


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """The checkpoint to compress.

    name: as given to the command. directory: the folder of the checkpoint. params: its parameters by path.
    collections: the other collections of its module's variables. constants: the constants of its run's objective.
    ancestors: the record of its ancestry.
    """

    name: str
    directory: Path
    params: Params
    collections: Any
    constants: Any
    description: Description
    ancestors: list[ancestry.Ancestor]

    @classmethod
    def read(cls, checkpoint: str | Path) -> "Source":
        """Read a run directory or a checkpoint.

        Raises:
            UserError: the checkpoint is missing or damaged, is stored in int8, or belongs to an unfinished compression.
        """
        directory = checkpoints.find(checkpoint)
        if quantized := items.int8_paths(directory, "params"):
            raise UserError(
                f"Expected a checkpoint in float32, found {checkpoint}, which stores {len(quantized)} arrays in int8; "
                f"compress the checkpoint that it was made from, and quantize the result."
            )
        params, description = checkpoints.load_parameters(directory, with_derived=False)
        if description.experiment.compression is not None:
            raise UserError(
                f"Expected the result of a compression, found the run that trains it in {checkpoint}; name the folder "
                f"of its --output, or run its command again to finish it."
            )
        flat = flax.traverse_util.flatten_dict(params, sep="/")
        collections = checkpoints.load_collections(directory)
        constants = checkpoints.read_constants(directory.parent.parent)
        return cls(
            str(checkpoint),
            directory,
            flat,
            collections,
            constants,
            description,
            ancestry.read(directory.parent.parent),
        )

    @functools.cached_property
    def sha256(self) -> str:
        """Digest of the parameters."""
        return ancestry.digest(self.params)

    def claim(self, output: Path) -> None:
        """Record this checkpoint as the source of the run that trains the smaller model.

        Raises:
            UserError: that run has trained a step with another checkpoint.
        """
        workdir = storage.path(output) / TRAINING
        path, own = workdir / SOURCE, {"from": self.name, "sha256": self.sha256}
        if path.exists() and storage.finished_steps(workdir / "checkpoints"):
            what, advice = "the checkpoint that is compressed", "restore the file, or name another --output"
            before = json_text.read_object(path, what, advice)
            if before.get("sha256") != self.sha256:
                found = self.name if before.get("from") != self.name else "other parameters there"
                raise UserError(
                    f"Expected the parameters of {quoted(before.get('from'))}, with which the run in {workdir} was "
                    f"trained, found {found}; name that checkpoint, or another --output."
                )
        elif hosts.is_primary():
            workdir.mkdir(parents=True, exist_ok=True)
            storage.write(path, json.dumps(own, indent=2) + "\n")

    def dataset(self, run: Experiment) -> str:
        """Return the folder of a pretraining run's dataset: the one in its settings, or else in its directory."""
        return run.data.path or str(self.directory.parent.parent / "dataset")

    def ancestry_record(self, by: str, settings: dict[str, Any]) -> list[ancestry.Ancestor]:
        """Return the ancestry of a model that the command `by`, with its settings, made from this model."""
        own = ancestry.Ancestor(self.name, self.description.step, self.sha256, by, settings)
        return [*self.ancestors, own]


def write(
    output: Path,
    source: Source,
    params: Params,
    *,
    run: Experiment,
    by: str,
    settings: dict[str, Any],
    collections: Any = None,
    constants: Any = None,
) -> str:
    """Write the smaller model as a run directory, and return a line that compares it with its source.

    Args:
        output: the folder to write.
        source: the model that was made smaller.
        params: parameters by path; those that the compression added are left out.
        run: the experiment of the result.
        by: the compression, for the record.
        settings: its settings, for the record.
        collections: the other collections of the variables; by default those of the source.
        constants: constants of the objective; by default those of the run in OUTPUT/training, or else of the source.

    Raises:
        UserError: the folder has a run.
    """
    kept = model_parameters(params)
    if constants is None:
        constants = checkpoints.read_constants(storage.path(output) / TRAINING) or source.constants
    if hosts.is_primary():
        tree = flax.traverse_util.unflatten_dict(kept, sep="/")
        tokenizer, collections = source.description.tokenizer, collections or source.collections
        ancestors = source.ancestry_record(by, settings)
        checkpoints.save_parameters(
            output, tree, run, tokenizer=tokenizer, collections=collections, constants=constants, ancestors=ancestors
        )
    hosts.agree("the compressed model")
    return comparison(source.params, kept)


def refuse_options(overrides: Sequence[str], command: str) -> None:
    """Raise UserError for options of an experiment, with a command that does not train."""
    if overrides:
        raise UserError(
            f"Expected no options of an experiment with {command}, which does not train, found {quoted(overrides[0])}; "
            f"leave it out, and train the result with plmjax finetune."
        )


def comparison(before: Params, after: Params) -> str:
    """Return a line with the numbers of parameters before and after: all, and those that are not 0."""

    def count(params: Params) -> int:
        return sum(value.size for value in params.values())

    def nonzero(params: Params) -> int:
        return sum(int(np.count_nonzero(value)) for value in params.values())

    return (
        f"{count(before):,} parameters became {count(after):,}, of which {nonzero(after):,} are not zero "
        f"({nonzero(after) / nonzero(before):.1%} of {nonzero(before):,})"
    )


def compose_experiment(
    source: Source,
    compression: Compression,
    experiment: str | None,
    *,
    overrides: Sequence[str],
    model: ModelConfig | None = None,
) -> Experiment:
    """Return the experiment that trains the smaller model: the named one, or that of the checkpoint.

    model: sizes of the smaller model before the options are applied; by default those of the checkpoint.

    Raises:
        UserError: an option is unknown, or neither an experiment nor the checkpoint says how to train.
    """
    own = source.description.experiment
    run = own if experiment is None else experiments.load(experiment)
    if run.optimizer is None:
        raise UserError(
            f"Expected a checkpoint with the settings of a training, or --experiment, found {source.name}, which was "
            f"imported; name an experiment, such as finetune_sentences."
        )
    run = run if run.finetuning is None else epochs.in_epochs(run)
    if run is own and isinstance(run.data, Data):
        path = "" if run.data.mixture.sources else source.dataset(run)
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, path=path, input=()))
    run = dataclasses.replace(run, model=model or own.model, weight_mapping=WeightMapping(), compression=compression)
    return experiments.override(run, overrides)


def train(
    source: Source,
    run: Experiment,
    output: Path,
    *,
    checkpoint: str | Path | None = None,
    report: Callable[[str], None] = print,
) -> tuple[Params, Experiment]:
    """Train the smaller model in OUTPUT/training, or read a finished run.

    run: an experiment with a compression. checkpoint: the checkpoint that the run starts from; by default the source.

    Returns:
        the parameters by path, and the experiment of the result.

    Raises:
        UserError: the settings do not fit the model, or the run in OUTPUT/training is another one.
    """
    run.compression.check(run.model, run.objective)
    source.claim(output)
    before = getattr(run.optimizer, "decay_exclude", None)
    words = () if before is None else run.compression.without_weight_decay()
    if words:
        excluded = (*before, *words)
        run = dataclasses.replace(run, optimizer=dataclasses.replace(run.optimizer, decay_exclude=excluded))
    workdir = storage.path(output) / TRAINING
    start = source.directory if checkpoint is None else checkpoint
    if isinstance(run.data, Data):
        pretrain(run, workdir, start, report=report)
    else:
        metrics = finetune(run, start, workdir)
        if hosts.is_primary():
            report(to_json({name: round(float(value), 4) for name, value in metrics.items()}))
    params, description = checkpoints.load_parameters(workdir, with_derived=False)
    trained = description.experiment
    flat, model = run.compression.finish(flax.traverse_util.flatten_dict(params, sep="/"), trained.model)
    optimizer = trained.optimizer
    if words:
        optimizer = dataclasses.replace(optimizer, decay_exclude=before)
    return flat, dataclasses.replace(trained, model=model, optimizer=optimizer, compression=None)
