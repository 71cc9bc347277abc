"""The sentences of ambiguous words, and the count of neighbours that share a sense."""

import collections
import importlib.util

import numpy as np
import pytest

from tests.paths import ROOT


@pytest.fixture(scope="module")
def polysemy():
    """benchmarks/polysemy.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("polysemy", ROOT / "benchmarks" / "polysemy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_twenty_words_have_two_senses_and_four_sentences_of_each(polysemy):
    lines = polysemy.read()
    assert set(collections.Counter((word, sense) for word, sense, _ in lines).values()) == {4}
    assert set(collections.Counter(word for word, _, _ in lines).values()) == {8} and len(lines) == 160
    assert all([each.lower() for each in words].count(word) == 1 for word, _, words in lines)


def test_neighbours_of_the_same_word_are_counted_and_ties_shared(polysemy):
    lines = polysemy.read()
    senses = np.array([sense == lines[line // 8 * 8][1] for line, (_, sense, _) in enumerate(lines)])
    random = np.random.default_rng(0)
    apart = np.stack([senses, ~senses], axis=1) + 0.1 * random.random((160, 2))
    np.testing.assert_array_equal(polysemy.shared(apart, lines), 1)
    static = np.repeat(random.normal(size=(20, 5)), 8, axis=0)  # one vector for each word
    np.testing.assert_allclose(polysemy.shared(static, lines), polysemy.STATIC)
    wrong = np.repeat(np.eye(4), 2, axis=0)[np.arange(160) % 8 % 4 * 2]  # alike across senses, never within one
    np.testing.assert_array_equal(polysemy.shared(wrong, lines), 0)
