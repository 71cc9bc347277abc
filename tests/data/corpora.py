"""Small prepared datasets of random tokens for the tests of this folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import store


class Words:
    """The part of a tokenizer that `store.finish` needs."""

    fingerprint, kind = "f00d", "word"

    def __init__(self, size: int):
        self.vocabulary = Vocabulary.placeholder(size)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "vocab.txt").write_text("[PAD]\n")


def documents(
    count: int, vocab_size: int, *, seed: int = 0, sentences: int = 30, words: int = 40
) -> list[list[list[int]]]:
    """Random documents of 1 to `sentences` - 1 sentences of 1 to `words` - 1 tokens; ids 0..4 are left to specials."""
    random = np.random.default_rng(seed)
    return [
        [
            random.integers(5, vocab_size, random.integers(1, words)).tolist()
            for _ in range(random.integers(1, sentences))
        ]
        for _ in range(count)
    ]


def write(directory: Path, train: list, validation: list, *, vocab_size: int, shards: int = 3) -> store.Dataset:
    """A dataset of `train` dealt over several files, written in another order than they stand in."""
    records = {"train": [], "validation": []}
    for index in reversed(range(shards)):
        writer = store.ShardWriter(directory, "train", index, vocab_size=vocab_size)
        for document in train[index * len(train) // shards : (index + 1) * len(train) // shards]:
            writer.add({"text": document})
        records["train"].append(writer.close())
    writer = store.ShardWriter(directory, "validation", 0, vocab_size=vocab_size)
    for document in validation:
        writer.add({"text": document})
    records["validation"].append(writer.close())
    store.finish(
        directory, records, Words(vocab_size), sources=[{"path": "a.txt", "bytes": 7}], description={"made": "here"}
    )
    return store.open_dataset(directory)


def phase(sequence_length: int, batch_size: int, index: int = 0) -> SimpleNamespace:
    """A phase with the settings that a source reads."""
    return SimpleNamespace(index=index, sequence_length=sequence_length, batch_size=batch_size)


def take(batches: Any, count: int) -> list[dict[str, np.ndarray]]:
    """The next batches of a run, which ends."""
    try:
        return [next(batches) for _ in range(count)]
    finally:
        batches.close()


def assert_same(batch: dict[str, np.ndarray], expected: dict[str, np.ndarray], rows: Any = slice(None)) -> None:
    """A batch has the fields and numbers of another one, or of some of its rows."""
    assert batch.keys() == expected.keys()
    for name, array in batch.items():
        np.testing.assert_array_equal(array, expected[name][rows], err_msg=name)
