"""Masking: counts, shares, words, published distributions, and choices by sorting against plain loops."""

import dataclasses
import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _pytest.mark import ParameterSet

from plmjax.objectives import electra
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.distilbert import DistilBertPretraining
from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import ConstantSources, Objective
from plmjax.objectives.roberta import RobertaPretraining
from tests.objectives.masking import CLS, MASK, SEP, VOCABULARY, batch_of, chosen, corrupt, words_of
from tests.third_party import experiments


@pytest.mark.parametrize(
    ("objective", "limit"),
    [
        (MaskedLanguageModel(), 128),
        (MaskedLanguageModel(max_predictions=7), 7),
        # ALBERT's, whose choices are those of plain loops below
        *(
            pytest.param(AlbertPretraining(max_predictions=most, whole_word=False), limit, marks=pytest.mark.nightly)
            for most, limit in ((0, 128), (7, 7))
        ),
    ],
    ids=["0", "7", "albert-0", "albert-7"],
)
def test_counts_are_exact_in_every_packed_sequence(objective: MaskedLanguageModel, limit: int) -> None:
    lengths = [[128], [3], [10, 30, 50], [64, 64], [5, 5, 5], [20]]
    batch = batch_of(lengths, 128)
    mask = chosen(corrupt(objective, batch))
    for b, sequences in enumerate(lengths):
        for k, length in enumerate(sequences):
            expected = min(max(1, round(0.15 * length)), limit, length - 2)
            assert mask[b][batch["segment_ids"][b] == k + 1].sum() == expected, (b, k)


def test_targets_are_the_clean_tokens_and_nothing_else_changes() -> None:
    batch = batch_of([[100, 28], [64], [0]], 128)
    corrupted = corrupt(MaskedLanguageModel(), batch)
    mask = chosen(corrupted)
    assert not mask[np.isin(batch["input_ids"], VOCABULARY.special)].any(), "[CLS], [SEP] and padding are never chosen"
    np.testing.assert_array_equal(corrupted["input_ids"][~mask], batch["input_ids"][~mask])
    np.testing.assert_array_equal(corrupted["masked_ids"][corrupted["masked_weights"] > 0], batch["input_ids"][mask])
    assert mask[2].sum() == 0 and corrupted["masked_weights"][2].sum() == 0, "a row of filling asks for nothing"


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


# RoBERTa asks what may be chosen as the masked language model does; ALBERT's runs ask it themselves.
@pytest.mark.parametrize(
    "objective", [MaskedLanguageModel, pytest.param(RobertaPretraining, marks=pytest.mark.nightly), AlbertPretraining]
)
def test_special_tokens_are_chosen_if_asked(objective) -> None:
    batch = batch_of([[8]] * 300, 8)
    settings = {"rate": 0.5, "max_predictions": 0, "whole_word": False}
    share = chosen(corrupt(objective(choose_special=True, **settings), batch)).mean(axis=0)
    assert abs(share - 0.5).max() < 0.15
    share = chosen(corrupt(objective(**settings), batch)).mean(axis=0)
    assert share[0] == share[-1] == 0


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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("objective", "rates", "expected"),
    [
        (MaskedLanguageModel(whole_word=True), (0.3,), {(1,), (3, 4)}),
        (AlbertPretraining(), (0.2, 0.3, 0.5), {(1,), (3, 4), (1, 3, 4)}),
    ],
    ids=["bert", "albert"],
)
def test_a_continuation_after_a_separator_begins_a_word(objective, rates, expected) -> None:
    """Deviation named in both modules: words do not reach across [CLS] and [SEP]; ALBERT's runs of words do."""
    ids = np.tile(np.array([CLS, 10, SEP, 9, 9, SEP, 0, 0], np.int32), (30, 1))
    batch = {"input_ids": ids, "segment_ids": (ids > 0).astype(np.int32), "row_ids": np.arange(30, dtype=np.int32)}
    found = [chosen(corrupt(dataclasses.replace(objective, rate=rate), batch)) for rate in rates]
    assert {tuple(np.flatnonzero(row)) for row in np.concatenate(found)} == expected


@pytest.mark.parametrize(
    ("row", "pack", "limit", "room"),
    [(128, 1, 0, 20), (512, 1, 0, 77), (512, 1, 76, 76), (512, 4, 0, 81), (512, 4, 10, 40), (512, 4, 30, 81)],
)
def test_room_for_predictions(row: int, pack: int, limit: int, room: int) -> None:
    batch = batch_of([[row // pack] * pack], row)
    assert MaskedLanguageModel(max_predictions=limit).predictions(batch) == room


def test_shares_may_fill_the_whole() -> None:
    for objective in (MaskedLanguageModel, ElectraPretraining):
        assert objective(mask_fraction=1.0, **({"random_fraction": 0.0} if objective is MaskedLanguageModel else {}))
    assert MaskedLanguageModel(mask_fraction=0.5, random_fraction=0.5) and MaskedLanguageModel(mask_fraction=0.0)
    assert ElectraPretraining(mask_fraction=0.0, generator_weight=0.0, discriminator_weight=0.0)


def test_hits_and_nats_are_of_the_targets_that_count() -> None:
    """A target that scores as high as another one is a hit."""
    logits = np.float32([[[1, 3, 2], [2, 0, 2], [0, 1, 5], [4, 0, 0]]])
    batch = {"masked_ids": np.array([[2, 0, 2, 1]]), "masked_weights": np.float32([[1, 1, 1, 0]])}
    found = MaskedLanguageModel.masked_sums(logits, batch)
    nats = np.log(np.exp(logits).sum(-1))[0] - np.take_along_axis(logits, batch["masked_ids"][..., None], -1)[0, :, 0]
    assert float(found.losses["mlm"]) == pytest.approx(nats[:3].sum(), rel=1e-6)
    assert [float(x) for x in found.metrics["mlm_accuracy"]] == [2, 3]
    assert [float(x) for x in found.metrics["mlm_loss"]] == pytest.approx([nats[:3].sum(), 3])


ROBERTA = dataclasses.replace(VOCABULARY, cls=0, pad=1, sep=2, unknown=3, mask=999, special=(0, 1, 2, 3, 999))


# By day shares with a fraction of a half and of six tenths: every length is rounded by the same draw.
@pytest.mark.parametrize("length", [10, 64, *(pytest.param(length, marks=pytest.mark.nightly) for length in (3, 20))])
def test_the_share_is_rounded_up_as_often_as_its_fraction_says(length: int) -> None:
    rows = 6000
    counts = chosen(corrupt(RobertaPretraining(), batch_of([[length]] * rows, length))).sum(axis=1)
    assert set(counts) <= {int(0.15 * length), -int(-0.15 * length // 1)}
    fraction = 0.15 * length % 1
    # Five standard errors.
    assert abs(counts.mean() - 0.15 * length) <= 5 * (fraction * (1 - fraction) / rows) ** 0.5 + 1e-9


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


def test_begin_and_end_count_but_are_never_chosen() -> None:
    """Deviation named in the module: fairseq may ask for <s> and </s>."""
    batch = batch_of([[8]] * 4000, 8)
    mask = chosen(corrupt(RobertaPretraining(), batch))
    share = mask.mean(axis=0)
    assert share[0] == share[-1] == 0
    assert abs(share[1:-1] - 1.2 / 6).max() < 0.035, "every other position is as likely"


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


def constants(objective: DistilBertPretraining, counts: np.ndarray) -> dict[str, jax.Array]:
    return objective.constants(None, ConstantSources(VOCABULARY, counts, lambda: [], lambda checkpoint, init: None))


def hidden(objective: DistilBertPretraining, counts: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
    """bool [B T]: the positions to predict."""
    made = constants(objective, counts)
    corrupt = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY, made))
    return chosen(jax.tree.map(np.asarray, corrupt(batch, jax.random.key(0))))


def test_tokens_are_drawn_in_proportion_to_their_weights() -> None:
    """One of six tokens a row is hidden: each as often as max(count, 1)^-0.7 says (distiller.py, `token_probs`)."""
    rows, counts = 20_000, np.zeros(1000, np.int64)
    tokens = np.array([10, 11, 12, 13, 14, 15])
    counts[tokens] = [0, 1, 10, 100, 1000, 10_000]
    batch = batch_of([[8]] * rows, 8)
    batch["input_ids"][:, 1:-1] = tokens
    found = hidden(DistilBertPretraining(), counts, batch)
    assert (found.sum(axis=1) == 1).all() and not found[:, [0, -1]].any()
    weights = np.maximum(counts[tokens], 1) ** -0.7
    expected = rows * weights / weights.sum()
    assert np.abs(found[:, 1:-1].sum(axis=0) - expected).max() < 5 * np.sqrt(expected.max())
    assert (np.square(found[:, 1:-1].sum(axis=0) - expected) / expected).sum() < 25  # chi-squared, 5 degrees of freedom


def test_every_sequence_has_its_own_share() -> None:
    """Deviation named in the module: the released code draws from a whole batch."""
    counts = np.arange(1000) ** 2
    batch = batch_of([[20, 44], [64]] * 50, 64)
    found = hidden(DistilBertPretraining(), counts, batch)
    first = (found & (batch["segment_ids"] == 1)).sum(axis=1)
    assert set(first[::2]) == {3} and set(first[1::2]) == {10}


def test_the_exponent_is_that_of_the_setting() -> None:
    """The square root of 100 is 10; a token that never occurs counts as one that occurs once."""
    assert not np.any(constants(DistilBertPretraining(), np.zeros(1000, np.int64))["log_weights"])
    counts = np.full(1000, 100)
    np.testing.assert_allclose(constants(DistilBertPretraining(smoothing=0.5), counts)["log_weights"], -np.log(10))
    assert not np.any(constants(DistilBertPretraining(smoothing=0.0), counts)["log_weights"])


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


def further(objective: MaskedLanguageModel) -> ParameterSet:
    """Of the nightly tests: the others have every part of the choice."""
    return pytest.param(objective, marks=pytest.mark.nightly)


ROWS = [[64], [3], [10, 30, 20], [32, 32], [5, 5, 5], [20], [7, 3, 9, 4, 12, 5, 6, 8]]


@pytest.mark.parametrize(
    "objective",
    [
        MaskedLanguageModel(),
        further(MaskedLanguageModel(rate=0.6, max_predictions=9)),
        further(MaskedLanguageModel(whole_word=True)),
        further(MaskedLanguageModel(whole_word=True, rate=0.4)),
        MaskedLanguageModel(whole_word=True, rate=0.4, max_predictions=7),
        further(RobertaPretraining()),
        RobertaPretraining(whole_word=True, rate=0.3, max_predictions=5),
        AlbertPretraining(),
        further(AlbertPretraining(max_predictions=0, rate=0.5, ngram=5)),
        further(AlbertPretraining(whole_word=False, rate=0.9, max_predictions=0)),
        further(AlbertPretraining(ngram=1, rate=0.3)),
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


@pytest.mark.parametrize(
    "objective",
    [
        further(MaskedLanguageModel()),
        MaskedLanguageModel(whole_word=True),
        further(RobertaPretraining()),
        further(AlbertPretraining(max_predictions=0)),
        ElectraPretraining(),
    ],
    ids=lambda objective: type(objective).__name__ + "-words" * getattr(objective, "whole_word", False),
)
def test_a_row_of_65536_tokens_is_masked_in_memory_that_grows_with_its_length(objective: Objective) -> None:
    batch = batch_of([[LONG - 30_000, 20_000, 10_000]], LONG)
    mask = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY))
    compiled = mask.lower(batch, jax.random.key(0)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 400 * LONG  # one bit a pair of tokens would be 8,192 * LONG
    masked = jax.tree.map(np.asarray, compiled(batch, jax.random.key(0)))
    assert masked["masked_weights"].sum() == pytest.approx(0.15 * LONG, rel=1e-3)
    if isinstance(objective, ElectraPretraining):
        draw = jax.jit(electra.replace_masked_tokens)
        logits = jnp.zeros((*masked["masked_positions"].shape, 8))
        assert draw.lower(masked, logits).compile().memory_analysis().temp_size_in_bytes < 400 * LONG
        changed = np.asarray(draw(masked, logits)) != batch["input_ids"]
        assert changed.sum() == pytest.approx(
            len(set(masked["masked_positions"][masked["masked_weights"] > 0])), rel=0.01
        )
    else:
        assert chosen(masked).sum() == masked["masked_weights"].sum()
