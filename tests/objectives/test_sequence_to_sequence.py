"""Sequence to sequence: the loss spelt out, label smoothing in both published forms, and what held-out text reports."""

import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data.layouts import PairedStreams
from plmjax.models.transformer import TransformerConfig
from plmjax.objectives.objective import LossInputs
from plmjax.objectives.sequence_to_sequence import SequenceToSequence
from tests.optional import torch
from tests.systems.modules import outputs

ROWS, LENGTH = 3, 6
LAYERS = {f"{part}_{name}": size for part in ("encoder", "decoder")
          for name, size in {"layers": 1, "attention_heads": 2, "ffn_dim": 16}.items()}  # fmt: skip
TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 1}
CONFIG = TransformerConfig(vocab_size=19, d_model=8, **LAYERS, **TOKENS, dropout=0.0)
MODULE = CONFIG.module(Purpose.PRETRAINING, Execution())
BATCH = PairedStreams().synthetic(ROWS, LENGTH, 19, 0)
WEIGHTS = (np.arange(LENGTH) < np.array([[6], [4], [1]])).astype(np.float32)
BATCH |= {"next_weights": WEIGHTS}


@functools.cache
def parameters() -> Any:
    init = jax.jit(lambda key: SequenceToSequence().init(MODULE, key, BATCH, constants=(), carry=()))
    return nn.meta.unbox(init(jax.random.key(0)))["params"]


def sums(objective: SequenceToSequence, training: bool):
    run = jax.jit(functools.partial(objective.sums, MODULE, training=training))
    return run(LossInputs(parameters()), BATCH, jax.random.key(0))


def log_probabilities() -> np.ndarray:
    logits = np.asarray(outputs(MODULE, parameters(), SequenceToSequence().model_inputs(BATCH)).logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def nats() -> np.ndarray:
    return -np.take_along_axis(log_probabilities(), BATCH["next_ids"][..., None], axis=-1)[..., 0]


def test_z_loss_changes_the_training_loss_alone():
    """And the plain nats of the targets that count are reported beside it."""
    objective, plain = SequenceToSequence(z_loss=1e-2), (WEIGHTS * nats()).sum()
    trained, held_out = (sums(objective, training) for training in (True, False))
    likeliest = log_probabilities().argmax(-1) == BATCH["next_ids"]
    assert held_out.metrics["accuracy"] == ((WEIGHTS * likeliest).sum(), 11)
    assert float(objective.weights(BATCH)["target"]) == WEIGHTS.sum() == 11
    assert abs(float(trained.losses["target"]) - plain) > 1e-3
    assert float(held_out.losses["target"]) == pytest.approx(plain, rel=1e-5)
    assert float(trained.metrics["nats"][0]) == pytest.approx(plain, rel=1e-5) and trained.metrics["nats"][1] == 11
    plain_sums = functools.partial(SequenceToSequence().sums, MODULE, training=True)
    without = jax.eval_shape(plain_sums, LossInputs(parameters()), BATCH, jax.random.key(0))
    assert "nats" not in held_out.metrics and "nats" not in without.metrics


def test_smoothing_of_the_cited_source_is_the_released_one_of_another_share():
    """Deviation named in the module; torch spreads the share over the whole vocabulary, as the cited source does."""
    cited, size = 0.5, 19
    logits, targets = torch.tensor(log_probabilities()).reshape(-1, size), torch.tensor(BATCH["next_ids"]).ravel()
    losses = torch.nn.functional.cross_entropy(logits, targets.long(), reduction="none", label_smoothing=cited)
    released = SequenceToSequence(label_smoothing=cited * (size - 1) / size)
    expected = (losses.numpy() * WEIGHTS.ravel()).sum()
    assert float(sums(released, training=True).losses["target"]) == pytest.approx(expected, rel=1e-5)
    other = SequenceToSequence(label_smoothing=cited)
    assert abs(float(sums(other, training=True).losses["target"]) - expected) > 5e-3


def test_rows_that_ask_for_nothing_lose_nothing():
    nothing = BATCH | {"next_weights": np.zeros_like(WEIGHTS)}
    assert float(SequenceToSequence().weights(nothing)["target"]) > 0
    run = jax.jit(functools.partial(SequenceToSequence(z_loss=1.0).sums, MODULE, training=True))
    found = run(LossInputs(parameters()), nothing, jax.random.key(0))
    assert float(found.losses["target"]) == 0
