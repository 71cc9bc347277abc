"""Hierarchical softmax (Morin and Bengio, AISTATS 2005; Mikolov et al., NeurIPS 2013, section 2.1; word2vec.c).

The words are the leaves of the Huffman tree of their counts. A word's probability is the product of the probabilities
of the turns on its path. The rows of the output table are the tree's inner nodes:

    loss = sum over the nodes n of the path of s of  -log sigmoid(+-score(h, n)),  + for the code 0, - for 1

s is the predicted word, and h the hidden vector of the predicting words. plmjax/objectives/word_prediction.py describes
the predicting words, and how a batch of predictions is one step. The loss is the mean nats of a target, comparable with
the unigram entropy.

Deviation: word2vec.c skips nodes with scores beyond +-6 and reads the sigmoids of the others from a table.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import FROM_1, UserError, check_ranges
from plmjax.objectives.objective import Batch, ConstantSources, LossInputs, LossSums, apply
from plmjax.objectives.word_prediction import WordPrediction, scaled_gradient, total


@dataclasses.dataclass(frozen=True)
class HierarchicalSoftmax(WordPrediction):
    """Mean nats of a predicted word, for rows of consecutive words such as `Chunks` gives."""

    longest_path: int = 40
    """Maximum number of inner nodes on the path to a word; a batch's time and memory grow with it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("objective", self, longest_path=FROM_1)

    def constants(self, config: Any, sources: ConstantSources) -> dict[str, Any]:
        """Return tables of the V words.

        kept: float32 [V], the probability that a word is kept. paths: int32 [V L], the inner nodes from the root.
        turns: int8 [V L], 1 for the code 0, -1 for the code 1, 0 after the end of a path.

        Raises:
            UserError: no word of the text is frequent enough, or the tree is too deep.
        """
        counts = self.counts(sources)
        words = np.flatnonzero(counts)
        word_paths, word_turns = huffman_paths(counts[words])
        longest = word_paths.shape[1]
        if longest > self.longest_path:
            raise UserError(
                f"Expected paths of at most {self.longest_path} nodes in Huffman's tree, found one of {longest}; raise "
                "--objective.longest_path."
            )
        paths = np.zeros((len(counts), self.longest_path), np.int32)
        turns = np.zeros((len(counts), self.longest_path), np.int8)
        paths[words, :longest], turns[words, :longest] = word_paths, word_turns
        return {
            "kept": nn.LogicallyPartitioned(self.keep_probability(counts), (None,)),
            "paths": nn.LogicallyPartitioned(paths, (None, None)),
            "turns": nn.LogicallyPartitioned(turns, (None, None)),
        }

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Add the targets, their paths, and the factors of the rows' gradients.

        input_ids and pairs as from `windows`; paths int32 [B N S L] and turns float32 [B N S L]; input_factors [B N S],
        output_factors [B N S L].
        """
        batch = self.windows(batch, key, vocabulary, constants)
        ids, pairs = batch["input_ids"], batch["pairs"]
        predictions = self.architecture.predictions(pairs)
        paths, turns = constants["paths"][ids], constants["turns"][ids].astype(jnp.float32)
        asked, count = (
            self.architecture.prediction_counts(predictions)[..., None] * jnp.abs(turns),
            jnp.sum(predictions),
        )
        inputs = self.updates(self.with_context(ids), jnp.sum(pairs, axis=3), constants)
        return batch | {
            "paths": paths,
            "turns": turns,
            "input_factors": self.factors(ids, inputs, count),
            "output_factors": self.factors(paths, self.updates(paths, asked, constants), count),
        }

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        return {"input_ids": batch["input_ids"], "output_ids": batch["paths"]}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"hierarchical_softmax": jnp.maximum(jnp.sum(self.architecture.predictions(batch["pairs"])), 1e-9)}

    def sums(
        self, module: nn.Module, loss_inputs: LossInputs, batch: Batch, key: jax.Array, *, training: bool
    ) -> LossSums:
        inputs, nodes = apply(self, module, loss_inputs, batch=batch, key=key, training=training)
        inputs = self.with_context(scaled_gradient(inputs, batch["input_factors"]))
        nodes = scaled_gradient(nodes, batch["output_factors"])
        predictions = self.architecture.predictions(batch["pairs"])
        scores = self.architecture.scores(self.architecture.hidden(inputs, batch["pairs"]), nodes)  # [B N ... S L]
        turns = jnp.expand_dims(batch["turns"], range(2, scores.ndim - 2))
        nats = jnp.sum(jnp.abs(turns) * nn.softplus(-turns * scores), axis=-1)
        return LossSums({"hierarchical_softmax": total(predictions, nats)}, {})

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs of all predictions, each with a path as long as the logarithm of the vocabulary size."""
        scores = self.predictions_of_a_word() * np.log2(config.vocab_size)
        return 6.0 * batch["input_ids"].size * scores * config.vector_size


def huffman_paths(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the path of every word in the Huffman tree: inner nodes, int32 [V L], and turns, int8 [V L].

    counts: float64 [V], each above 0. The V - 1 inner nodes are numbered in the order of their creation, the root last.
    L is the longest path; after the end of a path nodes and turns are 0. When the two smallest trees are merged, the
    smaller one gets the code 0 and the turn 1, the other one the code 1 and the turn -1.

    All trees that weigh no more than the two smallest together are merged at once. Every new tree weighs as much or
    more, so merging them one by one gives the same order.
    """
    size = len(counts)
    order = np.argsort(counts, kind="stable")
    trees, weights = np.arange(size), counts[order]
    parents, turns = np.zeros(2 * size, np.int64), np.ones(2 * size, np.int8)
    made = size
    while len(trees) > 1:
        joined = int(np.searchsorted(weights, weights[0] + weights[1], side="right")) // 2 * 2
        new, sums = made + np.arange(joined // 2), weights[:joined:2] + weights[1:joined:2]
        parents[trees[:joined]], turns[trees[1:joined:2]] = np.repeat(new, 2), -1
        places = np.searchsorted(weights[joined:], sums, side="right")
        trees, weights = np.insert(trees[joined:], places, new), np.insert(weights[joined:], places, sums)
        made += len(new)

    root, lengths = made - 1, np.zeros(size, np.int64)
    above = np.arange(size)  # the node above each word after each number of turns
    while (below := above != root).any():
        lengths[below] += 1
        above = np.where(below, parents[above], root)
    paths = np.zeros((size, lengths.max(initial=0)), np.int32)
    path_turns = np.zeros(paths.shape, np.int8)
    above = np.arange(size)
    for step in range(1, paths.shape[1] + 1):
        (words,) = np.nonzero(lengths >= step)
        places = order[words], lengths[words] - step
        paths[places], path_turns[places] = parents[above[words]] - size, turns[above[words]]
        above[words] = parents[above[words]]
    return paths, path_turns
