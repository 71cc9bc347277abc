"""Transformer-XL's objective: a memory from row to row, another one in evaluation, and documents apart."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.objective import LossInputs
from plmjax.objectives.transformer_xl import TransformerXlPretraining
from tests.families.memories import TXL
from tests.systems.modules import random_params

ROWS, LENGTH, PARTS = 2, 6, 3
CONFIG = dataclasses.replace(TXL, mem_len=4)
TEXT = np.random.default_rng(0).integers(5, TXL.vocab_size, (ROWS, PARTS * LENGTH + 1))
TEXT[0, 8] = TEXT[1, 2] = END = Vocabulary.placeholder(TXL.vocab_size).document_end
MODULE = CONFIG.module(Purpose.PRETRAINING, Execution())
KEY = jax.random.key(0)
SUMS = jax.jit(TransformerXlPretraining.sums, static_argnums=(0, 1), static_argnames="training")
SCORES = jax.jit(
    lambda module, ids: module.apply({"params": parameters()}, ids[:, :-1]).scores.cross_entropy(ids[:, 1:])[0],
    static_argnums=0,
)


@functools.cache
def parameters() -> Any:
    return random_params(MODULE, deviation=0.3)


def batch(part: int, length: int = LENGTH) -> dict[str, np.ndarray]:
    first = part * length
    ids = TEXT[:, first : first + length]
    return {
        "input_ids": ids,
        "segment_ids": np.ones_like(ids),
        "next_ids": TEXT[:, first + 1 : first + length + 1],
        "next_weights": np.ones(ids.shape, np.float32),
        "is_first": np.full(ROWS, int(part == 0)),
        "document_starts": np.zeros(ids.shape, bool),
    }


def nats(objective: TransformerXlPretraining, training: bool, parts: int = PARTS) -> np.ndarray:
    """The nats of the first rows of the text, [parts], with its memory."""
    start = objective.initial_carry if training else objective.evaluation_carry
    carry, found = nn.meta.unbox(start(CONFIG, ROWS, LENGTH)), []
    for part in range(parts):
        given = LossInputs(parameters(), carry=carry)
        corrupted = objective.corrupt(batch(part), KEY, Vocabulary.placeholder(TXL.vocab_size))
        sums = SUMS(objective, MODULE, given, corrupted, KEY, training=training)
        carry = sums.carry
        found.append(sums.losses["next_token"])
    return np.stack(found)


def test_the_memory_goes_from_row_to_row() -> None:
    """Other nats than those of rows without it, but for the first."""
    found = nats(TransformerXlPretraining(), training=True)
    without = nats(TransformerXlPretraining(evaluation_mem_len=0), training=False)
    np.testing.assert_allclose(found[0], without[0], rtol=1e-6)
    assert (np.abs(found - without)[1:] > 1e-3).all()


@pytest.mark.nightly
def test_an_evaluation_may_remember_more() -> None:
    """All of the text: its nats are those of reading it at once. Training rows go on with their own memory."""
    longer = TransformerXlPretraining(evaluation_mem_len=PARTS * LENGTH)
    np.testing.assert_allclose(nats(longer, training=False).sum(), np.sum(SCORES(MODULE, TEXT)), rtol=1e-5)
    np.testing.assert_allclose(nats(longer, training=True), nats(TransformerXlPretraining(), training=True), rtol=1e-6)
    assert nats(longer.with_memory(4), training=False).tolist() == nats(TransformerXlPretraining(), False).tolist()


def test_scores_of_tokens_are_those_of_an_evaluation() -> None:
    objective = TransformerXlPretraining(evaluation_mem_len=2, evaluation_clamp_len=3)
    carry = nn.meta.unbox(objective.evaluation_carry(CONFIG, ROWS, LENGTH))
    score = jax.jit(functools.partial(objective.score, MODULE, training=False))
    found, _ = score(LossInputs(parameters(), carry=carry), batch(0), KEY)
    np.testing.assert_allclose(np.sum(found), nats(objective, training=False, parts=1)[0], rtol=1e-5)


@pytest.mark.parametrize(("begins", "read"), [(0, [0, 0, 1, 0]), (1, [1, 1, 1, 0])])
def test_tokens_that_a_row_repeats_are_read_once(begins: int, read: list[int]) -> None:
    """The memory has them, but for the first row of a stream."""
    given = {
        "input_ids": np.ones((1, 4), np.int32),
        "segment_ids": np.array([[1, 1, 1, 0]]),
        "next_weights": np.array([[0.0, 0, 1, 0]]),
        "is_first": np.array([begins]),
    }
    assert np.asarray(TransformerXlPretraining().model_inputs(given)["attention_mask"]).tolist() == [read]


def test_an_evaluation_may_turn_each_setting_off() -> None:
    """0 tokens and False are settings like others; what is not named is that of the training."""
    config = dataclasses.replace(CONFIG, mem_len=4, clamp_len=3, same_length=True)
    found = TransformerXlPretraining(evaluation_mem_len=0, evaluation_same_length=False).evaluation_config(config)
    assert (found.mem_len, found.clamp_len, found.same_length) == (0, 3, False)
    assert TransformerXlPretraining(evaluation_clamp_len=0).evaluation_config(config).clamp_len == 0
    assert TransformerXlPretraining().evaluation_config(config) == config
    assert TransformerXlPretraining().with_memory(0).evaluation_config(CONFIG).mem_len == 0


def test_a_document_begins_with_the_end_of_the_one_before_if_documents_are_apart() -> None:
    vocabulary, given = Vocabulary.placeholder(TXL.vocab_size), batch(0)
    found = TransformerXlPretraining(documents="apart").corrupt(given, KEY, vocabulary)
    assert found.pop("starts").tolist() == (given["input_ids"] == END).tolist() and found.keys() == given.keys()
    assert (given["input_ids"] == END).any() and TransformerXlPretraining().corrupt(given, KEY, vocabulary) is given
