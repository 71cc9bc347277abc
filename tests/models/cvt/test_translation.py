"""The decoders of cross-view training: their scores and gradients equal torch's."""

from __future__ import annotations

import functools

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.models.cvt.cvt import PRIMARY, CvtConfig
from plmjax.models.cvt.translation import TRANSLATION_VIEWS, TranslationModules
from tests.families import torch_layers
from tests.optional import torch

CONFIG = CvtConfig(word_dim=3, first_size=6, second_size=5, projection_size=4, dropout=0.0, unlabelled_dropout=0.0)
WORDS, NAMES = 7, (PRIMARY, *TRANSLATION_VIEWS)
MODULES = TranslationModules(CONFIG, jnp.float32, WORDS)
RANDOM = np.random.default_rng(0)
STATES = tuple(RANDOM.normal(size=(2, 6, size)).astype(np.float32) for size in (4, 4, 8))
TOKENS = {
    "segment_ids": np.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]], np.int32),
    "decoder_input_ids": RANDOM.integers(2, WORDS, (2, 5)).astype(np.int32),
    "decoder_segment_ids": np.array([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]], np.int32),
}
TEXTS = ((0, 1, 0, 2), (0, 2, 2, 5), (1, 1, 0, 3))
"""Row, sentence, and where its translation begins and ends."""


@functools.cache
def parameters() -> dict:
    shapes = jax.eval_shape(lambda: MODULES.init(jax.random.key(0), STATES, TOKENS, NAMES, True))["params"]
    random = np.random.default_rng(1)
    return jax.tree.map(lambda one: random.normal(0, 0.6, size=one.shape).astype(np.float32), nn.meta.unbox(shapes))


def said(params: dict, states: tuple, names: tuple[str, ...] = NAMES, **kept: object) -> dict[str, jax.Array]:
    outputs = MODULES.apply({"params": params}, states, TOKENS, names, not kept, **kept)
    return {name: jax.nn.log_softmax(scores.logits()) for name, scores in outputs.items()}


def by_torch(params: dict, own: dict, h: torch.Tensor, words: np.ndarray) -> torch.Tensor:
    """log p of the word after each, of one translation: torch's own layer, then the formulas of the paper."""
    given = {f"lstm/{path}": one for path, one in flax.traverse_util.flatten_dict(params["lstm"], sep="/").items()}
    said, *_ = torch_layers.lstm(given, "lstm", params["target"]["embedding"][words], forget_bias=1.0)
    rows = []
    for g in said:
        alpha = torch.softmax(h @ (g @ own["query"]["kernel"]), dim=0)
        a = torch.tanh(torch.cat([alpha @ h, g]) @ own["output"]["kernel"])
        rows.append((own["words"] @ a + own["words_bias"]).log_softmax(0))
    return torch.stack(rows)


def test_scores_and_gradients_are_those_of_torch():
    weights = RANDOM.normal(size=(len(NAMES), 2, 5, WORDS)).astype(np.float32)
    weights *= (TOKENS["decoder_segment_ids"] > 0)[None, ..., None]

    def weighed(params: dict, states: tuple) -> tuple[jax.Array, dict]:
        found = said(params, states)
        return sum(jnp.sum(found[name] * weight) for name, weight in zip(NAMES, weights, strict=True)), found

    gradients, found = jax.jit(jax.grad(weighed, argnums=(0, 1), has_aux=True))(parameters(), STATES)
    leaf = lambda array: torch.tensor(np.asarray(array), requires_grad=True)  # noqa: E731
    theirs, states, total = jax.tree.map(leaf, parameters()), tuple(map(leaf, STATES)), 0.0
    for name, weight in zip(NAMES, weights, strict=True):
        for row, sentence, begin, end in TEXTS:
            h = states[2][row][torch.tensor(TOKENS["segment_ids"][row] == sentence)]
            expected = by_torch(theirs, theirs[name], h, TOKENS["decoder_input_ids"][row, begin:end])
            np.testing.assert_allclose(found[name][row, begin:end], expected.detach().numpy(), atol=1e-5, err_msg=name)
            total = total + torch.sum(expected * torch.tensor(weight[row, begin:end]))
    total.backward()
    for ours, torchs in zip(jax.tree.leaves(gradients), jax.tree.leaves((theirs, states)), strict=True):
        expected = np.zeros(ours.shape) if torchs.grad is None else torchs.grad.numpy()
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4 * max(np.abs(expected).max(), 1e-2))
