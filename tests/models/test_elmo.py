"""ELMo, and taggers with and without language models: dropout, states and products."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.interop.conversion import parameter_shapes
from plmjax.layers.words.characters import PADDING, sentence_marks, spell
from plmjax.models.elmo import DIRECTIONS, ElmoConfig, ElmoModel
from plmjax.models.taggers.elmo_tagger import ElmoTaggerConfig
from plmjax.models.taggers.tagger import TaggerConfig, Words
from plmjax.models.taglm import TaglmConfig
from plmjax.training.gradients.looked_up_rows import nest
from tests.families.recurrent import ELMO, WITHOUT_HIGHWAYS
from tests.families.taggers import LANGUAGE_MODEL, TAGGER_SIZES
from tests.products import step_flops
from tests.systems.modules import recorded_draws

PLAIN = dataclasses.replace(ELMO, **WITHOUT_HIGHWAYS)
WORDS = ["the", "extraordinary", "é", "a", "cats"]
LENGTHS = [7, 3]


def characters(length: int = 9) -> np.ndarray:
    """int32 [2 T C]: a sentence of five words with its marks, and one of a single word, padded."""
    begin, end = sentence_marks(length)
    words = spell(WORDS, length)
    rows = np.zeros((2, LENGTHS[0], length), np.int32)
    rows[0] = [begin, *words, end]
    rows[1, :3] = [begin, words[1], end]
    return rows


def test_directions_and_layers_draw_dropout_of_their_own() -> None:
    """Both directions have the same parameters and read the same words; a layer's own draws show in its output."""
    config = ElmoConfig(**(vars(PLAIN) | {"dropout": 0.5, "cell_clip": 9.0, "proj_clip": 9.0}))
    module = config.module(Purpose.PRETRAINING, Execution())
    spellings, flags = {way: characters() for way in DIRECTIONS}, {way: np.zeros((2, 7), bool) for way in DIRECTIONS}
    inputs = spellings, flags, {way: ~flags[way] for way in DIRECTIONS}, config.zero_states(2)
    random, shapes = np.random.default_rng(0), jax.eval_shape(lambda: module.init(jax.random.key(0), *inputs)["params"])
    params = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), nn.meta.unbox(shapes))
    params["elmo"]["backward"] = params["elmo"]["forward"]

    @jax.jit
    def read(params: Any) -> Any:
        rngs = {"dropout": jax.random.key(0)}
        found = module.apply({"params": params}, *inputs, deterministic=False, rngs=rngs)
        return {way: (scores.hidden, found.states[way]) for way, scores in found.scores.items()}

    (forward, states), (backward, other) = (read(params)[way] for way in DIRECTIONS)
    for mask in (forward == 0, backward == 0):
        assert 0.2 < mask.mean() < 0.8
    assert ((forward == 0) != (backward == 0)).any()
    for layer, (one, two) in enumerate(zip(states, other, strict=True)):
        assert np.abs(one.cell - two.cell).max() > 1e-2, layer


TAUGHT = dataclasses.replace(LANGUAGE_MODEL, dropout=0.1)
SIZES = TAGGER_SIZES | {"vocab_size": 11}
LENGTH = TAUGHT.max_characters_per_token
CONFIGS = {
    "tagger": TaggerConfig(**SIZES),
    "taglm": TaglmConfig(**SIZES, language_model=TAUGHT),
    "elmo_tagger": ElmoTaggerConfig(**SIZES, language_model=TAUGHT),
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


def drawn(config: TaggerConfig) -> Any:
    """Parameters far from their initial values, those of mixes included."""
    random, shapes = np.random.default_rng(0), parameter_shapes(encoding(config), rows([[1]], 3))
    return nest({path: 0.5 * random.standard_normal(shape, np.float32) for path, shape in shapes.items()})


def encoding(config: TaggerConfig) -> nn.Module:
    return config.module(Purpose.ENCODING, Execution())


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
    module, params = encoding(config), drawn(config)
    rngs = {"dropout": jax.random.key(0)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.apply({"params": params}, **rows([[1]], 3), deterministic=False, rngs=rngs))
    own = [draw for draw in found if draw.path != ("elmo_dropout",)]
    assert [(draw.rate, draw.shape[-1]) for draw in own] == [(0.5, size) for size in sizes]
    others = [draw.rate for draw in found if draw.path == ("elmo_dropout",)]
    assert others == ([0.25] * 2 if kind == "elmo_tagger" else [])  # of both mixes of the language models


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


@pytest.mark.parametrize("kind", CONFIGS)
def test_train_flops_are_those_of_the_products(kind):
    """Language models, which are not trained, only forward, and without the means of their layers."""
    config, batch = CONFIGS[kind], rows([[0], [1]], 6)
    found = step_flops(encoding(config), **batch)
    if kind in HELPED:
        inputs = {name: batch[name] for name in ("characters", "segment_ids")}
        found -= 2 / 3 * step_flops(ElmoModel(TAUGHT), **inputs)
    if kind == "elmo_tagger":
        found -= 6 * 2 * 2 * (2 * 6 * 6)  # two mixes of two layers
    assert config.train_flops(2, 6, 0) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize(("kind", "places"), [("taglm", [1]), ("elmo_tagger", [0, 2])])
def test_language_models_stand_behind_what_the_tagger_computes(kind: str, places: list[int]) -> None:
    """Without dropout of their own in training: TagLM's last layer behind the first, ELMo's mixes at both ends."""
    language_model = dataclasses.replace(TAUGHT, dropout=0.5)
    changes = {"elmo_dropout": 0.0} if kind == "elmo_tagger" else {}
    config = dataclasses.replace(CONFIGS[kind].with_dropout(0.0), language_model=language_model, **changes)
    params, batch = drawn(config), rows([[0, 1], [2]], 12)
    asked = {"deterministic": False, "output_hidden_states": True, "rngs": {"dropout": jax.random.key(0)}}
    tagged = jax.jit(lambda params: encoding(config).apply({"params": params}, **batch, **asked))(params)
    own = {name: batch[name] for name in ("characters", "segment_ids")} | {"output_hidden_states": True}
    of_words = ElmoModel(TAUGHT).apply({"params": params["language_model"]}, **own).hidden_states
    for place in places:
        expected = of_words[-1]
        if kind == "elmo_tagger":
            mix = params[f"scalar_mix_{'output' if place else 'input'}"]
            expected = mix["scale"] * jnp.tensordot(jax.nn.softmax(mix["weights"]), jnp.asarray(of_words), axes=1)
        np.testing.assert_allclose(tagged.hidden_states[place][..., 10:], expected, rtol=1e-5, atol=1e-6)
