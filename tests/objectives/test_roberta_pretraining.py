"""RoBERTa's masking: how many, which, and what stands in their place."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.interop.roberta import ADAPTER
from plmjax.models.roberta import RobertaConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import LossInputs
from plmjax.objectives.roberta import RobertaPretraining
from tests.families.family import SIZES
from tests.objectives.masking import CLS, MASK, SEP, VOCABULARY, batch_of, chosen, corrupt
from tests.optional import torch
from tests.systems.comparison import converted, reference

ROBERTA = dataclasses.replace(VOCABULARY, cls=0, pad=1, sep=2, unknown=3, mask=999, special=(0, 1, 2, 3, 999))


@pytest.mark.parametrize("length", [3, 10, 20, 64])
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


def test_a_limit_of_predictions_is_kept() -> None:
    mask = chosen(corrupt(RobertaPretraining(max_predictions=2), batch_of([[64]] * 50, 64)))
    assert (mask.sum(axis=1) == 2).all()


def test_begin_and_end_count_but_are_never_chosen() -> None:
    """Deviation named in the module: fairseq may ask for <s> and </s>."""
    batch = batch_of([[8]] * 4000, 8)
    mask = chosen(corrupt(RobertaPretraining(), batch))
    share = mask.mean(axis=0)
    assert share[0] == share[-1] == 0
    assert abs(share[1:-1] - 1.2 / 6).max() < 0.035, "every other position is as likely"


def test_replacements_are_uniform_over_tokens_that_are_not_special() -> None:
    """Deviation named in the module: fairseq's replacements leave out all special tokens but <mask>."""
    objective, batch = RobertaPretraining(rate=0.9, mask_share=0.0, random_share=1.0), batch_of([[64]] * 7000, 64)
    make = jax.jit(lambda batch, key: objective.corrupt(batch, key, ROBERTA))
    found = jax.device_get(make(batch, jax.random.key(0)))
    counts = np.bincount(found["input_ids"][chosen(found)], minlength=1000)
    expected = counts.sum() / 995
    assert (counts[list(ROBERTA.special)] == 0).all()
    ordinary = np.delete(counts, ROBERTA.special)
    assert expected > 402 and abs(ordinary / expected - 1).max() < 0.3
    assert abs(np.square(ordinary - expected).mean() / expected - 1) < 0.25, "chi-squared a degree of freedom"


def test_shares_of_what_is_shown() -> None:
    batch = batch_of([[64]] * 4000, 64)
    corrupted = corrupt(RobertaPretraining(), batch)
    mask = chosen(corrupted)
    shown, clean = corrupted["input_ids"][mask], batch["input_ids"][mask]
    # Five standard errors of 38,400 draws.
    assert abs((shown == MASK).mean() - 0.8) < 0.0103
    assert abs((shown == clean).mean() - 0.1001) < 0.0077
    assert not np.isin(shown[(shown != MASK) & (shown != clean)], [CLS, SEP, MASK, 0, 1]).any()


@pytest.mark.nightly
def test_loss_equals_transformers() -> None:
    """On what a step is given: rows with segments and positions from 0, padded with the model's padding token."""
    config = RobertaConfig(**SIZES, max_position_embeddings=20)
    vocabulary = dataclasses.replace(ROBERTA, size=53, mask=52, special=(0, 1, 2, 3, 52))
    lengths = np.array([[18], [9], [14]])
    real = np.arange(18) < lengths
    ids = np.where(real, np.random.default_rng(0).integers(4, 52, real.shape), 1)
    ids[:, 0], ids[np.arange(3), lengths[:, 0] - 1] = 0, 2
    batch = {"input_ids": ids, "segment_ids": real, "positions": np.arange(18) * real, "row_ids": np.arange(3)}
    objective, batch = RobertaPretraining(), {name: jnp.asarray(field, jnp.int32) for name, field in batch.items()}
    batch = jax.jit(lambda batch: objective.corrupt(batch, jax.random.key(0), vocabulary))(batch)
    labels = np.full(ids.shape, -100)
    for row, positions, kept in zip(labels, batch["masked_positions"], batch["masked_weights"], strict=True):
        row[positions[kept > 0]] = 0
    labels = np.where(labels == 0, ids, -100)
    assert 3 <= (labels >= 0).sum() <= 3 + 2 + 3
    model = reference("RobertaForMaskedLM", config)
    shown, mask, targets = (torch.tensor(np.asarray(x)).long() for x in (batch["input_ids"], real, labels))
    expected = model(shown, attention_mask=mask, labels=targets).loss.detach()
    module = objective.module(config, Execution())
    params = converted(ADAPTER, model.named_parameters(), module)
    sums = jax.jit(lambda params: objective.sums(module, LossInputs(params), batch, jax.random.key(0), training=False))(
        params
    )
    np.testing.assert_allclose(sums.losses["mlm"] / objective.weights(batch)["mlm"], expected, rtol=1e-5)


def test_the_same_key_masks_alike_and_another_one_differently() -> None:
    batch = batch_of([[60]] * 8, 64)
    first, again, other = (chosen(corrupt(RobertaPretraining(), batch, seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()
    assert RobertaPretraining() != MaskedLanguageModel()
