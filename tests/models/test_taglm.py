"""The dropouts of taggers with and without language models, and their products; tests/families has their row."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.interop.conversion import parameter_shapes
from plmjax.layers.words.characters import PADDING, sentence_marks, spell
from plmjax.models.elmo import ElmoModel
from plmjax.models.families.task_heads import TokenClassification
from plmjax.models.taggers.elmo_tagger import ElmoTaggerConfig
from plmjax.models.taggers.tagger import TaggerConfig, Words
from plmjax.models.taglm import TaglmConfig
from tests.families.taggers import LANGUAGE_MODEL, TAGGER_SIZES
from tests.products import step_flops
from tests.systems.modules import recorded_draws

ELMO = dataclasses.replace(LANGUAGE_MODEL, dropout=0.1)
SIZES = TAGGER_SIZES | {"vocab_size": 11}
LENGTH = ELMO.max_characters_per_token
CONFIGS = {
    "tagger": TaggerConfig(**SIZES),
    "taglm": TaglmConfig(**SIZES, language_model=ELMO),
    "elmo_tagger": ElmoTaggerConfig(**SIZES, language_model=ELMO),
    "gru": TaggerConfig.named_entities(**SIZES | {"filter_width": 0}),
}
HELPED = ("taglm", "elmo_tagger")
"""Those with language models."""
SENTENCES = [["the", "extraordinary", "é", "a"], ["cats"], ["a", "cats", "b"]]
SPELLED = [
    np.concatenate([sentence_marks(LENGTH)[:1], spell(words, LENGTH), sentence_marks(LENGTH)[1:]])
    for words in SENTENCES
]
IDS = [np.random.default_rng(1).integers(0, 11, len(characters)) for characters in SPELLED]


def drawn(config: TaggerConfig) -> dict[str, np.ndarray]:
    """Parameters by path, far from their initial values."""
    random, shapes = (
        np.random.default_rng(0),
        parameter_shapes(config.module(Purpose.ENCODING, Execution()), rows([[1]], 3)),
    )
    return {path: 0.5 * random.standard_normal(shape, np.float32) for path, shape in shapes.items()}


def rows(layout: list[list[int]], length: int) -> dict[str, jax.Array]:
    """Sentences packed into rows."""
    ids, segments = np.zeros((2, len(layout), length), np.int32)
    characters = np.zeros((len(layout), length, LENGTH), np.uint16)
    for row, sentences in enumerate(layout):
        start = 0
        for number, sentence in enumerate(sentences, start=1):
            here = slice(start, start + len(IDS[sentence]))
            ids[row, here], segments[row, here], characters[row, here] = IDS[sentence], number, SPELLED[sentence]
            start = here.stop
    return {"input_ids": jnp.asarray(ids), "characters": jnp.asarray(characters), "segment_ids": jnp.asarray(segments)}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("tagger", [10, 10]),
        ("taglm", [10, 16]),  # the language models stand beside the output of the first layer
        ("elmo_tagger", [16, 10]),  # and beside the words
        ("gru", [3, 12, 16, 10]),  # the characters, and what the layer below says of them
    ],
)
def test_dropout_falls_on_what_each_layer_reads(kind, sizes):
    config = CONFIGS[kind].with_dropout(0.5)
    config = dataclasses.replace(config, elmo_dropout=0.25) if kind == "elmo_tagger" else config
    module, params = (
        config.module(Purpose.ENCODING, Execution()),
        flax.traverse_util.unflatten_dict(drawn(config), sep="/"),
    )
    rngs = {"dropout": jax.random.key(0)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.apply({"params": params}, **rows([[1]], 3), deterministic=False, rngs=rngs))
    own = [draw for draw in found if draw.path != ("elmo_dropout",)]
    assert [(draw.rate, draw.shape[-1]) for draw in own] == [(0.5, size) for size in sizes]
    others = [draw.rate for draw in found if draw.path == ("elmo_dropout",)]
    assert others == ([0.25] * 2 if kind == "elmo_tagger" else [])  # of both mixes of the language models


def test_each_mix_of_the_language_models_has_its_place() -> None:
    """One beside the words, one beside the output of the layers; the weights of both are told."""
    config = CONFIGS["elmo_tagger"]
    module, params, inputs = config.module(Purpose.ENCODING, Execution()), drawn(config), rows([[1]], 3)
    apply = jax.jit(lambda params: module.apply({"params": params}, **inputs, output_hidden_states=True))
    for name, changed in (("scalar_mix_input", [True, True, True]), ("scalar_mix_output", [False, False, True])):
        with_it, without = (
            apply(flax.traverse_util.unflatten_dict(params | {f"{name}/scale": np.float32(scale)}, sep="/"))
            for scale in (1, 0)
        )
        pairs = zip(with_it.hidden_states, without.hidden_states, strict=True)
        assert [bool(jnp.any(one != other)) for one, other in pairs] == changed
    assert not without.last_hidden_state[..., 10:].any() and with_it.last_hidden_state[..., 10:].any()
    for kind, shape in (("elmo_tagger", (2, 2)), ("taglm", None)):
        head = TokenClassification(CONFIGS[kind], num_labels=3)
        shapes, _ = jax.eval_shape(lambda head=head: head.init_with_output(jax.random.key(0), **inputs))
        assert (shapes.mix_weights if shape is None else shapes.mix_weights.shape) == shape


def test_no_layer_of_characters_reads_the_padding_of_a_word() -> None:
    module, spelt = Words(CONFIGS["gru"], jnp.float32), spell(["cats", "a"], LENGTH)[None]
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros((1, 2), int), spelt, True))["params"]
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda one: random.normal(size=one.shape).astype(np.float32), nn.meta.unbox(shapes))
    apply = jax.jit(lambda params: module.apply({"params": params}, jnp.zeros((1, 2), int), spelt, True))
    expected = apply(params)
    for character, read in ((PADDING + 1, False), (ord("a") + 1, True)):
        table = params["characters"]["embedding"].copy()
        table[character] += 1
        found = apply(params | {"characters": {"embedding": table}})
        assert bool(np.abs(found - expected).max() > 1e-4) == read


@pytest.mark.parametrize("kind", ["taglm", pytest.param("elmo_tagger", marks=pytest.mark.nightly)])
def test_language_models_have_no_dropout_in_training(kind):
    """Where the tagger itself drops nothing, training reads what an evaluation reads."""
    config = dataclasses.replace(CONFIGS[kind].with_dropout(0.0), language_model=dataclasses.replace(ELMO, dropout=0.5))
    config = dataclasses.replace(config, elmo_dropout=0.0) if kind == "elmo_tagger" else config
    params = flax.traverse_util.unflatten_dict(drawn(config), sep="/")
    read = functools.partial(
        config.module(Purpose.ENCODING, Execution()).apply, {"params": params}, **rows([[0, 1], [2]], 12)
    )
    trained = functools.partial(read, deterministic=False, rngs={"dropout": jax.random.key(0)})
    found, expected = (jax.jit(each)().last_hidden_state for each in (trained, read))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", CONFIGS)
def test_train_flops_are_those_of_the_products(kind):
    """Language models, which are not trained, only forward, and without the means of their layers."""
    config, batch = CONFIGS[kind], rows([[0], [1]], 6)
    found = step_flops(config.module(Purpose.ENCODING, Execution()), **batch)
    if kind in HELPED:
        inputs = {name: batch[name] for name in ("characters", "segment_ids")}
        found -= 2 / 3 * step_flops(ElmoModel(ELMO), **inputs)
    if kind == "elmo_tagger":
        found -= 6 * 2 * 2 * (2 * 6 * 6)  # two mixes of two layers
    assert config.train_flops(2, 6, 0) == pytest.approx(found, rel=1e-12)


def test_language_models_stand_behind_what_the_tagger_computes() -> None:
    """Sentences are packed, and some of their words are padding: TagLM's last layer, and ELMo's mix of both layers.

    The tagger's own features stand before them, and are those of the tagger alone.
    """
    batch = rows([[0, 1], [2]], 12)
    mask = np.arange(12) < np.array([[9], [4]])
    inputs = {name: batch[name] for name in ("characters", "segment_ids")}
    below = {path: value for path, value in drawn(CONFIGS["taglm"]).items()}
    mixes = {f"scalar_mix_{end}/{part}": np.float32(value) for end in ("input", "output") for part, value in
             (("weights", [0.5, -1.0]), ("scale", 1.5))}  # fmt: skip
    nested = functools.partial(flax.traverse_util.unflatten_dict, sep="/")

    @jax.jit
    def read() -> Any:
        tagged = [
            CONFIGS[kind].module(Purpose.ENCODING, Execution()).apply(
                {"params": nested(params)}, **batch, attention_mask=mask, output_hidden_states=True
            ).hidden_states
            for kind, params in (("taglm", below), ("elmo_tagger", drawn(CONFIGS["elmo_tagger"]) | mixes))
        ]  # fmt: skip
        own = [
            ElmoModel(ELMO).apply(
                {"params": nested(params)["language_model"]}, **inputs, attention_mask=mask, output_hidden_states=True
            ).hidden_states
            for params in (below, drawn(CONFIGS["elmo_tagger"]))
        ]  # fmt: skip
        return tagged, own

    ((_, first, _), (words, _, last)), (of_taglm, of_elmo) = read()
    np.testing.assert_allclose(first[..., 10:], of_taglm[-1], rtol=1e-5, atol=1e-6)
    shares = np.exp([0.5, -1.0]) / np.exp([0.5, -1.0]).sum()
    mix = 1.5 * np.tensordot(shares, np.asarray(of_elmo), axes=1)
    for found in (words, last):
        np.testing.assert_allclose(found[..., 10:], mix, rtol=1e-5, atol=1e-6)
