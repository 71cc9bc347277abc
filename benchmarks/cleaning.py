"""Speed of the rules of a cleaning, on a corpus that is varied from real text.

    python benchmarks/cleaning.py PATH... [--format auto] [--megabytes 16] [--rules NAME ...] [--vocab_size 30522]

Every set of rules is applied to the corpus by one process, on one core. The corpus has the documents of the text, every
fourth one again as it is, and every fourth one with some of its words replaced, until it has the given size. Tokens are
those of a WordPiece tokenizer that is trained on the text. The last column has the keys of a document that a rule
compares with those of all others. The last line has the speed of the comparison.
"""

import argparse
import itertools
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from plmjax.data import cleaning, formats, tokenizers
from plmjax.data.cleaning.repeated import find_repeated
from plmjax.data.preparation.conversion import Sizes

SHARE = 0.02
"""Share of the words that are replaced in a near duplicate."""


def varied(texts: list[str], characters: int) -> Iterator[str]:
    """Yield documents, copies and near duplicates of them, of `characters` in all."""
    draws = np.random.default_rng(0)
    vocabulary = np.array(sorted({word for text in texts[:200] for word in text.split()}))
    for turn in itertools.count():
        for number, text in enumerate(texts):
            lines = [line.split(" ") for line in text.split("\n")]
            if turn or number % 4 == 3:  # a later turn over the text replaces words of every document
                share = 0.3 if turn else SHARE
                for words in lines:
                    for at in np.flatnonzero(draws.random(len(words)) < share):
                        words[at] = str(draws.choice(vocabulary))
            copies = 2 if number % 4 == 1 else 1
            for _ in range(copies):
                document = "\n".join(map(" ".join, lines))
                yield document
                characters -= len(document)
                if characters < 0:
                    return
            if number % 4 == 3:
                yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--format", default="auto")
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--rules", nargs="+", default=[])
    options = parser.parse_args()

    texts = ["\n".join(formats.prose(document)) for document in formats.documents(options.paths, format=options.format)]
    texts = [text for text in texts if text]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tokenizers.train(
            "wordpiece", options.vocab_size, itertools.islice(texts, 2000), Path(folder, "tokenizer")
        )
    corpus = list(varied(texts, int(options.megabytes * 1e6)))
    characters = sum(map(len, corpus))
    sample = corpus[:: max(1, len(corpus) // 200)]
    tokens = len(tokenizer.encode_arrays(sample)[0]) * characters / sum(map(len, sample))
    print(f"corpus     {len(corpus):,} documents, {characters:,} characters, about {tokens:,.0f} tokens\n")

    print("| rules | kept documents | kept characters | M tokens per core and second | keys of a document |")
    print("|---|---|---|---|---|")
    documents = [formats.Document("text", "", text) for text in corpus[:1000]]
    single = ("c4_language", "exact_duplicates", "c4_duplicate_lines", "three_sentence_spans", "near_duplicates")
    for name in options.rules or (*cleaning.SETS, *single):
        rules = cleaning.cleaner([name])
        list(rules.texts(sample[:1]))  # libraries and models are loaded
        start = time.process_time()
        kept = [len(text) for text in rules.texts(corpus)]
        seconds = time.process_time() - start
        keys = f"{key_bytes(rules, documents):,.0f} bytes" if name in single[1:] else "-"
        shares = f"{len(kept) / len(corpus):.0%} | {sum(kept) / characters:.0%}"
        print(f"| {name} | {shares} | {tokens / seconds / 1e6:.2f} | {keys} |", flush=True)
    print(f"\n{compared(Sizes().compared_keys)}")


def key_bytes(rules: cleaning.Cleaner, corpus: list[formats.Document]) -> float:
    """Return the mean size of a document's keys."""
    return float(np.mean([keys.nbytes for keys in rules.screen(0, corpus).keys]))


def compared(count: int) -> str:
    """Return a line with the speed of the comparison of random keys, and its memory."""
    keys = np.random.default_rng(0).integers(0, 2**64, (count, 1), np.uint64)
    tracemalloc.start()
    start = time.process_time()
    find_repeated(keys)
    seconds = time.process_time() - start
    memory = (tracemalloc.get_traced_memory()[1] + keys.nbytes) / count
    tracemalloc.stop()
    return f"{count:,} keys compared: {count / seconds / 1e6:.1f} M keys per core and second, {memory:.0f} bytes a key"


if __name__ == "__main__":
    main()
