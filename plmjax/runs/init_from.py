"""The start of a run: random parameters, a checkpoint, or a file of word vectors.

`InitFrom.find` resolves the value of --from. An `InitFrom` completes the experiment, and provides the tokenizer and the
initial parameters of the run, in pretraining and in fine-tuning. The experiment's `weight_mapping` maps a checkpoint's
parameters to those of the run: a student may take every second layer, and a model of longer sequences may repeat the
position embeddings.
"""

import dataclasses
import posixpath
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import flax.traverse_util
import jax
import numpy as np

from plmjax import experiment as experiments
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError, listed
from plmjax.experiment import Data, Experiment, WeightMapping
from plmjax.interop.word_vectors import WordVectors
from plmjax.objectives.wrapper import ADDED
from plmjax.parallel import hosts
from plmjax.runs import word_vectors
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.initial_state import InitialParameters

RANDOM = "random"
"""Value of --from that samples all parameters from the seed."""
POOLER = "pooler"
"""Module of an encoder that pretraining without sentence pairs does not train."""
PRUNED = 0.01
"""Minimum fraction of zeros in the kernels of a checkpoint that counts as pruned. Trained values are hardly ever 0."""


@dataclasses.dataclass(frozen=True, eq=False)
class InitFrom:
    """The start of a run.

    name: the value of --from or --continue_from.
    description: the description of the checkpoint whose model and tokenizer the run takes; None without one.
    checkpoint: the folder of the checkpoint whose parameters the run takes; None without one.
    vectors: word vectors that initialize token embeddings; None if --from does not name a file of them.
    continued: the folder of the checkpoint whose complete state the run continues; None without one.
    """

    name: str | Path
    description: Description | None = None
    checkpoint: Path | None = None
    vectors: WordVectors | None = None
    continued: Path | None = None

    @classmethod
    def find(cls, name: str | Path, like: str | Path | None = None, continue_from: str | Path | None = None) -> Self:
        """Find the start of a run. The parameters of a checkpoint are not read yet.

        name: a run directory, a checkpoint, a file of word vectors, or "random".
        like: with "random", a checkpoint whose model and tokenizer the run takes.
        continue_from: with "random", a checkpoint or a run directory that the run continues.

        Raises:
            UserError: `name` is none of them, the checkpoint is damaged, or `like` or `continue_from` is set without
                "random".
        """
        if continue_from is not None:
            if str(name) != RANDOM:
                raise UserError(
                    f"--from and --continue_from exclude each other, found {listed([str(name), str(continue_from)])}; "
                    f"leave --from out to keep the optimizer's state and the step."
                )
            checkpoint = checkpoints.find(continue_from)
            return cls(continue_from, checkpoints.describe(checkpoint), continued=checkpoint)
        if str(name) == RANDOM:
            return cls(name, None if like is None else checkpoints.describe(checkpoints.find(like)))
        if like is not None:
            raise UserError(f"--like needs --from {RANDOM}, found --from {name}; leave one of them out.")
        if (vectors := word_vectors.at(name)) is not None:
            return cls(name, vectors=vectors)
        checkpoint = checkpoints.find(name)
        return cls(name, checkpoints.describe(checkpoint), checkpoint)

    def complete(self, experiment: Experiment, report: Callable[[str], None] = print) -> Experiment:
        """Complete the experiment with settings of the checkpoint, before options of the command line are applied.

        The model of the checkpoint replaces that of the experiment, unless the experiment has a `weight_mapping` or a
        compression. If the experiment lacks an objective or a layout, that of the checkpoint's run is taken.

        Raises:
            UserError: the models of a run on text are of different classes, or the checkpoint's run has no objective
                or layout to take.
        """
        if self.description is None:
            return experiment
        origin = self.description.run if self.continued else self.description.experiment
        if origin.text_vectors is not None and hosts.is_primary():
            report(f"vectors    the checkpoint's are not kept after training: {origin.text_vectors}")
        own = type(experiment.weight_mapping) is not WeightMapping or experiment.compression is not None
        if experiment.model is not None and not own:
            if isinstance(experiment.data, Data):
                _check_class(experiment.model, origin.model)
            if origin.model != experiment.model and hosts.is_primary():
                report(f"model      {type(origin.model).__name__} of {self.name}, in place of the experiment's own")
            experiment = dataclasses.replace(experiment, model=origin.model)
        return with_task(experiment, self.description)

    def map_model(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the checkpoint's model, mapped by `weight_mapping`.

        It also takes the checkpoint's generation settings if the experiment has none.

        Raises:
            UserError: the experiment has a different model.
        """
        if self.description is None:
            return experiment
        origin = self.description.run if self.continued else self.description.experiment
        model = experiment.weight_mapping.model(origin.model)
        if experiment.model is not None:
            _check_same(experiment.model, model)
        generation = origin.generation if experiment.generation is None else experiment.generation
        return dataclasses.replace(experiment, model=model, generation=generation)

    def parameters(self, experiment: Experiment) -> Any:
        """Return the checkpoint's parameters, mapped to the experiment's model: a tree of host arrays.

        The result is None without a checkpoint whose parameters are taken.

        Raises:
            UserError: the checkpoint is damaged, or its parameters do not fit `experiment.weight_mapping`.
        """
        if self.checkpoint is None:
            return None
        params, description = checkpoints.load_parameters(self.checkpoint)
        flat = flax.traverse_util.flatten_dict(params, sep="/")
        mapped = experiment.weight_mapping.map(flat, description.experiment.model, experiment.model)
        return flax.traverse_util.unflatten_dict(mapped, sep="/")

    def tokenizer(self, experiment: Experiment) -> Any:
        """Return the checkpoint's tokenizer, a plmjax.data.tokenizers.Tokenizer, or None without a checkpoint.

        Raises:
            UserError: the experiment names another tokenizer.
        """
        if self.description is None:
            return None
        from plmjax.data import tokenizers  # here, so that training imports without a tokenizer library

        own, named = self.description.load_tokenizer(), experiment.tokenizer.path
        if named and tokenizers.load(named).fingerprint != own.fingerprint:
            raise UserError(
                f"Expected the tokenizer of the checkpoint {self.name}, found another one in {named}; leave "
                f"--tokenizer.path out."
            )
        return own

    def check(self, experiment: Experiment, tokenizer: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> None:
        """Raise UserError for word vectors that do not fit the model or the tokenizer.

        batch: field -> shape and dtype of a batch of the run.
        """
        if self.vectors is not None:
            word_vectors.check(experiment, tokenizer, self.vectors, batch)

    def initialize(
        self,
        experiment: Experiment,
        params: Any,
        tokenizer: Any,
        *,
        in_new_head: Callable[[str], bool] = lambda name: False,
        report: Callable[[str], None] = print,
    ) -> InitialParameters:
        """Return the initial parameters of a run.

        All parameters of a checkpoint are taken, except those of a new head. Parameters that the checkpoint lacks are
        sampled if they are in a head or the experiment's `weight_mapping` samples them.

        Args:
            params: result of `parameters`, possibly with more rows of embeddings.
            tokenizer: the tokenizer of the run.
            in_new_head: function from the path of a parameter, such as classifier/kernel, to true if it is in a head
                that is sampled even if the checkpoint has it.
            report: called with a line about the word vectors found, about parameters that are sampled because the
                checkpoint lacks them, or about zeros of pruning that training does not keep.
        """
        report = report if hosts.is_primary() else lambda line: None
        if self.vectors is not None:
            table = experiment.model.system.token_table

            def with_vectors(sampled: Any) -> Any:
                initial, found = word_vectors.fill(sampled, table, tokenizer, self.vectors)
                report(f"start      {found}")
                return initial

            return InitialParameters(with_vectors)
        if params is None:
            return InitialParameters()
        own = flax.traverse_util.flatten_dict(params, sep="/")
        zeros = pruned_fraction(own)
        if zeros >= PRUNED and experiment.compression is None:
            report(
                f"start      {zeros:.0%} of the weights of {self.name} are 0, as after pruning, and training fills "
                f"them; prune the result again, or train by plmjax compress prune"
            )

        def is_new(name: str) -> bool:
            return in_new_head(name) or name.split("/")[0] == ADDED

        def with_checkpoint(sampled: Any) -> Any:
            wanted = flax.traverse_util.flatten_dict(sampled, sep="/")
            missing = missing_in_heads(own.keys(), wanted.keys(), experiment.model)
            missed = [name for name in missing if not (is_new(name) or experiment.weight_mapping.is_sampled(name))]
            if missed:
                report(f"start      initialized at random, as {self.name} has none: {abbreviate(missed)}")
            taken = [
                name
                for name in wanted
                if not (
                    is_new(name) or name in missing or (name not in own and experiment.weight_mapping.is_sampled(name))
                )
            ]
            return flax.traverse_util.unflatten_dict(wanted | place_arrays(own, wanted, taken, self.name), sep="/")

        return InitialParameters(with_checkpoint, lambda name: name in own and not is_new(name))


def with_task(experiment: Experiment, description: Description) -> Experiment:
    """Return an experiment on text with the objective and the layout of a checkpoint's run, if it has none.

    With the layout, `data.streams` is taken too, unless the experiment sets it.

    Raises:
        UserError: the checkpoint's run is not a pretraining run.
    """
    data = experiment.data
    if not isinstance(data, Data) or (experiment.objective is not None and data.layout is not None):
        return experiment
    origin = description.experiment
    if not isinstance(origin.data, Data):
        raise UserError(
            f"Expected a pretraining run in --from, whose objective is kept, found a fine-tuned one, with "
            f"{type(origin.objective).__name__} on {type(origin.data).__name__}; name the run that it started from, or "
            f"an experiment with an objective and a layout."
        )
    if data.layout is None:
        data = dataclasses.replace(data, layout=origin.data.layout, streams=data.streams or origin.data.streams)
    return dataclasses.replace(experiment, objective=experiment.objective or origin.objective, data=data)


def _check_class(model: ModelConfig, found: ModelConfig) -> None:
    """Raise UserError if the models of an experiment and of a checkpoint, `found`, are of different classes."""
    if type(found) is not type(model):
        raise UserError(
            f"Expected a run of {model.system}, in --from, found a run of {found.system}; name another run, "
            f"or continue its own pretraining with experiments/continued.py."
        )


def _check_same(model: ModelConfig, found: ModelConfig) -> None:
    """Raise UserError for the first difference between the models of an experiment and of a checkpoint, `found`."""
    _check_class(model, found)
    before, after = experiments.flatten(found), experiments.flatten(model)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise UserError(
                f"Expected the checkpoint's model, whose {name} is {before.get(name)}, found model.{name} = "
                f"{after.get(name)}; leave the option --model.{name} out, or model=None in the experiment's file."
            )


def place_arrays(
    found: dict[str, Any], wanted: dict[str, Any], names: Sequence[str], origin: str | Path
) -> dict[str, jax.Array]:
    """Place arrays of a checkpoint on devices, with the shardings of the run's arrays. Return a dict from path.

    found: arrays of the checkpoint by path.
    wanted: arrays of the run by path.
    names: paths of the arrays to place.
    origin: the checkpoint, for the message.

    Raises:
        UserError: the checkpoint lacks one of them, or has it in another shape.
    """
    for name in names:
        if name not in found or found[name].shape != wanted[name].shape:
            shape = found[name].shape if name in found else "no such parameter"
            raise UserError(
                f"Expected {name} of shape {wanted[name].shape} in the checkpoint {origin}, found {shape}; take a "
                f"checkpoint of the model that the experiment trains."
            )
    return {
        name: jax.make_array_from_callback(
            wanted[name].shape, wanted[name].sharding, np.asarray(found[name]).__getitem__
        )
        for name in names
    }


def missing_in_heads(found: Sequence[str], wanted: Sequence[str], model: ModelConfig) -> list[str]:
    """Return the paths of head parameters that a checkpoint lacks, sorted.

    Head parameters are those outside the encoder, and those of its pooler. For a model without a named encoder the list
    is empty.

    found, wanted: paths of the parameters of the checkpoint and of the run.
    """
    if model.system.name is None:
        return []
    parts = {name: name.split("/") for name in wanted}
    heads = [name for name, part in parts.items() if part[0] != model.system.name or part[1] == POOLER]
    return sorted(name for name in heads if name not in found)


def abbreviate(names: Sequence[str]) -> str:
    """Return paths of parameters as text. More than three are counted by their first part: `32 of source_encoder`."""
    if len(names) <= 3:
        return ", ".join(names)
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(name.split("/")[0], []).append(name)
    return ", ".join(f"{len(each)} of {posixpath.commonpath(each)}" for each in parts.values())


def pruned_fraction(params: dict[str, Any]) -> float:
    """Return the fraction of zeros in the kernels of `params`, by path. Zeros of an all-zero kernel do not count."""
    kernels = [np.asarray(array) for path, array in params.items() if path.endswith("kernel")]
    zeros = [kernel.size - np.count_nonzero(kernel) for kernel in kernels]
    pruned = sum(count for count, kernel in zip(zeros, kernels, strict=True) if count < kernel.size)
    return pruned / max(sum(kernel.size for kernel in kernels), 1)
