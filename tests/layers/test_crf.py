"""A conditional random field against the sum over all sequences of labels."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from plmjax.contracts.mask_terms import EXCLUDED
from plmjax.layers import crf
from plmjax.layers.crf import Chain, Possible, Scores, TransitionScores

LABELS = 3
LENGTHS = (4, 1, 5, 2)
RANDOM = np.random.default_rng(0)
SENTENCES = [RANDOM.normal(size=(length, LABELS)).astype(np.float32) for length in LENGTHS]
GOLD = [RANDOM.integers(0, LABELS, length) for length in LENGTHS]
SCORES = Scores(*(RANDOM.normal(size=shape).astype(np.float32) for shape in ((3,), (3, 3), (3,))))
CUT = 2
"""The sentence whose end is not there."""
GAP = 2
"""Tokens between two words."""


def path_scores(sentence: int, paths: np.ndarray, scores: Scores = SCORES, emissions=SENTENCES) -> jax.Array:
    """The definition, of sequences of labels [P n]."""
    total = scores.start[paths[:, 0]] + jnp.sum(emissions[sentence][np.arange(paths.shape[1]), paths], axis=1)
    total += jnp.sum(scores.transitions[paths[:, :-1], paths[:, 1:]], axis=1)
    return total if sentence == CUT else total + scores.end[paths[:, -1]]


def all_paths(length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(LABELS), repeat=length)))


def total_nats(scores: Scores, emissions) -> jax.Array:
    total = jnp.zeros(())
    for number, length in enumerate(LENGTHS):
        total += jax.nn.logsumexp(path_scores(number, all_paths(length), scores, emissions))
        total -= path_scores(number, GOLD[number][None], scores, emissions)[0]
    return total


def rows(rows_of_sentences: list[list[int]], length: int, emissions=SENTENCES):
    """(emissions [B T Y], labels [B T], Chain, place of every word: sentence -> [n 2]), with noise between words."""
    own = jnp.asarray(np.random.default_rng(1).normal(size=(len(rows_of_sentences), length, LABELS)), jnp.float32)
    labels = np.full(own.shape[:2], LABELS - 1, np.int32)
    masks = np.zeros((3, *labels.shape), bool)
    places = {}
    for row, sentences in enumerate(rows_of_sentences):
        column = 1
        for sentence in sentences:
            columns = column + GAP * np.arange(LENGTHS[sentence])
            places[sentence] = np.stack([np.full_like(columns, row), columns], axis=1)
            own = own.at[row, columns].set(emissions[sentence])
            labels[row, columns] = GOLD[sentence]
            masks[0, row, columns] = masks[1, row, columns[0]] = True
            masks[2, row, columns[-1]] = sentence != CUT
            column = columns[-1] + 2
    return own, jnp.asarray(labels), Chain(*map(jnp.asarray, masks)), places


LAYOUT = ([[2, 0], [3], [1]], 20)
"""Two sentences share a row, and the others end in padding."""


def test_values_and_gradients_are_those_of_all_sequences():
    def ours(scores, emissions):
        own, labels, chain, _ = rows(*LAYOUT, emissions)
        return jnp.sum(crf.nats(own, labels, scores, chain))

    value, gradients = jax.jit(jax.value_and_grad(ours, (0, 1)))(SCORES, SENTENCES)
    expected, their_gradients = jax.jit(jax.value_and_grad(total_nats, (0, 1)))(SCORES, SENTENCES)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for ours_, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(their_gradients), strict=True):
        np.testing.assert_allclose(ours_, theirs, atol=1e-5)


def test_labels_and_probabilities_are_those_of_all_sequences():
    own, _, chain, places = rows(*LAYOUT)
    labels, shares = jax.jit(lambda: (crf.viterbi(own, SCORES, chain), crf.marginals(own, SCORES, chain)))()
    assert not np.any(np.asarray(shares)[~np.asarray(chain.words)])
    every_path = {sentence: all_paths(LENGTHS[sentence]) for sentence in places}
    of_paths = jax.device_get(jax.jit(lambda: {one: path_scores(one, paths) for one, paths in every_path.items()})())
    for sentence, at in places.items():
        paths, scores = every_path[sentence], of_paths[sentence]
        row, column = at.T
        np.testing.assert_array_equal(np.asarray(labels)[row, column], paths[np.argmax(scores)])
        expected = np.zeros((LENGTHS[sentence], LABELS))
        np.add.at(expected, (np.arange(paths.shape[1]), paths), softmax(scores)[:, None])
        np.testing.assert_allclose(np.asarray(shares)[row, column], expected, atol=1e-5)


def test_scores_are_float32_where_emissions_are_bfloat16():
    own, labels, chain, _ = rows(*LAYOUT)
    narrow, scores = own.astype(jnp.bfloat16), jax.tree.map(jnp.asarray, SCORES)

    @jax.jit
    def read(own):
        return crf.nats(own, labels, scores, chain), crf.marginals(own, scores, chain)

    for found, expected in zip(read(narrow), read(narrow.astype(jnp.float32)), strict=True):
        assert found.dtype == jnp.float32 and not np.asarray(found)[~np.asarray(chain.words)].any()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_what_is_learned_is_what_the_scheme_allows():
    """From the label of a row to that of a column; a place of its own for starts and for ends."""
    possible = Possible(
        (True, False, True), ((True, True, False), (False, True, True), (True, True, True)), (False, True, True)
    )
    params = {
        "start": np.float32([1, 2, 3]), "transitions": 10 + np.arange(9, dtype=np.float32).reshape(3, 3),
        "end": np.float32([4, 5, 6]),
    }  # fmt: skip
    module, out = TransitionScores(possible), np.float32(EXCLUDED)
    found = module.apply({"params": params})
    assert found.start.tolist() == [1, out, 3] and found.end.tolist() == [out, 5, 6]
    assert found.transitions.tolist() == [[10, 11, out], [out, 14, 15], [16, 17, 18]]
