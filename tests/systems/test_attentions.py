"""Every model that attends returns the weights of its attention: which models these are, and what they sum.

That they equal those of transformers is a part of tests/systems/test_parity.py.
"""

import dataclasses
import functools
import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.layers.int8 import INT8_DYNAMIC, PROJECTIONS
from plmjax.layers.projection import Projection
from plmjax.models.bart.translation import BartForTranslation, BartTranslationConfig
from plmjax.models.compressed.configs import with_compression
from tests.families import FAMILIES, REPRESENTATIVES
from tests.families.encoder_decoders import WRITER_SIZES
from tests.families.family import Family
from tests.products import equations
from tests.systems.modules import boxed_shapes, random_params, taken_sides

SIDES = {
    "attentions": ("", ""),
    "query_attentions": ("", ""),
    "encoder_attentions": ("", ""),
    "decoder_attentions": ("decoder_", "decoder_"),
    "cross_attentions": ("decoder_", ""),
}
"""Name -> the sides of the queries and of the keys: what the names of their fields begin with."""
Inputs = Callable[[nn.Module], dict[str, Any]]
"""A module -> its inputs."""


def local_batch(family: Family, module: nn.Module) -> dict[str, Any]:
    """The inputs of a module without global tokens, whose values are others."""
    return {name: field for name, field in family.batch(module).items() if name != "global_attention_mask"}


TRANSLATION = BartForTranslation(BartTranslationConfig(**WRITER_SIZES, source_layers=1))
CASES = {
    f"{name}-{type(module).__name__}": (module, functools.partial(local_batch, family))
    for name, family in FAMILIES.items()
    for module in (family.checkpoints if family.adapter else [*(head.module for head in family.heads), *family.bodies])
    if not type(module).__module__.startswith("tests.")
} | {"bart-BartForTranslation": (TRANSLATION, functools.partial(local_batch, FAMILIES["bart"]))}
"""Name -> (module, inputs of it): every class of every system, and what has no row."""
BODIES = {name: f"{name}-{type(family.bodies[0]).__name__}" for name, family in FAMILIES.items()}
OWN = ("adaptive_span", "longformer_decoder", "cvt")
"""Systems with an attention of their own that are no representatives."""
DAY = {BODIES[name] for name in (*REPRESENTATIVES, *OWN)}
DAY |= {"cove-CoveForTranslation", "bert-TokenClassification", "bart-QuestionAnswering"}
# Each other traces the same layers, half a second each: pytest -m nightly tests/systems/test_attentions.py
MODULES = [pytest.param(*one, id=name, marks=() if name in DAY else pytest.mark.nightly) for name, one in CASES.items()]


def pairs(shape: tuple[int, ...], lengths: set[int]) -> bool:
    """Tell if an array has a number for each pair of tokens."""
    return sum(axis in lengths for axis in shape) > 1


def weights_in(found: Any) -> dict[str, Any]:
    """Name -> weights among the outputs of a module; of the last of several."""
    last = found[-1] if type(found) is tuple else found
    named = {name: getattr(last, name, None) for name in SIDES}
    return {name: weights for name, weights in named.items() if weights is not None}


@pytest.mark.parametrize(("module", "batch"), MODULES)
def test_whoever_weighs_pairs_of_tokens_returns_the_weights(module: nn.Module, batch: Inputs) -> None:
    """A softmax of [.. T S] is an attention, whatever its class. A model without one has no such output."""
    inputs, params = batch(module), {"params": boxed_shapes(module)}
    lengths = {field.shape[1] for name, field in inputs.items() if name.endswith("input_ids")}
    try:
        asked = functools.partial(module.apply, **inputs, output_attentions=True)
        weights = weights_in(jax.eval_shape(lambda params: asked(params), params))
        assert weights and {one.dtype for one in weights.values()} == {jnp.dtype(jnp.float32)}
    except TypeError as error:
        assert "output_attentions" in str(error)
        traced = jax.make_jaxpr(lambda params: module.apply(params, **inputs))(params)
        shapes = (one.outvars[0].aval.shape for _, one in equations(traced.jaxpr) if one.primitive.name == "exp")
        assert not any(pairs(shape, lengths) for shape in shapes)


def test_the_softmax_of_an_attention_is_found() -> None:
    """The last check above would find BERT's."""
    module, inputs = FAMILIES["bert"].bodies[0], FAMILIES["bert"].batch(FAMILIES["bert"].bodies[0])
    params = {"params": boxed_shapes(module)}
    traced = jax.make_jaxpr(lambda params: module.apply(params, **inputs))(params)
    shapes = [one.outvars[0].aval.shape for _, one in equations(traced.jaxpr) if one.primitive.name == "exp"]
    assert any(pairs(shape, {17}) for shape in shapes)
    assert weights_in(jax.eval_shape(lambda params: module.apply(params, **inputs), params)) == {}


SUMMING = ("bert", "t5", "transformer_xl", "lite_transformer_decoder", "adaptive_span", "longformer_decoder")
"""By day both sides, and attention of a kind whose weights transformers does not have: test_parity.py compares those
that it has. One to two seconds each for the others: pytest -m nightly tests/systems/test_attentions.py"""
ATTENDING = [
    pytest.param(*CASES[BODIES[name]], id=name, marks=() if name in SUMMING else pytest.mark.nightly)
    for name, family in FAMILIES.items()
    if "output_attentions" in inspect.signature(type(family.bodies[0]).__call__).parameters
    and name != "cove"  # sums what it reads itself: tests/models/cove
]
"""The model without a head of every system that attends."""
BERT = FAMILIES["bert"].bodies[0]
COMPRESSED = {
    "pruned": (with_compression(BERT.config, layer_heads=(2, 3, 1), layer_widths=(5, 7, 6)), Execution()),
    "factorized": (with_compression(BERT.config, ranks=(3, 2, 4, 5, 6, 7)), Execution()),
    "quantized": (BERT.config, Execution(projection=PROJECTIONS[INT8_DYNAMIC])),
}
ATTENDING += [
    pytest.param(
        *(config.module(Purpose.ENCODING, execution), CASES[BODIES["bert"]][1]),
        id=name,
        marks=() if name == "pruned" else pytest.mark.nightly,  # the only one whose heads are others
    )
    for name, (config, execution) in COMPRESSED.items()
]


@functools.partial(jax.jit, static_argnums=0)
def asked(module: nn.Module, params: Any, inputs: dict[str, Any]) -> dict[str, jax.Array]:
    return weights_in(module.apply({"params": params}, **inputs, output_attentions=True))


class Sums:
    """The values and the contexts of each attention while a model runs: (name of its weights, part) -> layers.

    sides: the sides of the model.
    """

    def __init__(self, sides: list[str]) -> None:
        self.sides, self.found = sides, defaultdict(list)

    def __call__(self, call: Any, given: tuple, keywords: Any, context: nn.module.InterceptorContext) -> Any:
        result, path = call(*given, **keywords), context.module.path
        parts = {"value": result, "output": given[0]} if context.method_name == "__call__" and given else {}
        if isinstance(context.module, Projection) and len(path) > 1 and "attention" in path[-2] and path[-1] in parts:
            note = functools.partial(self.note, self.name(path), path[-1])
            jax.debug.callback(note, parts[path[-1]], ordered=True)
        return result

    def name(self, path: tuple[str, ...]) -> str:
        if path[-2] == "cross_attention":
            return "cross_attentions"
        side = ("decoder_" if path[0].startswith("decoder") else "encoder_") if len(self.sides) > 1 else ""
        return f"{side}attentions"

    def note(self, name: str, part: str, array: Any) -> None:
        self.found[name, part].append(np.asarray(array))


@pytest.mark.parametrize(("module", "batch"), ATTENDING)
def test_the_weights_are_those_by_which_values_are_summed(module: nn.Module, batch: Inputs) -> None:
    """context = weights x values for every token; its weights sum to 1, and those for padding are 0."""
    inputs, sides = batch(module), taken_sides(module)
    with nn.intercept_methods(sums := Sums(sides)):
        found = jax.device_get(jax.jit(asked.__wrapped__, static_argnums=0)(module, random_params(module), inputs))
        jax.effects_barrier()
    real = {side: inputs[f"{side}attention_mask"] > 0 for side in sides}
    assert found
    for name, weights in found.items():
        queries, keys = (real[side] for side in SIDES[name])
        before = weights.shape[-1] - keys.shape[1]
        layers = zip(weights, sums.found[name, "value"], sums.found[name, "output"], strict=True)
        for one, values, context in layers:
            length = queries.shape[1]  # some pad their rows further
            heads = context.shape[2]
            values = np.repeat(values, heads // values.shape[2], axis=2)  # those that share them
            assert not one[:, heads:].any()  # those that other layers alone have
            one = one[:, :heads]
            expected = np.einsum("BNTS,BSNH->BTNH", one, values[:, : one.shape[-1]])
            there = queries[..., None, None]
            np.testing.assert_allclose(context[:, :length] * there, expected * there, rtol=1e-5, atol=1e-5)
            total = np.broadcast_to(queries[:, None], one.shape[:3])
            np.testing.assert_allclose(one.sum(-1) * total, total, rtol=1e-6, atol=1e-6)
            assert (one >= 0).all() and not (one[..., before:] * ~keys[:, None, None] * queries[:, None, :, None]).any()


# A program of half a second to two seconds each; by day one of an encoder, and of both sides.
EXECUTED = [
    pytest.param(*one.values, id=one.id, marks=() if one.id in ("bert", "t5") else pytest.mark.nightly)
    for one in ATTENDING
]


@pytest.mark.parametrize(("module", "batch"), EXECUTED)
def test_another_execution_returns_the_same_weights(module: nn.Module, batch: Inputs) -> None:
    """Layers in straight code, computed again in a backward pass, with attention block by block."""
    inputs, params = batch(module), random_params(module)
    found = asked(module, params, inputs)
    execution = dataclasses.replace(module.execution, unroll=3, attention="blockwise", remat="full")
    other = module.clone(execution=execution)
    for name, weights in asked(other, params, inputs).items():
        np.testing.assert_allclose(weights, found[name], rtol=1e-6, atol=1e-6, err_msg=name)
