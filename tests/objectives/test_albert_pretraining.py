"""ALBERT's masking against a plain transcription of the published procedure, and its loss against transformers."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.interop.albert import ADAPTER
from plmjax.objectives import albert
from plmjax.objectives.albert import AlbertPretraining, draw_runs
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


def test_runs_are_drawn_as_published() -> None:
    """For the same order and the same lengths, in each of two sequences of a row."""
    generator, length = np.random.default_rng(0), 40
    draw = jax.jit(draw_runs, static_argnames="longest")
    segments = np.repeat([1, 2, 0], [23, 14, 3])
    limited = 0
    for _ in range(300):
        longest = int(generator.integers(1, 5))
        eligible = (segments > 0) & (generator.random(length) < 0.9)
        starts = eligible & (generator.random(length) < 0.6)
        for sequence in (1, 2):
            starts[np.flatnonzero(eligible & (segments == sequence))[0]] = True
        numbers = np.where(eligible, np.cumsum(starts), 0)
        order, runs = generator.permutation(length), generator.integers(1, longest + 1, length)
        budget = np.where(segments == 1, *generator.integers(1, 9, 2))
        found = draw(*map(jnp.array, (order, runs, numbers, starts, segments, budget)), longest=longest)
        expected = set()
        for sequence in (1, 2):
            first = np.flatnonzero(starts & (segments == sequence))
            words = [np.flatnonzero(numbers == numbers[t]).tolist() for t in first]
            visits, drawn = np.argsort(order[first]).tolist(), runs[first].tolist()
            most = int(budget[segments == sequence][0])
            expected |= published(words, most, visits, drawn)
            limited += published(words, most, visits, drawn) != published(words, length, visits, drawn)
        assert set(np.flatnonzero(found)) == expected
    assert limited > 300


def test_masking_has_the_published_distribution() -> None:
    """Numbers of hidden tokens, and of runs of neighbouring words, and places agree within five standard errors."""
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


def test_runs_are_as_long_as_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has five words at most, with chances of 60, 30, 20, 15 and 12 in 137."""
    asked = []
    monkeypatch.setattr(albert, "draw_runs", lambda order, runs, *fields: asked.append(fields[-1]) or runs)
    ids = jnp.full(10_000, 10)
    choose = jax.jit(lambda key: AlbertPretraining(ngram=5)._choose(key, ids, jnp.ones_like(ids), SMALL))
    runs = np.asarray(choose(jax.random.key(0)))
    assert asked == [5]
    shares = np.bincount(runs, minlength=6) / len(runs)
    np.testing.assert_allclose(shares, np.array([0, 60, 30, 20, 15, 12]) / 137, atol=0.015)


@pytest.mark.parametrize("max_predictions", [0, 7])
def test_every_packed_sequence_has_a_budget_of_its_own(max_predictions: int) -> None:
    lengths = [[128], [3], [10, 30, 50], [64, 64], [5, 5, 5], [20]]
    batch = batch_of(lengths, 128)
    mask = chosen(corrupt(AlbertPretraining(max_predictions=max_predictions, whole_word=False), batch))
    for b, sequences in enumerate(lengths):
        for k, length in enumerate(sequences):
            budget = min(max(1, round(0.15 * length)), max_predictions or 128, length - 2)
            assert mask[b][batch["segment_ids"][b] == k + 1].sum() == budget, (b, k)


def test_whole_words_are_hidden_whole() -> None:
    batch = batch_of([[64]] * 200, 64)
    mask = chosen(corrupt(AlbertPretraining(), batch))
    for ids, row in zip(batch["input_ids"], mask, strict=True):
        assert all(row[word].all() for word in words_of(ids) if row[word].any())
    assert mask.sum() > 0.95 * 2000


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


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="ngram of at least 1, found 0"):
        AlbertPretraining(ngram=0)
