"""The softmax over drawn words: which are drawn and how often, its loss and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.objectives.sampled_softmax import SampledScores, check_order, draw, log_uniform

V = 40
RANDOM = np.random.default_rng(0)
SCORES = VocabularyScores(*(jnp.asarray(RANDOM.normal(size=shape), jnp.float32) for shape in ((2, 3, 5), (V, 5), (V,))))
TARGETS = np.array([[0, 7, 39], [3, 3, 12]])


def test_the_distribution_is_log_uniform():
    shares = np.asarray(log_uniform(jnp.arange(V), V))
    np.testing.assert_allclose(shares.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(shares, np.log((np.arange(V) + 2) / (np.arange(V) + 1)) / np.log(V + 1), rtol=1e-5)


def test_words_are_drawn_once_and_as_often_as_expected():
    """Over many draws the shares of words, and the mean of what one draw expects, are the same."""
    keys = jax.random.split(jax.random.key(0), 2000)
    ids, expected = jax.jit(jax.vmap(lambda key: (draw(key, V, 8).ids, draw(key, V, 8).log_expected(jnp.arange(V)))))(
        keys
    )
    ids = np.asarray(ids)
    assert all(len(set(row)) == 8 for row in ids.tolist())
    shares = np.bincount(ids.ravel(), minlength=V) / len(ids)
    assert shares[0] > 5 * shares[-1] > 0
    np.testing.assert_allclose(np.exp(expected).mean(axis=0), shares, rtol=0.15, atol=0.01)


def test_the_loss_is_a_softmax_over_the_target_and_other_draws():
    draws = jax.jit(lambda: draw(jax.random.key(1), V, 10))()
    ids = np.asarray(draws.ids)
    targets = TARGETS.copy()
    targets[0, 1] = ids[4]  # a draw that is the target
    found, likeliest = jax.jit(lambda: SampledScores(SCORES, draws).cross_entropy(targets))()
    all_scores = np.asarray(SCORES.hidden) @ np.asarray(SCORES.table).T + np.asarray(SCORES.bias)
    scores = all_scores - np.asarray(jax.jit(draws.log_expected)(jnp.arange(V)))
    for place in np.ndindex(targets.shape):
        target, others = targets[place], [one for one in ids if one != targets[place]]
        chosen = scores[place][[target, *others]].astype(np.float64)
        np.testing.assert_allclose(found[place], np.log(np.exp(chosen).sum()) - chosen[0], rtol=1e-5)
        assert likeliest[place] == (chosen[0] == chosen.max())
    assert targets[0, 1] in ids and not set(targets.ravel()) <= set(ids)


def test_its_gradient_is_on_average_that_of_the_whole_softmax():
    """Nearly: of 30 words out of 40 the mean over draws is within a tenth of the gradient of the scores' table."""

    def sampled(table: jax.Array, key: jax.Array) -> jax.Array:
        scores = SampledScores(SCORES.replace(table=table), draw(key, V, 30))
        return jnp.sum(scores.cross_entropy(TARGETS)[0])

    keys = jax.random.split(jax.random.key(2), 500)
    mean = jnp.mean(jax.jit(jax.vmap(jax.grad(sampled), (None, 0)))(SCORES.table, keys), axis=0)
    of_all = jax.grad(lambda table: jnp.sum(SCORES.replace(table=table).cross_entropy(TARGETS)[0]))
    whole, plain, ids = jax.jit(
        lambda table: (of_all(table), jax.grad(sampled)(table, keys[0]), draw(keys[0], V, 30).ids)
    )(SCORES.table)
    assert np.linalg.norm(mean - whole) < 0.1 * np.linalg.norm(whole)
    assert not np.any(np.asarray(plain)[np.setdiff1d(np.arange(V), [*ids.tolist(), *TARGETS.ravel()])])


def test_half_of_what_the_most_frequent_tenth_has_is_enough():
    """A tenth of eleven words is two; special tokens are none of them."""
    counts = np.array([99, 5, 5, 1, 1, 1, 1, 1, 1, 1, 10, 10, 77])
    check_order(counts, (0, 12))
    with pytest.raises(UserError, match=r"first tenth is 25\.0% of the text and the most frequent tenth 55\.6%"):
        check_order(np.where(np.arange(13) == 2, 4, counts), (0, 12))
    check_order(np.zeros(13, int), (0, 12))  # a plan
