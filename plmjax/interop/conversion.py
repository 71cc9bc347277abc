"""Conversion between parameters and the tensors of another library, in both directions.

A table of conversions lists every parameter once, with the names of its tensors and their layout. Reading and writing,
and the messages that name a tensor which is missing, unexpected or of another shape, follow from that table and from
the shapes of the module's parameters.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import chex
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.parameters import abstract_parameters
from plmjax.errors import UserError, listed
from plmjax.interop.tensors import FLOATS, Shape, Tensors


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """The layout of parameters in tensors.

    to_tensors: function from parameters to tensors. It must accept the tracers of JAX, which give the shapes of the
        tensors.
    to_parameters: function from tensors and shapes of the parameters to parameters.
    """

    to_tensors: Callable[[Sequence[Any]], Sequence[Any]]
    to_parameters: Callable[[Sequence[np.ndarray], Sequence[Shape]], Sequence[np.ndarray]]

    def tensor_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes of the tensors for parameters of these shapes."""
        parameters = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        return [tensor.shape for tensor in jax.eval_shape(self.to_tensors, parameters)]


def one_to_one(to_tensor: Callable[[Any], Any], to_parameter: Callable[[np.ndarray, Shape], np.ndarray]) -> Arrangement:
    """Return an arrangement with one parameter in each tensor.

    to_tensor: parameter -> tensor. to_parameter: tensor, shape of the parameter -> parameter.
    """
    return Arrangement(
        lambda parameters: [to_tensor(parameter) for parameter in parameters],
        lambda tensors, shapes: [to_parameter(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)],
    )


SAME = one_to_one(lambda parameter: parameter, lambda tensor, shape: tensor)
FLAT = one_to_one(lambda parameter: parameter.reshape(-1), lambda tensor, shape: tensor.reshape(shape))


def matrix(inputs: int = 1) -> Arrangement:
    """Return the arrangement of a kernel as in GPT-2's Conv1D: [inputs outputs].

    inputs: number of first axes of the kernel that the product sums over.
    """
    return one_to_one(
        lambda kernel: kernel.reshape(int(np.prod(kernel.shape[:inputs])), -1),
        lambda tensor, shape: tensor.reshape(shape),
    )


def weight(inputs: int = 1) -> Arrangement:
    """Return the arrangement of a kernel as in torch's Linear: [outputs inputs].

    inputs: number of first axes of the kernel that the product sums over.
    """
    return one_to_one(
        lambda kernel: kernel.reshape(int(np.prod(kernel.shape[:inputs])), -1).T,
        lambda tensor, shape: tensor.T.reshape(shape),
    )


def concatenate(axis: int, each: Arrangement = SAME, count: int = 1) -> Arrangement:
    """Return the arrangement that concatenates parameters along one axis of a tensor, such as GPT-2's c_attn.

    each: the arrangement of every `count` consecutive parameters in their part of the tensor.
    """

    def groups(parameters: Sequence[Any]) -> list[Sequence[Any]]:
        return [parameters[first : first + count] for first in range(0, len(parameters), count)]

    def to_tensors(parameters: Sequence[Any]) -> Sequence[Any]:
        parts = [each.to_tensors(group)[0] for group in groups(parameters)]
        return [parts[0].__array_namespace__().concat(parts, axis=axis)]

    def to_parameters(tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> Sequence[np.ndarray]:
        sizes = [each.tensor_shapes(group)[0][axis] for group in groups(shapes)]
        parts = np.split(tensors[0], np.cumsum(sizes)[:-1], axis)
        pairs = zip(parts, groups(shapes), strict=True)
        return [parameter for part, group in pairs for parameter in each.to_parameters([part], group)]

    return Arrangement(to_tensors, to_parameters)


def parts(sizes: Sequence[int], axis: int) -> Arrangement:
    """Return the arrangement that splits one parameter into consecutive tensors of these sizes along one axis."""

    def to_tensors(parameters: Sequence[Any]) -> Sequence[Any]:
        (whole,) = parameters
        return whole.__array_namespace__().split(whole, np.cumsum(sizes)[:-1].tolist(), axis)

    return Arrangement(to_tensors, lambda tensors, shapes: [np.concatenate(tensors, axis)])


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Parameters of a module and the tensors with their values; mostly one of each.

    paths: the paths of the parameters, joined by /.
    tensors: the names of the tensors. `{layer}` in them counts the first axis of parameters that are stacks of layers
        [L ...]. Any other name in braces stands for a number, the same number in all names.
    first, every: the stack has the layers first, first + every, ... This is for models with alternating layer kinds.
    """

    paths: tuple[str, ...]
    tensors: tuple[str, ...]
    arrangement: Arrangement = SAME
    first: int = 0
    every: int = 1

    def expand(self, paths: Collection[str]) -> "list[Conversion]":
        """Return one conversion for each parameter whose path matches the first path."""
        pattern = re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(self.paths[0])))
        matches = filter(None, map(pattern.fullmatch, paths))
        return [self._with_numbers(match.groupdict()) for match in matches]

    def under(self, path: str, tensor: str) -> "Conversion":
        """Return the conversion of the same parameters inside a larger module and a larger checkpoint."""
        paths, tensors = (f"{path}/{name}" for name in self.paths), (f"{tensor}.{name}" for name in self.tensors)
        return dataclasses.replace(self, paths=tuple(paths), tensors=tuple(tensors))

    @property
    def stacked(self) -> bool:
        """True if the parameters are stacks [L ...] and each tensor has one layer."""
        return any("{layer}" in name for name in self.tensors)

    def tensor_shapes(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return name -> shape of the tensors that hold these parameters.

        shapes: path -> shape of the module's parameters.
        """
        each = [shapes[path][1:] if self.stacked else shapes[path] for path in self.paths]
        arranged = self.arrangement.tensor_shapes(each)
        return {name: shape for names in self._names(shapes) for name, shape in zip(names, arranged, strict=True)}

    def read(self, tensors: Tensors, shapes: Mapping[str, Shape]) -> dict[str, np.ndarray]:
        """Return path -> float32 parameter from tensors of the right shapes. It needs memory for one additional layer.

        Raises UserError naming a tensor with a NaN, an infinity or a number too large for float32.
        """
        parameters = {path: np.empty(shapes[path], np.float32) for path in self.paths}
        stacks = [stack if self.stacked else stack[None] for stack in parameters.values()]
        for layer, names in enumerate(self._names(shapes)):
            places = [stack[layer, ...] for stack in stacks]
            read = [_finite(tensors, name) for name in names]
            found = self.arrangement.to_parameters(read, [place.shape for place in places])
            for place, parameter in zip(places, found, strict=True):
                place[...] = parameter
        return parameters

    def write(self, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return name -> tensor, in the parameters' dtype. parameters: path -> parameter."""
        own = [parameters[path] if self.stacked else parameters[path][None] for path in self.paths]
        written = {}
        for layer, names in enumerate(self._names({path: parameters[path].shape for path in self.paths})):
            arranged = self.arrangement.to_tensors([stack[layer, ...] for stack in own])
            # A parameter without axes stays an array without axes; ascontiguousarray would add an axis.
            written |= {name: np.asarray(one, order="C") for name, one in zip(names, arranged, strict=True)}
        return written

    def _with_numbers(self, numbers: Mapping[str, str]) -> "Conversion":
        def filled(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(re.sub(r"\{(\w+)\}", lambda found: numbers.get(found[1], found[0]), name) for name in names)

        return dataclasses.replace(self, paths=filled(self.paths), tensors=filled(self.tensors))

    def _names(self, shapes: Mapping[str, Shape]) -> list[tuple[str, ...]]:
        """Return the names of the tensors, layer by layer."""
        length = shapes[self.paths[0]][0] if self.stacked else 1
        layers = range(self.first, self.first + length * self.every, self.every)
        return [tuple(name.format(layer=layer) for name in self.tensors) for layer in layers]


def parameter(path: str, tensor: str, arrangement: Arrangement = SAME) -> Conversion:
    """Return the conversion of one parameter in one tensor."""
    return Conversion((path,), (tensor,), arrangement)


def parameter_shapes(module: nn.Module, example: Mapping[str, Any]) -> dict[str, Shape]:
    """Return a dict from path, joined by /, to the shape of each parameter of the module; nothing is computed.

    example: keyword arguments of the module's `__call__`, arrays or trees of arrays, without `deterministic`.
    """
    shapes = flax.traverse_util.flatten_dict(nn.meta.unbox(abstract_parameters(module, example)), sep="/")
    return {path: shape.shape for path, shape in shapes.items()}


def read_parameters(
    module: nn.Module,
    example: Mapping[str, Any],
    conversions: Sequence[Conversion],
    *,
    tensors: Tensors,
    optional: Callable[[str], bool] = lambda name: False,
) -> tuple[dict[str, Any], list[str]]:
    """Read the module's parameters from a checkpoint's tensors.

    Args:
        example: inputs of the module, as for `parameter_shapes`.
        conversions: the conversions of every parameter. The table may have more.
        optional: function from the name of a tensor to true if it may be unused.

    Returns:
        the parameters, a tree of numpy float32 arrays, and the names of the unused tensors.

    Raises:
        UserError: tensors are missing, unexpected, of another shape or of another type than `FLOATS`. It names them.
        LookupError: the table lacks a parameter.
    """
    shapes = parameter_shapes(module, example)
    used = _select(module, conversions, shapes)
    layers = max((shapes[one.paths[0]][0] for one in used if one.stacked), default=0)
    if layers > len(tensors.shapes):
        raise UserError(
            f"Expected the tensors of {layers} layers in {tensors.origin}, as its config describes them, found "
            f"{len(tensors.shapes)} tensors in all; check the config."
        )
    expected = {name: shape for one in used for name, shape in one.tensor_shapes(shapes).items()}
    both = sorted(expected.keys() & tensors.shapes.keys())
    if quantized := [name for name in both if tensors.dtypes[name] not in FLOATS]:
        details = [f"{name} of {tensors.dtypes[name]}" for name in quantized]
        raise UserError(
            f"Expected tensors of {', '.join(FLOATS)} in {tensors.origin}, found {_list(details)}; turn a quantized "
            "checkpoint back into floats (dequantize) and save it again."
        )
    problems = []
    if missing := sorted(expected.keys() - tensors.shapes.keys()):
        problems.append(f"{_list(missing)} missing")
    left_over = sorted(tensors.shapes.keys() - expected.keys())
    if unexpected := [name for name in left_over if not optional(name)]:
        problems.append(f"{_list(unexpected)} that the model has no parameter for")
    if misshaped := [name for name in both if tuple(tensors.shapes[name]) != expected[name]]:
        details = [f"{name} {list(tensors.shapes[name])} instead of {list(expected[name])}" for name in misshaped]
        problems.append(_list(details))
    if problems:
        raise UserError(
            f"Expected the tensors of {type(module).__name__} in {tensors.origin}, as its config describes it, found "
            f"{' and '.join(problems)}; check the config or choose another architecture."
        )
    leaves = {path: leaf for one in used for path, leaf in one.read(tensors, shapes).items()}
    return flax.traverse_util.unflatten_dict(leaves, sep="/"), left_over


def write_tensors(
    module: nn.Module, example: Mapping[str, Any], conversions: Sequence[Conversion], params: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return name -> float32 tensor of the module's parameters. `params` may hold more than the module needs.

    example, conversions: as for `read_parameters`. Raises UserError naming every parameter that is missing or of
    another shape.
    """
    leaves = flax.traverse_util.flatten_dict(nn.meta.unbox(params), sep="/")
    shapes = parameter_shapes(module, example)
    if missing := sorted(shapes.keys() - leaves.keys()):
        raise UserError(
            f"Expected the parameters of {type(module).__name__}, found {_list(missing)} missing; export another "
            "architecture."
        )
    if misshaped := [path for path in sorted(shapes) if leaves[path].shape != shapes[path]]:
        details = [f"{path} {list(leaves[path].shape)} instead of {list(shapes[path])}" for path in misshaped]
        raise UserError(
            f"Expected the parameters of {type(module).__name__} as its config describes it, found {_list(details)}; "
            "give the model that they belong to."
        )
    tensors: dict[str, np.ndarray] = {}
    for one in _select(module, conversions, shapes):
        tensors |= one.write({path: np.asarray(leaves[path], np.float32) for path in one.paths})
    return tensors


def _select(module: nn.Module, conversions: Sequence[Conversion], shapes: Mapping[str, Shape]) -> list[Conversion]:
    """Return the conversions of the module's parameters. Raises LookupError if the table lacks a parameter."""
    used = {one.paths: one for conversion in conversions for one in conversion.expand(shapes)}
    converted = {path for paths in used for path in paths}
    if converted != shapes.keys():
        raise LookupError(
            f"Expected a conversion of every parameter of {type(module).__name__} and of no other, found a difference "
            f"at {_list(sorted(converted ^ shapes.keys()))}; correct the table of its adapter."
        )
    return list(used.values())


def _finite(tensors: Tensors, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        tensor = np.asarray(tensors.read(name)).astype(np.float32, copy=False)
    chex.assert_shape(tensor, tensors.shapes[name])  # a tensor of another shape would be broadcast into the parameter
    if not np.isfinite(tensor).all():
        raise UserError(
            f"Expected finite float32 numbers in {name} of {tensors.origin}, found others; take another checkpoint."
        )
    return tensor


def _list(names: list[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return listed(names[:limit]) + more
