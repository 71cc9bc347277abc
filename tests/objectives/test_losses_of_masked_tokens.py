"""Losses of masked tokens and of pairs against transformers, and what they count."""

import dataclasses

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.interop import albert, bert, roberta
from plmjax.models.roberta import RobertaConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.roberta import RobertaPretraining
from tests.families.encoders import ALBERT, BERT
from tests.families.family import SIZES
from tests.objectives.masking import clean_batch, hidden_batch, total
from tests.optional import torch
from tests.systems.comparison import converted, reference

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
    """Return the first three rows, which are not padding, as a tensor."""
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
