"""Shared by the tests of text-to-text tasks: rows of text, and both streams of a corrupted batch as lists."""

import dataclasses

import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.text_to_text.text_to_text import TextToText

SIZE, END = 200, 1
VOCABULARY = Vocabulary(
    SIZE, pad=0, end=END, unknown=2, special=(0, 1, 2), sentinels=tuple(range(SIZE - 1, SIZE - 41, -1))
)
FIRST = VOCABULARY.sentinels[0]
TEXT = range(3, SIZE - 40)


def rows(lengths: list[int], tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of different tokens as `Chunks` gives them, the first `lengths` of each real."""
    random = np.random.default_rng(seed)
    text = np.stack([random.permutation(TEXT)[:tokens] for _ in lengths]).astype(np.int32)
    real = (np.arange(tokens) < np.array(lengths)[:, None]).astype(np.int32)
    numbers = np.arange(len(lengths), dtype=np.int32)
    return {"input_ids": text * real, "segment_ids": real, "positions": np.arange(tokens) * real, "row_ids": numbers}


def corrupt(objective: TextToText, batch: dict, seed: int = 0, vocabulary: Vocabulary = VOCABULARY) -> dict:
    corrupted = jax.jit(lambda batch, key: objective.corrupt(batch, key, vocabulary))(batch, jax.random.key(seed))
    return jax.tree.map(np.asarray, corrupted)


@dataclasses.dataclass(frozen=True)
class Pair:
    """The two sides of a row, without padding."""

    text: list[int]
    source: list[int]
    target: list[int]


def pairs(batch: dict, corrupted: dict) -> list[Pair]:
    """Every row of one segment; checks what holds for all tasks of such rows."""
    found = []
    sides = zip(batch["input_ids"], batch["segment_ids"], corrupted["input_ids"], corrupted["next_ids"], strict=True)
    for row, (text, real, source, target) in enumerate(sides):
        lengths = []
        for prefix, ids in (("", source), ("decoder_", corrupted["decoder_input_ids"][row])):
            segments, positions = corrupted[f"{prefix}segment_ids"][row], corrupted[f"{prefix}positions"][row]
            lengths.append(int(segments.sum()))
            inside = np.arange(len(ids)) < lengths[-1]
            np.testing.assert_array_equal(segments, inside)
            np.testing.assert_array_equal(positions, np.arange(len(ids)) * inside)
            assert (ids[~inside] == VOCABULARY.pad).all()
        np.testing.assert_array_equal(corrupted["next_weights"][row], corrupted["decoder_segment_ids"][row] > 0)
        pair = Pair(
            *(ids[:length].tolist() for ids, length in zip((text, source, target), (real.sum(), *lengths), strict=True))
        )
        shown = corrupted["decoder_input_ids"][row][: lengths[1]].tolist()
        if pair.text:
            assert shown == [VOCABULARY.pad, *pair.target[:-1]]
            assert pair.source[-1] == pair.target[-1] == END
        of_text = [token in TEXT for token in pair.target]
        assert corrupted["text_weights"][row][: lengths[1]].tolist() == of_text
        found.append(pair)
    return found


def padding(corrupted: dict, rows: int | None = None) -> tuple[float, float]:
    """Share of padding of the sources and of the targets of the first rows."""
    return tuple(float((corrupted[name][:rows] == 0).mean()) for name in ("segment_ids", "decoder_segment_ids"))
