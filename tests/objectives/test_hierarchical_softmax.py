"""Huffman's tree against one that is made word by word, and probabilities that add up to one."""

import heapq

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.models.word2vec import ContinuousBagOfWords, SkipGram, Word2VecConfig
from plmjax.objectives.hierarchical_softmax import HierarchicalSoftmax, huffman_paths
from plmjax.objectives.objective import ConstantSources, LossInputs

COUNTS = np.array([900, 50, 0, 0, 0, 4, 5, 100, 3000, 10_000, 5, 5, 7, 6])
VOCABULARY = Vocabulary.placeholder(len(COUNTS))
SOURCES = ConstantSources(VOCABULARY, COUNTS, lambda: [], lambda path, init: None)
LEARNED = np.flatnonzero((COUNTS >= 5) & (np.arange(len(COUNTS)) >= 5))


def one_by_one(counts: list[float]) -> list[list[tuple[int, int]]]:
    """(node, code) on the path of every word, from the root; trees are joined two by two.

    With equal weights a word comes before a tree, and an older one before a newer one.
    """
    heap = [(count, 0, word, word) for word, count in enumerate(counts)]
    heapq.heapify(heap)
    above = {}
    for node in range(len(counts) - 1):
        pair = heapq.heappop(heap), heapq.heappop(heap)
        above |= {item[3]: (node, code) for code, item in enumerate(pair)}
        heapq.heappush(heap, (pair[0][0] + pair[1][0], 1, node, len(counts) + node))
    paths = []
    for word in range(len(counts)):
        path, place = [], word
        while place in above:
            path.insert(0, above[place])
            place = len(counts) + path[0][0]
        paths.append(path)
    return paths


@pytest.mark.parametrize("largest", [3, 40, 100_000])
def test_the_tree_is_huffmans(largest):
    """Node for node the tree that is made one by one, with many equal counts and with few."""
    random = np.random.default_rng(0)
    counts = np.ceil(largest * random.random(300) ** 4)
    nodes, turns = huffman_paths(counts)
    paths = [
        [(int(node), int(turn < 0)) for node, turn in zip(*both, strict=True) if turn]
        for both in zip(nodes, turns, strict=True)
    ]
    assert paths == one_by_one(counts.tolist())
    assert not nodes[turns == 0].any() and np.abs(turns).sum(axis=1).max() == turns.shape[1]


@pytest.mark.parametrize("architecture", [SkipGram(), ContinuousBagOfWords()], ids=["skip-gram", "cbow"])
def test_the_probabilities_of_all_words_add_up_to_one(architecture):
    """This holds for the words that are learned: exp of minus the loss of each of them beside the same neighbour."""
    objective = HierarchicalSoftmax(architecture=architecture, window=1, threshold=0.0, longest_path=9)
    tables = nn.meta.unbox(objective.constants(None, SOURCES))
    np.testing.assert_array_equal(np.abs(tables["turns"]).any(axis=1), np.isin(np.arange(len(COUNTS)), LEARNED))
    module = Word2VecConfig(vocab_size=len(COUNTS), vector_size=6).module(Purpose.PRETRAINING, Execution())
    ids = np.stack([np.full(len(LEARNED), 9), LEARNED], axis=1)  # the neighbour, the word
    shapes = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), ids, ids))["params"]
    params = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), shapes)

    @jax.jit
    def nats(ids, tables):
        batch = {"input_ids": ids[None], "segment_ids": jnp.ones_like(ids[None])}
        batch = objective.corrupt(batch, jax.random.key(0), VOCABULARY, tables)
        batch["pairs"] = batch["pairs"].at[0, 0, 2, 0].set(0)  # the neighbour predicts, and is not predicted
        found = objective.sums(module, LossInputs(params, tables), batch, jax.random.key(0), training=False)
        return found.losses["hierarchical_softmax"]

    probabilities = np.exp([-nats(row, tables) for row in ids])
    assert 0 < probabilities.min() < probabilities.max() < 0.9
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)
