"""The description of a system in another library: its classes, its config, and an example of its inputs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import flax.linen as nn
import numpy as np

from plmjax.contracts.template import Template
from plmjax.errors import UserError, nearest, quoted
from plmjax.interop.conversion import Conversion
from plmjax.interop.tensors import Shape, Tensors


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One class of the other library and the module that computes the same function.

    conversions: the conversions of every parameter of the module. The table may have more.
    sized: function from the config to further conversions, which depend on its sizes.
    outputs: name of an output here -> its name in the other library.
    options: function from the content of config.json to fields of the module besides config and execution.
    parts: function from the shapes of the tensors (name -> shape) to fields of the module that config.json lacks.
    arguments: function from the module to arguments that transformers' class needs besides config.json to compute the
        same.
    batch: function from inputs for rows of token ids to inputs of the class.
    constants: function from the config to saved tensors that are not parameters (name -> values).
    within: the name under which modules with a head store this module's parameters; empty for modules with a head.
    tied: true if the token embedding is also the output layer.
    source: function from a model and its parameters to the model and parameters to write as this class, for a model of
        several networks; by default the same.
    lost: function from a model to a sentence on the parts that the class cannot hold; empty by default.
    unties: function from the content of config.json to true if the model has a separate output layer, for systems that
        have both forms.
    """

    module: type[nn.Module]
    conversions: tuple[Conversion, ...]
    outputs: Mapping[str, str]
    options: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda found: {}
    parts: Callable[[Mapping[str, Shape]], dict[str, Any]] = lambda shapes: {}
    sized: Callable[[Any], tuple[Conversion, ...]] = lambda config: ()
    arguments: Callable[[nn.Module], dict[str, Any]] = lambda module: {}
    batch: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = lambda rows: rows
    constants: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}
    within: str = ""
    tied: bool = False
    source: Callable[[nn.Module, Mapping[str, Any]], tuple[nn.Module, Mapping[str, Any]]] = lambda model, params: (
        model,
        params,
    )
    lost: Callable[[nn.Module], str] = lambda model: ""
    unties: Callable[[Mapping[str, Any]], bool] = lambda found: False

    def of(self, found: Mapping[str, Any]) -> Self:
        """Return the architecture for a checkpoint with this config.json."""
        return dataclasses.replace(self, tied=self.tied and not self.unties(found))

    def conversions_of(self, config: Any) -> tuple[Conversion, ...]:
        """Return the conversions of every parameter of a module with this config."""
        return self.conversions + self.sized(config)


def mask_of(output: str, inputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the attention mask for an output's tokens. An encoder-decoder has a mask for each side."""
    decoder = "decoder_attention_mask" in inputs and not output.startswith("encoder_")
    return inputs.get("decoder_attention_mask" if decoder else "attention_mask")


def example_rows(
    generator: np.random.Generator, length: int, vocab_size: int, *, padding: int | None, side: str = ""
) -> dict[str, np.ndarray]:
    """Return int32 [2 T] input_ids and attention_mask, named with the prefix `side`. Half of the second row is padding.

    padding: the padding id, which no other token gets; None if any id may be padding.
    """
    mask = np.arange(length) < np.array([[length], [length // 2 + 1]])
    ids = generator.integers(0, vocab_size - (padding is not None), mask.shape, np.int32)
    if padding is not None:
        ids = np.where(mask, ids + (ids >= padding), np.int32(padding))
    return {f"{side}input_ids": ids, f"{side}attention_mask": mask.astype(np.int32)}


class TensorNames(Protocol):
    """The names of the tensors in a system's checkpoints, for every class and version that writes them."""

    def canonical(self, tensors: Tensors, architecture: Architecture) -> Tensors:
        """Rename the tensors to the architecture's names. Copies of tied tensors are checked and left out."""

    def optional(self, name: str) -> bool:
        """Return true if a tensor belongs to a head of another architecture."""


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A system in the other library.

    config: class of the model's config.
    architectures: name of its class -> architecture.
    read_config: function from the content of config.json to the model's config.
    write_config: function from module and label names to the content of config.json.
    names: the names of its tensors in any checkpoint.
    example: function from the config to a random batch of the inputs of every architecture. The keys are the argument
        names of both libraries. The shapes of the parameters follow from this example.
    rows: function from the module to the template for one text or a pair; by default the config's template.
    longest: function from the config to the longest row for which both libraries compute the same, in tokens; by
        default the model's maximum.
    exported_as: module without a class in the other library -> the architecture of its reusable part.
    """

    config: type
    architectures: Mapping[str, Architecture]
    read_config: Callable[[Mapping[str, Any]], Any]
    write_config: Callable[[nn.Module, Sequence[str]], dict[str, Any]]
    names: TensorNames
    example: Callable[[Any], dict[str, np.ndarray]]
    rows: Callable[[nn.Module], Template] = lambda module: module.config.template
    longest: Callable[[Any], int | None] = lambda config: config.longest
    exported_as: Mapping[type[nn.Module], str] = dataclasses.field(default_factory=dict)

    def knows(self, module: nn.Module) -> bool:
        """Return true if an architecture computes the same as the module; false for a module with a scalar mix."""
        known = [*self.exported_as, *(architecture.module for architecture in self.architectures.values())]
        mixes = getattr(module, "mix", False)
        return type(module) in known and type(module.config) is self.config and not mixes

    def architecture(self, name: str) -> Architecture:
        """Return the architecture of that name. Raises UserError with the nearest name if there is none."""
        if name not in self.architectures:
            raise UserError(f"Expected a known architecture, found {quoted(name)}; {nearest(name, self.architectures)}")
        return self.architectures[name]

    def inputs(self, module: nn.Module) -> dict[str, np.ndarray]:
        """Return the example batch with the argument names of the module."""
        of_class = (one for one in self.architectures.values() if one.module is type(module))
        example, architecture = self.example(module.config), next(of_class, None)
        return architecture.batch(example) if architecture else example
