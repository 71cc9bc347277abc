"""How fast rows come from a prepared dataset: tokens a second and core, restart time, index build rate.

    python benchmarks/pipeline.py TEXT_FOLDER      # a folder of .txt.gz files with <doc> tags or plain text

The text is cut into words that are numbered by frequency: what a tokenizer would give in shape, without its cost.
Cores are counted as CPU seconds of the whole process, tf.data's threads and the copies out of it included.
"""

import argparse
import collections
import gzip
import re
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from plmjax.data import pairs, store
from plmjax.data.layouts import Blocks, SentencePairs
from plmjax.data.pipeline import Source, open_source
from plmjax.experiment import Data
from plmjax.vocabulary import Vocabulary

VOCABULARY = Vocabulary.placeholder(30_522)


class NumberedWords:
    """Words as numbers, most frequent first; what `store.finish` needs of a tokenizer."""

    fingerprint, kind, vocabulary = "numbered-words", "word", VOCABULARY

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)


def documents(folder: Path) -> list[list[list[str]]]:
    """Documents of sentences of words and marks, of every text under the folder."""
    found = []
    for path in sorted(folder.rglob("*.txt.gz")):
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
        parts = re.split(r"</?doc\b[^>]*>", text) if "<doc" in text else [text]
        for part in parts:
            sentences = [re.findall(r"\w+|[^\w\s]", s) for s in re.split(r"(?<=[.!?])\s+|\n+", part.lower())]
            if sentences := [sentence for sentence in sentences if sentence]:
                found.append(sentences)
    return found


def prepare(folder: Path, directory: Path) -> store.Dataset:
    """A dataset of the folder's text."""
    texts = documents(folder)
    counts = collections.Counter(word for document in texts for sentence in document for word in sentence)
    known = VOCABULARY.size - 5
    numbers = {word: 5 + rank for rank, (word, _) in enumerate(counts.most_common(known))}
    writer = store.ShardWriter(directory, "train", 0, VOCABULARY.size)
    for document in texts:
        writer.add([[numbers.get(word, VOCABULARY.unknown) for word in sentence] for sentence in document])
    store.finish(directory, {"train": [writer.close()]}, NumberedWords(), [], {})
    return store.open_dataset(directory)


def open_phase(dataset: store.Dataset, layout, sequence_length: int, batch_size: int) -> tuple[Source, SimpleNamespace]:
    """A source and the phase it is asked for."""
    source = open_source(Data(layout=layout), dataset, VOCABULARY, seed=0)
    return source, SimpleNamespace(index=0, sequence_length=sequence_length, batch_size=batch_size)


def measure(dataset: store.Dataset, layout, sequence_length: int, seconds: float) -> str:
    """Rate of one layout and length, as a line."""
    batch_size = 32_768 // sequence_length
    source, phase = open_phase(dataset, layout, sequence_length, batch_size)
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
    tokens = count * batch_size * sequence_length
    return (
        f"{tokens / cpu / 1e6:7.1f} M tokens/s and core   {tokens / wall / 1e6:7.1f} M tokens/s   "
        f"{real / tokens:6.1%} not padding   first batch {first[0] * 1e3:5.1f} ms at step 0, "
        f"{first[1_000_000] * 1e3:5.1f} ms at step 1,000,000"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="folder of .txt.gz files")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of measuring for each line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        dataset = prepare(arguments.text, Path(directory))
        split = dataset.split("train")
        print(f"{split.documents} documents, {split.sentences} sentences, {split.token_count / 1e6:.1f} M tokens")
        for length in (128, 512):
            wall, cpu = time.perf_counter(), time.process_time()
            count = sum(len(part) for part in pairs.draw_pairs(split, SentencePairs(), length, 0, 10))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            tokens = 10 * split.token_count / 1e6
            print(f"index of {length}, 10 passes: {count} pairs, {tokens / cpu:.1f} M tokens/s and core, {wall:.2f} s")
        for name, layout in (
            ("pairs", SentencePairs()),
            ("pairs packed by 2", SentencePairs(pack=2)),
            ("pairs packed by 4", SentencePairs(pack=4)),
            ("pairs packed by 8", SentencePairs(pack=8)),
            ("blocks", Blocks()),
        ):
            for length in (128, 512):
                print(f"{name:18} {length:4}  {measure(dataset, layout, length, arguments.seconds)}", flush=True)


if __name__ == "__main__":
    main()
