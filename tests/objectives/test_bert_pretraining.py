"""BERT's loss against transformers, and what it counts."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.interop.bert import ADAPTER
from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import LossInputs
from tests.families.encoders import BERT as ODD
from tests.optional import torch
from tests.systems.comparison import converted, reference

VOCABULARY = Vocabulary.placeholder(ODD.vocab_size)


def clean_batch(rows: int = 4, length: int = 18) -> dict[str, np.ndarray]:
    """Pairs of different lengths; the last row only fills the batch."""
    random = np.random.default_rng(0)
    lengths = np.array([18, 9, 14, 0])[:, None]
    real = np.arange(length)[None] < lengths
    ids = np.where(real, random.integers(5, ODD.vocab_size, (rows, length)), 0)
    ids[:, 0], ids[np.arange(3), lengths[:3, 0] - 1] = 2, 3
    return {
        "input_ids": ids.astype(np.int32),
        "segment_ids": real.astype(np.int32),
        "positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "row_ids": np.array([0, 1, 2, -1], np.int32),
        "token_type_ids": (real & (np.arange(length) > 5)).astype(np.int32),
        "cls_positions": np.zeros((rows, 1), np.int32),
        "next_sentence_labels": np.array([[0], [1], [1], [1]], np.int32),
        "next_sentence_weights": np.array([[1], [1], [1], [0]], np.float32),
    }


def total(objective: MaskedLanguageModel, module: nn.Module, params: dict, batch: dict) -> tuple[jax.Array, dict]:
    sums = objective.sums(module, LossInputs(params), batch, jax.random.key(0), training=False)
    weights = objective.weights(batch)
    return sum(sums.losses[term] / weights[term] for term in weights), sums.metrics


def test_loss_equals_transformers() -> None:

    objective = BertPretraining()
    batch = jax.jit(lambda b: objective.corrupt(b, jax.random.key(0), VOCABULARY))(clean_batch())
    model = reference("BertForPreTraining", ODD)
    labels = np.full((4, 18), -100)
    for row, positions, ids, kept in zip(
        labels, batch["masked_positions"], batch["masked_ids"], batch["masked_weights"], strict=True
    ):
        row[positions[kept > 0]] = ids[kept > 0]
    assert (labels >= 0).sum() == 3 + 1 + 2

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.tensor(np.asarray(array)[:3]).long()

    expected = model(
        tensor(batch["input_ids"]),
        attention_mask=tensor(batch["segment_ids"]),
        token_type_ids=tensor(batch["token_type_ids"]),
        labels=tensor(labels),
        next_sentence_label=tensor(batch["next_sentence_labels"][:, 0]),
    )
    module = objective.module(ODD, Execution())
    params = converted(ADAPTER, model.named_parameters(), module)
    loss, metrics = jax.jit(lambda params: total(objective, module, params, batch))(params)
    np.testing.assert_allclose(loss, expected.loss.detach(), rtol=1e-5)
    logits, relation = expected.prediction_logits.detach().numpy(), expected.seq_relationship_logits.detach().numpy()
    hits = (logits.argmax(-1) == labels[:3]).sum()
    assert metrics["mlm_accuracy"] == (hits, 6)
    assert metrics["nsp_accuracy"] == ((relation.argmax(-1) == batch["next_sentence_labels"][:3, 0]).sum(), 3)


@pytest.mark.nightly
def test_filling_counts_nothing_and_parts_add_up() -> None:
    objective = BertPretraining()
    batch = jax.jit(lambda b: objective.corrupt(b, jax.random.key(0), VOCABULARY))(clean_batch())
    module = objective.module(ODD, Execution())
    params = nn.meta.unbox(jax.jit(lambda b: objective.init(module, jax.random.key(0), b, {}, ()))(batch))["params"]
    sums = jax.jit(lambda batch: objective.sums(module, LossInputs(params), batch, jax.random.key(0), training=False))
    rows = [jax.tree.map(lambda x, i=i: x[i : i + 1], batch) for i in range(4)]
    whole, parts = sums(batch), [sums(row) for row in rows]
    for term, loss in whole.losses.items():
        np.testing.assert_allclose(sum(part.losses[term] for part in parts), loss, rtol=1e-5)
    assert all(loss == 0 for loss in parts[3].losses.values())
    assert all(value == 0 and weight == 0 for value, weight in parts[3].metrics.values())
    weights = objective.weights(rows[3])
    assert list(weights) == ["mlm", "nsp"]
    assert all(weight > 0 for weight in weights.values()), "nothing is ever divided by 0"


@pytest.mark.nightly
def test_masked_language_model_alone_trains_an_encoder_without_a_pooler() -> None:
    objective = MaskedLanguageModel()
    batch = jax.jit(lambda b: objective.corrupt(b, jax.random.key(0), VOCABULARY))(clean_batch())
    module = objective.module(ODD, Execution())
    assert isinstance(module, BertForMaskedLM)
    params = nn.meta.unbox(jax.jit(lambda b: objective.init(module, jax.random.key(0), b, {}, ()))(batch))["params"]

    @jax.jit
    def descend(params: dict) -> tuple[jax.Array, dict]:
        loss, gradient = jax.value_and_grad(lambda p: total(objective, module, p, batch)[0])(params)
        return loss, jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient)

    first, params = descend(params)
    for _ in range(60):
        last, params = descend(params)
    assert first > 3.5 and last < 1.0
    ids, counted = objective.targets(batch)
    assert jnp.sum(counted) == 6 and ids.shape == counted.shape


@pytest.mark.parametrize("pack", [1, 2])
def test_flops_come_from_shapes_alone(pack: int) -> None:
    shapes = SentencePairs(pack=pack).batch(256, 128)
    room = 20 if pack == 1 else 22
    flops = BertPretraining().train_flops(BertConfig.base(), shapes)
    assert flops == BertConfig.base().train_flops(256, 128, room)
