"""Start of a run from the parameters of a checkpoint, which start.json in the run directory names.

The experiment's `start` maps the checkpoint's parameters to those of the run. For example, a student may take every
second layer, and a model of longer rows may repeat the positions.
"""

import dataclasses
import hashlib
import json
import posixpath
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np

from plmjax import experiment as experiments
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import abstract_parameters
from plmjax.errors import UserError, listed
from plmjax.experiment import Data, Experiment, Start
from plmjax.files import json_text, storage
from plmjax.parallel import hosts
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description

RANDOM = "random"
"""Value of --from instead of a checkpoint: start from random parameters."""
RECORD = "start.json"
POOLER = "pooler"
"""Part of an encoder that pretraining without sentence pairs does not train."""


def composed(run: Experiment, checkpoint: str | Path, report: Callable[[str], None] = print) -> Experiment:
    """Return the experiment completed by the checkpoint in --from, before command-line options are applied.

     The model of the checkpoint replaces that of the experiment, unless the experiment has a `start` of its own. For a
    run on text, both models must be of the same class. A missing objective or layout is taken from the checkpoint's
    run. "random" and a file of word vectors change nothing.

    Raises:
        UserError: there is no checkpoint, or it is of another kind.
    """
    if str(checkpoint) == RANDOM or storage.path(checkpoint).is_file():
        return run
    description = checkpoints.describe(checkpoints.find(checkpoint))
    if description.experiment.text_vectors is not None and hosts.is_primary():
        report(
            f"vectors    not kept: {description.experiment.text_vectors} belongs to the encoder before this training"
        )
    if run.model is not None and type(run.start) is Start:
        model = description.experiment.model
        if isinstance(run.data, Data):
            _check_class(run.model, model)
        if model != run.model and hosts.is_primary():
            report(f"model      {type(model).__name__} of {checkpoint}, in place of the experiment's own")
        run = dataclasses.replace(run, model=model)
    return with_task(run, description)


def with_task(run: Experiment, description: Description) -> Experiment:
    """Return the experiment with the objective and the layout of the checkpoint's run, if it has none of its own.

    A layout of the checkpoint's run brings the texts of a document that it reads, `data.streams`.

    Raises:
        UserError: the checkpoint's run is not a pretraining run.
    """
    layout = run.data.layout if isinstance(run.data, Data) else None
    if not isinstance(run.data, Data) or (run.objective is not None and layout is not None):
        return run
    origin = description.experiment
    if not isinstance(origin.data, Data):
        raise UserError(
            f"Expected a pretraining run in --from, whose objective is kept, found a fine-tuned one, with "
            f"{type(origin.objective).__name__} on {type(origin.data).__name__}; name the run that it started from, or "
            f"an experiment with an objective and a layout."
        )
    data = run.data
    if layout is None:
        data = dataclasses.replace(data, layout=origin.data.layout, streams=data.streams or origin.data.streams)
    return dataclasses.replace(run, objective=run.objective or origin.objective, data=data)


def with_model(run: Experiment, description: Description) -> Experiment:
    """Return the experiment with the checkpoint's model, mapped by `start`, and its settings of generation.

    Raises:
        UserError: the experiment has a different model.
    """
    model = run.start.model(description.experiment.model)
    if run.model is not None and type(run.model) is not type(model):
        raise UserError(
            f"Expected the experiment's model in the checkpoint, {type(run.model).__name__}, found "
            f"{type(model).__name__}; name another checkpoint in --from."
        )
    if run.model is not None:
        _check_class(run.model, model)
        before, after = experiments.flatten(model), experiments.flatten(run.model)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                raise UserError(
                    f"Expected the checkpoint's model, whose {name} is {before.get(name)}, found model.{name} = "
                    f"{after.get(name)}; leave the option --model.{name} out, or model=None in the experiment's file."
                )
    generation = description.experiment.generation if run.generation is None else run.generation
    return dataclasses.replace(run, model=model, generation=generation)


def _check_class(model: ModelConfig, found: ModelConfig) -> None:
    """Raise UserError if the model of a checkpoint is not of the class that an experiment trains."""
    if type(found) is not type(model):
        raise UserError(
            f"Expected a run of {model.system}, in --from, found a run of {found.system}; name another run, "
            f"or continue its own pretraining with experiments/continued.py."
        )


def mapped(run: Experiment, pretrained: Any, description: Description) -> Any:
    """Return the parameters of a checkpoint, mapped by the experiment's `start`; `run` has its model already."""
    flat = flax.traverse_util.flatten_dict(pretrained, sep="/")
    return flax.traverse_util.unflatten_dict(run.start.map(flat, description.experiment.model, run.model), sep="/")


def tokenizer_of(description: Description) -> Any:
    """Return the tokenizer of a checkpoint (plmjax.data.tokenizers.Tokenizer)."""
    from plmjax.data import tokenizers  # here, so that training imports without a tokenizer library

    with tempfile.TemporaryDirectory() as folder:
        return tokenizers.load(description.write_tokenizer(Path(folder)))


def tokenizer(run: Experiment, origin: str | Path, description: Description) -> Any:
    """Return the checkpoint's tokenizer.

    Raises:
        UserError: the experiment names another one.
    """
    from plmjax.data import tokenizers

    own = tokenizer_of(description)
    if run.tokenizer.path and tokenizers.load(run.tokenizer.path).fingerprint != own.fingerprint:
        raise UserError(
            f"Expected the tokenizer of the checkpoint {origin}, found another one in {run.tokenizer.path}; leave "
            f"--tokenizer.path out."
        )
    return own


def check(workdir: Path, origin: str | Path, params: Any) -> bool:
    """Write WORKDIR/start.json, which names the initial parameters of the run, or compare it with them.

    params: parameters of the checkpoint `origin`; None for "random".

    Returns:
        whether the file named other parameters, of a command that trained no step.

    Raises:
        UserError: the run in WORKDIR started from other parameters.
    """
    digest = hashlib.sha256()
    for parameter in jax.tree.leaves(params):
        digest.update(np.ascontiguousarray(parameter).tobytes())
    start = {"from": str(origin), "sha256": digest.hexdigest()}
    path = workdir / RECORD
    before = None
    if path.exists():
        what = "the origin and digest of the run's first parameters"
        advice = "restore the file, or name another --workdir"
        before = json_text.read_object(path, what, advice)
        if not all(isinstance(before.get(name), str) for name in start):
            raise UserError(f"Expected {what} in {path}, found none; {advice}.")
        if before["sha256"] == start["sha256"]:
            return False
    if before is not None and storage.finished_steps(workdir / "checkpoints"):
        found = "others" if before["from"] == start["from"] else _named(start["from"])
        raise UserError(
            f"Expected {_named(before['from'])}, from which the run in {workdir} started, found {found}; take the "
            f"same (--from {listed([before['from']])}) or name another --workdir."
        )
    if hosts.is_primary():
        workdir.mkdir(parents=True, exist_ok=True)
        storage.write(path, json.dumps(start, indent=2) + "\n")
    return before is not None


@dataclasses.dataclass(frozen=True)
class InitialParameters:
    """The initial parameters of a run, by default those that are sampled from the seed.

    from_drawn: function from the sampled parameters to the initial ones; it does not change shardings.
    replaced: function from a name (`bert/pooler/kernel`) to true if `from_drawn` gives that parameter another value.
        Such a parameter is not sampled.
    """

    from_drawn: Callable[[Any], Any] = lambda params: params
    replaced: Callable[[str], bool] = lambda name: False


def transfer(pretrained: Any, params: Any, origin: str | Path, drawn: Callable[[str], bool]) -> Any:
    """Return `params` with the values of `pretrained`, except for sampled parameters; shardings do not change.

    drawn: function from a name (`bert/pooler/kernel`) to true if the parameter keeps its value in `params`.

    Raises:
        UserError: the checkpoint `origin` lacks a parameter, or has it in another shape.
    """
    found = flax.traverse_util.flatten_dict(pretrained, sep="/")
    wanted = flax.traverse_util.flatten_dict(params, sep="/")
    for name, leaf in wanted.items():
        if drawn(name):
            continue
        if name not in found or found[name].shape != leaf.shape:
            shape = found[name].shape if name in found else "no such parameter"
            raise UserError(
                f"Expected {name} of shape {leaf.shape} in the checkpoint {origin}, found {shape}; take a "
                f"checkpoint of the model that the experiment trains."
            )
        wanted[name] = jax.make_array_from_callback(leaf.shape, leaf.sharding, np.asarray(found[name]).__getitem__)
    return flax.traverse_util.unflatten_dict(wanted, sep="/")


def missing_head_parameters(pretrained: Any, params: Any, model: Any) -> list[str]:
    """Return the names of head parameters that a checkpoint lacks, sorted.

    Parameters of heads are those outside the encoder, and those of its pooler. A model without a named encoder has no
    heads; the list is empty.
    """
    found = flax.traverse_util.flatten_dict(pretrained, sep="/")
    names = flax.traverse_util.flatten_dict(params, sep="/").keys()
    if model.system.name is None:
        return []
    parts = {name: name.split("/") for name in names}
    heads = [name for name, part in parts.items() if part[0] != model.system.name or part[1] == POOLER]
    return sorted(name for name in heads if name not in found)


def abbreviated(names: Sequence[str]) -> str:
    """Return names of parameters for a sentence.

    More than three names are counted by their first part: `32 of source_encoder`.
    """
    if len(names) <= 3:
        return ", ".join(names)
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(name.split("/")[0], []).append(name)
    return ", ".join(f"{len(each)} of {posixpath.commonpath(each)}" for each in parts.values())


def check_parameters(module: nn.Module, params: Any, batch: Mapping[str, Any], origin: str | Path, hint: str) -> None:
    """Raise UserError with the first parameter of the module that the checkpoint `origin` lacks."""
    expected = abstract_parameters(module, batch)
    wanted, found = (flax.traverse_util.flatten_dict(nn.meta.unbox(tree), sep="/") for tree in (expected, params))
    for name in sorted(wanted.keys() - found.keys()):
        raise UserError(f"Expected a checkpoint with {name}, found none in {origin}: {hint}; name another.")


def _named(origin: str) -> str:
    return "random parameters" if origin == RANDOM else f"the parameters of {listed([origin])}"
