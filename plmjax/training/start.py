"""Where a run begins that does not begin with random parameters: with those of a checkpoint, noted beside it.

Whatever another system makes of a checkpoint before it begins with it, a student's layers of its teacher's say, is a
mapping of the tree of parameters between `checkpoints.load_parameters` and `transfer`.
"""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from plmjax import experiment as experiments
from plmjax import storage
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.layers.execution import Execution
from plmjax.parallel import hosts
from plmjax.training.checkpoints import Description

RANDOM = "random"
"""In place of a checkpoint: begin with random parameters."""
RECORD = "start.json"
POOLER = "pooler"
"""The part of an encoder that a pretraining without sentence pairs does not train."""


def with_model(run: Experiment, description: Description) -> Experiment:
    """The experiment with the checkpoint's model.

    Raises:
        UserError: it has a model of its own, and another one.
    """
    model = description.experiment.model
    if run.model is not None:
        before, after = experiments.flatten(model), experiments.flatten(run.model)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                raise UserError(
                    f"Expected the checkpoint's model, whose {name} is {before.get(name)}, found model.{name} = "
                    f"{after.get(name)} in the experiment; leave the model out (model=None)."
                )
    return dataclasses.replace(run, model=model)


def tokenizer_of(description: Description) -> Any:
    """The tokenizer (plmjax.data.tokenizers.Tokenizer) that a checkpoint brings along."""
    from plmjax.data import tokenizers  # here, so that training imports without a tokenizer library

    with tempfile.TemporaryDirectory() as folder:
        return tokenizers.load(description.write_tokenizer(Path(folder)))


def tokenizer(run: Experiment, origin: str | Path, description: Description) -> Any:
    """The checkpoint's tokenizer.

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


def check(workdir: Path, origin: str | Path, params: Any) -> None:
    """Writes WORKDIR/start.json, which names the parameters that the run begins with, or compares it with them.

    params: those of the checkpoint `origin`; None where it is "random".

    Raises:
        UserError: the run in WORKDIR began with others.
    """
    digest = hashlib.sha256()
    for parameter in jax.tree.leaves(params):
        digest.update(np.ascontiguousarray(parameter).tobytes())
    start = {"from": str(origin), "sha256": digest.hexdigest()}
    path = workdir / RECORD
    if not path.exists():
        if hosts.speaks():
            workdir.mkdir(parents=True, exist_ok=True)
            storage.write(path, json.dumps(start, indent=2) + "\n")
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    if before["sha256"] != start["sha256"]:
        raise UserError(
            f"{workdir} holds a run that began with {_named(before['from'])}, found {_named(start['from'])}; begin "
            f"with the same (--from {before['from']}) or name another --workdir."
        )


def transfer(pretrained: Any, params: Any, origin: str | Path, drawn: Callable[[str], bool]) -> Any:
    """The parameters `params` with all but what is drawn anew taken from `pretrained`, each array placed as it was.

    drawn: whether a parameter (`bert/pooler/kernel`) stays as it is in `params`.

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
                f"The checkpoint {origin} is of another model: expected {name} of shape {leaf.shape}, found {shape}; "
                f"begin with one of the model that the experiment trains."
            )
        wanted[name] = jax.make_array_from_callback(leaf.shape, leaf.sharding, np.asarray(found[name]).__getitem__)
    return flax.traverse_util.unflatten_dict(wanted, sep="/")


def lacking(pretrained: Any, params: Any, model: Any) -> list[str]:
    """The parameters of heads that a checkpoint has not: of all but the encoder, and of its pooler.

    A model without an encoder of its own name has no heads that it could do without.
    """
    found = flax.traverse_util.flatten_dict(pretrained, sep="/")
    names = flax.traverse_util.flatten_dict(params, sep="/").keys()
    if not hasattr(model, "encoder"):
        return []
    encoder = model.encoder(Execution()).name
    parts = {name: name.split("/") for name in names}
    heads = [name for name, part in parts.items() if part[0] != encoder or part[1] == POOLER]
    return sorted(name for name in heads if name not in found)


def _named(origin: str) -> str:
    return "random parameters" if origin == RANDOM else f"the parameters of {origin}"
