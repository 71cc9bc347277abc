"""Parameters and outputs of a module for tests: shapes, initial values, values far from those, outputs."""

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.layers.dropout import Dropout


def taken_sides(module: nn.Module) -> list[str]:
    """The prefixes of the names of the inputs of each side: of a decoder beside an encoder, with decoder_."""
    taken = inspect.signature(type(module).__call__).parameters
    of_words = {"": {"input_ids", "characters"}, "decoder_": {"decoder_input_ids"}}
    return [side for side, names in of_words.items() if names & taken.keys()]


IDS = ("input_ids", "decoder_input_ids", "output_ids", "context_ids")
"""Inputs that are numbers of words, int [B T]."""


def takes(module: nn.Module, name: str) -> bool:
    """Tell if the module has an input of this name."""
    taken = inspect.signature(type(module).__call__).parameters
    return name in taken or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())


def example(module: nn.Module, length: int) -> dict[str, jax.Array]:
    """One row of zeros for every input that is a word's number or its spelling."""
    taken, shapes = inspect.signature(type(module).__call__).parameters, dict.fromkeys(IDS, (1, length))
    if "characters" in taken and "characters" in module.config.system.reads:
        shapes["characters"] = (1, length, module.config.max_characters_per_token)
    return {name: jnp.zeros(shape, jnp.int32) for name, shape in shapes.items() if name in taken}


@functools.cache
def boxed_shapes(module: nn.Module, length: int = 4) -> Any:
    """The module's parameters as shapes with their logical axes; computes nothing."""
    init = lambda key: module.init(key, **example(module, length))  # noqa: E731
    return jax.eval_shape(init, jax.random.key(0))["params"]


def count(module: nn.Module, paths: str = "") -> int:
    """Parameters of a module, computing none; those alone whose paths match a pattern."""
    shapes = flax.traverse_util.flatten_dict(nn.meta.unbox(boxed_shapes(module, 8)), sep="/")
    return sum(leaf.size for path, leaf in shapes.items() if re.search(paths, path))


def random_params(module: nn.Module, seed: int = 0, deviation: float = 0.15) -> Any:
    """Parameters far from their initial values, biases included; no program is compiled for them."""
    return drawn(boxed_shapes(module), seed, deviation)


def drawn(boxed: Any, seed: int = 0, deviation: float = 0.15) -> Any:
    """Random values of these shapes, around 1 for scales and around 0 for all else."""
    random = np.random.default_rng(seed)
    shapes = flax.traverse_util.flatten_dict(nn.meta.unbox(boxed))
    leaves = {
        path: (path[-1] == "scale") + deviation * random.standard_normal(leaf.shape, np.float32)
        for path, leaf in shapes.items()
    }
    return flax.traverse_util.unflatten_dict(leaves)


@functools.cache
def initial_params(module: nn.Module) -> Any:
    """The module's own initial values."""
    return nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), **example(module, 4)))["params"]


@functools.partial(jax.jit, static_argnums=0)
def outputs(module: nn.Module, params: Any, batch: dict[str, Any]) -> Any:
    """The module's outputs for a batch, without dropout."""
    return module.apply({"params": params}, **batch)


@functools.partial(jax.jit, static_argnums=0)
def dropped(module: nn.Module, params: Any, batch: dict[str, Any], seed: int = 0) -> Any:
    """The module's outputs for a batch, with dropout."""
    return module.apply({"params": params}, **batch, deterministic=False, rngs={"dropout": jax.random.key(seed)})


@dataclasses.dataclass(frozen=True)
class Draw:
    """One draw of dropout.

    path: of the module that draws.
    shape: of what is dropped; None where a key alone is drawn.
    """

    path: tuple[str, ...]
    rate: float
    shape: tuple[int, ...] | None


@contextlib.contextmanager
def recorded_draws() -> Iterator[list[Draw]]:
    """The draws of dropout of all modules that are applied or traced within, in their order."""
    found: list[Draw] = []
    given: list[jax.Array] = []

    def intercepted(method: Any, inputs: Any, keywords: Any, context: nn.module.InterceptorContext) -> Any:
        if not isinstance(context.module, Dropout):
            return method(*inputs, **keywords)
        if context.method_name == "__call__":
            given.append(inputs[0])
            output = method(*inputs, **keywords)
            given.pop()
            return output
        key = method(*inputs, **keywords)
        if key is not None:
            found.append(Draw(context.module.path, context.module.rate, given[-1].shape if given else None))
        return key

    with nn.intercept_methods(intercepted):
        yield found
