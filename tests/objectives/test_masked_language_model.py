"""Masking: exact counts, published shares, whole words, repeatability."""

import dataclasses

import numpy as np
import pytest

from plmjax.objectives.electra import ElectraPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from tests.objectives.masking import CLS, MASK, SEP, VOCABULARY, batch_of, chosen, corrupt


@pytest.mark.parametrize("max_predictions", [0, 7])
def test_counts_are_exact_in_every_packed_sequence(max_predictions: int) -> None:
    lengths = [[128], [3], [10, 30, 50], [64, 64], [5, 5, 5], [20]]
    batch = batch_of(lengths, 128)
    mask = chosen(corrupt(MaskedLanguageModel(max_predictions=max_predictions), batch))
    for b, sequences in enumerate(lengths):
        for k, length in enumerate(sequences):
            expected = max(1, round(0.15 * length))
            expected = min(expected, max_predictions) if max_predictions else expected
            assert mask[b][batch["segment_ids"][b] == k + 1].sum() == min(expected, length - 2), (b, k)


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
def test_a_continuation_after_a_separator_begins_a_word() -> None:
    """Deviation named in the module: words do not reach across [CLS] and [SEP]."""
    ids = np.array([[CLS, 10, SEP, 9, 9, SEP, 0, 0]], np.int32)
    batch = {"input_ids": ids, "segment_ids": (ids > 0).astype(np.int32), "row_ids": np.zeros(1, np.int32)}
    objective = MaskedLanguageModel(whole_word=True, rate=0.3)
    masks = {tuple(np.flatnonzero(chosen(corrupt(objective, batch, seed))[0])) for seed in range(20)}
    assert masks == {(3, 4), (1,)}


@pytest.mark.parametrize(
    ("row", "pack", "limit", "room"),
    [(128, 1, 0, 20), (512, 1, 0, 77), (512, 1, 76, 76), (512, 4, 0, 81), (512, 4, 10, 40), (512, 4, 30, 81)],
)
def test_room_for_predictions(row: int, pack: int, limit: int, room: int) -> None:
    batch = batch_of([[row // pack] * pack], row)
    assert MaskedLanguageModel(max_predictions=limit).predictions(batch) == room


def test_shares_may_fill_the_whole() -> None:
    for objective in (MaskedLanguageModel, ElectraPretraining):
        assert objective(mask_share=1.0, **({"random_share": 0.0} if objective is MaskedLanguageModel else {}))
    assert MaskedLanguageModel(mask_share=0.5, random_share=0.5) and MaskedLanguageModel(mask_share=0.0)
    assert ElectraPretraining(mask_share=0.0, generator_weight=0.0, discriminator_weight=0.0)


def test_hits_and_nats_are_of_the_targets_that_count() -> None:
    """A target that scores as high as another one is a hit."""
    logits = np.float32([[[1, 3, 2], [2, 0, 2], [0, 1, 5], [4, 0, 0]]])
    batch = {"masked_ids": np.array([[2, 0, 2, 1]]), "masked_weights": np.float32([[1, 1, 1, 0]])}
    found = MaskedLanguageModel.masked_sums(logits, batch)
    nats = np.log(np.exp(logits).sum(-1))[0] - np.take_along_axis(logits, batch["masked_ids"][..., None], -1)[0, :, 0]
    assert float(found.losses["mlm"]) == pytest.approx(nats[:3].sum(), rel=1e-6)
    assert [float(x) for x in found.metrics["mlm_accuracy"]] == [2, 3]
    assert [float(x) for x in found.metrics["mlm_loss"]] == pytest.approx([nats[:3].sum(), 3])
