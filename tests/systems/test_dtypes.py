"""A system in bfloat16 multiplies and looks up bfloat16 numbers everywhere, but for what is named here with its reason.

The programs are traced, not compiled: a part that is made without the dtype of its model computes close by.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from plmjax import experiment as experiments
from plmjax.contracts.execution import Execution
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bart.translation import BartForTranslation, BartTranslationConfig
from plmjax.models.baselines.static_vectors import StaticVectorsConfig, StaticVectorsForSequenceClassification
from plmjax.models.cove.biattentive_classification import BiattentiveConfig, BiattentiveForSequenceClassification
from plmjax.models.cove.cove import CoveConfig
from plmjax.parallel import mesh as meshes
from plmjax.training import phases
from plmjax.training import program as programs
from tests.families import FAMILIES, STEPS
from tests.families.encoder_decoders import WRITER_SIZES
from tests.systems.modules import boxed_shapes, example

HALF = Execution(jnp.bfloat16, unroll=2)
"""What no module has by default, nor one that is given the dtype alone."""
UNTRACED = ("word2vec", "glove", "hierarchical_softmax", "recurrent", "ib_bert")
"""Word vectors, which are float32 and have no execution, a stranger, and a teacher made of the parts of its student."""
WIDE_PRODUCTS = {
    "t5": {r"relative_positions/": "terms of the scores, looked up by a product"},
    "taglm": {r"/scalar_mix_": "the mean of layers"},
    "ulmfit": {r"BKT,BTE->BKE": "the means of the states of texts"},
    "static": {r"BKT,BTD->BKD": "the means of the vectors of texts"},
}
"""System -> pattern of the places of products of float32 numbers -> what they compute."""
WIDE_PARTS = {
    "nnlm": {r"(output|direct)$": "tables of the scores, which are rounded there"},
    "ulmfit": {r"classifier/(hidden|output)$": "parts of a head that normalizes over the batch"},
    "biattentive": {r"classifier/maxout_\d$": "the same"},
    "static": {r"classifier$": "a head of those means"},
    "gpt": {r"table$": "rows that are dropped before they are looked up"},
    "reformer": {r"embeddings$|norm$": "the streams between its layers, which are computed backwards"},
}
"""System -> pattern of the paths of modules that take or give float32 numbers -> what they are."""


def equations(jaxpr: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every equation with its place, by modules and methods; those of loops and branches too."""
    for equation in jaxpr.eqns:
        here = f"{place}/{equation.source_info.name_stack}"
        yield here, equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner, here)


def products(jaxpr: Any) -> Iterator[tuple[str, set[str]]]:
    """The place of each product, and the dtypes of its factors."""
    for place, equation in equations(jaxpr):
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            yield place, {factor.aval.dtype.name for factor in equation.invars}


class Watch:
    """What the modules that are applied read and write besides bfloat16, and their executions.

    found: path of a module -> what is wide.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.executions: set[Execution] = set()

    def __call__(self, call: Any, inputs: Any, keywords: Any, context: nn.module.InterceptorContext) -> Any:
        module, outputs = context.module, call(*inputs, **keywords)
        fields = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
        if "execution" in fields:
            self.executions.add(module.execution)
        if "dtype" in fields and context.method_name == "__call__":
            seen = [*inputs, outputs] if type(module).__module__.startswith("plmjax.layers.") else []
            seen = seen[:-1] if fields.get("logits") else seen
            types = {x.dtype for x in seen if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)}
            if wide := (types | {jnp.dtype(module.dtype)}) - {jnp.dtype(jnp.bfloat16)}:
                self.found["/".join(module.path)] = f"{type(module).__name__} in {wide}"
        return outputs


def strays(name: str, jaxpr: Any, watch: Watch) -> list[str]:
    """Products and modules of a system that are wide without a reason."""
    wide = {place: f"of {factors}" for place, factors in products(jaxpr) if factors != {"bfloat16"}}
    return [
        f"{place} {said}"
        for found, reasons in ((wide, WIDE_PRODUCTS), (watch.found, WIDE_PARTS))
        for place, said in found.items()
        if not any(re.search(pattern, place) for pattern in reasons.get(name, ()))
    ]


@pytest.mark.parametrize("name", [name for name in STEPS if name not in UNTRACED])
def test_a_step_multiplies_bfloat16_numbers(name: str) -> None:
    """Forward and backward, the loss included, with the execution of the run in every part of the model."""
    make, source = STEPS[name]
    run = make()
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, dtype="bfloat16", unroll=2))
    rows, phase, watch = source(run.data), phases.resolve(run)[-1], Watch()
    mesh = meshes.make(experiments.Mesh(), jax.devices()[:1])
    program = programs.build(run, phase, mesh, rows.vocabulary, rows.batch)
    with nn.intercept_methods(watch):
        traced = program.train.trace(program.state, program.batch).jaxpr
    assert strays(name, traced.jaxpr, watch) == []
    assert watch.executions == {HALF}


HEADS = [
    pytest.param(name, module, id=f"{name}-{type(module).__name__}")
    for name, family in FAMILIES.items()
    for module in [*(head.module for head in family.heads), *(family.shared_heads if family.adapter else ())]
    if name not in UNTRACED
]


@pytest.mark.parametrize(("name", "module"), HEADS)
def test_a_head_multiplies_bfloat16_numbers(name: str, module: nn.Module) -> None:
    """Forward; its scores are float32, and its layers are unrolled as the execution says."""
    half, family, watch = module.clone(execution=HALF), FAMILIES[name], Watch()
    params, batch = nn.meta.unbox(boxed_shapes(module)), family.batch(module)
    with nn.intercept_methods(watch):
        trace = jax.make_jaxpr(lambda params: half.apply({"params": params}, **batch), return_shape=True)
        traced, outputs = trace(params)
    assert strays(name, traced.jaxpr, watch) == []
    assert watch.executions == {HALF}
    leaves = jax.tree_util.tree_leaves_with_path(outputs)
    assert {leaf.dtype.name for path, leaf in leaves if "logits" in jax.tree_util.keystr(path)} <= {"float32"}
    if family.loops:
        loops = [(place, one) for place, one in equations(traced.jaxpr) if one.primitive.name == "scan"]
        assert {one.params["unroll"] for place, one in loops if "._windowed" not in place} == {HALF.unroll}


WITHOUT_A_STEP = {
    "biattentive": BiattentiveForSequenceClassification(BiattentiveConfig(CoveConfig(vocab_size=9, num_layers=1))),
    "static": StaticVectorsForSequenceClassification(StaticVectorsConfig(vocab_size=9)),
    "translation": BartForTranslation(BartTranslationConfig.before(BartConfig(**WRITER_SIZES), 2)),
}
"""Modules of other systems, which are fine-tuned alone."""


@pytest.mark.parametrize("name", WITHOUT_A_STEP)
def test_a_module_without_a_step_multiplies_bfloat16_numbers(name: str) -> None:
    """Forward and backward."""
    module = WITHOUT_A_STEP[name].clone(execution=HALF)
    batch, watch = example(module, 4), Watch()
    variables = nn.meta.unbox(jax.eval_shape(lambda: module.init(jax.random.key(0), **batch)))

    def loss(variables: Any) -> jax.Array:
        outputs = module.apply(variables, **batch)
        scores = outputs.logits if outputs.logits is not None else outputs.scores.logits()
        assert scores.dtype == jnp.float32
        return jnp.sum(jnp.sin(scores))

    with nn.intercept_methods(watch):
        traced = jax.make_jaxpr(jax.grad(loss))(variables)
    assert strays(name, traced.jaxpr, watch) == []
    assert watch.executions == {HALF}
