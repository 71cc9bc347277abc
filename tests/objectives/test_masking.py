"""Masking: counts, shares, words, published distributions, and choices by sorting against plain loops."""

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.distilbert import DistilBertPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import ConstantSources
from plmjax.objectives.roberta import RobertaPretraining
from tests.objectives.masking import MASK, SEP, VOCABULARY, batch_of, chosen, corrupt, words_of
from tests.third_party import experiments


@pytest.mark.parametrize("limit", [0, 7])
def test_counts_are_exact_in_every_packed_sequence_and_targets_are_the_clean_tokens(limit: int) -> None:
    """Nothing else changes, and a row of filling asks for nothing."""
    lengths = [[128], [3], [10, 30, 50], [64, 64], [5, 5, 5], [20], [0]]
    batch = batch_of(lengths, 128)
    corrupted = corrupt(MaskedLanguageModel(max_predictions=limit), batch)
    mask = chosen(corrupted)
    for b, sequences in enumerate(lengths[:-1]):
        for k, length in enumerate(sequences):
            expected = min(max(1, round(0.15 * length)), limit or 128, length - 2)
            assert mask[b][batch["segment_ids"][b] == k + 1].sum() == expected, (b, k)
    assert not mask[np.isin(batch["input_ids"], VOCABULARY.special)].any() and not corrupted["masked_weights"][-1].any()
    np.testing.assert_array_equal(corrupted["input_ids"][~mask], batch["input_ids"][~mask])
    np.testing.assert_array_equal(corrupted["masked_ids"][corrupted["masked_weights"] > 0], batch["input_ids"][mask])


def test_shares_and_uniformity() -> None:
    rows, length = 4000, 64
    batch = batch_of([[length]] * rows, length)
    corrupted = corrupt(MaskedLanguageModel(), batch)
    mask = chosen(corrupted)
    shown, clean = corrupted["input_ids"][mask], batch["input_ids"][mask]
    total = len(shown)
    assert total == rows * 10
    # Five standard errors of 40,000 draws: 0.01 and 0.0075.
    assert abs((shown == MASK).mean() - 0.8001) < 0.01
    assert abs((shown == clean).mean() - 0.1001) < 0.0075
    drawn = shown[(shown != MASK) & (shown != clean)]
    assert drawn.min() == 0 and drawn.max() == 999, "the whole vocabulary, special tokens included"
    counts = np.bincount(drawn // 100, minlength=10)
    assert abs(counts / counts.sum() - 0.1).max() < 0.025
    share = mask.mean(axis=0)
    assert share[0] == share[-1] == 0
    assert abs(share[1:-1] - 10 / 62).max() < 0.03, "every position is as likely"


@pytest.mark.parametrize("objective", [MaskedLanguageModel, RobertaPretraining, AlbertPretraining])
def test_a_rate_between_two_is_drawn_for_each_row(objective) -> None:
    batch = batch_of([[128]] * 200, 128)
    settings = {"max_predictions": 0, "whole_word": False}
    counts = chosen(corrupt(objective(rate=0.4, lowest_rate=0.1, **settings), batch)).sum(axis=1)
    assert 12 <= counts.min() < 18 and 46 < counts.max() <= 52  # of 128 tokens, 12.8 to 51.2
    assert abs(counts.mean() - 32) < 3  # five standard errors are 3.9


def test_evaluations_have_a_rate_of_their_own() -> None:
    objective = MaskedLanguageModel(rate=0.4, lowest_rate=0.1, evaluation_rate=0.15)
    run = dataclasses.replace(experiments.bert(), objective=objective)
    assert run.training_objective == objective
    batch = batch_of([[100]] * 4, 128)
    assert (chosen(corrupt(run.evaluation_objective, batch)).sum(axis=1) == 15).all()
    assert run.evaluation_objective.predictions(batch) == 20 and objective.predictions(batch) == 52


@pytest.mark.parametrize("objective", [MaskedLanguageModel, AlbertPretraining])
def test_special_tokens_are_chosen_if_asked(objective) -> None:
    settings = {"rate": 0.5, "max_predictions": 0, "whole_word": False}
    share = chosen(corrupt(objective(choose_special=True, **settings), batch_of([[8]] * 300, 8))).mean(axis=0)
    assert abs(share - 0.5).max() < 0.15


def test_dynamic_masks_follow_the_key_and_static_ones_the_row() -> None:
    batch = batch_of([[60]] * 8, 64)
    dynamic = MaskedLanguageModel()
    first, again, other = (chosen(corrupt(dynamic, batch, seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()

    static = MaskedLanguageModel(masking="static")
    mask = corrupt(static, batch, 1)
    order = np.array([3, 1, 7, 0, 2, 5, 4, 6])
    moved = corrupt(static, {name: field[order] for name, field in batch.items()}, 2)
    for name in ("input_ids", "masked_positions", "masked_ids"):
        np.testing.assert_array_equal(moved[name], mask[name][order])
    assert len({row.tobytes() for row in chosen(mask)}) == 8, "rows differ among themselves"
    reseeded = corrupt(dataclasses.replace(static, static_seed=1), batch, 1)
    assert (chosen(reseeded) != chosen(mask)).any()


ROBERTA = dataclasses.replace(VOCABULARY, cls=0, pad=1, sep=2, unknown=3, mask=999, special=(0, 1, 2, 3, 999))


def test_every_packed_sequence_is_rounded_for_itself_and_has_room() -> None:
    lengths = [[10, 30, 24]] * 2000
    batch = batch_of(lengths, 64)
    corrupted = corrupt(RobertaPretraining(), batch)
    mask = chosen(corrupted)
    counts = np.stack([(mask & (batch["segment_ids"] == k + 1)).sum(axis=1) for k in range(3)])
    for length, found in zip((10, 30, 24), counts, strict=True):
        assert set(found) == {int(0.15 * length), int(0.15 * length) + 1}
    ups = counts - counts.min(axis=1, keepdims=True)
    assert abs(np.corrcoef(ups[0], ups[1])[0, 1]) < 0.12, "1.5 and 4.5 go up independently"
    assert counts.sum() == (corrupted["masked_weights"] > 0).sum(), "none was cut off for want of room"


def test_replacements_are_uniform_over_tokens_that_are_not_special() -> None:
    """Deviation named in the module: fairseq's replacements leave out all special tokens but <mask>."""
    objective, batch = RobertaPretraining(rate=0.9, mask_fraction=0.0, random_fraction=1.0), batch_of([[64]] * 7000, 64)
    make = jax.jit(lambda batch, key: objective.corrupt(batch, key, ROBERTA))
    found = jax.device_get(make(batch, jax.random.key(0)))
    counts = np.bincount(found["input_ids"][chosen(found)], minlength=1000)
    expected = counts.sum() / 995
    assert (counts[list(ROBERTA.special)] == 0).all()
    ordinary = np.delete(counts, ROBERTA.special)
    assert expected > 402 and abs(ordinary / expected - 1).max() < 0.3
    assert abs(np.square(ordinary - expected).mean() / expected - 1) < 0.25, "chi-squared a degree of freedom"


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


@pytest.mark.nightly  # 3 s; by day the choices are those of plain loops, which are the published ones
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


def test_tokens_are_drawn_in_proportion_to_their_weights() -> None:
    """One of six tokens a row is hidden: each as often as max(count, 1)^-0.7 says (distiller.py, `token_probs`)."""
    rows, counts = 20_000, np.zeros(1000, np.int64)
    tokens = np.array([10, 11, 12, 13, 14, 15])
    counts[tokens] = [0, 1, 10, 100, 1000, 10_000]
    batch = batch_of([[8]] * rows, 8)
    batch["input_ids"][:, 1:-1] = tokens
    objective = DistilBertPretraining()
    made = objective.constants(None, ConstantSources(VOCABULARY, counts, lambda: [], lambda checkpoint, init: None))
    choose = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY, made))
    found = chosen(jax.tree.map(np.asarray, choose(batch, jax.random.key(0))))
    assert (found.sum(axis=1) == 1).all() and not found[:, [0, -1]].any()
    weights = np.maximum(counts[tokens], 1) ** -0.7
    expected = rows * weights / weights.sum()
    assert np.abs(found[:, 1:-1].sum(axis=0) - expected).max() < 5 * np.sqrt(expected.max())
    assert (np.square(found[:, 1:-1].sum(axis=0) - expected) / expected).sum() < 25  # chi-squared, 5 degrees of freedom


def numbers(key: jax.Array, length: int) -> np.ndarray:
    """The keys by which a row's tokens are sorted: random bits, the position in the lowest of them."""
    bits = np.asarray(jax.random.bits(key, (length,), jnp.uint32))
    return (bits << np.uint32(max(1, (length - 1).bit_length()))) | np.arange(length, dtype=np.uint32)


def taken_in_order(words: list[list[int]], budget: int) -> set[int]:
    """The released loop (google-research/bert create_masked_lm_predictions): what does not fit is skipped."""
    taken: set[int] = set()
    for word in words:
        if len(taken) + len(word) <= budget:
            taken |= set(word)
    return taken


def chosen_by_loops(objective: MaskedLanguageModel, key: jax.Array, ids: np.ndarray, segments: np.ndarray) -> set[int]:
    """The tokens to predict of one row, sequence after sequence and word after word."""
    length, found = len(ids), set()
    runs = isinstance(objective, AlbertPretraining)
    visit, run, size = jax.random.split(key, 3) if runs else (key, key, jax.random.fold_in(key, 1))
    if runs:
        order = np.asarray(jax.random.permutation(visit, length))
        shares = -jnp.log(jnp.arange(1, objective.ngram + 1))
        drawn = 1 + np.asarray(jax.random.categorical(run, shares, shape=(length,)))
    else:
        order = numbers(visit, length)
    lengths = np.bincount(segments, minlength=length + 1)[segments]
    budgets = np.asarray(objective.budget(size, jnp.array(lengths), jnp.array(segments)))
    for segment in range(1, segments.max() + 1):
        here = np.flatnonzero(segments == segment)
        words = [[here[t] for t in word] for word in words_of(ids[here])]
        if not objective.whole_word:
            words = [[t] for word in words for t in word]
        budget = min(budgets[here[0]], objective.max_predictions or length)
        first = [word[0] for word in words]
        if runs:
            found |= published(words, budget, np.argsort(order[first]).tolist(), drawn[first].tolist())
        else:
            found |= taken_in_order([words[place] for place in np.argsort(order[first])], budget)
    return found


ROWS = [[64], [3], [10, 30, 20], [32, 32], [5, 5, 5], [20], [7, 3, 9, 4, 12, 5, 6, 8]]


@pytest.mark.parametrize(
    "objective",
    [
        MaskedLanguageModel(),
        MaskedLanguageModel(whole_word=True, rate=0.4, max_predictions=7),
        RobertaPretraining(whole_word=True, rate=0.3, max_predictions=5),
        AlbertPretraining(),
        pytest.param(AlbertPretraining(max_predictions=0, rate=0.5, ngram=5), marks=pytest.mark.nightly),
    ],
    ids=repr,
)
def test_choices_are_those_of_plain_loops(objective: MaskedLanguageModel) -> None:
    batch = batch_of(ROWS * 4, 64)
    choose = jax.jit(jax.vmap(functools.partial(objective.choose, vocabulary=VOCABULARY)))
    keys = jax.random.split(jax.random.key(3), len(batch["input_ids"]))
    found = np.asarray(choose(keys, batch["input_ids"], batch["segment_ids"]))
    for row, key, ids, segments in zip(found, keys, batch["input_ids"], batch["segment_ids"], strict=True):
        assert set(np.flatnonzero(row)) == chosen_by_loops(objective, key, ids, segments)
    assert found.any()


LONG = 65_536


def test_a_row_of_65536_tokens_is_masked_in_memory_that_grows_with_its_length() -> None:
    batch, objective = batch_of([[LONG - 30_000, 20_000, 10_000]], LONG), MaskedLanguageModel(whole_word=True)
    mask = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY))
    compiled = mask.lower(batch, jax.random.key(0)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 400 * LONG  # one bit a pair of tokens would be 8,192 * LONG
    masked = jax.tree.map(np.asarray, compiled(batch, jax.random.key(0)))
    assert chosen(masked).sum() == masked["masked_weights"].sum() == pytest.approx(0.15 * LONG, rel=1e-3)
