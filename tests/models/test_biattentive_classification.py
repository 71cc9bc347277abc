"""The biattentive network against its equations in torch, text by text, without padding."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from plmjax.errors import UserError
from plmjax.finetuning.biattentive import Biattentive
from plmjax.models.bert import BertConfig
from plmjax.models.biattentive_classification import BiattentiveConfig, BiattentiveForSequenceClassification
from plmjax.models.cove import CoveConfig
from plmjax.models.static_vectors import StaticVectorsConfig
from plmjax.models.word2vec import Word2VecConfig
from tests.systems.modules import boxed_shapes, dropped, outputs, random_params

COVE = CoveConfig(vocab_size=17, vector_size=6, hidden_size=5, num_layers=1)
CONFIG = BiattentiveConfig(COVE, hidden_size=4, pieces=3, dropout=0.0)
MODULE = BiattentiveForSequenceClassification(CONFIG, num_labels=3)
IDS = np.random.default_rng(0).integers(0, 17, (4, 9), np.int32)
MASK = (np.arange(9) < np.array([[9], [6], [4], [0]])).astype(np.int32)
TYPES = np.array([[0, 0, 0, 0, 1, 1, 1, 1, 1], [0] * 9, [0, 1, 1, 1, 0, 0, 0, 0, 0], [0] * 9])
BATCH = {"input_ids": IDS, "segment_ids": MASK, "token_type_ids": TYPES}
"""A pair, one text, a pair whose first text is one word, and a row that only fills the batch."""


def lstm(params: Any, x: torch.Tensor) -> torch.Tensor:
    """Torch's bidirectional layer with our parameters: [T D] -> [T 2 H]."""
    tensors = []
    for name in ("forward", "backward"):
        own, size = params[name], params[name]["recurrent_kernel"].shape[0]
        zeros = torch.zeros(4, size)
        tensors += [own["input"]["kernel"].reshape(-1, 4 * size).T, own["recurrent_kernel"].reshape(size, -1).T]
        tensors += [own["input"]["bias"].flatten(), own.get("recurrent_bias", zeros).flatten()]
    states = (torch.zeros(2, 1, size),) * 2
    return torch.lstm(x[:, None], states, tensors, True, 1, 0.0, False, True, False)[0][:, 0]


def written_out(params: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Section 5 of the paper for two texts, int [T] and [S] -> a score for each label."""
    cove, network = params["cove"], params["classifier"]
    texts = []
    for ids in (first, second):
        words = cove["words"]["embedding"][ids]
        x = torch.cat([words, lstm(cove["layer_0"], words)], dim=1)
        x = torch.relu(x @ network["feed_forward"]["kernel"] + network["feed_forward"]["bias"])
        texts.append(lstm(network["encoder"], x))
    x, y = texts
    affinity = x @ y.T
    contexts = torch.softmax(affinity, dim=1) @ y, torch.softmax(affinity.T, dim=1) @ x
    pooled = []
    for name, text, context in zip(("first", "second"), texts, contexts, strict=True):
        joined = torch.cat([text, text - context, text * context], dim=1)
        y = lstm(network[f"{name}_integrator"], joined)
        weights = torch.softmax(y @ network[f"{name}_pooling"]["Projection_0"]["kernel"], dim=0)
        pooled += [y.max(dim=0).values, y.mean(dim=0), y.min(dim=0).values, (weights * y).sum(dim=0)]
    x = torch.cat(pooled)
    for number in range(3):
        norm, maxout = network[f"norm_{number}"], network[f"maxout_{number}"]
        x = functional.layer_norm(x, x.shape, norm["scale"], norm["bias"], eps=1e-5)
        x = (torch.einsum("i,ipo->po", x, maxout["kernel"]) + maxout["bias"]).max(dim=0).values
    return x


@pytest.fixture(scope="module")
def params() -> Any:
    return jax.tree.map(lambda leaf: 3 * leaf, random_params(MODULE))


def test_texts_and_pairs_equal_the_equations_in_outputs_and_gradients(params: Any) -> None:
    theirs = jax.tree.map(lambda leaf: torch.tensor(leaf).requires_grad_(), params)
    weights, expected = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32), []
    for row, (first, second) in enumerate(((slice(0, 4), slice(4, 9)), (slice(0, 6),) * 2, (slice(0, 1), slice(1, 4)))):
        ids = torch.tensor(IDS[row])
        expected.append(written_out(theirs, ids[first], ids[second]))
    (torch.tensor(weights) * torch.stack(expected)).sum().backward()

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        logits = MODULE.apply({"params": params}, **BATCH, cls_positions=np.zeros((4, 1), np.int32)).logits
        return jnp.sum(weights * logits[:3, 0]), logits

    gradient, logits = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert logits.shape == (4, 1, 3) and np.isfinite(logits).all()
    np.testing.assert_allclose(logits[:3, 0], torch.stack(expected).detach(), rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(gradient, jax.tree.map(lambda leaf: leaf.grad.numpy(), theirs), rtol=1e-4, atol=1e-5)


def test_padding_changes_nothing_and_dropout_leaves_the_vectors_alone(params: Any) -> None:
    found = outputs(MODULE, params, BATCH)
    other = outputs(MODULE, params, BATCH | {"input_ids": np.where(MASK == 0, 3, IDS)})
    np.testing.assert_array_equal(found.logits, other.logits)
    noisy = dropped(dataclasses.replace(MODULE, config=CONFIG.with_dropout(0.5)), params, BATCH)
    np.testing.assert_allclose(noisy.last_hidden_state, found.last_hidden_state, atol=1e-6)
    assert np.abs(noisy.logits - found.logits).min(axis=1)[:3].max() > 1e-3


def test_starts_from_a_translation_model_or_from_any_table() -> None:
    start = Biattentive(size=4, dropout=0.1)
    model = start.model(COVE)
    assert model == dataclasses.replace(CONFIG, pieces=4, dropout=0.1) and start.model(model) == model
    assert (model.features, model.encoder_name) == (16, "cove")
    table = {COVE.token_table: np.ones((17, 6), np.float32)}
    kept = start.map({**table, "decoder/words": np.ones(1), "generator": np.ones(1)}, COVE, model)
    assert kept.keys() == table.keys()
    alone = dataclasses.replace(start, contextual=False)
    model = alone.model(COVE)
    assert model.vectors == StaticVectorsConfig(17, 6) and model.features == 6
    assert alone.map(table, COVE, model).keys() == {"static_vectors/words/embedding"}
    shapes = boxed_shapes(BiattentiveForSequenceClassification(model))
    assert shapes["classifier"]["feed_forward"]["kernel"].value.shape == (6, 4)
    assert alone.model(Word2VecConfig.tiny()).vectors.vector_size == Word2VecConfig.tiny().width
    with pytest.raises(UserError, match="Expected a checkpoint of CoVe, found BertConfig; name another one, or read"):
        start.model(BertConfig.tiny())
