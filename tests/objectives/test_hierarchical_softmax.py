"""Huffman's tree against the shortest code there is, and probabilities that add up to one."""

import heapq

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.layers.execution import Execution
from plmjax.models.word2vec import ContinuousBagOfWords, SkipGram, Word2VecConfig
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax, huffman_paths
from plmjax.objectives.objective import Given, Materials
from plmjax.vocabulary import Vocabulary

COUNTS = np.array([900, 50, 0, 0, 0, 4, 5, 100, 3000, 10_000, 5, 5, 7, 6])
VOCABULARY = Vocabulary.placeholder(len(COUNTS))
MATERIALS = Materials(VOCABULARY, COUNTS, lambda: [], lambda path, init: None)
LEARNED = np.flatnonzero((COUNTS >= 5) & (np.arange(len(COUNTS)) >= 5))


def shortest_code(counts: list[float]) -> float:
    """The sum over words of count x length in the shortest code: that of all sums that Huffman's algorithm makes."""
    heap, cost = list(counts), 0.0
    heapq.heapify(heap)
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        cost += both
        heapq.heappush(heap, both)
    return cost


def test_the_tree_is_huffmans():
    counts = np.float64(np.random.default_rng(0).integers(1, 1000, 200))
    paths = huffman_paths(counts)
    lengths = [len(path) for path in paths]
    assert np.dot(counts, lengths) == shortest_code(counts.tolist())
    codes = {tuple(code for _, code in path) for path in paths}
    assert len(codes) == 200 and sum(2.0 ** -len(code) for code in codes) == 1
    nodes = {path[: place + 1][-1][0] for path in paths for place in range(len(path))}
    assert nodes == set(range(199)) and {path[0][0] for path in paths} == {198}
    assert huffman_paths(np.array([3.0])) == [[]] and huffman_paths(np.array([])) == []


@pytest.mark.parametrize("architecture", [SkipGram(), ContinuousBagOfWords()], ids=["skip-gram", "cbow"])
def test_the_probabilities_of_all_words_add_up_to_one(architecture):
    """Of the words that are learned: exp of minus the loss of each of them beside the same neighbour."""
    objective = HierarchicalSoftmax(architecture=architecture, window=1, threshold=0.0, longest_path=9)
    tables = nn.meta.unbox(objective.constants(None, MATERIALS))
    np.testing.assert_array_equal(np.abs(tables["turns"]).any(axis=1), np.isin(np.arange(len(COUNTS)), LEARNED))
    module = Word2VecConfig(vocab_size=len(COUNTS), vector_size=6).for_pretraining(Execution())
    ids = np.stack([np.full(len(LEARNED), 9), LEARNED], axis=1)  # the neighbour, the word
    params = nn.meta.unbox(module.init(jax.random.key(0), ids, ids))["params"]
    params = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), params)

    @jax.jit
    def nats(ids, tables):
        batch = {"input_ids": ids[None], "segment_ids": jnp.ones_like(ids[None])}
        batch = objective.corrupt(batch, jax.random.key(0), VOCABULARY, tables)
        batch["pairs"] = batch["pairs"].at[0, 0, 2, 0].set(0)  # the neighbour predicts, and is not predicted
        found = objective.sums(module, Given(params, tables), batch, jax.random.key(0), training=False)
        return found.losses["hierarchical_softmax"]

    probabilities = np.exp([-nats(row, tables) for row in ids])
    assert 0 < probabilities.min() < probabilities.max() < 0.9
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)


def test_a_tree_that_is_too_deep_is_refused():
    with pytest.raises(UserError, match=r"Expected paths of at most 3 nodes in Huffman's tree, found one of \d"):
        HierarchicalSoftmax(longest_path=3).constants(None, MATERIALS)
