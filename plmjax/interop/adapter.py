"""What an adapter says of a system: its classes in another library, its config there, and an example of its inputs."""

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
    """One class of the other library and the module that computes the same.

    conversions: of every parameter of the module; there may be more.
    sized: config -> further conversions, which depend on its sizes.
    outputs: name of an output -> its name there.
    options: config.json's content -> fields of the module besides config and execution.
    parts: name -> shape of the tensors there are -> such fields that config.json does not tell.
    arguments: module -> what transformers' class must be told beside config.json to be the same.
    batch: inputs of rows of tokens -> those of the class.
    constants: config -> name of a tensor that no parameter is in, which the class saves all the same -> its numbers.
    within: the name under which modules with a head hold this one's parameters; empty for those with a head.
    tied: whether it has the word table as its output layer too.
    unties: config.json's content -> whether it has an output layer of its own after all, where systems have both.
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
    unties: Callable[[Mapping[str, Any]], bool] = lambda found: False

    def of(self, found: Mapping[str, Any]) -> Self:
        """The architecture as a checkpoint with this config.json has it."""
        return dataclasses.replace(self, tied=self.tied and not self.unties(found))

    def conversions_of(self, config: Any) -> tuple[Conversion, ...]:
        """The conversions of every parameter of a module with this config."""
        return self.conversions + self.sized(config)


def mask_of(output: str, inputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The attention mask of the tokens that an output is of: of an encoder-decoder's, those of one of its sides."""
    decoder = "decoder_attention_mask" in inputs and not output.startswith("encoder_")
    return inputs.get("decoder_attention_mask" if decoder else "attention_mask")


def example_rows(
    generator: np.random.Generator, length: int, vocab_size: int, padding: int | None, side: str = ""
) -> dict[str, np.ndarray]:
    """int32 [2 T] input_ids and attention_mask, both with `side` before their names; half of the second row is padded.

    padding: a token that stands in the filling alone; None: any token may fill a row.
    """
    mask = np.arange(length) < np.array([[length], [length // 2 + 1]])
    ids = generator.integers(0, vocab_size - (padding is not None), mask.shape, np.int32)
    if padding is not None:
        ids = np.where(mask, ids + (ids >= padding), np.int32(padding))
    return {f"{side}input_ids": ids, f"{side}attention_mask": mask.astype(np.int32)}


class TensorNames(Protocol):
    """The names of the tensors in a system's checkpoints, whichever class and version wrote them."""

    def canonical(self, tensors: Tensors, architecture: Architecture) -> Tensors:
        """The tensors, named as the architecture names them; copies of what it ties are checked and left out."""

    def optional(self, name: str) -> bool:
        """Whether a tensor is part of a head that another architecture has."""


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A system as the other library has it.

    config: class of the model's config.
    architectures: name of its class -> architecture.
    read_config: config.json's content -> the model's config.
    write_config: module, names of its labels -> config.json's content.
    names: the names of its tensors in any checkpoint.
    example: config -> a random batch of the inputs that every architecture takes, by the names of arguments that both
        libraries share. The shapes of the parameters are those that this example gives.
    rows: module -> how it reads one text or a pair; by default as its config says.
    exported_as: module without a class there -> the architecture that holds the part of it that is used afterwards.
    """

    config: type
    architectures: Mapping[str, Architecture]
    read_config: Callable[[Mapping[str, Any]], Any]
    write_config: Callable[[nn.Module, Sequence[str]], dict[str, Any]]
    names: TensorNames
    example: Callable[[Any], dict[str, np.ndarray]]
    rows: Callable[[nn.Module], Template] = lambda module: module.config.template
    exported_as: Mapping[type[nn.Module], str] = dataclasses.field(default_factory=dict)

    def knows(self, module: nn.Module) -> bool:
        """Whether one of the architectures computes what the module does; none of them reads a mix of layers."""
        known = [*self.exported_as, *(architecture.module for architecture in self.architectures.values())]
        mixes = getattr(module, "mix", False)
        return type(module) in known and type(module.config) is self.config and not mixes

    def architecture(self, name: str) -> Architecture:
        """The architecture of that name, or a UserError with the nearest one."""
        if name not in self.architectures:
            raise UserError(f"Expected a known architecture, found {quoted(name)}; {nearest(name, self.architectures)}")
        return self.architectures[name]

    def inputs(self, module: nn.Module) -> dict[str, np.ndarray]:
        """The example as the module takes it."""
        of_class = (one for one in self.architectures.values() if one.module is type(module))
        example, architecture = self.example(module.config), next(of_class, None)
        return architecture.batch(example) if architecture else example
