"""Taggers with and without language models against torch, in packed and padded rows."""

from __future__ import annotations

import dataclasses
import functools

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.interop.conversion import parameter_shapes
from plmjax.layers.words.characters import PADDING, sentence_marks, spelled
from plmjax.models.elmo import ElmoConfig, ElmoModel
from plmjax.models.families.task_heads import TokenClassification
from plmjax.models.taggers.elmo_tagger import ElmoTaggerConfig
from plmjax.models.taggers.tagger import TaggerConfig
from plmjax.models.taglm import TaglmConfig
from tests.optional import torch
from tests.products import step_flops
from tests.systems.modules import recorded_draws

LENGTH = 9
ELMO = ElmoConfig(
    vocab_size=11,
    max_characters_per_token=LENGTH,
    character_dim=3,
    filter_widths=(2,),
    filter_counts=(4,),
    n_highway=0,
    n_layers=1,
    dim=5,
    projection_dim=3,
)
SIZES = {
    "vocab_size": 11,
    "word_dim": 4,
    "max_characters_per_token": LENGTH,
    "character_dim": 3,
    "character_features": 6,
    "filter_width": 3,
    "hidden_size": 5,
}
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
    np.concatenate([sentence_marks(LENGTH)[:1], spelled(words, LENGTH), sentence_marks(LENGTH)[1:]])
    for words in SENTENCES
]
IDS = [np.random.default_rng(1).integers(0, 11, len(characters)) for characters in SPELLED]


def drawn(config: TaggerConfig) -> dict[str, np.ndarray]:
    """Parameters by path, far from their initial values; all taggers have the same language models."""
    random, example = np.random.default_rng(0), rows([[1]], 3)
    shapes = parameter_shapes(config.module(Purpose.ENCODING, Execution()), example)
    paths = sorted(shapes, key=lambda path: not path.startswith("language_model/"))
    return {path: 0.5 * random.standard_normal(shapes[path], np.float32) for path in paths}


@functools.cache
def language_layers() -> np.ndarray:
    """What the language models say of the sentences, in rows of their own: [L+1 sentences T 2 P]."""
    params = {path: value for path, value in drawn(CONFIGS["taglm"]).items() if path.startswith("language_model/")}
    tree = flax.traverse_util.unflatten_dict(params, sep="/")["language_model"]
    batch = rows([[0], [1], [2]], 6)
    inputs = {name: batch[name] for name in ("characters", "segment_ids")}
    apply = jax.jit(functools.partial(ElmoModel(ELMO).apply, output_hidden_states=True))
    return np.asarray(apply({"params": tree}, **inputs).hidden_states)


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


def recurrent(tensors: dict[str, torch.Tensor], name: str, x: torch.Tensor, cell: str) -> tuple[torch.Tensor, ...]:
    """torch's layer of both directions: [N T D] -> [N T 2 H], and the last states [2 N H] of a GRU or an LSTM."""
    weights = []
    for way in ("forward", "backward"):
        kernel, recurrent, bias = (
            tensors[f"{name}/{way}/{part}"] for part in ("input/kernel", "recurrent_kernel", "input/bias")
        )
        second = torch.zeros(bias.shape)
        if cell == "gru":
            second = torch.cat([second[:2], tensors[f"{name}/{way}/candidate_bias"][None]])
        weights += [kernel.flatten(1).T, recurrent.flatten(1).T, bias.flatten(), second.flatten()]
    zeros = torch.zeros(2, len(x), bias.shape[-1])
    run, state = (torch.gru, zeros) if cell == "gru" else (torch.lstm, (zeros, zeros))
    return run(x, state, weights, True, 1, 0.0, False, True, True)


def read_by_grus(tensors: dict[str, torch.Tensor], word: torch.Tensor) -> torch.Tensor:
    """The characters of a word without padding, int [C] -> [2 F]."""
    x = tensors["words/characters/embedding"][word][None]
    x, _ = recurrent(tensors, "words/character_layer_1", x, "gru")
    _, last = recurrent(tensors, "words/character_layer_2", x, "gru")
    return last[:, 0].flatten()


def in_torch(kind: str, tensors: dict[str, torch.Tensor], sentence: int, layers: torch.Tensor | None) -> torch.Tensor:
    """What the head is given of one sentence, [T D]. layers: [L+1 T 2 P] of the language models."""
    if kind == "gru":
        ids = (torch.tensor(word[word != PADDING + 1]).long() for word in SPELLED[sentence])
        found = torch.stack([read_by_grus(tensors, word) for word in ids])
    else:
        characters = tensors["words/characters/embedding"][torch.tensor(SPELLED[sentence]).long()]  # [T C E]
        kernel = tensors["words/filters"].permute(2, 1, 0)
        found = torch.conv1d(characters.mT, kernel, tensors["words/filter_bias"]).amax(dim=2).tanh()
    x = torch.cat([found, tensors["words/vectors/embedding"][torch.tensor(IDS[sentence])]], dim=1)
    cell = CONFIGS[kind].cell

    def mix(name: str) -> torch.Tensor:
        weights = torch.softmax(tensors[f"scalar_mix_{name}/weights"], dim=0)
        return tensors[f"scalar_mix_{name}/scale"] * (weights[:, None, None] * layers).sum(dim=0)

    if kind == "elmo_tagger":
        x = torch.cat([x, mix("input")], dim=1)
    x = recurrent(tensors, "layer_1", x[None], cell)[0][0]
    if kind == "taglm":
        x = torch.cat([x, layers[-1]], dim=1)
    x = recurrent(tensors, "layer_2", x[None], cell)[0][0]
    return torch.cat([x, mix("output")], dim=1) if kind == "elmo_tagger" else x


@pytest.mark.parametrize("kind", CONFIGS)
def test_states_and_gradients_equal_torch_sentence_by_sentence(kind):
    """Two sentences share a row; what the language models say is proved in test_elmo.py, and taken from there."""
    config, batch = CONFIGS[kind], rows([[0, 1], [2]], 12)
    params = drawn(config)
    module = config.module(Purpose.ENCODING, Execution())
    weights = [np.random.default_rng(2).normal(size=(len(ids), config.width)).astype(np.float32) for ids in IDS]
    placed = np.zeros((2, 12, config.width), np.float32)
    placed[0, :6], placed[0, 6:9], placed[1, :5] = weights

    @jax.jit
    def ours(params):
        def loss(params):
            states = module.apply({"params": params}, **batch).last_hidden_state
            return jnp.sum(placed * states), states

        return jax.value_and_grad(loss, has_aux=True)(params)

    (_, states), gradient = ours(flax.traverse_util.unflatten_dict(params, sep="/"))
    states = [states[0, :6], states[0, 6:9], states[1, :5]]
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    for sentence, state in enumerate(states):
        layers = torch.tensor(language_layers()[:, sentence, : len(IDS[sentence])]) if kind in HELPED else None
        expected = in_torch(kind, tensors, sentence, layers)
        np.testing.assert_allclose(state, expected.detach(), atol=1e-5)
        (torch.tensor(weights[sentence]) * expected).sum().backward()
    for name, value in flax.traverse_util.flatten_dict(gradient, sep="/").items():
        if not name.startswith("language_model/"):
            np.testing.assert_allclose(value, tensors[name].grad, atol=1e-4, err_msg=name)


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
    module, params = (
        config.module(Purpose.ENCODING, Execution()),
        flax.traverse_util.unflatten_dict(drawn(config), sep="/"),
    )
    rngs = {"dropout": jax.random.key(0)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.apply({"params": params}, **rows([[1]], 3), deterministic=False, rngs=rngs))
    own = [draw for draw in found if draw.path != ("elmo_dropout",)]
    assert [(draw.rate, draw.shape[-1]) for draw in own] == [(0.5, size) for size in sizes]
    assert len(found) - len(own) == (2 if kind == "elmo_tagger" else 0)  # of both mixes of the language models


@pytest.mark.parametrize("kind", HELPED)
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


def test_layers_of_several_widths_are_not_mixed():
    tagger = TokenClassification(CONFIGS["taglm"], mix=True)
    with pytest.raises(UserError, match=r"one width to mix, found widths of 10, 16, 10; take .*--objective.mix False"):
        jax.eval_shape(lambda: tagger.init(jax.random.key(0), **rows([[1]], 3)))


def test_words_are_read_as_the_language_models_read_them():
    with pytest.raises(UserError, match=r"Expected --start.tagger.max_characters_per_token 9, .*found 12"):
        dataclasses.replace(CONFIGS["taglm"], max_characters_per_token=12)


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
