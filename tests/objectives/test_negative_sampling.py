"""Negative sampling against a transcription of word2vec.c's rule, its windows and its draws."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.data.layouts import Blocks
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Training
from plmjax.layers.execution import Execution
from plmjax.models.word2vec import ContinuousBagOfWords, SkipGram, Word2VecConfig
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.objective import Given, Materials
from plmjax.parallel import mesh as meshes
from plmjax.training import phases, step
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.schedules import Linear
from plmjax.vocabulary import Vocabulary

VOCABULARY = Vocabulary.placeholder(2000)
END = VOCABULARY.document_end
COUNTS = np.random.default_rng(0).integers(10, 20, VOCABULARY.size)
MATERIALS = Materials(VOCABULARY, COUNTS, lambda: [], lambda path, init: None)
LENGTH = 8


class OnePrediction(NegativeSampling):
    """Of all pairs only those of one prediction: the field `chosen` is 1 for it."""

    def pairs(self, batch, key, vocabulary, constants):
        return super().pairs(batch, key, vocabulary, constants) * batch["chosen"]


def constants(objective: NegativeSampling, materials: Materials = MATERIALS) -> dict[str, np.ndarray]:
    return nn.meta.unbox(objective.constants(None, materials))


@functools.partial(jax.jit, static_argnums=(0, 2))
def corrupted(objective: NegativeSampling, batch, vocabulary: Vocabulary, tables, key: int) -> dict[str, jax.Array]:
    return objective.corrupt(batch, jax.random.key(key), vocabulary, tables)


def batch_of(ids) -> dict[str, np.ndarray]:
    ids = np.atleast_2d(np.asarray(ids, np.int32))
    return {"input_ids": ids, "segment_ids": np.ones_like(ids)}


def word2vec_c(syn0, syn1, context, word, negatives, rate, mean) -> None:
    """One prediction of word2vec.c, in float64: the word from its context, which skip-gram gives one word of.

    mean: as of v0.1c; otherwise the sum of v0.1b.
    """
    neu1 = sum(syn0[c] for c in context) / (len(context) if mean else 1)
    neu1e = np.zeros_like(neu1)
    for place, target in enumerate([word, *negatives]):
        label = place == 0
        if target == word and not label:
            continue
        g = (label - 1 / (1 + np.exp(-neu1 @ syn1[target]))) * rate
        neu1e += g * syn1[target]
        syn1[target] += g * neu1
    for c in context:
        syn0[c] += neu1e


@pytest.mark.parametrize(
    "architecture", [SkipGram(), ContinuousBagOfWords(), ContinuousBagOfWords(mean=False)], ids=["sg", "cbow", "sum"]
)
def test_batches_of_one_prediction_are_the_sequential_rule(architecture):
    """Of the authors' code, over 20 steps of the compiled train step with a falling rate."""
    steps, random = 20, np.random.default_rng(1)
    objective = OnePrediction(architecture=architecture, window=3, shared=5)
    run = Experiment(
        Word2VecConfig(vocab_size=VOCABULARY.size, vector_size=6),
        objective,
        Data(layout=Blocks(), sequence_length=LENGTH),
        optimizer=StochasticGradientDescent(learning_rate=0.5, schedule=Linear(), clip_norm=0.0),
        training=Training(steps=steps, batch_size=1),
    )
    (phase,) = phases.resolve(run)
    corrupt = jax.jit(lambda batch, key, tables: objective.corrupt(batch, key, VOCABULARY, tables))
    one = jax.ShapeDtypeStruct((1, LENGTH, LENGTH), jnp.float32)
    shapes = lambda phase: run.data.layout.batch(1, LENGTH) | {"chosen": one}  # noqa: E731
    program = step.build(run, phase, meshes.make(run.mesh, jax.devices()[:1]), VOCABULARY, shapes)
    state, tables = program.initialize(0, MATERIALS), constants(objective)
    syn0, syn1 = (np.float64(state.params[f"{side}_vectors"]["embedding"]) for side in ("input", "output"))
    syn1 += random.normal(size=syn1.shape)
    params = {"input_vectors": state.params["input_vectors"], "output_vectors": {"embedding": jnp.float32(syn1)}}
    state, key = state.replace(params=params), jax.random.wrap_key_data(np.asarray(state.key))
    words = 0
    for number in range(steps):
        ids = random.choice(np.arange(5, 60), LENGTH, replace=False)
        batch = run.data.layout.synthetic(1, LENGTH, VOCABULARY.size, 0) | batch_of(ids)
        batch["chosen"] = np.zeros((1, LENGTH, LENGTH), np.float32)
        if isinstance(architecture, SkipGram):
            batch["chosen"][0, 3, 4] = 1
        else:
            batch["chosen"][0, :, 4] = 1
        corruption, _ = jax.random.split(jax.random.fold_in(key, number))
        seen = corrupt(batch, corruption, tables)
        (context,), negatives = np.nonzero(np.asarray(seen["pairs"])[0, :, 4]), np.asarray(seen["noise_ids"])[0]
        assert len(set(negatives)) == 5  # of a repeated one word2vec.c sees the changed row
        words += len(context)
        mean = getattr(architecture, "mean", False)
        word2vec_c(syn0, syn1, ids[context], ids[4], negatives, 0.5 * (1 - number / steps), mean)
        state, metrics = program.train(state, {name: batch[name] for name in program.batch})
        assert metrics["loss"] > 0
    assert words == steps if isinstance(architecture, SkipGram) else words > 2 * steps
    for side, expected in (("input", syn0), ("output", syn1)):
        np.testing.assert_allclose(state.params[f"{side}_vectors"]["embedding"], expected, rtol=1e-5, atol=1e-5)


def test_windows_reach_over_what_is_left_out_and_end_with_a_document():
    objective = NegativeSampling(window=1, threshold=0.0)
    ids = [[10, 1, 11, END, 12, 13, 13, 14]]  # 1 stands for unknown words
    batch = batch_of(ids) | {"segment_ids": np.array([[1, 1, 1, 1, 1, 1, 1, 0]])}
    pairs = np.asarray(corrupted(objective, batch, VOCABULARY, constants(objective), 0)["pairs"])[0]
    expected = np.zeros((8, 8))
    for t, s in ((0, 2), (4, 5), (5, 6)):
        expected[t, s] = expected[s, t] = 1
    np.testing.assert_array_equal(pairs, expected)
    # A word at a distance d is in a window of 1..5 words with a chance of (6 - d) / 5, the same for all of a side.
    wide, rows = NegativeSampling(window=5, threshold=0.0, shared=1), 2000
    batch = batch_of(np.tile(np.arange(10, 21), (rows, 1)))
    pairs = np.asarray(corrupted(wide, batch, VOCABULARY, constants(wide), 1)["pairs"])
    np.testing.assert_allclose(pairs[:, :, 5].mean(0), [0.2, 0.4, 0.6, 0.8, 1, 0, 1, 0.8, 0.6, 0.4, 0.2], atol=0.05)
    np.testing.assert_array_equal(pairs[:, :5, 5], pairs[:, :5:-1, 5])


def test_words_are_drawn_and_left_out_by_their_counts():
    counts = np.array([900, 50, 0, 0, 0, 4, 5, 100, 3000, 10_000])
    vocabulary = Vocabulary.placeholder(10)
    objective, total = NegativeSampling(shared=200), counts[6:].sum()
    tables = constants(objective, dataclasses.replace(MATERIALS, vocabulary=vocabulary, token_counts=counts))
    ratio = 1e-3 / (counts[6:] / total)
    np.testing.assert_allclose(tables["kept"], [*[0] * 6, *np.minimum(1, np.sqrt(ratio) + ratio)], rtol=1e-6)
    batch = corrupted(objective, batch_of(np.full((200, 2), 9)), vocabulary, tables, 0)
    drawn = np.bincount(np.asarray(batch["noise_ids"]).ravel(), minlength=10) / 40_000
    noise = counts[6:] ** 0.75 / np.sum(counts[6:] ** 0.75)
    np.testing.assert_allclose(drawn, [*[0] * 6, *noise], atol=0.01)
    # The score that loses least of a word whose neighbours are not known: the slope of its expected loss is 0.
    seen = counts[6:] * tables["kept"][6:] / np.sum(counts[6:] * tables["kept"][6:])
    scores = np.float64(tables["unigram_scores"][6:])
    np.testing.assert_allclose(seen / (1 + np.exp(scores)), 5 * noise / (1 + np.exp(-scores)), rtol=1e-5)


@pytest.mark.parametrize("architecture", [SkipGram(), ContinuousBagOfWords()], ids=["sg", "cbow"])
def test_shared_draws_count_as_the_negatives_of_every_prediction(architecture):
    """And one that is the predicted word is passed over for this prediction alone."""
    objective = NegativeSampling(architecture=architecture, window=2, shared=50)
    ids = np.random.default_rng(0).integers(5, 25, (3, LENGTH))
    counts = np.where(np.arange(VOCABULARY.size) < 25, COUNTS, 0)
    tables = constants(objective, dataclasses.replace(MATERIALS, token_counts=counts))
    batch = jax.device_get(corrupted(objective, batch_of(ids), VOCABULARY, tables, 0))
    predictions = np.asarray(architecture.predictions(batch["pairs"]))
    assert float(objective.weights(batch)["negative_sampling"]) == predictions.sum() > 0
    passed_over = 0
    for b in range(3):
        for h in range(LENGTH):
            predicted = np.flatnonzero(predictions[b, h]) if predictions.ndim == 3 else [h] * int(predictions[b, h])
            for k, noise in enumerate(np.asarray(batch["noise_ids"])[b]):
                told_from = sum(ids[b, s] != noise for s in predicted)
                passed_over += len(predicted) - told_from
                assert float(batch["noise_weights"][b, h, k]) == pytest.approx(told_from * 5 / 50)
    assert passed_over > 0


def test_a_row_that_is_asked_for_often_moves_by_so_many_means():
    """Its gradient is `row_updates` times the mean over its updates; that of other rows is the sum."""
    ids = np.array([[7, 8] * 4, [9, 7, 10, 11, 7, 12, 13, 14]])
    module = Word2VecConfig(vocab_size=VOCABULARY.size, vector_size=4).for_pretraining(Execution())
    params = nn.meta.unbox(module.init(jax.random.key(0), ids, ids))["params"]
    params = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), params)

    def gradients(row_updates: float):
        objective = NegativeSampling(window=2, threshold=0.0, row_updates=row_updates)
        tables = constants(objective)
        batch = corrupted(objective, batch_of(ids), VOCABULARY, tables, 3)

        def loss(params):
            found = objective.sums(module, Given(params, tables), batch, jax.random.key(0), training=True)
            return found.losses["negative_sampling"] / objective.weights(batch)["negative_sampling"]

        found = jax.jit(jax.grad(loss))(params)
        return jax.tree.map(np.asarray, found), jax.device_get(batch)

    (whole, batch), (limited, _) = gradients(1e9), gradients(6.0)
    updates = {side: np.zeros(VOCABULARY.size) for side in whole}
    np.add.at(updates["input_vectors"], ids, batch["pairs"].sum(axis=2))
    np.add.at(updates["output_vectors"], ids, batch["pairs"].sum(axis=1))
    np.add.at(updates["output_vectors"], batch["noise_ids"], batch["noise_weights"].sum(axis=1))
    for side, count in updates.items():
        often = np.flatnonzero(count > 6)
        assert {7, 8} <= set(often) and len(often) < 8
        before, after = whole[side]["embedding"], limited[side]["embedding"]
        assert np.abs(before[often]).min() > 0
        share = np.where(count > 6, 6 / np.maximum(count, 1), 1)[:, None]
        np.testing.assert_allclose(after, before * share, rtol=1e-5, atol=1e-6)


def test_settings_and_texts_that_leave_nothing_to_learn():
    with pytest.raises(UserError, match=r"Expected --objective\.window of at least 1"):
        NegativeSampling(window=0)
    with pytest.raises(UserError, match="Expected words that stand 30 times in the training text, found none"):
        NegativeSampling(least=30).constants(None, MATERIALS)
