"""Losses of masked tokens and of pairs against transformers, and what they count."""

import dataclasses

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.interop import albert, bert, roberta
from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.models.roberta import RobertaConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.deberta import DebertaPretraining
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import LossInputs
from plmjax.objectives.roberta import RobertaPretraining
from tests.families.encoders import ALBERT, BERT, ELECTRA
from tests.families.family import SIZES
from tests.families.modern import DEBERTA
from tests.objectives.masking import clean_batch, hidden_batch, total
from tests.optional import torch
from tests.systems.comparison import converted, reference
from tests.systems.modules import random_params

BERTS = Vocabulary.placeholder(BERT.vocab_size)
ROBERTAS = dataclasses.replace(BERTS, cls=0, pad=1, sep=2, unknown=3, mask=52, special=(0, 1, 2, 3, 52))
ROBERTA = RobertaConfig(**SIZES, max_position_embeddings=20)
CASES = {
    "bert": (BertPretraining(), BERT, bert.ADAPTER, "BertForPreTraining", "next_sentence", BERTS),
    "albert": (AlbertPretraining(), ALBERT, albert.ADAPTER, "AlbertForPreTraining", "sentence_order", BERTS),
    "roberta": (RobertaPretraining(), ROBERTA, roberta.ADAPTER, "RobertaForMaskedLM", None, ROBERTAS),
}
"""System -> objective, model, adapter, class of transformers, what is asked of a pair, vocabulary."""


def tensor(array: np.ndarray) -> torch.Tensor:
    """Of the rows that are no filling."""
    return torch.tensor(np.asarray(array)[:3]).long()


@pytest.mark.parametrize("name", ["bert", "albert", pytest.param("roberta", marks=pytest.mark.nightly)])
def test_loss_equals_transformers(name: str) -> None:
    """On what a step is given: RoBERTa's rows are padded with its own token and have positions from 0."""
    objective, config, adapter, architecture, pairs, vocabulary = CASES[name]
    batch = hidden_batch(objective, clean_batch(vocabulary, pairs), vocabulary)
    labels = np.full((4, 18), -100)
    for row, positions, ids, kept in zip(
        labels, batch["masked_positions"], batch["masked_ids"], batch["masked_weights"], strict=True
    ):
        row[positions[kept > 0]] = ids[kept > 0]
    asked = (labels >= 0).sum()
    assert (labels[:3] >= 0).any(axis=1).all() and 3 <= asked <= 8 and (name != "bert" or asked == 3 + 1 + 2)
    given = {"attention_mask": tensor(batch["segment_ids"]), "token_type_ids": tensor(batch["token_type_ids"])}
    given |= {f"{pairs}_label": tensor(batch[f"{pairs}_labels"][:, 0])} if pairs else {}
    model = reference(architecture, config)
    expected = model(tensor(batch["input_ids"]), labels=tensor(labels), **given)
    module = objective.module(config, Execution())
    params = converted(adapter, model.named_parameters(), module)
    loss, metrics = jax.jit(lambda params: total(objective, module, params, batch))(params)
    np.testing.assert_allclose(loss, expected.loss.detach(), rtol=1e-5)
    if pairs:
        term, scores = ("nsp", "seq_relationship_logits") if name == "bert" else ("sop", "sop_logits")
        hits = (expected[scores].argmax(-1).numpy() == batch[f"{pairs}_labels"][:3, 0]).sum()
        assert metrics[f"{term}_accuracy"] == (hits, 3) and list(objective.weights(batch)) == ["mlm", term]
    hits = (expected["prediction_logits" if pairs else "logits"].argmax(-1).numpy() == labels[:3]).sum()
    assert metrics["mlm_accuracy"] == (hits, asked)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("objective", "config", "pairs", "terms"),
    [
        (BertPretraining(), BERT, "next_sentence", ["mlm", "nsp"]),
        (ElectraPretraining(rate=0.3), ELECTRA, None, ["mlm", "rtd"]),
        (DebertaPretraining(rate=0.3), DEBERTA, None, ["mlm", "rtd"]),
    ],
    ids=["bert", "electra", "deberta"],
)
def test_parts_of_a_batch_add_up_and_filling_counts_nothing(objective, config, pairs, terms) -> None:
    """Whatever the microbatches are: losses, metrics and weights of single rows; each draws what the whole does."""
    batch, module = hidden_batch(objective, clean_batch(BERTS, pairs), BERTS), objective.module(config, Execution())
    params = random_params(module)
    sums = jax.jit(lambda batch: objective.sums(module, LossInputs(params), batch, jax.random.key(0), training=False))
    rows = [jax.tree.map(lambda x, i=i: x[i : i + 1], batch) for i in range(4)]
    whole, parts = sums(batch), [sums(row) for row in rows]
    for term, loss in whole.losses.items():
        np.testing.assert_allclose(sum(part.losses[term] for part in parts), loss, rtol=1e-5)
    for name, pair in whole.metrics.items():
        added = [sum(part.metrics[name][i] for part in parts) for i in range(2)]
        np.testing.assert_allclose(added, pair, rtol=1e-5, err_msg=name)
    assert all(loss == 0 for loss in parts[3].losses.values())
    assert all(value == 0 and weight == 0 for value, weight in parts[3].metrics.values())
    weights = objective.weights(rows[3])
    assert objective.target_term(batch) == "mlm" and list(weights) == terms
    assert all(weight > 0 for weight in weights.values()), "nothing is ever divided by 0"


@pytest.mark.nightly
def test_masked_language_model_alone_trains_an_encoder_without_a_pooler() -> None:
    objective = MaskedLanguageModel()
    batch, module = hidden_batch(objective, clean_batch(BERTS), BERTS), objective.module(BERT, Execution())
    assert isinstance(module, BertForMaskedLM)

    @jax.jit
    def descend(params: dict) -> tuple[jax.Array, dict]:
        loss, gradient = jax.value_and_grad(lambda p: total(objective, module, p, batch)[0])(params)
        return loss, jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient)

    first, params = descend(random_params(module))
    for _ in range(60):
        last, params = descend(params)
    assert first > 3.5 and last < 1.0
    ids, counted = objective.targets(batch)
    assert counted.sum() == 6 and ids.shape == counted.shape


@pytest.mark.parametrize(("pack", "room"), [(1, 20), (2, 22)])
def test_flops_come_from_shapes_alone(pack: int, room: int) -> None:
    shapes = SentencePairs(pack=pack).batch(256, 128)
    assert BertPretraining().train_flops(BertConfig.base(), shapes) == BertConfig.base().train_flops(256, 128, room)
