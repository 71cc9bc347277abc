"""A system in bfloat16 multiplies and looks up bfloat16 numbers everywhere, but for what is named here with its reason.

The programs are traced, not compiled: a part that is made without the dtype of its model computes close by.
"""

import collections
import contextlib
import dataclasses
import functools
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Literal

from plmjax import experiment as experiments
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bart.translation import BartForTranslation, BartTranslationConfig
from plmjax.models.baselines.static_vectors import StaticVectorsConfig, StaticVectorsForSequenceClassification
from plmjax.models.cove.biattentive_classification import BiattentiveConfig, BiattentiveForSequenceClassification
from plmjax.models.cove.cove import CoveConfig
from plmjax.parallel import mesh as meshes
from plmjax.training import program as programs
from tests.families import FAMILIES, REPRESENTATIVES, STEPS
from tests.families.encoder_decoders import WRITER_SIZES
from tests.families.family import Family
from tests.products import equations
from tests.systems.modules import example

HALF = Execution(jnp.bfloat16, unroll=2)
"""An execution that differs from the default in both fields. A module that is given only the dtype differs from it."""
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


def products(jaxpr: Any) -> Iterator[tuple[str, set[str]]]:
    """The place of each product, and the dtypes of its factors."""
    for place, equation in equations(jaxpr):
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            yield place, {factor.aval.dtype.name for factor in equation.invars}


class Watch:
    """Records the settings of every module that is applied, and the arrays of it that are not bfloat16.

    found: path of a module -> what is wide. numbers: number of a module -> class and field. fields: those of settings
    that are read.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.executions: set[Execution] = set()
        self.numbers: dict[float, set[str]] = collections.defaultdict(set)
        self.fields: set[str] = set()

    def __call__(self, call: Any, inputs: Any, keywords: Any, context: nn.module.InterceptorContext) -> Any:
        module, outputs = context.module, call(*inputs, **keywords)
        fields = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
        if "execution" in fields:
            self.executions.add(module.execution)
        for field, value in fields.items():
            if isinstance(value, float):
                self.numbers[value].add(f"{type(module).__name__}.{field} at {'/'.join(module.path)}")
        if "dtype" in fields and context.method_name == "__call__":
            seen = [*inputs, outputs] if type(module).__module__.startswith("plmjax.layers.") else []
            seen = seen[:-1] if fields.get("logits") else seen
            types = {x.dtype for x in seen if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)}
            if wide := (types | {jnp.dtype(module.dtype)}) - {jnp.dtype(jnp.bfloat16)}:
                self.found["/".join(module.path)] = f"{type(module).__name__} in {wide}"
        return outputs

    @contextlib.contextmanager
    def reads(self, kind: type) -> Iterator[None]:
        """Notes the fields of settings that are read, but by what reads all of them: a copy, a comparison."""
        names = {field.name for field in dataclasses.fields(kind)}

        def read(settings: Any, name: str) -> Any:
            if name in names and sys._getframe(1).f_code.co_filename not in (dataclasses.__file__, "<string>"):
                self.fields.add(name)
            return object.__getattribute__(settings, name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "__getattribute__", read)
            yield


def strays(name: str, jaxpr: Any, watch: Watch) -> list[str]:
    """Products and modules of a system that are wide without a reason, and exponentials that are not."""
    wide = {place: f"of {factors}" for place, factors in products(jaxpr) if factors != {"bfloat16"}}
    narrow = [
        f"{place} computes {equation.primitive.name} in bfloat16"
        for place, equation in equations(jaxpr)
        if equation.primitive.name in ("exp", "log", "log1p", "rsqrt")
        and equation.invars[0].aval.dtype == jnp.bfloat16
        and "rematted_computation" not in place  # the derivative of an activation
    ]
    return narrow + [
        f"{place} {said}"
        for found, reasons in ((wide, WIDE_PRODUCTS), (watch.found, WIDE_PARTS))
        for place, said in found.items()
        if not any(re.search(pattern, place) for pattern in reasons.get(name, ()))
    ]


OF_OTHER_STEPS = {"static_seed", "length_deviation", "entities"}
"""Settings of an objective for static masks, for windows, and for an evaluation."""


# One to three seconds for each step of layers that another step has, or of a loss that another step has:
# pytest -m nightly tests/systems/test_traces.py
AS_ANOTHER = ("longformer", "transformer_xl", "lite_transformer_decoder")
"""Representatives that predict masked tokens, or the next ones, as another representative does."""
TRACED = [
    pytest.param(name, marks=() if name in by_day or name not in FAMILIES else pytest.mark.nightly)
    for by_day in [[name for name in REPRESENTATIVES if name not in AS_ANOTHER]]
    for name in STEPS
    if name not in UNTRACED
]


@pytest.mark.parametrize("name", TRACED)
def test_a_step_multiplies_bfloat16_numbers(name: str) -> None:
    """Forward and backward, the loss included, with the execution of the run and all settings of its objective."""
    make, source = STEPS[name]
    run = make()
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, dtype="bfloat16", unroll=2))
    rows, phase, watch = source(run.data), run.resolved_phases[-1], Watch()
    mesh = meshes.make(experiments.Mesh(), jax.devices()[:1])
    with watch.reads(type(run.objective)):
        program = programs.build(run, phase, mesh, vocabulary=rows.vocabulary, shapes=rows.batch)
        with nn.intercept_methods(watch):
            traced = program.train.trace(program.state, program.batch).jaxpr
    assert strays(name, traced.jaxpr, watch) == []
    assert watch.executions == {HALF}
    assert {field.name for field in dataclasses.fields(run.objective)} - watch.fields <= OF_OTHER_STEPS


MORE = {Purpose.SEQUENCE_CLASSIFICATION: (3,), Purpose.TOKEN_CLASSIFICATION: (3, False)}
"""Purpose -> arguments of its module besides config and execution."""


def modules(family: Family) -> list[nn.Module]:
    """One of each class: its heads, and what else transformers has of the system."""
    config, found = family.heads[0].module.config, [head.module for head in family.heads]
    if family.adapter:
        found += family.shared_heads
        purposes = [one for one in config.system.modules if one not in (Purpose.ENCODING, Purpose.EMBEDDING)]
        found += [config.module(purpose, Execution(), *MORE.get(purpose, ())) for purpose in purposes]
    return list({type(module): module for module in reversed(found)}.values())


def told(config: Any) -> dict[str, float]:
    """Another number for every field of a config that is one, from 0 to 1."""
    fields = [field.name for field in dataclasses.fields(config)]
    return {
        name: 0.0137 * place for place, name in enumerate(fields, start=3) if isinstance(getattr(config, name), float)
    }


@dataclasses.dataclass(frozen=True)
class Traced:
    """A module's initialization and forward pass in training, for a config of told numbers."""

    config: ModelConfig
    jaxpr: Any
    outputs: Any
    watch: Watch

    @property
    def numbers(self) -> set[float]:
        """Those of the equations, and of the modules."""
        factors = (factor for _, equation in equations(self.jaxpr) for factor in equation.invars)
        return {float(one.val) for one in factors if isinstance(one, Literal)} | self.watch.numbers.keys()


@functools.cache
def traced(name: str) -> list[Traced]:
    """All modules of a system."""
    found = []
    for module in modules(FAMILIES[name]):
        config = dataclasses.replace(module.config, **told(module.config))
        half, batch, watch = module.clone(config=config, execution=HALF), FAMILIES[name].batch(module), Watch()

        def run(key: jax.Array, half: nn.Module = half, batch: dict = batch) -> Any:
            keys = dict.fromkeys(("params", "dropout", "sampling"), key)
            return half.init_with_output(keys, **batch, deterministic=False)[0]

        with nn.intercept_methods(watch), watch.reads(type(config)):
            jaxpr, outputs = jax.make_jaxpr(run, return_shape=True)(jax.random.key(0))
        found.append(Traced(config, jaxpr.jaxpr, outputs, watch))
    return found


# A second for all modules of each system whose layers another one has: pytest -m nightly tests/systems/test_traces.py
TRACED_HEADS = (
    "bert", "t5", "nnlm", "awd_lstm", "elmo", "reformer", "xlnet", "transformer_xl", "modernbert", "modernbert_decoder",
)  # fmt: skip
"""By day a system for each kind of what may be wide: scores, states, streams, terms of distances and rotations."""
every_system = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in TRACED_HEADS else pytest.mark.nightly)
        for name in FAMILIES
        if name not in UNTRACED
    ],
)


@every_system
def test_a_head_multiplies_bfloat16_numbers(name: str) -> None:
    """Forward; its scores are float32, and its layers are unrolled as the execution says."""
    for one in traced(name):
        assert strays(name, one.jaxpr, one.watch) == []
        assert one.watch.executions == {HALF}
        leaves = jax.tree_util.tree_leaves_with_path(one.outputs)
        assert {leaf.dtype.name for path, leaf in leaves if "logits" in jax.tree_util.keystr(path)} <= {"float32"}
        if FAMILIES[name].loops:
            loops = [(place, loop) for place, loop in equations(one.jaxpr) if loop.primitive.name == "scan"]
            assert {loop.params["unroll"] for place, loop in loops if "._attend_windowed" not in place} == {HALF.unroll}


ELSEWHERE = {
    "cvt": {"attention_dropout", "parser_size"},  # by the modules of its tasks: tests/models/cvt
    "led": {"classifier_dropout"},  # BART's, which has a head for texts
    "lite_transformer": {"encoder_layers", "decoder_layers"},  # as many as there are sizes of kernels
    "lite_transformer_decoder": {"decoder_layers"},
}
"""System -> fields of its config that none of its modules here reads."""
IN_ARRAYS = {
    "modernbert": {"global_rope_theta", "local_rope_theta"},
    "modernbert_decoder": {"global_rope_theta", "local_rope_theta"},
    "eurobert": {"global_rope_theta"},
    "neobert": {"global_rope_theta"},
}
"""System -> numbers of its config that are within constant arrays, such as the wavelengths of rotations."""
OF_TEXTS = re.compile("_token_id$|^(both_orders|backwards|max_characters_per_token|vocab_size|(start|end)_n_top)$")
"""Fields that tell what texts are made of, or how answers are searched."""
TRUNCATED = 0.87962566103423978
"""Standard deviation of a normal distribution that is cut at 2: initializers divide by it."""


@every_system
def test_every_number_of_a_config_is_used(name: str) -> None:
    config = FAMILIES[name].heads[0].module.config
    found = {number for one in traced(name) for number in one.numbers}
    for field, number in told(config).items():
        near = any(math.isclose(one, each, rel_tol=1e-3) for one in found for each in (number, number / TRUNCATED))
        assert near != (field in ELSEWHERE.get(name, ()) or field in IN_ARRAYS.get(name, ())), field


@every_system
def test_every_field_of_a_config_is_read(name: str) -> None:
    config = FAMILIES[name].heads[0].module.config
    unread = {field.name for field in dataclasses.fields(config)} - {
        field for one in traced(name) for field in one.watch.fields
    }
    assert {field for field in unread if not OF_TEXTS.search(field)} == ELSEWHERE.get(name, set())


CONSTANT = {
    r"^FeedForward.dropout|/feed_forward(_\d)?/Dropout_0$": "nothing is dropped inside most networks",
    r"^LuongAttention.attention_dropout|decoder/step/attention/Dropout_0$": "weights are dropped in CVT alone",
    r"decoder/step/Dropout_1$": "a state of CoVe is dropped twice",
    r"language_model/": "the config of the language model below has them",
    r"^LongformerDecoderAttention.dropout": "no weights are dropped",
    r"^MultiHeadAttention.dropout at t5/|t5/.*probability_dropout": "T5 drops values",
    r"^Dropout.rate at Dropout_0$": "the head of XLNet's labels drops nothing",
}
"""Pattern of a module's number -> reason why no config has this number."""


@every_system
def test_modules_have_the_rates_and_epsilons_of_their_config(name: str) -> None:
    """None has that of a default; systems without an epsilon have one constant."""
    others: dict[float, set[str]] = collections.defaultdict(set)
    for one in traced(name):
        for number, places in one.watch.numbers.items():
            if number not in told(one.config).values():
                others[number] |= {place for place in places if re.match(r"\w+\.(\w*dropout|rate|epsilon) ", place)}
    epsilons = {number for number, places in others.items() if any(".epsilon" in place for place in places)}
    assert len(epsilons) <= 1
    found = {place for number in others.keys() - epsilons for place in others[number]}
    assert {place for place in found if not any(re.search(pattern, place) for pattern in CONSTANT)} == set()


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
