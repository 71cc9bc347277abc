"""AWD-LSTM's task: windows of varying length that miss and repeat nothing, and how their tokens are weighed."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.models.awd_lstm import AwdLstmConfig
from plmjax.objectives.awd_lstm import AwdLstmPretraining
from plmjax.objectives.objective import LossInputs
from tests.systems.modules import random_params

WORDS = Vocabulary.placeholder(30)
CONFIG = AwdLstmConfig(vocab_size=30, embedding_size=5, hidden_size=6, num_layers=2).with_dropout(0.0)
MODULE = CONFIG.module(Purpose.PRETRAINING, Execution())
TASK = AwdLstmPretraining(length_deviation=6.0)
BATCH, LENGTH, OVERLAP, STEPS = 2, 24, 8, 12
STRIDE = LENGTH - OVERLAP
TEXT = np.random.default_rng(0).integers(0, 30, (BATCH, STEPS * STRIDE + OVERLAP + 1), np.int32)


@functools.cache
def parameters() -> Any:
    return random_params(MODULE)


def row(step: int, held_out: bool = False) -> dict[str, np.ndarray]:
    """Row `step` of each place, as `Windows` has it; the first row asks for all its tokens."""
    part = TEXT[:, step * STRIDE : step * STRIDE + LENGTH + 1]
    asked = (np.arange(LENGTH) >= OVERLAP) | (step == 0)
    return {
        "input_ids": part[:, :-1],
        "next_ids": part[:, 1:],
        "next_weights": np.tile(asked, (BATCH, 1)).astype(np.float32),
        "segment_ids": np.ones((BATCH, LENGTH), np.int32),
        "is_first": np.full(BATCH, step == 0, np.int32),
        "overlap": np.full(BATCH, OVERLAP, np.int32),
    }


@functools.cache
def whole() -> np.ndarray:
    """Nats of every token of the text, read at once: [B tokens]."""
    batch = {"input_ids": TEXT[:, :-1], "next_ids": TEXT[:, 1:], "segment_ids": np.ones_like(TEXT[:, 1:])}
    batch["starts"] = batch["input_ids"] == WORDS.document_end
    loss_inputs = LossInputs(parameters(), carry=nn.meta.unbox(TASK.initial_carry(CONFIG, BATCH, LENGTH)))
    score = jax.jit(lambda: TASK.score(MODULE, loss_inputs, batch, jax.random.key(0), training=False)[0])
    return np.asarray(score())


@functools.partial(jax.jit, static_argnames="training")
def step(params: Any, carry: Any, batch: Any, *, number: jax.Array, training: bool) -> tuple:
    batch = TASK.corrupt(batch, jax.random.key(number), WORDS)
    sums = TASK.sums(MODULE, LossInputs(params, carry=carry), batch, jax.random.key(0), training=training)
    return sums.carry, sums.losses, sums.metrics["nats"], TASK.weights(batch)


def read(training: bool) -> tuple[list, list]:
    """The sums of nats and the numbers of tokens of every step, and its weights."""
    carry, found, weights = nn.meta.unbox(TASK.initial_carry(CONFIG, BATCH, LENGTH)), [], []
    for number in range(STEPS):
        carry, _, nats, weight = step(parameters(), carry, row(number), number=number, training=training)
        found.append(tuple(map(float, nats)))
        weights.append(float(weight["next_token"]))
    return found, weights


def test_windows_of_training_tile_the_text_whatever_their_lengths() -> None:
    """Each window's nats are those of its tokens in the text read at once, so that states go on where it ended."""
    found, weights = read(training=True)
    lengths = np.array([tokens for _, tokens in found], int) // BATCH
    ends = np.cumsum(lengths)
    for (nats, _), begin, end in zip(found, ends - lengths, ends, strict=True):
        np.testing.assert_allclose(nats, whole()[:, begin:end].sum(), rtol=1e-5)
    assert len(set(lengths)) > 4 and (np.abs(lengths[1:] - STRIDE) <= OVERLAP).all()
    # Every window is weighed as one of the mean length, so that its tokens count as those of a longer one.
    assert weights[1:] == [BATCH * STRIDE] * (STEPS - 1)


def test_held_out_text_is_read_once_though_rows_repeat_it() -> None:
    found, weights = read(training=False)
    assert [tokens for _, tokens in found] == weights
    np.testing.assert_allclose(sum(nats for nats, _ in found), whole().sum(), rtol=1e-5)


def test_lengths_have_the_deviation_that_is_asked_for() -> None:
    """Measured on 4,000 windows, with room for the draws in the overlap."""
    task, wide = AwdLstmPretraining(), {"input_ids": TEXT[:, :1], "overlap": np.full(BATCH, 40, np.int32)}
    ends = jax.vmap(lambda number: task.corrupt(wide, jax.random.key(number), WORDS)["repeated"])(jnp.arange(4001))
    lengths = np.diff(np.asarray(ends)[:, 0])
    assert (np.asarray(ends) == np.asarray(ends)[:, :1]).all()
    assert abs(lengths.mean()) < 0.1 and abs(lengths.std() - 5.0) < 0.2


def test_penalties_are_means_over_the_features_of_tokens_and_of_neighbours() -> None:
    """The dropped output in the one, the raw one in the other: without dropout they are the same array."""
    carry = nn.meta.unbox(TASK.initial_carry(CONFIG, BATCH, LENGTH))
    _, losses, _, weights = step(parameters(), carry, row(0), number=0, training=False)
    starts = row(0)["input_ids"] == WORDS.document_end
    y = jax.jit(MODULE.apply)({"params": parameters()}, row(0)["input_ids"], starts=starts).raw_hidden_state
    np.testing.assert_allclose(losses["activation"] / weights["activation"], np.square(y).mean(), rtol=1e-5)
    change = np.square(np.diff(y, axis=1)).mean()
    np.testing.assert_allclose(losses["slowness"] / weights["slowness"], change, rtol=1e-5)
    assert AwdLstmPretraining(activation_penalty=3.0).coefficients() == {"activation": 3.0, "slowness": 1.0}
    groups = TASK.parameter_groups(CONFIG)  # the table of words scores, too, and is trained as the head is
    assert groups == CONFIG.parameter_groups[1:] and len(groups) == CONFIG.num_layers


def test_slowness_is_between_the_tokens_of_a_window_alone() -> None:
    """A row begins with tokens that the window before has read: no change leads from them to the first one read."""
    carry = nn.meta.unbox(TASK.initial_carry(CONFIG, BATCH, LENGTH))
    first, *_ = step(parameters(), carry, row(0), number=0, training=True)
    _, losses, (_, tokens), _ = step(parameters(), first, row(1), number=1, training=True)
    begin = int(first["begin"][0])
    window = row(1)["input_ids"][:, begin : begin + int(tokens) // BATCH]
    inputs = {"input_ids": window, "starts": window == WORDS.document_end, "states": first["states"]}
    y = jax.jit(MODULE.apply)({"params": parameters()}, **inputs).raw_hidden_state
    assert begin > 0
    np.testing.assert_allclose(losses["slowness"], np.square(np.diff(y, axis=1)).mean(axis=-1).sum(), rtol=1e-5)


def test_pairs_are_of_adjacent_targets() -> None:
    asked = np.float32([[1, 1, 0, 1, 1, 1], [0, 1, 0, 1, 0, 0]])
    found = AwdLstmPretraining().weights({"next_weights": asked})
    assert {name: float(weight) for name, weight in found.items()} == {"next_token": 7, "activation": 7, "slowness": 3}
