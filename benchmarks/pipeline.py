"""Speed of the input pipeline on a prepared dataset: tokens per second and core, restart time, index build rate.

    plmjax prepare --input TEXT --tokenizer TOKENIZER --output DATASET
    python benchmarks/pipeline.py DATASET

Cores are counted as CPU seconds of the whole process, with tf.data's threads and the copies out of it.
"""

import argparse
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import pipeline, store, tokenizers
from plmjax.data.layouts import Chunks, ContiguousStreams, Layout, SentencePairs, sentence_pairs


def measure(dataset: store.Dataset, vocabulary: Vocabulary, layout: Layout, *, length: int, seconds: float) -> str:
    """Return the rate of one layout and length, as a line."""
    batch_size = 32_768 // length
    source = pipeline.DatasetSource(layout, dataset, vocabulary, seed=0)
    phase = SimpleNamespace(index=0, sequence_length=length, batch_size=batch_size)
    first = {}
    for start in (0, 1_000_000, 0, 1_000_000):  # the first round also opens the index
        begin = time.perf_counter()
        batches = source.train(phase, start)
        next(batches)
        first[start] = time.perf_counter() - begin
        batches.close()
    batches = source.train(phase, 0)
    for _ in range(20):
        next(batches)
    wall, cpu, count, real = time.perf_counter(), time.process_time(), 0, 0
    while time.perf_counter() - wall < seconds:
        real += np.count_nonzero(next(batches)["segment_ids"])
        count += 1
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    batches.close()
    tokens = count * batch_size * length
    return (
        f"{tokens / cpu / 1e6:7.1f} M tokens/s and core   {tokens / wall / 1e6:7.1f} M tokens/s   "
        f"{real / tokens:6.1%} not padding   first batch {first[0] * 1e3:5.1f} ms at step 0, "
        f"{first[1_000_000] * 1e3:5.1f} ms at step 1,000,000"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="a prepared dataset")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of measuring for each line")
    arguments = parser.parse_args()
    dataset = store.open_dataset(arguments.dataset)
    vocabulary = tokenizers.load(arguments.dataset / "tokenizer").vocabulary
    split = dataset.split("train")
    print(f"{split.documents} documents, {split.sentences} sentences, {split.token_count / 1e6:.1f} M tokens")
    for length in (128, 512):
        wall, cpu = time.perf_counter(), time.process_time()
        count = sum(len(part) for part in sentence_pairs.draw_pairs(split, SentencePairs(), length, seed=0, passes=10))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        rate = 10 * split.token_count / cpu / 1e6
        print(f"drawing pairs of {length}, 10 passes: {count} pairs, {rate:.1f} M tokens/s and core, {wall:.2f} s")
    packed = {f"pairs packed by {most}": SentencePairs(pack=most) for most in (2, 4, 8)}
    for name, layout in {
        "pairs": SentencePairs(),
        **packed,
        "blocks": Chunks(),
        "streams": ContiguousStreams(),
    }.items():
        for length in (128, 512):
            line = measure(dataset, vocabulary, layout, length=length, seconds=arguments.seconds)
            print(f"{name:18} {length:4}  {line}", flush=True)


if __name__ == "__main__":
    main()
