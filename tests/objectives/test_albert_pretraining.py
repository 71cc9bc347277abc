"""ALBERT's masking against a plain transcription of the published procedure, and its loss against transformers."""

import random

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.interop.albert import ADAPTER
from plmjax.objectives.albert import AlbertPretraining
from tests.families.encoders import ALBERT as ODD
from tests.objectives.masking import CLS, SEP, batch_of, chosen, corrupt, words_of
from tests.objectives.test_bert_pretraining import VOCABULARY as SMALL
from tests.objectives.test_bert_pretraining import clean_batch, total
from tests.optional import torch
from tests.systems.comparison import converted, reference


def published(words: list[list[int]], budget: int, order: list[int], runs: list[int]) -> set[int]:
    """Positions that google-research/albert's create_masked_lm_predictions hides, told again.

    words: positions of each. order: the words as they are visited. runs: how many are drawn from each on.
    """
    covered: set[int] = set()
    for start in order:
        if len(covered) >= budget:
            break
        n = runs[start]
        while len(covered) + len(run := [t for word in words[start : start + n] for t in word]) > budget and n > 1:
            n -= 1
        if len(covered) + len(run) <= budget and not covered & set(run):
            covered |= set(run)
    return covered


def test_masking_has_the_published_distribution() -> None:
    """Numbers of masked tokens, and of runs of neighbouring words, and places agree within five standard errors."""
    rows, length, objective = 6000, 48, AlbertPretraining(rate=0.3, max_predictions=12)
    batch = batch_of([[length]], length)
    ids = batch["input_ids"].copy()
    ids[0, 20] = SEP  # runs reach across it, as published
    batch = {name: np.repeat(ids if name == "input_ids" else field, rows, axis=0) for name, field in batch.items()}
    mask = chosen(corrupt(objective, batch))
    words, budget = words_of(ids[0]), 12
    number = {position: place for place, word in enumerate(words) for position in word}
    generator, drawn = random.Random(0), np.random.default_rng(0)
    shares = np.array([6, 3, 2]) / 11
    expected = np.zeros((rows, length), bool)
    for row in expected:
        order = generator.sample(range(len(words)), len(words))
        row[sorted(published(words, budget, order, (1 + drawn.choice(3, len(words), p=shares)).tolist()))] = True
    assert not mask[:, [0, 20, length - 1]].any() and not expected[:, 20].any()

    def statistics(mask: np.ndarray) -> np.ndarray:
        hidden = [sorted({number[t] for t in np.flatnonzero(row)}) for row in mask]
        runs = [1 + int((np.diff(row) > 1).sum()) for row in hidden]
        across = mask[:, 19] & mask[:, 21]
        return np.array([mask.sum(axis=1), [len(row) for row in hidden], runs, across, mask[:, 1], mask[:, 30]], float)

    for ours, theirs in zip(statistics(mask), statistics(expected), strict=True):
        error = np.sqrt((ours.var() + theirs.var()) / rows)
        assert abs(ours.mean() - theirs.mean()) <= 5 * error
    difference = mask.mean(axis=0) - expected.mean(axis=0)
    assert np.abs(difference).max() < 5 * np.sqrt(2 * 0.25 / rows)


@pytest.mark.parametrize("max_predictions", [0, 7])
def test_every_packed_sequence_has_a_budget_of_its_own(max_predictions: int) -> None:
    lengths = [[128], [3], [10, 30, 50], [64, 64], [5, 5, 5], [20]]
    batch = batch_of(lengths, 128)
    mask = chosen(corrupt(AlbertPretraining(max_predictions=max_predictions, whole_word=False), batch))
    for b, sequences in enumerate(lengths):
        for k, length in enumerate(sequences):
            budget = min(max(1, round(0.15 * length)), max_predictions or 128, length - 2)
            assert mask[b][batch["segment_ids"][b] == k + 1].sum() == budget, (b, k)


@pytest.mark.nightly
def test_a_continuation_after_a_separator_begins_a_word() -> None:
    """Deviation named in the module; the run of words reaches across the separator all the same."""
    ids = np.tile(np.array([CLS, 10, SEP, 9, 9, SEP, 0, 0], np.int32), (30, 1))
    batch = {"input_ids": ids, "segment_ids": (ids > 0).astype(np.int32), "row_ids": np.arange(30, dtype=np.int32)}
    masks = set()
    for rate in (0.2, 0.3, 0.5):
        masks |= {tuple(np.flatnonzero(row)) for row in chosen(corrupt(AlbertPretraining(rate=rate), batch))}
    assert masks == {(1,), (3, 4), (1, 3, 4)}


def test_loss_equals_transformers() -> None:

    objective = AlbertPretraining()
    batch = clean_batch()
    batch["sentence_order_labels"] = batch.pop("next_sentence_labels")
    batch["sentence_order_weights"] = batch.pop("next_sentence_weights")
    batch = jax.jit(lambda b: objective.corrupt(b, jax.random.key(0), SMALL))(batch)
    model = reference("AlbertForPreTraining", ODD)
    labels = np.full((4, 18), -100)
    for row, positions, ids, kept in zip(
        labels, batch["masked_positions"], batch["masked_ids"], batch["masked_weights"], strict=True
    ):
        row[positions[kept > 0]] = ids[kept > 0]
    assert (labels[:3] >= 0).any(axis=1).all()

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.tensor(np.asarray(array)[:3]).long()

    expected = model(
        tensor(batch["input_ids"]),
        attention_mask=tensor(batch["segment_ids"]),
        token_type_ids=tensor(batch["token_type_ids"]),
        labels=tensor(labels),
        sentence_order_label=tensor(batch["sentence_order_labels"][:, 0]),
    )
    module = objective.module(ODD, Execution())
    params = converted(ADAPTER, model.named_parameters(), module)
    loss, metrics = jax.jit(lambda params: total(objective, module, params, batch))(params)
    np.testing.assert_allclose(loss, expected.loss.detach(), rtol=1e-5)
    hits = (expected.sop_logits.argmax(-1).numpy() == batch["sentence_order_labels"][:3, 0]).sum()
    assert metrics["sop_accuracy"] == (hits, 3) and list(objective.weights(batch)) == ["mlm", "sop"]
