"""The biattentive network against its equations in torch, text by text, without padding."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.models.cove.biattentive_classification import BiattentiveConfig, BiattentiveForSequenceClassification
from plmjax.models.cove.cove import CoveConfig
from tests.families.torch_layers import both_ways
from tests.models.test_awd_lstm import as_tree, gradient_of, in_torch
from tests.optional import torch
from tests.products import step_flops
from tests.systems.modules import random_params, recorded_draws

COVE = CoveConfig(vocab_size=17, vector_size=6, hidden_size=5, num_layers=1)
CONFIG = BiattentiveConfig(COVE, hidden_size=4, pieces=3, dropout=0.0)
MODULE = BiattentiveForSequenceClassification(CONFIG, num_labels=3)
TEXTS = (((0, 4), (4, 9)), ((0, 6), (0, 6)), ((0, 1), (1, 4)), ((0, 3), (3, 7)), ((0, 9), (0, 9)), ((0, 2), (2, 8)))
"""Where the two texts of a row stand, or twice the only one. With fewer rows some features are nearly alike in all, and
to normalize those enlarges rounding noise."""
LENGTHS = np.array([[second[1]] for _, second in TEXTS] + [[0]])
"""The last row only fills the batch."""
IDS = np.random.default_rng(0).integers(0, 17, (7, 9), np.int32)
MASK = (np.arange(9) < LENGTHS).astype(np.int32)
TYPES = MASK * (np.arange(9) >= np.array([[second[0]] for _, second in TEXTS] + [[0]]))
TYPES[[1, 4]] = 0
BATCH = {"input_ids": IDS, "segment_ids": MASK, "token_type_ids": TYPES}


def read(params: Any, ids: np.ndarray) -> torch.Tensor:
    """A text behind the first LSTM, int [T] -> [T 2 H]."""
    words = params["cove/words/embedding"][ids]
    x = torch.cat([words, both_ways(params, "cove/layer_0", words)[0]], dim=1)
    x = torch.relu(x @ params["classifier/feed_forward/kernel"] + params["classifier/feed_forward/bias"])
    return both_ways(params, "classifier/encoder", x)[0]


def pooled(params: Any, first: np.ndarray, second: np.ndarray) -> torch.Tensor:
    """Section 5 of the paper for two texts, int [T] and [S] -> [16 H], before the maxout layers."""
    texts = x, y = read(params, first), read(params, second)
    affinity = x @ y.T
    contexts = torch.softmax(affinity, dim=1) @ y, torch.softmax(affinity.T, dim=1) @ x
    parts = []
    for name, text, context in zip(("first", "second"), texts, contexts, strict=True):
        joined = torch.cat([text, text - context, text * context], dim=1)
        y, *_ = both_ways(params, f"classifier/{name}_integrator", joined)
        weights = torch.softmax(y @ params[f"classifier/{name}_pooling/Projection_0/kernel"], dim=0)
        parts += [y.max(dim=0).values, y.mean(dim=0), y.min(dim=0).values, (weights * y).sum(dim=0)]
    return torch.cat(parts)


def running(params: Any) -> Any:
    """Statistics of the batches before, by layer: positive variances far from 1."""
    random = np.random.default_rng(2)
    sizes = {f"norm_{number}": len(params["classifier"][f"norm_{number}"]["scale"]) for number in range(3)}
    drawn = {
        name: {"mean": random.normal(size=size), "variance": random.uniform(0.2, 2, size)}
        for name, size in sizes.items()
    }
    return {"classifier": jax.tree.map(np.float32, drawn)}


def maxouts(params: Any, statistics: Any, x: torch.Tensor, training: bool) -> torch.Tensor:
    """The maxout layers upon rows [B 16 H], each behind a norm -> [B labels]. Training moves the statistics."""
    for number in range(3):
        norm, layer = f"classifier/norm_{number}", f"classifier/maxout_{number}"
        given = *(statistics[f"{norm}/{name}"] for name in ("mean", "variance")), params[f"{norm}/scale"]
        x = torch.nn.functional.batch_norm(x, *given, params[f"{norm}/bias"], training)
        x = (torch.einsum("bi,ipo->bpo", x, params[f"{layer}/kernel"]) + params[f"{layer}/bias"]).max(dim=1).values
    return x


@pytest.fixture(scope="module")
def params() -> Any:
    """Words far apart, so that what is normalized differs from text to text."""
    params = jax.tree.map(lambda leaf: 3 * leaf, random_params(MODULE))
    words = {"embedding": 3 * params["cove"]["words"]["embedding"]}
    return params | {"cove": params["cove"] | {"words": words}}


# By day test_ulmfit.py has the statistics of an evaluation, which the same layers keep.
@pytest.mark.parametrize(
    "training", [pytest.param(True, id="training"), pytest.param(False, id="evaluation", marks=pytest.mark.nightly)]
)
def test_texts_and_pairs_equal_the_equations_in_outputs_gradients_and_statistics(params: Any, training: bool) -> None:
    """A row that only fills the batch is no part of what is normalized. Torch computes in float64: its own rounding of
    gradients up to 69 is as large as ours."""
    before = running(params)
    theirs, statistics = in_torch(params, torch.float64), in_torch(before, torch.float64, learn=False)
    weights = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    texts = [pooled(theirs, *(IDS[row, slice(*place)] for place in both)) for row, both in enumerate(TEXTS)]
    expected = maxouts(theirs, statistics, torch.stack(texts), training)
    (torch.tensor(weights) * expected).sum().backward()

    def loss(params: Any) -> tuple[jax.Array, Any]:
        inputs = {**BATCH, "cls_positions": np.zeros((7, 1), np.int32), "deterministic": not training}
        found, after = MODULE.apply({"params": params, "batch_stats": before}, **inputs, mutable=["batch_stats"])
        return jnp.sum(weights * found.logits[:6, 0]), (found.logits, after["batch_stats"])

    gradient, (logits, after) = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert logits.shape == (7, 1, 3) and np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:6, 0], expected.detach(), rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(after, as_tree(statistics), rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(gradient, gradient_of(theirs), rtol=1e-4, atol=1e-4)


def test_the_weights_of_each_word_for_the_words_of_the_other_text(params: Any) -> None:
    given = {"params": params, "batch_stats": running(params)}
    apply = jax.jit(functools.partial(MODULE.apply, output_attentions=True))
    found = apply(given, **BATCH).attentions
    assert found.shape == (1, 7, 1, 9, 9)
    assert jax.eval_shape(lambda: MODULE.apply(given, **BATCH)).attentions is None
    expected, tensors = np.zeros((7, 9, 9)), in_torch(params, torch.float64, learn=False)
    for row, (first, second) in enumerate(TEXTS):
        x, y = (read(tensors, IDS[row, slice(*text)]) for text in (first, second))
        affinity = x @ y.T
        expected[row, slice(*first), slice(*second)] = torch.softmax(affinity, dim=1).numpy()
        if first != second:
            expected[row, slice(*second), slice(*first)] = torch.softmax(affinity.T, dim=1).numpy()
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=1e-5, atol=1e-6)


def test_padding_changes_nothing(params: Any) -> None:
    """Nor does what stands in a row that only fills the batch change the statistics of the others."""
    variables = {"params": params, "batch_stats": running(params)}

    @jax.jit
    def trained(ids: jax.Array) -> Any:
        rows = BATCH | {"input_ids": ids, "deterministic": False}
        found, after = MODULE.apply(variables, **rows, mutable=["batch_stats"])
        return found.logits[:6], after

    jax.tree.map(np.testing.assert_array_equal, trained(IDS), trained(np.where(MASK == 0, 3, IDS)))


def test_dropout_falls_on_the_inputs_of_each_layer_but_the_first_lstm(params: Any) -> None:
    module = dataclasses.replace(MODULE, config=CONFIG.with_dropout(0.5))
    rows = {**BATCH, "deterministic": False, "rngs": {"dropout": jax.random.key(0)}, "mutable": ["batch_stats"]}
    variables = {"params": params, "batch_stats": running(params)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.apply(variables, **rows))
    words, joined, maxouts = [(7, 9, 16)], [(7, 9, 24)], [(7, 64), (7, 16), (7, 8)]
    assert [(draw.rate, draw.shape) for draw in found] == [(0.5, shape) for shape in words + joined + maxouts]


def test_train_flops_are_those_of_the_products() -> None:
    """Without the last layer, from the 8 numbers of the maxout layer below it to three pieces of each label."""
    labels = 6 * len(IDS) * 8 * 3 * MODULE.num_labels
    assert CONFIG.train_flops(*IDS.shape, 0) == step_flops(MODULE, **BATCH) - labels
