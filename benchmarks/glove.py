"""GloVe: words counted per second, and cells trained per second beside the sequential rule in C; scores of both.

    plmjax tokenizer train --kind word --vocab_size 20000 --input TEXT --output tokenizer
    plmjax prepare --input TEXT --tokenizer tokenizer --output dataset --held_out 0.01
    taskset -c 1 python benchmarks/glove.py dataset --similarity wordsim/ --analogy questions-words.txt

The count is that of `plmjax cooccurrence` with one process, from the opened dataset to the opened cells. Training has
the settings of experiments/glove_tiny.py, except for the numbers below. The baseline is the rule of glove.c,
transcribed below and compiled with `cc -O3 -march=native -ffast-math`. It processes the cells one after the other on
one thread, in memory. Both start with the same values and make the same number of passes over the same cells, in
alternation. Compilation is not counted.
"""

import argparse
import ctypes
import dataclasses
import itertools
import os
import subprocess
import tempfile
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "OMP_NUM_THREADS": "1"}

import jax
import numpy as np
from one_device import compiled
from turns import Rates, show_rates, show_scores, timed

from plmjax import experiment as experiments
from plmjax.data import cooccurrence, pipeline, store, tokenizers
from plmjax.interop.word_vectors import WordVectors
from plmjax.objectives.objective import ConstantSources
from plmjax.training import feed

SEQUENTIAL = """
#include <math.h>
typedef struct { int row, column; float value; } cell;
void train(const cell *cells, long count, long size, float rate, float x_max, float power, float *tables, float *sums,
           float *biases, float *bias_sums, long vocabulary) {
    for (long n = 0; n < count; n++) {
        long row = cells[n].row, column = vocabulary + cells[n].column;
        float *w = tables + row * size, *c = tables + column * size;
        float *ws = sums + row * size, *cs = sums + column * size;
        float product = biases[row] + biases[column];
        for (long d = 0; d < size; d++) product += w[d] * c[d];
        float difference = product - logf(cells[n].value);
        float weight = cells[n].value < x_max ? powf(cells[n].value / x_max, power) : 1;
        float gradient = rate * weight * difference;
        for (long d = 0; d < size; d++) {
            float of_word = gradient * c[d], of_context = gradient * w[d];
            w[d] -= of_word / sqrtf(ws[d]);
            c[d] -= of_context / sqrtf(cs[d]);
            ws[d] += of_word * of_word;
            cs[d] += of_context * of_context;
        }
        biases[row] -= gradient / sqrtf(bias_sums[row]);
        biases[column] -= gradient / sqrtf(bias_sums[column]);
        bias_sums[row] += gradient * gradient;
        bias_sums[column] += gradient * gradient;
    }
}
"""


class Sequential:
    """Parameters of the rule in C, words first and then contexts, and the compiled function."""

    def __init__(self, params: dict, run: experiments.Experiment):
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "glove.c", Path(folder) / "glove.so"
            source.write_text(SEQUENTIAL)
            flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
            subprocess.run(["cc", *flags, "-o", str(library), str(source), "-lm"], check=True)
            self._library = ctypes.CDLL(str(library))
        self._run = run
        joined = lambda a, b: np.ascontiguousarray(np.concatenate([a, b]), np.float32)  # noqa: E731
        self.tables = joined(params["words"]["embedding"], params["contexts"]["embedding"])
        self._biases = joined(params["word_biases"], params["context_biases"])
        self._sums = np.ones_like(self.tables), np.ones_like(self._biases)

    def train(self, cells: np.ndarray) -> None:
        """Make one pass over the cells, an array of `cooccurrence.CELL`."""
        pointer = lambda array: array.ctypes.data_as(ctypes.c_void_p)  # noqa: E731
        objective = self._run.objective
        numbers = map(ctypes.c_float, (self._run.optimizer.learning_rate, objective.x_max, objective.power))
        arrays = map(pointer, (self.tables, self._sums[0], self._biases, self._sums[1]))
        sizes = ctypes.c_long(len(cells)), ctypes.c_long(self.tables.shape[1])
        self._library.train(pointer(cells), *sizes, *numbers, *arrays, ctypes.c_long(len(self.tables) // 2))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="prepared with a tokenizer of words")
    parser.add_argument("--counts", type=int, default=3, help="times that the text is counted")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the cells; 0 trains nothing")
    parser.add_argument("--batch", type=int, default=32, help="rows of 256 cells of a step")
    parser.add_argument("--similarity", help="file or folder of word pairs")
    parser.add_argument("--analogy", help="file of analogies")
    options = parser.parse_args()

    dataset, tokenizer = store.open_dataset(options.dataset), tokenizers.load(options.dataset / "tokenizer")
    vocabulary, words = tokenizer.vocabulary, dataset.split("train").token_count
    run = experiments.load("glove_tiny")
    counted: Rates = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.counts):
            with timed(counted, words):
                cells = cooccurrence.count(
                    dataset, vocabulary.special, Path(folder) / str(number), processes=1, report=lambda line: None
                )
        print(f"{words:,} tokens, {cells.words:,} words, {cells.count:,} cells\n")
        show_rates("tokens", {"count": counted})
        every = np.array(cells.read(0, cells.count))
        if not options.epochs:
            return
        run = dataclasses.replace(
            run,
            model=dataclasses.replace(run.model, vocab_size=vocabulary.size),
            data=dataclasses.replace(
                run.data, layout=dataclasses.replace(run.data.layout, path=str(cells.directory), held_out=0.0)
            ),
            training=dataclasses.replace(run.training, batch_size=options.batch),
        )
        source = pipeline.DatasetSource(run.data.layout, dataset, vocabulary, run.training.seed)
        (phase,) = run.resolved_phases
        program = compiled(run, vocabulary, source.batch)
        sources = ConstantSources(vocabulary, source.unigram_counts, lambda: [], lambda path, init: None)
        state = program.initialize(0, sources)
        sequential = Sequential(jax.device_get(state.params), run)
        steps = cells.count // (phase.batch_size * phase.sequence_length)
        rates: dict[str, Rates] = {"plmjax": [], "the rule in C": []}
        for epoch in range(options.epochs):
            batches = feed.on_device(source.train(phase, epoch * steps, feed.local_rows(program.batch)), program.batch)
            with timed(rates["plmjax"], steps * phase.batch_size * phase.sequence_length):
                for batch in itertools.islice(batches, steps):
                    state, _ = program.train(state, batch)
                jax.block_until_ready(state)
            with timed(rates["the rule in C"], len(every)):
                sequential.train(every)
    print(f"{options.epochs} passes\n")
    show_rates("cells", rates)

    ids = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special)
    texts = tokenizer.tokens(ids.tolist())
    params = jax.device_get(state.params)
    tables = (
        params["words"]["embedding"] + params["contexts"]["embedding"],
        sequential.tables[: vocabulary.size] + sequential.tables[vocabulary.size :],
    )
    both = (WordVectors(name, texts, np.asarray(table)[ids]) for name, table in zip(rates, tables, strict=True))
    show_scores(tuple(both), {"similarity": options.similarity, "analogy": options.analogy})


if __name__ == "__main__":
    main()
