"""ELMo's objective: spelling, states that go on and end with documents, and the softmax over words that are drawn."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.layers.words.characters import sentence_marks, spell
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.elmo import ElmoConfig
from plmjax.objectives.bidirectional_language_model import PREFIXES, BidirectionalLanguageModel
from plmjax.objectives.objective import ConstantSources, LossInputs, LossSums
from plmjax.objectives.sampled_softmax import SampledScores, draw, log_uniform

V, C = 30, 7
FILTERS = {"character_dim": 3, "filter_widths": (1, 2), "filter_counts": (4, 4), "n_highway": 1}
CONFIG = ElmoConfig(vocab_size=V, max_characters_per_token=C, **FILTERS, dim=8, projection_dim=6)
VOCABULARY = Vocabulary.placeholder(V)
TEXTS = [f"w{number}" for number in range(V)]
SOURCES = ConstantSources(VOCABULARY, np.zeros(V, np.int64), lambda: TEXTS, lambda checkpoint, init: None)
OBJECTIVE = BidirectionalLanguageModel(negatives=8)
CONSTANTS = jax.tree.map(jnp.asarray, nn.meta.unbox(OBJECTIVE.constants(CONFIG, SOURCES)))
MODULE = OBJECTIVE.module(CONFIG, Execution())


def rows(length: int, document_starts: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Two rows of both directions."""
    random = np.random.default_rng(0)
    batch = {}
    for prefix in PREFIXES.values():
        text = random.integers(5, V, (2, length + 1))
        batch |= {f"{prefix}input_ids": text[:, :-1], f"{prefix}next_ids": text[:, 1:]}
        batch[f"{prefix}segment_ids"] = np.ones((2, length), np.int32)
        batch[f"{prefix}next_weights"] = np.ones((2, length), np.float32)
        batch[f"{prefix}document_starts"] = np.isin(np.arange(length), document_starts) & np.ones((2, 1), bool)
    return batch


def part(batch: dict[str, np.ndarray], places: slice) -> dict[str, np.ndarray]:
    return {name: field[:, places] for name, field in batch.items()}


@pytest.fixture(scope="module")
def loss_inputs() -> LossInputs:
    """Parameters larger than the first ones, and the first states."""
    carry = nn.meta.unbox(OBJECTIVE.initial_carry(CONFIG, 2, 4))
    batch = OBJECTIVE.corrupt(rows(4), jax.random.key(0), VOCABULARY, CONSTANTS)
    init = jax.jit(lambda key: OBJECTIVE.init(MODULE, key, batch, constants=CONSTANTS, carry=carry)["params"])
    params = jax.tree.map(lambda leaf: 3 * leaf, nn.meta.unbox(init(jax.random.key(1))))
    return LossInputs(params, CONSTANTS, carry=carry)


@functools.partial(jax.jit, static_argnames="training")
def sums(loss_inputs: LossInputs, batch: dict[str, np.ndarray], *, training: bool = False) -> LossSums:
    batch = OBJECTIVE.corrupt(batch, jax.random.key(2), VOCABULARY, loss_inputs.constants)
    return OBJECTIVE.sums(MODULE, loss_inputs, batch, jax.random.key(3), training=training)


def test_tokens_are_spelled_and_marks_of_sentences_are_their_own():
    table = np.asarray(CONSTANTS["spelling"])
    begin, end = sentence_marks(C)
    np.testing.assert_array_equal(table[[VOCABULARY.begin, VOCABULARY.end]], [begin, end])
    others = [number for number in range(V) if number not in (VOCABULARY.begin, VOCABULARY.end)]
    np.testing.assert_array_equal(table[others], spell([TEXTS[number] for number in others], C))


@pytest.mark.nightly
def test_states_go_on_from_batch_to_batch(loss_inputs):
    """A text in two batches is the text in one, in both directions."""
    batch = rows(8)
    whole, first = sums(loss_inputs, batch), sums(loss_inputs, part(batch, slice(4)))
    second = sums(loss_inputs.replace(carry=first.carry), part(batch, slice(4, None)))
    for name in ("forward_nats", "backward_nats"):
        parts = float(first.metrics[name][0] + second.metrics[name][0])
        np.testing.assert_allclose(parts, float(whole.metrics[name][0]), rtol=1e-5)
    anew = sums(loss_inputs, part(batch, slice(4, None)))
    assert abs(float(anew.losses["language_model"] - second.losses["language_model"])) > 1e-3


def test_a_state_ends_with_its_document(loss_inputs):
    batch = rows(8, document_starts=(4,))
    whole = sums(loss_inputs, batch)
    apart = [sums(loss_inputs, part(batch, slice(4))), sums(loss_inputs, part(batch, slice(4, None)))]
    for name in ("forward_nats", "backward_nats"):
        parts = sum(float(one.metrics[name][0]) for one in apart)
        np.testing.assert_allclose(parts, float(whole.metrics[name][0]), rtol=1e-5)


def test_padding_is_not_asked_for_and_leaves_the_state(loss_inputs):
    batch = rows(8)
    for prefix in PREFIXES.values():
        for field in ("segment_ids", "next_weights"):
            batch[f"{prefix}{field}"][:, 4:] = 0
    padded, real = sums(loss_inputs, batch), sums(loss_inputs, part(batch, slice(4)))
    np.testing.assert_allclose(padded.losses["language_model"], real.losses["language_model"], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), padded.carry, real.carry)
    assert float(OBJECTIVE.weights(batch)["language_model"]) == 16


def test_training_draws_words_and_evaluation_takes_all(loss_inputs):
    batch = rows(4)
    evaluated, trained = sums(loss_inputs, batch), sums(loss_inputs, batch, training=True)
    assert evaluated.metrics.keys() - trained.metrics.keys() == {"forward_accuracy", "backward_accuracy"}
    assert float(trained.losses["language_model"]) < float(evaluated.losses["language_model"])
    corrupted = OBJECTIVE.corrupt(batch, jax.random.key(2), VOCABULARY, CONSTANTS)
    assert (corrupted["draws"] == corrupted["draws"][0]).all(), "every part of a batch has the same draws"


def test_a_vocabulary_in_another_order_is_refused_where_words_are_drawn():
    """Words are drawn by their numbers, as if they were numbered by frequency."""
    counts = np.zeros(V, np.int64)
    counts[5:] = 1000 // np.arange(1, V - 4)
    shaken = counts.copy()
    shaken[[5, 6, 7, 9]] = counts[[6, 5, 9, 7]]  # as another text has them
    OBJECTIVE.constants(CONFIG, dataclasses.replace(SOURCES, token_counts=shaken))
    alphabetical = dataclasses.replace(SOURCES, token_counts=np.concatenate([counts[:5], counts[:4:-1]]))
    with pytest.raises(UserError, match=r"first tenth is 3\.\d% of the text and the most frequent tenth \d\d\.\d%"):
        OBJECTIVE.constants(CONFIG, alphabetical)
    BidirectionalLanguageModel(negatives=0).constants(CONFIG, alphabetical)


W = 40
RANDOM = np.random.default_rng(0)
SCORES = VocabularyScores(*(jnp.asarray(RANDOM.normal(size=shape), jnp.float32) for shape in ((2, 3, 5), (W, 5), (W,))))
TARGETS = np.array([[0, 7, 39], [3, 3, 12]])


def test_words_are_drawn_once_and_as_often_as_expected():
    """Over many draws the shares of words, and the mean of what one draw expects, are the same."""
    keys = jax.random.split(jax.random.key(0), 2000)
    draws = jax.jit(jax.vmap(lambda key: (draw(key, W, 8).ids, draw(key, W, 8).log_expected(jnp.arange(W)))))
    ids, expected = map(np.asarray, draws(keys))
    assert all(len(set(row)) == 8 for row in ids.tolist())
    shares = np.bincount(ids.ravel(), minlength=W) / len(ids)
    assert shares[0] > 5 * shares[-1] > 0
    likely = np.log((np.arange(W) + 2) / (np.arange(W) + 1)) / np.log(W + 1)
    np.testing.assert_allclose(log_uniform(jnp.arange(W), W), likely, rtol=1e-5)
    np.testing.assert_allclose(np.exp(expected).mean(axis=0), shares, rtol=0.15, atol=0.01)


def test_the_loss_is_a_softmax_over_the_target_and_other_draws():
    draws = jax.jit(lambda: draw(jax.random.key(1), W, 10))()
    ids = np.asarray(draws.ids)
    targets = TARGETS.copy()
    targets[0, 1] = ids[4]  # a draw that is the target
    found, likeliest = jax.jit(lambda: SampledScores(SCORES, draws).cross_entropy(targets))()
    all_scores = np.asarray(SCORES.hidden) @ np.asarray(SCORES.table).T + np.asarray(SCORES.bias)
    scores = all_scores - np.asarray(jax.jit(draws.log_expected)(jnp.arange(W)))
    for place in np.ndindex(targets.shape):
        target, others = targets[place], [one for one in ids if one != targets[place]]
        chosen = scores[place][[target, *others]].astype(np.float64)
        np.testing.assert_allclose(found[place], np.log(np.exp(chosen).sum()) - chosen[0], rtol=1e-5)
        assert likeliest[place] == (chosen[0] == chosen.max())
    assert targets[0, 1] in ids and not set(targets.ravel()) <= set(ids)
