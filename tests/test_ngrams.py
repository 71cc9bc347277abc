"""The n-grams that language models are compared with, beside a count by hand."""

import functools
import importlib.util
import itertools
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "ngrams.py"
SPECIFICATION = importlib.util.spec_from_file_location("ngrams", FILE)
benchmark = sys.modules["ngrams"] = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(benchmark)

SIZE = 40
DRAWN = np.random.default_rng(0).zipf(1.4, 900) - 1
TEXT = DRAWN[DRAWN < SIZE - 1]  # the last token of the vocabulary is not in the text


def grams(length: int) -> list[tuple[int, ...]]:
    return list(zip(*(TEXT[start:].tolist() for start in range(length)), strict=False))


@functools.cache
def counted(length: int, order: int) -> Counter:
    """Counts of n-grams; of shorter ones than the longest, the number of different tokens before them."""
    return Counter(grams(length) if length == order else [gram[1:] for gram in set(grams(length + 1))])


def probability(token: int, context: tuple[int, ...], order: int) -> float:
    """The recursion as Chen and Goodman write it, with dictionaries."""
    counts = counted(len(context) + 1, order)
    shorter = probability(token, context[1:], order) if context else 1 / SIZE
    after = {gram: count for gram, count in counts.items() if gram[:-1] == context}
    if not after:
        return shorter
    n = [sum(count == number for count in counts.values()) for number in range(1, 5)]
    y = n[0] / (n[0] + 2 * n[1])
    d = [0, 1 - 2 * y * n[1] / n[0], 2 - 3 * y * n[2] / n[1], 3 - 4 * y * n[3] / n[2]]
    own = after.get((*context, token), 0)
    left = sum(d[min(count, 3)] for count in after.values())
    return (max(own - d[min(own, 3)], 0) + left * shorter) / sum(after.values())


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_are_those_of_the_recursion_and_add_up(order: int) -> None:
    model = benchmark.NGrams(TEXT, SIZE, order)
    contexts = list(itertools.product((0, 9, SIZE - 1), repeat=order - 1))  # often, seldom, never
    for context in contexts:
        found = [math.exp(-model.nats(np.array([*context, token]))[-1]) for token in range(SIZE)]
        np.testing.assert_allclose(found, [probability(token, context, order) for token in range(SIZE)], rtol=1e-12)
        assert sum(found) == pytest.approx(1, rel=1e-12)


def test_the_first_tokens_have_shorter_contexts() -> None:
    model = benchmark.NGrams(TEXT, SIZE, 3)
    expected = [probability(token, tuple(range(place)), 3) for place, token in enumerate((0, 1))]
    np.testing.assert_allclose(np.exp(-model.nats(np.array([0, 1]))), expected, rtol=1e-12)


def test_a_text_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match=r"found .*; give more text"):
        benchmark.NGrams(np.arange(5), SIZE, 2)
