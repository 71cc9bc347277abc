"""Measure calls by turns on one core, and print the tables of rates and scores."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from plmjax.inference import word_vector_scores as scores
from plmjax.interop.word_vectors import WordVectors

Rates = list[tuple[float, float]]
"""Items per second in every turn, by wall-clock time and by processor time."""


def use_one_core() -> None:
    """Bind this process to one core, if the system can. Call it before JAX starts its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def in_turns(calls: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, np.ndarray]:
    """Return name -> [turns, 2], the seconds by the clock and of the processor. A first turn warms up."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            clock, processor = time.perf_counter(), time.process_time()
            call()
            if turn:
                seconds[name].append((time.perf_counter() - clock, time.process_time() - processor))
    return {name: np.array(found).reshape(-1, 2) for name, found in seconds.items()}


@contextmanager
def timed(into: Rates, count: int) -> Iterator[None]:
    """Add the rates of a block that processes `count` items."""
    clock, processor = time.perf_counter(), time.process_time()
    yield
    into.append((count / (time.perf_counter() - clock), count / (time.process_time() - processor)))


def show_rates(unit: str, rates: Mapping[str, Rates], form: str = ",.0f") -> None:
    """Print the median and the range of each, and for two also their ratio."""
    print(f"| | {unit} a second | range | a processor second | range |\n|---|---|---|---|---|")
    for name, found in rates.items():
        columns = [(np.median(column), min(column), max(column)) for column in zip(*found, strict=True)]
        cells = (f"{median:{form}} | {least:{form}} to {most:{form}}" for median, least, most in columns)
        print(f"| {name} | {' | '.join(cells)} |")
    if len(rates) == 2:
        ours, theirs = (np.median(found, axis=0) for found in rates.values())
        print("\nratio {:.2f}, in processor time {:.2f}".format(*(ours / theirs)))
    print(flush=True)


def show_scores(both: tuple[WordVectors, WordVectors], lists: Mapping[str, str | None]) -> None:
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
