"""A program's equations, and the FLOPs of its products: closed forms are compared with them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
from jax.extend.core import jaxprs_in_params


def equations(jaxpr: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every equation with its place, by modules and methods; those of loops and branches too."""
    for equation in jaxpr.eqns:
        here = f"{place}/{equation.source_info.name_stack}"
        yield here, equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner, here)


def flops(function: Callable, *arguments: Any) -> float:
    """FLOPs of the products and convolutions of a function of arrays or of their shapes; computes nothing.

    Products whose results are not used are left out: flax traces a layer that is repeated once more.
    """
    return _flops(_used(jax.make_jaxpr(function)(*arguments).jaxpr))


def gradient_flops(function: Callable, *arguments: Any) -> float:
    """FLOPs of the products of the gradient of a function, without those whose results are not used.

    The backward pass of `float32_product` writes its product down once more; a compiler removes it. Within a loop it is
    still counted.
    """
    return _flops(_used(jax.make_jaxpr(jax.grad(function))(*arguments).jaxpr))


def step_flops(module: nn.Module, scores: Callable[[Any], Any] = lambda outputs: outputs, /, **inputs: Any) -> float:
    """FLOPs of a training step of a module: of its forward pass, and twice as many of the backward pass.

    scores: what is computed of the outputs, where they hold scores that are products only when somebody asks for them.
    """
    variables = jax.eval_shape(lambda: module.init(jax.random.key(0), **inputs))
    return 3 * flops(lambda variables: scores(module.apply(variables, **inputs)), variables)


def _used(jaxpr: Any) -> Any:
    """The program without the equations of its first level whose results are not used."""
    used, kept = set(map(id, jaxpr.outvars)), []
    for equation in reversed(jaxpr.eqns):
        if used & set(map(id, equation.outvars)):
            used |= set(map(id, equation.invars))
            kept.append(equation)
    return jaxpr.replace(eqns=kept[::-1])


def _flops(jaxpr: Any) -> float:
    """Those of loops as often as they run, one branch of several."""
    total = 0.0
    for equation in jaxpr.eqns:
        name, numbers = equation.primitive.name, equation.params.get("dimension_numbers")
        if name == "dot_general":
            left = equation.invars[0].aval.shape
            total += 2.0 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in numbers[0][0])
        if name == "conv_general_dilated":
            assert not any(map(any, equation.params["padding"])), "what is multiplied with padding is no product"
            kernel = equation.invars[1].aval.shape
            total += 2.0 * equation.outvars[0].aval.size * math.prod(kernel) / kernel[numbers.rhs_spec[0]]
        inner = [_flops(jaxpr) for jaxpr in jaxprs_in_params(equation.params)]
        assert name != "while" or not any(inner), "nobody knows how often this loop runs"
        times = equation.params["length"] if name == "scan" else 1
        total += max(inner) if name == "cond" else times * sum(inner)
    return total
