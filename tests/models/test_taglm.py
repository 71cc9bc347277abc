"""Taggers with and without language models against torch, in packed and padded rows."""

import dataclasses

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from plmjax.errors import UserError
from plmjax.interop.conversion import parameter_shapes
from plmjax.layers.execution import Execution
from plmjax.layers.spelling import sentence_marks, spelled
from plmjax.models.elmo import ElmoConfig, ElmoModel
from plmjax.models.elmo_tagger import ElmoTaggerConfig
from plmjax.models.heads import TokenClassification
from plmjax.models.tagger import TaggerConfig
from plmjax.models.taglm import TaglmConfig

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
    "character_filters": 6,
    "filter_width": 3,
    "hidden_size": 5,
}
CONFIGS = {
    "tagger": TaggerConfig(**SIZES),
    "taglm": TaglmConfig(**SIZES, language_model=ELMO),
    "elmo_tagger": ElmoTaggerConfig(**SIZES, language_model=ELMO),
}
SENTENCES = [["the", "extraordinary", "é", "a"], ["cats"], ["a", "cats", "b"]]
SPELLED = [
    np.concatenate([sentence_marks(LENGTH)[:1], spelled(words, LENGTH), sentence_marks(LENGTH)[1:]])
    for words in SENTENCES
]
IDS = [np.random.default_rng(1).integers(0, 11, len(characters)) for characters in SPELLED]


def drawn(config: TaggerConfig) -> dict[str, np.ndarray]:
    """Parameters by path, far from their initial values."""
    random, example = np.random.default_rng(0), rows([[1]], 3)
    shapes = parameter_shapes(config.encoder(Execution()), example)
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


def lstm(tensors: dict[str, torch.Tensor], name: str, x: torch.Tensor) -> torch.Tensor:
    """torch's layer of both directions: [T D] -> [T 2 H]."""
    weights = []
    for way in ("forward", "backward"):
        kernel, recurrent, bias = (
            tensors[f"{name}/{way}/{part}"] for part in ("input/kernel", "recurrent_kernel", "input/bias")
        )
        weights += [kernel.flatten(1).T, recurrent.flatten(1).T, bias.flatten(), torch.zeros(bias.numel())]
    zeros = torch.zeros(2, 1, SIZES["hidden_size"])
    return torch.lstm(x[None], (zeros, zeros), weights, True, 1, 0.0, False, True, True)[0][0]


def in_torch(kind: str, tensors: dict[str, torch.Tensor], sentence: int, layers: torch.Tensor | None) -> torch.Tensor:
    """What the head is given of one sentence, [T D]. layers: [L+1 T 2 P] of the language models."""
    characters = tensors["words/characters/embedding"][torch.tensor(SPELLED[sentence]).long()]  # [T C E]
    kernel = tensors["words/filters"].permute(2, 1, 0)
    found = torch.conv1d(characters.mT, kernel, tensors["words/filter_bias"]).amax(dim=2).tanh()
    x = torch.cat([found, tensors["words/vectors/embedding"][torch.tensor(IDS[sentence])]], dim=1)

    def mix(name: str) -> torch.Tensor:
        weights = torch.softmax(tensors[f"scalar_mix_{name}/weights"], dim=0)
        return tensors[f"scalar_mix_{name}/scale"] * (weights[:, None, None] * layers).sum(dim=0)

    if kind == "elmo_tagger":
        x = torch.cat([x, mix("input")], dim=1)
    x = lstm(tensors, "lstm_1", x)
    if kind == "taglm":
        x = torch.cat([x, layers[-1]], dim=1)
    x = lstm(tensors, "lstm_2", x)
    return torch.cat([x, mix("output")], dim=1) if kind == "elmo_tagger" else x


@pytest.mark.parametrize("kind", CONFIGS)
def test_states_and_gradients_equal_torch_sentence_by_sentence(kind):
    """Two sentences share a row; what the language models say is proved in test_elmo.py, and taken from there."""
    config, batch = CONFIGS[kind], rows([[0, 1], [2]], 12)
    params = drawn(config)
    module = config.encoder(Execution())
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
    language = {name: value for name, value in params.items() if name.startswith("language_model/")}
    language = flax.traverse_util.unflatten_dict(language, sep="/").get("language_model")
    for sentence, state in enumerate(states):
        layers = None
        if language is not None:
            inputs = {"characters": SPELLED[sentence][None], "output_hidden_states": True}
            layers = torch.tensor(np.asarray(ElmoModel(ELMO).apply({"params": language}, **inputs).hidden_states[:, 0]))
        expected = in_torch(kind, tensors, sentence, layers)
        np.testing.assert_allclose(state, expected.detach(), atol=1e-5)
        (torch.tensor(weights[sentence]) * expected).sum().backward()
    for name, value in flax.traverse_util.flatten_dict(gradient, sep="/").items():
        if not name.startswith("language_model/"):
            np.testing.assert_allclose(value, tensors[name].grad, atol=1e-4, err_msg=name)


def test_layers_of_several_widths_are_not_mixed():
    tagger = TokenClassification(CONFIGS["taglm"], mix=True)
    with pytest.raises(UserError, match=r"one width to mix, found widths of 10, 16, 10; take .*--objective.mix False"):
        jax.eval_shape(lambda: tagger.init(jax.random.key(0), **rows([[1]], 3)))


def test_words_are_read_as_the_language_models_read_them():
    with pytest.raises(UserError, match=r"Expected --model.max_characters_per_token 9, .*found 12"):
        dataclasses.replace(CONFIGS["taglm"], max_characters_per_token=12)
