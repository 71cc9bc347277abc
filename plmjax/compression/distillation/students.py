"""The initialization of a student: with some layers of its teacher, with random layers, or at random."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import UserError, listed
from plmjax.experiment import WeightMapping


@dataclasses.dataclass(frozen=True)
class TakenLayers(WeightMapping):
    """A student begins with some layers of its teacher, and with all of the teacher's other parameters.

    An encoder-decoder takes the same layers on both sides. A student of another system, such as a DistilBERT of a BERT,
    takes the parameters that both systems have.
    """

    layers: tuple[int, ...] = ()
    """Numbers of the teacher's layers, from 0; empty takes every other one."""
    student: ModelConfig | None = None
    """Sizes of the student; None for the teacher's sizes with as many layers as are taken."""

    def model(self, origin: ModelConfig) -> ModelConfig:
        """Return the sizes of the student.

        Raises:
            UserError: the teacher lacks a layer, or its layers cannot be taken.
        """
        layers = resolve_layers(self.layers, origin)
        stacks(origin)
        if self.student is None:
            return origin.with_depth(len(layers))
        if self.student.depth != len(layers):
            raise UserError(
                f"Expected a student of {len(layers)} layers, one for each layer that it takes from its teacher, found "
                f"{self.student.depth}; change --layers."
            )
        return self.student

    def map(self, params: dict[str, np.ndarray], origin: ModelConfig, model: ModelConfig) -> dict[str, np.ndarray]:
        """Return the parameters with the taken layers, under the student's name."""
        layers, prefixes = list(resolve_layers(self.layers, origin)), tuple(f"{prefix}/" for prefix in stacks(origin))
        before, after = f"{origin.system.name}/", f"{model.system.name}/"
        found = {}
        for path, value in params.items():
            mapped = after + path.removeprefix(before) if path.startswith(before) else path
            found[mapped] = value[layers] if path.startswith(prefixes) else value
        return found


@dataclasses.dataclass(frozen=True)
class Random(WeightMapping):
    """Base class of the students with random parameters, and with the tokenizer of their teacher."""

    student: ModelConfig | None = None
    """Sizes of the student; None for the teacher's sizes."""

    def model(self, origin: ModelConfig) -> ModelConfig:
        return origin if self.student is None else self.student


@dataclasses.dataclass(frozen=True)
class RandomLayers(Random):
    """A student begins with random layers, and with the embeddings and heads of its teacher."""

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        """Return the parameters outside of the layers."""
        return {path: value for path, value in params.items() if not self.is_sampled(path)}

    def is_sampled(self, parameter: str) -> bool:
        return "/layers/" in parameter


@dataclasses.dataclass(frozen=True)
class RandomStudent(Random):
    """A student begins with random parameters."""

    def map(self, params: dict[str, np.ndarray], origin: Any, model: Any) -> dict[str, np.ndarray]:
        return {}

    def is_sampled(self, parameter: str) -> bool:
        return True


def resolve_layers(layers: Sequence[int], teacher: ModelConfig) -> tuple[int, ...]:
    """Return the indices of the layers to take, by default every other one from the first.

    Raises:
        UserError: the teacher lacks one of them.
    """
    layers = tuple(layers) or tuple(range(0, teacher.depth, 2))
    absent = [layer for layer in layers if not 0 <= layer < teacher.depth]
    if absent:
        raise UserError(
            f"Expected --layers from 0 to {teacher.depth - 1}, the layers of the teacher, found {absent[0]}; name "
            f"others."
        )
    return layers


def stacks(model: ModelConfig) -> tuple[str, ...]:
    """Return the prefixes of parameters that are stacks of all layers, [L ...].

    Raises:
        UserError: the model has no such stack, or one of another length.
    """
    found: dict[str, int] = {}
    for group in model.parameter_groups:
        for prefix in group.prefixes if group.index is not None else ():
            found[prefix] = found.get(prefix, 0) + 1
    if not found or set(found.values()) != {model.depth}:
        counts = listed(f"{prefix} ({count} layers)" for prefix, count in found.items())
        raise UserError(
            f"Expected a teacher whose {model.depth} layers have parameters of their own, all in one stack, found "
            f"{model.system} with the stacks: {counts}; start the student from another checkpoint or at random, with "
            f"--student."
        )
    return tuple(found)
