"""Compare two trainings of word vectors in alternation: their rates, and the scores of their vectors."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from plmjax.inference import word_vector_scores as scores
from plmjax.interop.word_vectors import WordVectors

Rates = list[tuple[float, float]]
"""Items per second in every turn, by wall-clock time and by processor time."""


@contextmanager
def timed(into: Rates, count: int) -> Iterator[None]:
    """Add the rates of a block that processes `count` items."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    into.append((count / (time.perf_counter() - clock), count / (time.process_time() - processor)))


def show_rates(unit: str, rates: dict[str, Rates]) -> None:
    """Print the median and the range of each, and for two also their ratio."""
    print(f"| | {unit} a second | range | a processor second | range |\n|---|---|---|---|---|")
    for name, found in rates.items():
        columns = [(np.median(column), min(column), max(column)) for column in zip(*found, strict=True)]
        cells = (f"{median:,.0f} | {least:,.0f} to {most:,.0f}" for median, least, most in columns)
        print(f"| {name} | {' | '.join(cells)} |")
    if len(rates) == 2:
        ours, theirs = (np.median(found, axis=0) for found in rates.values())
        print("\nratio {:.2f}, in processor time {:.2f}".format(*(ours / theirs)))
    print(flush=True)


def show_scores(both: tuple[WordVectors, WordVectors], lists: dict[str, str | None]) -> None:
    """Print the scores of two sets of vectors side by side.

    lists: task -> its file or folder; a task without one is left out.
    """
    for task, path in lists.items():
        if path:
            first, second = (scores.score(vectors, task, path) for vectors in both)
            print(f"| | {both[0].origin} | {both[1].origin} |\n|---|---|---|")
            for name, value in first.items():
                form = "{:,}" if isinstance(value, int) else "{:.3f}"
                print(f"| {name} | {form.format(value)} | {form.format(second[name])} |")
            print()
