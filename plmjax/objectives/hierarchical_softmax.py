"""Hierarchical softmax (Morin and Bengio, AISTATS 2005; Mikolov et al., NeurIPS 2013, section 2.1; word2vec.c).

The words are the leaves of Huffman's tree of their counts. A word's probability is that of the turns on its path, and
rows of the output table are the tree's inner nodes:

    loss = sum over the nodes n of the path of s of  -log sigmoid(+-score(h, n)),  + for the code 0, - for 1

Which words predict, and how a batch of predictions is one step, is in plmjax/objectives/word_prediction.py. The loss is
a probability's: "nats a target", beside the unigram entropy.

Deviation: word2vec.c passes over nodes with scores beyond +-6 and reads the sigmoids of the others from a table.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import FROM_1, UserError, check_ranges
from plmjax.objectives.objective import Batch, Given, Materials, Sums, apply
from plmjax.objectives.word_prediction import WordPrediction, scaled_gradient, total
from plmjax.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class HierarchicalSoftmax(WordPrediction):
    """Mean nats of a predicted word, of rows of consecutive words such as `Blocks` gives."""

    longest_path: int = 40
    """Inner nodes on the path to a word, at most; a batch's time and memory grow with it."""

    def __post_init__(self) -> None:
        """Checks the numbers."""
        super().__post_init__()
        check_ranges("objective", self, longest_path=FROM_1)

    def constants(self, config: Any, materials: Materials) -> dict[str, Any]:
        """Tables of the V words.

        kept: float32 [V], the chance that a word is not left out. paths: int32 [V L], the inner nodes from the root.
        turns: float32 [V L], 1 for the code 0, -1 for 1, 0 behind the end of a path.

        Raises:
            UserError: no word of the text is frequent enough, or the tree is too deep.
        """
        counts = self.counts(materials)
        words = np.flatnonzero(counts)
        paths = np.zeros((len(counts), self.longest_path), np.int32)
        turns = np.zeros((len(counts), self.longest_path), np.float32)
        for word, path in zip(words, huffman_paths(counts[words]), strict=True):
            if len(path) > self.longest_path:
                raise UserError(
                    f"Expected paths of at most {self.longest_path} nodes in Huffman's tree, found one of {len(path)}; "
                    "raise --objective.longest_path."
                )
            for place, (node, code) in enumerate(path):
                paths[word, place], turns[word, place] = node, 1 - 2 * code
        return {
            "kept": nn.LogicallyPartitioned(self.kept(counts), (None,)),
            "paths": nn.LogicallyPartitioned(paths, (None, None)),
            "turns": nn.LogicallyPartitioned(turns, (None, None)),
        }

    def corrupt(self, batch: Batch, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Batch:
        """Adds what is predicted, its path, and by how much the gradients of rows are multiplied.

        input_ids and pairs as of `windows`; paths int32 [B N S L] and turns float32 [B N S L]; input_factors [B N S],
        output_factors [B N S L].
        """
        batch = self.windows(batch, key, vocabulary, constants)
        ids, pairs = batch["input_ids"], batch["pairs"]
        predictions = self.architecture.predictions(pairs)
        paths, turns = constants["paths"][ids], constants["turns"][ids]
        asked, count = self.architecture.asked(predictions)[..., None] * jnp.abs(turns), jnp.sum(predictions)
        inputs = self.updates(self.around(ids), jnp.sum(pairs, axis=3), constants)
        return batch | {
            "paths": paths,
            "turns": turns,
            "input_factors": self.factors(ids, inputs, count),
            "output_factors": self.factors(paths, self.updates(paths, asked, constants), count),
        }

    def model_inputs(self, batch: Batch) -> dict[str, jax.Array]:
        """The words, as inputs; the nodes on their paths, as outputs."""
        return {"input_ids": batch["input_ids"], "output_ids": batch["paths"]}

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Number of predictions."""
        return {"hierarchical_softmax": jnp.maximum(jnp.sum(self.architecture.predictions(batch["pairs"])), 1e-9)}

    def sums(self, module: nn.Module, given: Given, batch: Batch, key: jax.Array, *, training: bool) -> Sums:
        """Nats of the predicted words."""
        inputs, nodes = apply(self, module, given, batch, key, training=training)
        inputs = self.around(scaled_gradient(inputs, batch["input_factors"]))
        nodes = scaled_gradient(nodes, batch["output_factors"])
        predictions = self.architecture.predictions(batch["pairs"])
        scores = self.architecture.scores(self.architecture.hidden(inputs, batch["pairs"]), nodes)  # [B N ... S L]
        turns = jnp.expand_dims(batch["turns"], range(2, scores.ndim - 2))
        nats = jnp.sum(jnp.abs(turns) * nn.softplus(-turns * scores), axis=-1)
        return Sums({"hierarchical_softmax": total(predictions, nats)}, {})

    def train_flops(self, config: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> float:
        """Of every prediction and a path of the logarithm of the vocabulary."""
        scores = self.predictions_of_a_word() * np.log2(config.vocab_size)
        return 6.0 * batch["input_ids"].size * scores * config.vector_size


def huffman_paths(counts: np.ndarray) -> list[list[tuple[int, int]]]:
    """The path of every word in Huffman's tree: inner nodes from the root, and the code of the turn at each.

    counts: float64 [V], each above 0. The V - 1 inner nodes are numbered as they are made, the root last. Of the two
    smallest trees the smaller one gets the code 0.
    """
    size = len(counts)
    order = np.argsort(counts, kind="stable")
    weights = [*counts[order].tolist()]  # of the leaves in order, and then of the inner nodes, in order too
    parents, codes = [0] * (2 * size), [0] * (2 * size)
    leaf, inner = 0, size

    def smallest() -> int:
        nonlocal leaf, inner
        if leaf < size and (inner >= len(weights) or weights[leaf] <= weights[inner]):
            leaf += 1
            return leaf - 1
        inner += 1
        return inner - 1

    for node in range(size - 1):
        pair = smallest(), smallest()
        weights.append(weights[pair[0]] + weights[pair[1]])
        for code, child in enumerate(pair):
            parents[child], codes[child] = size + node, code
    paths: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    root = 2 * size - 2
    for place, word in enumerate(order.tolist()):
        child = place
        while child != root:
            paths[word].append((parents[child] - size, codes[child]))
            child = parents[child]
        paths[word].reverse()
    return paths
