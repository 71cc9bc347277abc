"""Skip-gram with negative sampling beside gensim: words per second on one core, and scores after the same text.

    plmjax tokenizer train --kind word --vocab_size 20000 --input TEXT --output tokenizer
    plmjax prepare --input TEXT --tokenizer tokenizer --output dataset --held_out 0.01
    taskset -c 1 python benchmarks/word_vectors.py dataset --similarity wordsim/ --analogy questions-words.txt

Both read the same rows in the same order, one pass over the text that is split into turns, with the settings of
experiments/word2vec_tiny.py and a learning rate that decays over the whole pass. Our turn starts at the prepared
dataset; gensim receives lists of words in memory, one for each row. Words are counted before frequent ones are left
out. Compilation is not counted.
"""

import argparse
import dataclasses
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "OMP_NUM_THREADS": "1"}

import gensim.models
import jax
import numpy as np
from one_device import compiled
from turns import Rates, show_rates, show_scores, timed

from plmjax import experiment as experiments
from plmjax import platform
from plmjax.data import pipeline, store, tokenizers
from plmjax.data.store import Dataset
from plmjax.experiment import Experiment
from plmjax.interop.word_vectors import WordVectors
from plmjax.objectives.objective import ConstantSources
from plmjax.training import feed


class Ours:
    """The compiled step of the experiment, and the batches of its dataset."""

    def __init__(self, run: Experiment, dataset: Dataset, tokenizer: tokenizers.Tokenizer, seed: int):
        self._run, self._tokenizer = run, tokenizer
        self._source = pipeline.DatasetSource(run.data.layout, dataset, tokenizer.vocabulary, run.training.seed)
        (self._phase,) = run.resolved_phases
        self._program = compiled(run, tokenizer.vocabulary, self._source.batch)
        counts = self._source.unigram_counts
        self._state = self._program.initialize(
            seed, ConstantSources(tokenizer.vocabulary, counts, lambda: [], lambda path, init: None)
        )

    def rows(self, first: int, last: int) -> Iterator[np.ndarray]:
        """Yield the words of every row of the steps first..last-1."""
        special = np.array(self._tokenizer.vocabulary.special)
        for batch in itertools.islice(self._source.train(self._phase, first), last - first):
            yield from (row[~np.isin(row, special)] for row in batch["input_ids"])

    def train(self, first: int, last: int) -> None:
        """Run the steps first..last-1."""
        places = feed.local_rows(self._program.batch)
        batches = feed.on_device(self._source.train(self._phase, first, places), self._program.batch)
        for batch in itertools.islice(batches, last - first):
            self._state, _ = self._program.train(self._state, batch)
        jax.block_until_ready(self._state)

    def vectors(self, words: list[str]) -> WordVectors:
        """Return the vectors of the input table."""
        table = np.asarray(self._state.params["input_vectors"]["embedding"])
        vectors = WordVectors("plmjax", self._tokenizer.tokens(range(self._tokenizer.vocabulary.size)), table)
        return WordVectors("plmjax", words, table[[vectors.rows[word] for word in words]])


def gensims(run: Experiment, counts: dict[str, int], seed: int) -> gensim.models.Word2Vec:
    """Return gensim's model with the same settings, untrained."""
    objective, rate = run.objective, run.optimizer.learning_rate
    model = gensim.models.Word2Vec(
        vector_size=run.model.vector_size,
        window=objective.window,
        negative=objective.negatives,
        ns_exponent=objective.power,
        sample=objective.threshold,
        min_count=objective.min_count,
        alpha=rate,
        min_alpha=rate * 1e-4,
        sg=1,
        workers=1,
        seed=seed + 1,
    )
    model.build_vocab_from_freq(counts)
    return model


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="prepared with a tokenizer of words")
    parser.add_argument("--turns", type=int, default=8, help="parts that the pass is cut into")
    parser.add_argument("--seed", type=int, default=0, help="of first vectors and draws; the order stays the same")
    parser.add_argument("--similarity", help="file or folder of word pairs")
    parser.add_argument("--analogy", help="file of analogies")
    options = parser.parse_args()
    platform.keep_freed_memory()  # as the commands do

    dataset, tokenizer = store.open_dataset(options.dataset), tokenizers.load(options.dataset / "tokenizer")
    run = experiments.load("word2vec_tiny")
    rows = dataset.split("train").token_count // run.data.sequence_length
    steps = rows // run.training.batch_size // options.turns * options.turns
    run = dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, vocab_size=tokenizer.vocabulary.size),
        training=dataclasses.replace(run.training, steps=steps),
    )
    texts = tokenizer.tokens(range(tokenizer.vocabulary.size))
    special = set(tokenizer.vocabulary.special)
    counts = {texts[i]: int(n) for i, n in enumerate(dataset.unigram_counts()) if n and i not in special}
    ours, theirs = Ours(run, dataset, tokenizer, options.seed), gensims(run, counts, options.seed)
    rates: dict[str, Rates] = {"plmjax": [], "gensim": []}
    places, rate = np.linspace(0, steps, options.turns + 1).astype(int), run.optimizer.learning_rate
    for first, last in itertools.pairwise(places):
        sentences = [[texts[word] for word in row] for row in ours.rows(first, last)]
        words = sum(map(len, sentences))
        with timed(rates["plmjax"], words):
            ours.train(first, last)
        begin, end = (max(rate * (1 - place / steps), rate * 1e-4) for place in (first, last))
        with timed(rates["gensim"], words):
            theirs.train(sentences, total_examples=len(sentences), epochs=1, start_alpha=begin, end_alpha=end)
    print(f"{steps:,} steps, {dataset.split('train').token_count:,} tokens, {len(theirs.wv):,} words\n")
    show_rates("words", rates)
    both = ours.vectors(theirs.wv.index_to_key), WordVectors("gensim", theirs.wv.index_to_key, theirs.wv.vectors)
    show_scores(both, {"similarity": options.similarity, "analogy": options.analogy})


if __name__ == "__main__":
    main()
