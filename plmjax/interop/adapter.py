"""What an adapter says of a system, and how parameters travel between our tree and another library's tensors.

An adapter lists every parameter once, with the name of its tensor and how its numbers are arranged there. Reading,
writing, and naming whatever is missing, unexpected or of another shape follow from that list and from the shapes of the
module's own parameters.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError, nearest, quoted
from plmjax.objectives.objective import Objective

Shape = tuple[int, ...]
FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types whose numbers are the parameters themselves; those of fewer bits stand for them by scales kept elsewhere."""


@dataclasses.dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint, read one at a time.

    origin: the file or folder, for messages. shapes: name -> shape. dtypes: name -> "float32", "int8", ...
    read: name -> array, of any float type.
    """

    origin: str
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    read: Callable[[str], np.ndarray]

    def renamed(self, names: Mapping[str, str]) -> "Tensors":
        """The tensors whose name now is a value of `names`, under its key."""
        shapes, dtypes = ({new: known[old] for new, old in names.items()} for known in (self.shapes, self.dtypes))
        return Tensors(self.origin, shapes, dtypes, lambda name: self.read(names[name]))


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """How a parameter's numbers lie in its tensor.

    to_tensor: parameter -> tensor. to_parameter: tensor, shape of the parameter -> parameter.
    """

    to_tensor: Callable[[Any], Any]
    to_parameter: Callable[[np.ndarray, Shape], np.ndarray]


SAME = Arrangement(lambda parameter: parameter, lambda tensor, shape: tensor)
FLAT = Arrangement(lambda parameter: parameter.reshape(-1), lambda tensor, shape: tensor.reshape(shape))


def weight(inputs: int = 1) -> Arrangement:
    """A kernel whose first `inputs` axes are summed over, as torch's Linear keeps it: [outputs inputs]."""

    def to_tensor(kernel: Any) -> Any:
        return kernel.reshape(int(np.prod(kernel.shape[:inputs])), -1).T

    return Arrangement(to_tensor, lambda tensor, shape: tensor.T.reshape(shape))


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter and its tensor: `path` is joined by /, `{layer}` in `tensor` counts the first axis of a stack.

    Any other name in braces stands for a number, the same one in `path` and in `tensor`.
    """

    path: str
    tensor: str
    arrangement: Arrangement = SAME

    def among(self, paths: Iterable[str]) -> "list[Parameter]":
        """The parameter itself for each of the paths that it stands for."""
        pattern = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(self.path)))
        found = []
        for path in paths:
            if match := pattern.fullmatch(path):
                tensor = re.sub(
                    r"\{(\w+)\}", lambda name, match=match: match.groupdict().get(name[1], name[0]), self.tensor
                )
                found.append(dataclasses.replace(self, path=path, tensor=tensor))
        return found

    @property
    def stacked(self) -> bool:
        """Whether the parameter is a stack [L ...] of one tensor per layer."""
        return "{layer}" in self.tensor

    def tensors(self, shape: Shape) -> dict[str, Shape]:
        """Name -> shape of the tensors that hold a parameter of this shape."""
        each = jax.ShapeDtypeStruct(shape[1:] if self.stacked else shape, jnp.float32)
        arranged = jax.eval_shape(self.arrangement.to_tensor, each).shape
        return {name: arranged for name in self._names(shape)}

    def read(self, tensors: Tensors, shape: Shape) -> np.ndarray:
        """The parameter, float32, from tensors of the right shapes; one tensor at a time is held beside it.

        Raises UserError naming a tensor with a number that is none, is infinite or is too large.
        """
        parameter = np.empty(shape, np.float32)
        each = parameter if self.stacked else parameter[None]
        for place, name in zip(each, self._names(shape), strict=True):
            with np.errstate(over="ignore"):
                place[...] = self.arrangement.to_parameter(tensors.read(name), place.shape)
            if not np.isfinite(place).all():
                raise UserError(
                    f"The tensors of {tensors.origin} must hold finite float32 numbers, but {name} has others; take "
                    "another checkpoint."
                )
        return parameter

    def write(self, parameter: np.ndarray) -> dict[str, np.ndarray]:
        """Name -> tensor, in the parameter's dtype."""
        each = parameter if self.stacked else parameter[None]
        arranged = (np.ascontiguousarray(self.arrangement.to_tensor(one)) for one in each)
        return dict(zip(self._names(parameter.shape), arranged, strict=True))

    def _names(self, shape: Shape) -> list[str]:
        return [self.tensor.format(layer=layer) for layer in range(shape[0])] if self.stacked else [self.tensor]


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One class of the other library and the module it stands for.

    parameters: every parameter of the module; it may list more.
    outputs: name of an output -> its name there.
    options: config.json's content -> fields of the module besides config and execution.
    parts: name -> shape of the tensors there are -> such fields that config.json does not tell.
    arguments: module -> what transformers' class must be told beside config.json to be the same.
    batch: inputs of rows of tokens -> those of the class.
    within: the name under which modules with a head hold this one's parameters; empty for those with a head.
    tied: whether it has the word table as its output layer too.
    """

    module: type[nn.Module]
    parameters: tuple[Parameter, ...]
    outputs: Mapping[str, str]
    options: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda found: {}
    parts: Callable[[Mapping[str, Shape]], dict[str, Any]] = lambda shapes: {}
    arguments: Callable[[nn.Module], dict[str, Any]] = lambda module: {}
    batch: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = lambda rows: rows
    within: str = ""
    tied: bool = False


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A system as the other library has it.

    config: class of the model's config.
    architectures: name of its class -> architecture.
    read_config: config.json's content -> the model's config.
    write_config: module, names of its labels -> config.json's content.
    task: module, names of its labels -> objective and data of an experiment that trains it.
    canonical: the tensors of any checkpoint of the system, named as the architecture names them, copies of tensors that
        it ties checked and left out.
    optional: whether a tensor is part of a head that another architecture has.
    example: a random batch for a config, integer arrays by the names of arguments that both libraries share.
    wholes: module without a class there -> the architecture that holds what is worth most of it.
    """

    config: type
    architectures: Mapping[str, Architecture]
    read_config: Callable[[Mapping[str, Any]], Any]
    write_config: Callable[[nn.Module, Sequence[str]], dict[str, Any]]
    task: Callable[[nn.Module, Sequence[str]], tuple[Objective, Any]]
    canonical: Callable[[Tensors, Architecture], Tensors]
    optional: Callable[[str], bool]
    example: Callable[[Any], dict[str, np.ndarray]]
    wholes: Mapping[type[nn.Module], str] = dataclasses.field(default_factory=dict)

    def knows(self, module: nn.Module) -> bool:
        """Whether one of the architectures stands for the module; none reads a mix of layers."""
        known = [*self.wholes, *(architecture.module for architecture in self.architectures.values())]
        mixes = getattr(module, "mix", False)
        return type(module) in known and type(module.config) is self.config and not mixes

    def architecture(self, name: str) -> Architecture:
        """The architecture of that name, or a UserError with the nearest one."""
        if name not in self.architectures:
            raise UserError(f"There is no architecture {quoted(name)}; {nearest(name, self.architectures)}")
        return self.architectures[name]


def parameter_shapes(module: nn.Module) -> dict[str, Shape]:
    """Path joined by / -> shape of every parameter of the module; computes nothing."""
    token = jnp.zeros((1, 1), jnp.int32)
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), token, deterministic=True))
    leaves = flax.traverse_util.flatten_dict(nn.meta.unbox(variables)["params"], sep="/")
    return {path: leaf.shape for path, leaf in leaves.items()}


def read_parameters(
    module: nn.Module, parameters: tuple[Parameter, ...], tensors: Tensors, optional: Callable[[str], bool]
) -> tuple[dict[str, Any], list[str]]:
    """The module's parameter tree, numpy float32, from a checkpoint's tensors; and the names of those left over.

    Only a name that is `optional` may be left over. Raises UserError naming every missing, unexpected or mis-shaped
    tensor, and every one of another type than `FLOATS`.
    """
    shapes = parameter_shapes(module)
    known = {found.path: found for parameter in parameters for found in parameter.among(shapes)}
    layers = max((shape[0] for path, shape in shapes.items() if known[path].stacked), default=0)
    if layers > len(tensors.shapes):
        raise UserError(
            f"The config describes {layers} layers, but {tensors.origin} holds {len(tensors.shapes)} tensors in all; "
            "check config.json."
        )
    expected = {name: shape for path in shapes for name, shape in known[path].tensors(shapes[path]).items()}
    both = sorted(expected.keys() & tensors.shapes.keys())
    if quantized := [name for name in both if tensors.dtypes[name] not in FLOATS]:
        details = [f"{name} as {tensors.dtypes[name]}" for name in quantized]
        raise UserError(
            f"The tensors of {tensors.origin} must be of {', '.join(FLOATS)}, but it holds {_listed(details)}; turn a "
            "quantized checkpoint back into floats (dequantize) and save it again."
        )
    problems = []
    if missing := sorted(expected.keys() - tensors.shapes.keys()):
        problems.append(f"misses {_listed(missing)}")
    left_over = sorted(tensors.shapes.keys() - expected.keys())
    if unexpected := [name for name in left_over if not optional(name)]:
        problems.append(f"holds {_listed(unexpected)} that the model has no place for")
    if misshaped := [name for name in both if tuple(tensors.shapes[name]) != expected[name]]:
        details = [f"{name} {list(tensors.shapes[name])} instead of {list(expected[name])}" for name in misshaped]
        problems.append(f"holds {_listed(details)}")
    if problems:
        raise UserError(
            f"The tensors of {tensors.origin} do not fit {type(module).__name__} as its config describes it: it "
            f"{' and '.join(problems)}; check config.json or choose another architecture."
        )
    leaves = {path: known[path].read(tensors, shape) for path, shape in shapes.items()}
    return flax.traverse_util.unflatten_dict(leaves, sep="/"), left_over


def write_tensors(
    module: nn.Module, parameters: tuple[Parameter, ...], params: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Name -> float32 tensor of the module's parameters; `params` may hold more than the module asks for.

    Raises UserError naming every parameter that is missing or of another shape.
    """
    leaves = flax.traverse_util.flatten_dict(nn.meta.unbox(params), sep="/")
    shapes = parameter_shapes(module)
    if missing := sorted(shapes.keys() - leaves.keys()):
        raise UserError(
            f"{type(module).__name__} needs {_listed(missing)}, which these parameters do not hold; export another "
            "architecture."
        )
    if misshaped := [path for path in sorted(shapes) if leaves[path].shape != shapes[path]]:
        details = [f"{path} {list(leaves[path].shape)} instead of {list(shapes[path])}" for path in misshaped]
        raise UserError(f"The parameters are of a model of another size: {_listed(details)}; give the model they fit.")
    tensors: dict[str, np.ndarray] = {}
    for parameter in parameters:
        for found in parameter.among(shapes):
            tensors |= found.write(np.asarray(leaves[found.path], np.float32))
    return tensors


def _listed(names: list[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
