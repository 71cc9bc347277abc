"""Word prediction: batches of one against a transcription of word2vec.c, windows, draws, and how far a row moves."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Chunks
from plmjax.experiment import Data, Experiment, Training
from plmjax.models.word2vec import ContinuousBagOfWords, SkipGram, Word2VecConfig
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.objective import ConstantSources, LossInputs
from plmjax.objectives.word_prediction import WordPrediction
from plmjax.parallel import mesh as meshes
from plmjax.training import program as programs
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import Linear

VOCABULARY = Vocabulary.placeholder(2000)
END = VOCABULARY.document_end
COUNTS = np.random.default_rng(0).integers(10, 20, VOCABULARY.size)
SOURCES = ConstantSources(VOCABULARY, COUNTS, lambda: [], lambda path, init: None)
LENGTH = 8
KEY = jax.random.key(0)


def constants(objective: WordPrediction, sources: ConstantSources = SOURCES) -> dict[str, np.ndarray]:
    return nn.meta.unbox(objective.constants(None, sources))


@functools.partial(jax.jit, static_argnames=("objective", "vocabulary"))
def corrupted(objective: WordPrediction, batch, tables, *, key, vocabulary=VOCABULARY) -> dict[str, jax.Array]:
    return objective.corrupt(batch, key, vocabulary, tables)


def batch_of(ids) -> dict[str, np.ndarray]:
    ids = np.atleast_2d(np.asarray(ids, np.int32))
    return {"input_ids": ids, "segment_ids": np.ones_like(ids)}


class OnePrediction:
    """Only the pairs of one prediction are left: the field `chosen` is 1 for it."""

    def windows(self, batch, key, vocabulary, constants):
        found = super().windows(batch, key, vocabulary, constants)
        return found | {"pairs": found["pairs"] * batch["chosen"]}


class OneSampled(OnePrediction, NegativeSampling):
    def asked_rows(self, seen, word: int, place: int) -> list[tuple[int, int]]:
        """(row, label) of the word and its negatives; word2vec.c passes over the word among them."""
        negatives = seen["noise_ids"][0, 0].tolist()
        assert len(set(negatives)) == 5  # of a repeated one word2vec.c sees the changed row
        return [(word, 1), *((row, 0) for row in negatives if row != word)]


class OneOfTree(OnePrediction, HierarchicalSoftmax):
    def asked_rows(self, seen, word: int, place: int) -> list[tuple[int, int]]:
        """(row, label) of the nodes on the word's path; the label is 1 - code."""
        turns = seen["turns"][0, 0, place]
        return [(row, int(turn > 0)) for row, turn in zip(seen["paths"][0, 0, place], turns, strict=True) if turn]


def word2vec_c(syn0, syn1, context, *, asked, rate, mean) -> None:
    """One prediction of word2vec.c, in float64, from the words of a context, of which skip-gram has one.

    asked: (row of syn1, label). mean: as of v0.1c; otherwise the sum of v0.1b.
    """
    neu1 = sum(syn0[c] for c in context) / (len(context) if mean else 1)
    neu1e = np.zeros_like(neu1)
    for row, label in asked:
        g = (label - 1 / (1 + np.exp(-neu1 @ syn1[row]))) * rate
        neu1e += g * syn1[row]
        syn1[row] += g * neu1
    for c in context:
        syn0[c] += neu1e


@pytest.mark.parametrize(
    "objective",
    [
        OneSampled(window=3, shared=5),
        OneOfTree(architecture=ContinuousBagOfWords(), window=3, longest_path=12),
        pytest.param(
            OneSampled(architecture=ContinuousBagOfWords(mean=False), window=3, shared=5), marks=pytest.mark.nightly
        ),
    ],
    ids=["sampling", "tree-cbow", "sampling-sum"],
)
def test_batches_of_one_prediction_are_the_sequential_rule(objective):
    """The rule is that of the authors' code, over 20 steps of the compiled train step with a falling rate."""
    steps, random, architecture = 20, np.random.default_rng(1), objective.architecture
    run = Experiment(
        Word2VecConfig(vocab_size=VOCABULARY.size, vector_size=6),
        objective,
        Data(layout=Chunks(), sequence_length=LENGTH),
        optimizer=StochasticGradientDescent(learning_rate=0.5, schedule=Linear(), clip_norm=0.0),
        training=Training(steps=steps, batch_size=1),
    )
    (phase,) = run.resolved_phases
    around = objective.block_size + 2 * objective.window
    one = jax.ShapeDtypeStruct((1, 1, around, objective.block_size), jnp.float32)
    shapes = lambda phase: run.data.layout.batch(1, LENGTH) | {"chosen": one}  # noqa: E731
    program = programs.build(run, phase, meshes.make(run.mesh, jax.devices()[:1]), vocabulary=VOCABULARY, shapes=shapes)
    state, tables = program.initialize(0, SOURCES), constants(objective)
    syn0, syn1 = (np.float64(state.params[f"{side}_vectors"]["embedding"]) for side in ("input", "output"))
    syn1 += random.normal(size=syn1.shape)
    params = {"input_vectors": state.params["input_vectors"], "output_vectors": {"embedding": jnp.float32(syn1)}}
    state, key = state.replace(params=params), jax.random.wrap_key_data(np.asarray(state.key))
    words = 0
    for number in range(steps):
        ids = random.choice(np.arange(5, 60), LENGTH, replace=False)
        batch = run.data.layout.synthetic(1, LENGTH, VOCABULARY.size, 0) | batch_of(ids)
        batch["chosen"] = np.zeros(one.shape, np.float32)
        if isinstance(architecture, SkipGram):
            batch["chosen"][0, 0, objective.window + 3, 4] = 1
        else:
            batch["chosen"][0, 0, :, 4] = 1
        corruption, _ = jax.random.split(jax.random.fold_in(key, number))
        seen = jax.device_get(corrupted(objective, batch, tables, key=corruption))
        context = np.flatnonzero(seen["pairs"][0, 0, :, 4]) - objective.window
        words += len(context)
        mean = getattr(architecture, "mean", False)
        rate = 0.5 * (1 - number / steps)
        word2vec_c(syn0, syn1, ids[context], asked=objective.asked_rows(seen, ids[4], 4), rate=rate, mean=mean)
        state, metrics = program.train(state, {name: batch[name] for name in program.batch})
        assert metrics["loss"] > 0
    assert words == steps if isinstance(architecture, SkipGram) else words > 2 * steps
    for side, expected in (("input", syn0), ("output", syn1)):
        np.testing.assert_allclose(state.params[f"{side}_vectors"]["embedding"], expected, rtol=1e-5, atol=1e-5)


def test_windows_reach_over_what_is_left_out_and_end_with_a_document():
    objective = NegativeSampling(window=1, threshold=0.0)
    ids = [[10, 1, 11, END, 12, 13, 13, 14]]  # 1 stands for unknown words
    batch = batch_of(ids) | {"segment_ids": np.array([[1, 1, 1, 1, 1, 1, 1, 0]])}
    found = corrupted(objective, batch, constants(objective), key=jax.random.key(0))
    np.testing.assert_array_equal(found["input_ids"][0, 0, :6], [10, 11, 12, 13, 13, 0])
    expected = np.zeros((18, 16))
    for t, s in ((0, 1), (2, 3), (3, 4)):
        expected[t + 1, s] = expected[s + 1, t] = 1
    np.testing.assert_array_equal(found["pairs"][0, 0], expected)
    # A word at a distance d is in a window of 1..5 words with a chance of (6 - d) / 5, the same for all of a side.
    wide, rows = NegativeSampling(window=5, threshold=0.0, shared=1), 2000
    batch = batch_of(np.tile(np.arange(10, 21), (rows, 1)))
    pairs = np.asarray(corrupted(wide, batch, constants(wide), key=jax.random.key(1))["pairs"])[:, 0, 5:16]
    np.testing.assert_allclose(pairs[:, :, 5].mean(0), [0.2, 0.4, 0.6, 0.8, 1, 0, 1, 0.8, 0.6, 0.4, 0.2], atol=0.05)
    np.testing.assert_array_equal(pairs[:, :5, 5], pairs[:, :5:-1, 5])


def test_windows_reach_into_the_stretches_beside_their_own():
    """Each window reaches as far to the left as to the right, up to the row's ends; every third word is left out.

    A window may be wider than the 16 words that are scored together by default.
    """
    window, ids = 20, np.arange(10, 400)
    objective = NegativeSampling(window=window, threshold=0.0, shared=1)
    ids[::3] = 1  # unknown
    words = ids[ids > 1]
    found = corrupted(objective, batch_of(ids), constants(objective), key=jax.random.key(2))
    np.testing.assert_array_equal(found["input_ids"].ravel()[: len(words)], words)
    around = np.asarray(objective.with_context(found["input_ids"]))
    pairs, reaches = np.asarray(found["pairs"]), set()
    for place in range(found["input_ids"].size):
        stretch, s = divmod(place, objective.block_size)
        near = around[0, stretch, pairs[0, stretch, :, s] > 0].tolist()
        every = {r: [*words[max(place - r, 0) : place], *words[place + 1 :][:r]] for r in range(1, window + 1)}
        reach = next((r for r, expected in every.items() if near == expected), 0)
        assert reach if place < len(words) else not near
        reaches.add(reach)
    assert reaches == set(range(window + 1))


def test_a_row_that_is_asked_for_often_moves_by_so_many_means():
    """Its gradient is `row_updates` times the mean over its updates; that of other rows is the sum."""
    ids = np.array([[7, 8] * 4, [9, 7, 10, 11, 7, 12, 13, 14]])
    module = Word2VecConfig(vocab_size=VOCABULARY.size, vector_size=4).module(Purpose.PRETRAINING, Execution())
    shapes = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), ids, ids))["params"]
    params = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), shapes)

    def gradients(row_updates: float):
        objective = NegativeSampling(window=2, threshold=0.0, shared=64, row_updates=row_updates)
        tables = constants(objective)
        batch = corrupted(objective, batch_of(ids), tables, key=jax.random.key(3))

        def loss(params):
            found = objective.sums(module, LossInputs(params, tables), batch, jax.random.key(0), training=True)
            return found.losses["negative_sampling"] / objective.weights(batch)["negative_sampling"]

        found = jax.jit(jax.grad(loss))(params)
        return jax.tree.map(np.asarray, found), jax.device_get(batch)

    (whole, batch), (limited, _) = gradients(1e9), gradients(6.0)
    updates = {side: np.zeros(VOCABULARY.size) for side in whole}
    around = np.asarray(NegativeSampling(window=2).with_context(batch["input_ids"]))
    np.add.at(updates["input_vectors"], around, batch["pairs"].sum(axis=3))
    np.add.at(updates["output_vectors"], batch["input_ids"], batch["pairs"].sum(axis=2))
    np.add.at(updates["output_vectors"], batch["noise_ids"], batch["noise_weights"].sum(axis=2))
    for side, count in updates.items():
        often = np.flatnonzero(count > 6)
        assert {7, 8} <= set(often) and len(often) < 8
        before, after = whole[side]["embedding"], limited[side]["embedding"]
        assert np.abs(before[often]).min() > 0
        share = np.where(count > 6, 6 / np.maximum(count, 1), 1)[:, None]
        np.testing.assert_allclose(after, before * share, rtol=1e-5, atol=1e-6)


def test_words_are_drawn_and_left_out_by_their_counts():
    power, negatives = 0.5, 3
    counts = np.array([900, 50, 0, 0, 0, 4, 5, 100, 3000, 10_000])
    vocabulary = Vocabulary.placeholder(10)
    objective, total = NegativeSampling(shared=200, power=power, negatives=negatives), counts[6:].sum()
    tables = constants(objective, dataclasses.replace(SOURCES, vocabulary=vocabulary, token_counts=counts))
    ratio = 1e-3 / (counts[6:] / total)
    np.testing.assert_allclose(tables["kept"], [*[0] * 6, *np.minimum(1, np.sqrt(ratio) + ratio)], rtol=1e-6)
    batch = corrupted(objective, batch_of(np.full((200, 2), 9)), tables, key=KEY, vocabulary=vocabulary)
    drawn = np.bincount(np.asarray(batch["noise_ids"]).ravel(), minlength=10) / 40_000
    noise = counts[6:] ** power / np.sum(counts[6:] ** power)
    np.testing.assert_allclose(drawn, [*[0] * 6, *noise], atol=0.01)
    # The score that loses least of a word whose neighbours are not known: the slope of its expected loss is 0.
    seen = counts[6:] * tables["kept"][6:] / np.sum(counts[6:] * tables["kept"][6:])
    scores = np.float64(tables["unigram_scores"][6:])
    np.testing.assert_allclose(seen / (1 + np.exp(scores)), negatives * noise / (1 + np.exp(-scores)), rtol=1e-5)


@pytest.mark.parametrize("architecture", [SkipGram(), ContinuousBagOfWords()], ids=["sg", "cbow"])
def test_shared_draws_count_as_the_negatives_of_every_prediction(architecture):
    """And one that is the predicted word is passed over for this prediction alone."""
    objective = NegativeSampling(architecture=architecture, window=2, shared=50)
    ids = np.random.default_rng(0).integers(5, 25, (3, LENGTH))
    counts = np.where(np.arange(VOCABULARY.size) < 25, COUNTS, 0)
    tables = constants(objective, dataclasses.replace(SOURCES, token_counts=counts))
    batch = jax.device_get(corrupted(objective, batch_of(ids), tables, key=KEY))
    predictions = np.asarray(architecture.predictions(batch["pairs"]))
    assert float(objective.weights(batch)["negative_sampling"]) == predictions.sum() > 0
    passed_over = 0
    for b in range(3):
        for h, of_h in enumerate(predictions[b, 0]):
            predicted = np.flatnonzero(of_h) if predictions.ndim == 4 else [h] * int(of_h)
            for k, noise in enumerate(np.asarray(batch["noise_ids"])[b, 0]):
                told_from = sum(batch["input_ids"][b, 0, s] != noise for s in predicted)
                passed_over += len(predicted) - told_from
                assert float(batch["noise_weights"][b, 0, h, k]) == pytest.approx(told_from * 5 / 50)
    assert passed_over > 0
