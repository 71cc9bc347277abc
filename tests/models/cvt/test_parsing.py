"""The parser's scores and their gradients equal the formula in torch."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.models.cvt.cvt import PRIMARY, CvtConfig
from plmjax.models.cvt.parsing import PARSING_VIEWS, ParsingModules
from tests.optional import torch

CONFIG = CvtConfig(first_size=6, second_size=5, projection_size=4, parser_size=3)
RELATIONS, NAMES = 3, (PRIMARY, *PARSING_VIEWS)
MODULES = ParsingModules(CONFIG, jnp.float32, RELATIONS)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]], np.int32)
POSSIBLE = [[[1, 2], [0, 2], [0, 1], [4], [3], []], [[1], [0], [], [], [], []]]
"""The other words of each word's sentence."""
RANDOM = np.random.default_rng(0)
STATES = tuple(RANDOM.normal(size=(2, 6, size)).astype(np.float32) for size in (4, 4, 8))
WEIGHTS = RANDOM.normal(size=(len(NAMES), 2, 6, 7 * RELATIONS)).astype(np.float32)


def said(params: dict, states: tuple) -> list[jax.Array]:
    scores = MODULES.apply({"params": params}, states, {"segment_ids": SEGMENTS}, NAMES, True)
    return [jax.nn.log_softmax(scores[name]) for name in NAMES]


def by_the_formula(params: dict, heads: torch.Tensor, dependents: torch.Tensor) -> torch.Tensor:
    """log p(j, r | t), word by word."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ params[name]["kernel"] + params[name]["bias"]

    a, scale = linear(heads, "head_hidden").relu(), params["scale"]
    d = linear(linear(dependents, "dependent_hidden").relu(), "dependent")
    rows = []
    for row, place in np.ndindex(2, 6):
        scores = torch.full((7, RELATIONS), -torch.inf)
        scores[0] = linear(d[row, place] / scale, "root")
        for j in POSSIBLE[row][place]:
            for r in range(RELATIONS):
                kernel = params["shared"] + params["relations"][:, r]
                scores[j + 1, r] = a[row, j] @ kernel @ d[row, place] / scale**2
        rows.append(scores.flatten().log_softmax(0))
    return torch.stack(rows).reshape(2, 6, -1)


def test_scores_and_gradients_are_those_of_the_formula():
    shapes = jax.eval_shape(lambda: MODULES.init(jax.random.key(0), STATES, {"segment_ids": SEGMENTS}, NAMES, True))[
        "params"
    ]
    params = jax.tree.map(lambda one: RANDOM.normal(0, 0.5, size=one.shape).astype(np.float32), nn.meta.unbox(shapes))
    for name in NAMES:
        params[name]["scale"] = np.float32(1.7)

    def weighed(params: dict, states: tuple) -> tuple[jax.Array, list[jax.Array]]:
        found = said(params, states)
        finite = [jnp.where(scores > -1e8, scores, 0.0) for scores in found]
        return sum(jnp.sum(scores * weight) for scores, weight in zip(finite, WEIGHTS, strict=True)), found

    gradients, found = jax.jit(jax.grad(weighed, argnums=(0, 1), has_aux=True))(params, STATES)
    leaf = lambda array: torch.tensor(np.asarray(array), requires_grad=True)  # noqa: E731
    theirs, (forward, backward, both) = jax.tree.map(leaf, params), map(leaf, STATES)
    everything, one = torch.cat([forward, backward, both], dim=-1), {"forwards": forward, "backwards": backward}
    total = 0.0
    for name, scores, weight in zip(NAMES, found, WEIGHTS, strict=True):
        views = [one[view] for view in name.split("_")] if "_" in name else [everything, everything]
        expected = by_the_formula(theirs[name], *views)
        there = torch.isfinite(expected)
        np.testing.assert_array_equal(np.asarray(scores) > -1e8, there.numpy(), err_msg=name)
        np.testing.assert_allclose(
            np.asarray(scores)[there.numpy()], expected[there].detach().numpy(), atol=1e-5, err_msg=name
        )
        total = total + torch.sum(expected[there] * torch.tensor(weight)[there])
    total.backward()
    for ours, torchs in zip(
        jax.tree.leaves(gradients), jax.tree.leaves((theirs, (forward, backward, both))), strict=True
    ):
        expected = torchs.grad.numpy()
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_the_published_size():
    """A module of 46 relations in the released code: 512 of a hidden layer, 128 of a dependent."""
    module, states = ParsingModules(CvtConfig(), jnp.float32, 46), tuple(np.zeros((1, 2, n)) for n in (512, 512, 1024))
    arguments = states, {"segment_ids": np.ones((1, 2), np.int32)}, (PRIMARY,), True
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments))["params"][PRIMARY]
    hidden = 2 * (2048 * 512 + 512) + 512 * 128 + 128
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == hidden + 512 * 47 * 128 + 128 * 46 + 46 + 1
