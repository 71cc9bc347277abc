"""Checks of numbers: steps with and without rings, a kernel and XLA, dtypes of matrix products, and dropout."""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from plmjax.layers import dropout
from plmjax.layers.attention import shifted_product
from plmjax.parallel import sharding
from plmjax.parallel.rings import are_supported, grid
from plmjax.selfcheck.ground import Ground
from plmjax.selfcheck.verdicts import DIFFERS, OK, Found, Skipped

LOSS_TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-3}
"""Dtype of the matrix products -> largest accepted relative difference of two losses."""
GRADIENT_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
"""Dtype of the matrix products -> largest accepted norm of the difference of a parameter's gradients, relative to the
norm of its gradient."""
SMALL = 1e-3
"""Fraction of the largest gradient norm below which a norm is rounding noise, as for the bias of attention's keys."""
DEVIATIONS = 6
"""Number of standard deviations within which the fraction of dropped elements must be: it is not once in 5e8 times."""
RATE = 0.1


def rings(ground: Ground) -> Found:
    """Compare the loss and the gradients of one step with rings and one without."""
    if len(ground.devices) == 1:
        raise Skipped("one device sends nothing to others")
    if grid(ground.devices) is None:
        raise Skipped(f"{len(ground.devices)} devices are not two or more rows and columns of one slice")
    if ground.platform != "cpu" and not are_supported(ground.devices):
        raise Skipped(f"no step on {ground.devices[0].device_kind} has rings unless its run asks for them")
    plain = ground.plain
    ringed = ground.step(ground.mesh, rings="on", dropout_prng="rbg")
    results = [step.run(step.state(), step.batch()) for step in (plain, ringed)]
    losses = [float(metrics["loss"]) for _, metrics in results]
    means = [optax.tree.get(state.optimizer_state, "mean") for state, _ in results]
    worst, name = largest_difference(*means)
    dtype = ground.dtype
    loss = relative(*losses)
    fits = loss <= LOSS_TOLERANCE[dtype] and worst <= GRADIENT_TOLERANCE[dtype]
    figures = {
        "loss": losses[0], "loss_with_rings": losses[1], "loss_difference": loss,
        "loss_tolerance": LOSS_TOLERANCE[dtype], "gradient_difference": worst, "parameter": name,
        "gradient_tolerance": GRADIENT_TOLERANCE[dtype], "shape": list(ringed.program.rings.shape),
    }  # fmt: skip
    return Found(
        OK if fits else DIFFERS,
        f"loss within {loss:.1e} (at most {LOSS_TOLERANCE[dtype]:.0e}), gradients within {worst:.1e} (at most "
        f"{GRADIENT_TOLERANCE[dtype]:.0e}, {dtype}), the largest that of {name}",
        figures,
    )


def relative(expected: float, found: float) -> float:
    """Return the absolute difference of two numbers relative to the first; infinite if either is not finite."""
    difference = abs(found - expected) / max(abs(expected), 1e-9)
    return difference if math.isfinite(difference) else math.inf


def largest_difference(expected: Any, found: Any) -> tuple[float, str]:
    """Return the largest relative difference of two trees of gradients, and the path of the parameter that has it."""

    @jax.jit
    def norms(expected: Any, found: Any) -> Any:
        def norm(leaf: jax.Array) -> jax.Array:
            return jnp.linalg.norm(leaf.astype(jnp.float32).reshape(-1))

        return jax.tree.map(lambda a, b: (norm(b - a), norm(a)), expected, found)

    pairs = jax.tree_util.tree_leaves_with_path(norms(expected, found), is_leaf=lambda leaf: isinstance(leaf, tuple))
    named = [(jax.tree_util.keystr(path, simple=True, separator="/"), *map(float, pair)) for path, pair in pairs]
    least = SMALL * max(norm for _, _, norm in named)
    scored = [(difference / max(norm, least), name) for name, difference, norm in named]
    return max((score if math.isfinite(score) else math.inf, name) for score, name in scored)


def products(ground: Ground) -> Found:
    """Check the dtypes of the operands of all matrix products in the step."""
    wanted = {"float32": "f32", "bfloat16": "bf16"}[ground.dtype]
    counts: dict[str, int] = {}
    for operands in dot_operands(ground.plain.lowered.as_text()):
        kind = " x ".join(sorted(operands))
        counts[kind] = counts.get(kind, 0) + 1
    right, count = counts.get(f"{wanted} x {wanted}", 0), sum(counts.values())
    told = ", ".join(f"{number} of {kind}" for kind, number in sorted(counts.items()))
    verdict = OK if count and right == count else DIFFERS
    return Found(verdict, f"{told or 'no products'}; {wanted} is expected", {"expected": wanted, "products": counts})


def dot_operands(text: str) -> list[tuple[str, str]]:
    """Return the dtypes of both operands of each `dot_general` in a StableHLO program."""
    of_tensor = r"tensor<(?:\d+x)*(\w+)>"
    return re.findall(rf"stablehlo\.dot_general.*: \({of_tensor}, {of_tensor}\)", text)


def _looked_up(rows: jax.Array, table: jax.Array, transposed: bool) -> jax.Array:
    """Return the scores that the kernel computes: the products for all distances, looked up for each query and key.

    rows: [B T N H]. table: [1 R N H] for R distances. The result is float32 [B N T T].
    """
    length = rows.shape[1]
    index = np.arange(length) - np.arange(length)[:, None] + length - 1
    found = jnp.einsum("BTNH,GRNH->BNTR", rows, table, preferred_element_type=jnp.float32)
    found = jnp.take_along_axis(found, jnp.broadcast_to(index, (*found.shape[:2], length, length)), axis=-1)
    return jnp.swapaxes(found, -1, -2) if transposed else found


def kernel(ground: Ground) -> Found:
    """Compare the kernel `shifted_product` with XLA, forward and backward, with one row on each device.

    The factors and the cotangent are small integers, so every sum is exact and the results must be equal.
    """
    interpret, count = ground.platform != "tpu", len(ground.devices)
    length, heads, size = (100, 2, 8) if ground.platform == "cpu" else (500, 12, 64)
    shapes = (count, length, heads, size), (1, 2 * length - 1, heads, size), (count, heads, length, length)

    def by_pallas(rows: jax.Array, table: jax.Array, transposed: bool) -> jax.Array:
        return shifted_product.shifted_product(rows, table, length, transposed=transposed, interpret=interpret)

    def compare(seed: jax.Array) -> list[jax.Array]:
        keys = jax.random.split(jax.random.key(seed), 3)
        numbers = [jax.random.randint(key, shape, -1, 2) for key, shape in zip(keys, shapes, strict=True)]
        (rows, table), cotangent = (x.astype(jnp.bfloat16) for x in numbers[:2]), numbers[2].astype(jnp.float32)

        def both_ways(function: Callable[..., jax.Array], transposed: bool) -> tuple[jax.Array, ...]:
            scores, back = jax.vjp(functools.partial(function, transposed=transposed), rows, table)
            return scores, *back(cotangent)

        found, expected = (
            [*both_ways(function, False), *both_ways(function, True)] for function in (by_pallas, _looked_up)
        )
        return [jnp.mean(ours != theirs) for ours, theirs in zip(found, expected, strict=True)]

    whole = jax.sharding.NamedSharding(ground.mesh, jax.sharding.PartitionSpec())
    differ = [*map(float, jax.jit(sharding.with_mesh(compare, ground.mesh), out_shardings=whole)(0))]
    forward = max(differ[0], differ[3])
    backward = max(differ[1:3] + differ[4:])
    how = "interpreted by XLA" if interpret else "compiled"
    sentence = f"forward {forward:.1%} and backward {backward:.1%} of the numbers differ ({how})"
    figures = {"forward": forward, "backward": backward, "interpreted": interpret, "shape": list(shapes[0])}
    return Found(DIFFERS if forward or backward else OK, sentence, figures)


def dropout_check(generator: str, ground: Ground) -> Found:
    """Check the fractions of elements that a generator drops on each device, and that two devices both drop."""
    count, mesh = len(ground.devices), ground.mesh
    elements = 1 << (14 if ground.platform == "cpu" else 18)
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=generator))).shape

    def draw(seed: jax.Array) -> tuple[jax.Array, ...]:
        key = jax.random.wrap_key_data(jax.random.bits(jax.random.key(seed), words, jnp.uint32), impl=generator)
        ones = jnp.ones((count * elements // 128, 128))
        y, back = jax.vjp(lambda x: dropout.apply_dropout(x, RATE, key), ones)
        zeros = (y == 0).reshape(count, -1)
        kept = jnp.where(y == 0, 0.0, jnp.abs(y - 1 / (1 - dropout.effective_rate(RATE))))
        masks = zeros.astype(jnp.float32)
        return jnp.mean(masks, axis=1), masks @ masks.T / elements, jnp.max(kept), jnp.mean(y != back(ones)[0])

    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    found = jax.jit(sharding.with_mesh(draw, mesh), out_shardings=whole)(0)
    rates, together, scale, backward = map(np.asarray, found)
    rate = dropout.effective_rate(RATE)
    bound, pair = (DEVIATIONS * math.sqrt(p * (1 - p) / elements) for p in (rate, rate**2))
    off = float(np.max(np.abs(rates - rate)))
    pairs = together[~np.eye(count, dtype=bool)]
    alike = float(np.max(np.abs(pairs - rate**2), initial=0.0))
    fits = off <= bound and alike <= pair and scale <= 1e-5 and not backward
    devices = f"{count} devices draw different masks" if count > 1 else "one device draws one mask"
    devices = devices if alike <= pair else f"two devices drop {float(np.max(pairs)):.2%} together"
    sentence = f"{np.mean(rates):.2%} of {rate:.2%} dropped, off by {off:.2%} (at most {bound:.2%}); {devices}"
    figures = {
        "rate": rate, "rates": rates.tolist(), "bound": bound, "together_off": alike, "together_bound": pair,
        "scale_off": float(scale), "backward_differs": float(backward),
    }  # fmt: skip
    return Found(OK if fits else DIFFERS, sentence, figures)
