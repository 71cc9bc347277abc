"""ELECTRA's loss against transformers, its masks and labels against the published procedure told again in NumPy.

And what DeBERTa's objective, which shares the losses, masks.
"""

import dataclasses
from typing import Any

import chex
import jax
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SingleSegment
from plmjax.interop.electra import ADAPTER
from plmjax.models.electra import ElectraForMaskedLM, ElectraForReplacedTokenDetection
from plmjax.objectives.electra import ElectraPretraining, replace_masked_tokens
from tests.families.encoders import ELECTRA
from tests.objectives.masking import CLS, MASK, SEP, batch_of, clean_batch, corrupt, hidden_batch, total
from tests.optional import torch
from tests.systems.comparison import converted, reference

ODD = dataclasses.replace(ELECTRA, num_hidden_layers=1)
VOCABULARY = Vocabulary.placeholder(ODD.vocab_size)


def test_joint_loss_and_gradient_equal_transformers() -> None:
    """Two models of transformers over one set of tables, given the ids that were drawn here, without a gradient."""
    objective = ElectraPretraining(rate=0.4)
    batch = hidden_batch(objective, clean_batch(VOCABULARY), VOCABULARY)
    generator = reference("ElectraForMaskedLM", ODD.generator)
    discriminator = reference("ElectraForPreTraining", ODD)
    discriminator.electra.embeddings = generator.electra.embeddings
    generator.electra.embeddings.word_embeddings.padding_idx = None  # the padding token may be drawn, and then learns
    module = objective.module(ODD, Execution())

    def whole(value: str) -> dict:
        """Parameters, or gradients, of both: what is shared stands in both."""
        parts = [(generator, ElectraForMaskedLM(ODD)), (discriminator, ElectraForReplacedTokenDetection(ODD))]
        trees = [
            converted(ADAPTER, ((n, getattr(p, value)) for n, p in model.named_parameters()), part)
            for model, part in parts
        ]
        return trees[0] | trees[1] | {"electra": trees[0]["electra"] | trees[1]["electra"]}

    params = whole("data")

    @jax.jit
    def ours(params: Any) -> Any:
        logits = module.apply({"params": params}, **objective.model_inputs(batch), method="generate").logits
        loss = jax.value_and_grad(lambda p: total(objective, module, p, batch), has_aux=True)(params)
        return replace_masked_tokens(batch, logits), loss

    shown, ((loss, metrics), gradient) = ours(params)

    def tensor(array: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(array)[:3]).long()

    inputs = {"attention_mask": tensor(batch["segment_ids"]), "token_type_ids": tensor(batch["token_type_ids"])}
    logits = generator(tensor(batch["input_ids"]), **inputs).logits
    rows = torch.arange(3)[:, None]
    nats = torch.nn.functional.cross_entropy(
        logits[rows, tensor(batch["masked_positions"])].transpose(1, 2), tensor(batch["masked_ids"]), reduction="none"
    )
    used = torch.tensor(np.asarray(batch["masked_weights"]))[:3]
    masked_loss = (nats * used).sum() / used.sum()
    fake = tensor(shown != batch["original_ids"])
    found = discriminator(tensor(shown), **inputs, labels=fake)
    assert fake.sum() > 3
    expected = masked_loss + 50 * found.loss
    expected.backward()
    np.testing.assert_allclose(loss, expected.detach(), rtol=1e-5)
    chex.assert_trees_all_close(gradient, whole("grad"), rtol=1e-4, atol=1e-4)

    said, real = found.logits > 0, inputs["attention_mask"] > 0
    caught = (said & (fake > 0) & real).sum()
    hits = (logits[rows, tensor(batch["masked_positions"])].argmax(-1) == tensor(batch["masked_ids"])) * used
    counts = {
        "rtd_accuracy": (((said == (fake > 0)) & real).sum(), real.sum()),
        "rtd_precision": (caught, (said & real).sum()),
        "rtd_recall": (caught, fake.sum()),
        "fakes": (fake.sum(), real.sum()),
        "mlm_accuracy": (hits.sum(), used.sum()),
    }
    for name, pair in counts.items():
        assert list(map(float, metrics[name])) == list(map(float, pair)), name
    np.testing.assert_allclose(metrics["mlm_loss"][0] / metrics["mlm_loss"][1], masked_loss.detach(), rtol=1e-5)
    np.testing.assert_allclose(metrics["rtd_loss"][0] / metrics["rtd_loss"][1], found.loss.detach(), rtol=1e-5)
    weighted = dataclasses.replace(objective, generator_weight=2.0, discriminator_weight=3.0)
    assert weighted.coefficients() == {"mlm": 2.0, "rtd": 3.0}


def published_count(length: int, rate: float, row: int) -> int:
    """google-research/electra pretrain_helpers.mask: predictions of a sequence of this length."""
    most = int((rate + 0.005) * row)
    return max(1, min(most, int(np.round(np.float32(length) * np.float32(rate)))))


def test_counts_are_the_published_ones_in_every_packed_sequence() -> None:
    lengths = [[128], [10], [3], [10, 30, 50], [64, 64], [5, 5, 5], [20]]
    for length, rate, places in ((128, 0.15, 19), (512, 0.25, 130), (5, 0.15, 1)):
        assert ElectraPretraining(rate=rate).predictions(SingleSegment().batch(2, length)) == places
    rate, batch = 0.15, batch_of(lengths, 128)
    hidden = corrupt(ElectraPretraining(), batch)
    for b, sequences in enumerate(lengths):
        used = hidden["masked_weights"][b] > 0
        owner = batch["segment_ids"][b][hidden["masked_positions"][b][used]]
        for k, length in enumerate(sequences):
            assert (owner == k + 1).sum() == published_count(length, rate, 128), (b, k)
        assert used.sum() == len(owner) == sum(published_count(length, rate, 128) for length in sequences)


def test_masks_are_distributed_as_published() -> None:
    """Six positions of 38 tokens with replacement, 85 % of them masks, within four standard errors."""
    rows = 3000
    hidden = corrupt(ElectraPretraining(), batch_of([[40]] * rows, 48))
    assert (hidden["masked_weights"].sum(axis=1) == 6).all()
    found = hidden["masked_positions"][:, :6]
    share = np.bincount(found.ravel(), minlength=48) / found.size
    assert share[0] == share[39:].max() == 0, "[CLS], [SEP] and padding are never hidden"
    assert np.abs(share[1:39] - 1 / 38).max() < 4.5 * np.sqrt(1 / 38 / found.size)
    for counts, chance in (
        ([len(set(row)) for row in found], 1), ((hidden["input_ids"] == MASK).sum(axis=1), 0.85)
    ):  # fmt: skip
        expected = 38 * (1 - (1 - chance / 38) ** 6)
        assert abs(np.mean(counts) - expected) < 4 * np.std(counts) / np.sqrt(rows)


def test_what_is_asked_for_is_what_stood_there_and_nothing_else_changes() -> None:
    batch = batch_of([[100, 28], [64], [2], []], 128)
    batch["input_ids"][1, 7] = MASK
    hidden = corrupt(ElectraPretraining(rate=0.5), batch)
    np.testing.assert_array_equal(hidden["original_ids"], batch["input_ids"])
    changed = hidden["input_ids"] != batch["input_ids"]
    assert (hidden["input_ids"][changed] == MASK).all()
    for b, used in enumerate(hidden["masked_weights"] > 0):
        positions = hidden["masked_positions"][b][used]
        assert set(np.flatnonzero(changed[b])) <= set(positions)
        np.testing.assert_array_equal(hidden["masked_ids"][b][used], batch["input_ids"][b][positions])
        assert not np.isin(batch["input_ids"][b][positions], [CLS, SEP, MASK, 0]).any()
    assert len({key.tobytes() for key in hidden["sampling_keys"]}) == 4, "every row draws by a key of its own"
    assert not hidden["masked_weights"][2:].any(), "nothing to hide between [CLS] and [SEP], or in a row of filling"


def published_fakes(ids: np.ndarray, positions: np.ndarray, used: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The inputs of the discriminator in one row: google-research/electra scatter_update, told again."""
    updates, times = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    for position, token in zip(positions[used], drawn[used], strict=True):
        updates[position] += token
        times[position] += 1
    return np.where(times > 0, updates // np.maximum(times, 1), ids)


def test_tokens_drawn_are_put_where_the_release_puts_them() -> None:
    """Positions that were drawn twice included, whose ids it averages."""
    batch = batch_of([[12], [40], [30], []], 40)
    hidden = corrupt(ElectraPretraining(rate=0.7), batch)
    twice = [
        len(set(p[u > 0])) < u.sum() for p, u in zip(hidden["masked_positions"], hidden["masked_weights"], strict=True)
    ]
    assert sum(twice) >= 2
    sure = np.random.default_rng(0).integers(5, 1000, hidden["masked_ids"].shape)  # what noise cannot change
    logits = 1e3 * np.eye(1000, dtype=np.float32)[sure]
    found = jax.jit(replace_masked_tokens)(hidden, logits)
    for b in range(4):
        used = hidden["masked_weights"][b] > 0
        expected = published_fakes(batch["input_ids"][b], hidden["masked_positions"][b], used, sure[b])
        np.testing.assert_array_equal(found[b], expected)


def test_tokens_are_drawn_from_the_softmax() -> None:
    """20,000 drawings of five logits, within four standard errors."""
    rows = 20_000
    logits = np.array([2.0, 0.0, 1.0, -1.0, -9.0], np.float32)
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), rows))
    batch = {
        "sampling_keys": keys,
        "masked_positions": np.ones((rows, 1), np.int32),
        "masked_weights": np.ones((rows, 1), np.float32),
        "original_ids": np.tile(np.array([[4, 2, 3]], np.int32), (rows, 1)),
    }
    shown = np.asarray(jax.jit(replace_masked_tokens)(batch, np.tile(logits, (rows, 1, 1))))
    share = np.bincount(shown[:, 1], minlength=5) / rows
    expected = np.exp(logits) / np.exp(logits).sum()
    assert (np.abs(share - expected) < 4 * np.sqrt(expected / rows) + 1e-4).all()
    assert (shown[:, [0, 2]] == [4, 3]).all()
