"""The sentences of ambiguous words, their vectors, and the count of neighbours that share a sense."""

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
    np.testing.assert_array_equal(polysemy.shared(polysemy.cosines(apart), lines), 1)
    static = np.repeat(random.normal(size=(20, 5)), 8, axis=0)  # one vector for each word
    np.testing.assert_allclose(polysemy.shared(polysemy.cosines(static), lines), polysemy.STATIC)
    wrong = np.repeat(np.eye(4), 2, axis=0)[np.arange(160) % 8 % 4 * 2]  # alike across senses, never within one
    np.testing.assert_array_equal(polysemy.shared(polysemy.cosines(wrong), lines), 0)


def test_the_vector_of_a_word_is_the_mean_of_its_pieces(polysemy, small_run, reference):
    lines = [line for line in polysemy.read() if line[0] in ("bank", "crane")]
    layers, counts, places = polysemy.vectors(str(small_run), lines)
    assert len(set(counts)) > 1 and [len(layer) for layer in layers] == [len(lines)] * 2
    for number, (word, _, words) in enumerate(lines):
        hidden, begin = reference(" ".join(words))[0], 1 + places[number]
        for layer, found in zip(hidden, layers, strict=True):
            expected = layer[begin : begin + counts[number]].mean(axis=0)
            np.testing.assert_allclose(found[number], expected, rtol=1e-4, atol=1e-5, err_msg=word)
