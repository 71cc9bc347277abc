"""The draws of negative sampling, how they count, and the score from the counts of words alone."""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.models.word2vec import ContinuousBagOfWords, SkipGram, Word2VecConfig
from plmjax.objectives.negative_sampling import NegativeSampling
from plmjax.objectives.objective import ConstantSources

VOCABULARY = Vocabulary.placeholder(2000)
COUNTS = np.random.default_rng(0).integers(10, 20, VOCABULARY.size)
SOURCES = ConstantSources(VOCABULARY, COUNTS, lambda: [], lambda path, init: None)
LENGTH = 8


def constants(objective: NegativeSampling, sources: ConstantSources = SOURCES) -> dict[str, np.ndarray]:
    return nn.meta.unbox(objective.constants(None, sources))


@functools.partial(jax.jit, static_argnums=(0, 2))
def corrupted(objective: NegativeSampling, batch, vocabulary: Vocabulary, tables, key: int) -> dict[str, jax.Array]:
    return objective.corrupt(batch, jax.random.key(key), vocabulary, tables)


def batch_of(ids) -> dict[str, np.ndarray]:
    ids = np.atleast_2d(np.asarray(ids, np.int32))
    return {"input_ids": ids, "segment_ids": np.ones_like(ids)}


@pytest.mark.parametrize(("power", "negatives"), [(0.75, 5), (0.5, 3)])
def test_words_are_drawn_and_left_out_by_their_counts(power, negatives):
    counts = np.array([900, 50, 0, 0, 0, 4, 5, 100, 3000, 10_000])
    vocabulary = Vocabulary.placeholder(10)
    objective, total = NegativeSampling(shared=200, power=power, negatives=negatives), counts[6:].sum()
    tables = constants(objective, dataclasses.replace(SOURCES, vocabulary=vocabulary, token_counts=counts))
    ratio = 1e-3 / (counts[6:] / total)
    np.testing.assert_allclose(tables["kept"], [*[0] * 6, *np.minimum(1, np.sqrt(ratio) + ratio)], rtol=1e-6)
    batch = corrupted(objective, batch_of(np.full((200, 2), 9)), vocabulary, tables, 0)
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
    batch = jax.device_get(corrupted(objective, batch_of(ids), VOCABULARY, tables, 0))
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


@pytest.mark.parametrize(("architecture", "mean"), [(SkipGram(), 6), (ContinuousBagOfWords(), 1)], ids=["sg", "cbow"])
def test_train_flops_are_those_of_the_predictions_inside_a_text_and_of_their_negatives(architecture, mean):
    """A window of 1 to 5 words to either side holds 6 on the mean; each is a product with the word and 5 negatives."""
    objective, ids = NegativeSampling(architecture=architecture, threshold=0.0), np.full((3, 4000), 7)
    assert objective.train_flops(Word2VecConfig(vector_size=7), batch_of(ids)) == 6 * ids.size * mean * (1 + 5) * 7
    batch = corrupted(objective, batch_of(ids), VOCABULARY, constants(objective), 0)
    predictions = float(objective.weights(batch)["negative_sampling"]) / ids.size
    assert predictions == pytest.approx(mean, rel=0.02)  # four standard errors of windows of 2 to 10 words
