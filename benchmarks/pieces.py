"""A long benchmark in pieces: each is a run directory that is made once, by one of several processes or machines.

comparison.py and history.py list their pieces, and this module makes them. A piece that has a result is read. A command
that was stopped and is run again therefore continues with the unfinished pieces, and machines that have one folder in
common divide the pieces by their numbers (`Share`).
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax

from plmjax.files import storage

PIECES_A_PROCESS = 10
"""Number of pieces after which a process is replaced, to free the memory that compiled programs keep."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A run directory and the call that produces its result: `make(*arguments, workdir=...)`."""

    workdir: Path
    make: Callable[..., dict[str, Any]]
    arguments: tuple[Any, ...]
    start: "Piece | None" = None
    """The piece whose run this one starts from."""

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.workdir.name

    @property
    def result(self) -> Path:
        """File with the result, which also marks the piece as done."""
        return self.workdir / "result.json"

    @property
    def ready(self) -> bool:
        """True if the run from which this one starts is finished."""
        return self.start is None or self.start.result.exists()


@dataclasses.dataclass(frozen=True)
class Share:
    """The pieces of one of several machines: the `number`-th of every `of`, from 1."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Return the share of an option such as 2/8, for argparse.

        Raises:
            argparse.ArgumentTypeError: the text is no share.
        """
        found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        if not found or int(found[1]) > int(found[2]):
            raise argparse.ArgumentTypeError(f"Expected a share such as 2/8, the second of eight, found {text!r}.")
        return cls(int(found[1]), int(found[2]))

    def has(self, index: int) -> bool:
        """Return whether the piece with this index, from 0, belongs to the share."""
        return index % self.of == self.number - 1


def work(stages: Sequence[Sequence[Piece]], workers: int, share: Share = Share()) -> list[Piece]:
    """Make the pieces of a share that have no result yet, stage by stage, with as many at once as there are workers.

    Returns:
        the pieces of the share that start from a run of another share, which is not finished.
    """
    every = list(itertools.chain(*stages))
    mine = {piece.workdir for index, piece in enumerate(every) if share.has(index)}
    waiting = []
    for stage in stages:
        left = [piece for piece in stage if piece.workdir in mine and not piece.result.exists()]
        waiting += [piece for piece in left if not piece.ready]
        left = [piece for piece in left if piece.ready]
        together = workers * PIECES_A_PROCESS
        for batch in (left[begin : begin + together] for begin in range(0, len(left), together)):
            with pool(workers) as processes:
                running = {processes.submit(make, piece): piece for piece in batch}
                for future in as_completed(running):
                    piece, seconds = running[future], future.result()
                    done = sum(one.result.exists() for one in every)
                    print(f"[{done}/{len(every)}] {piece.name} in {seconds:.0f} s", flush=True)
    return waiting


def make(piece: Piece) -> float:
    """Make a piece in its own process, which writes all its output to WORKDIR/log.txt.

    Returns:
        The processor seconds of the process and its children. Other work on the same cores hardly changes them.
    """
    # All seeds, and both starts, run the same programs.
    jax.config.update("jax_compilation_cache_dir", str(storage.cache("compilation")))
    begun = sum(os.times()[:4])
    piece.workdir.mkdir(parents=True, exist_ok=True)
    with (piece.workdir / "log.txt").open("a") as log, contextlib.redirect_stdout(log):
        result = piece.make(*piece.arguments, workdir=piece.workdir)
    seconds = sum(os.times()[:4]) - begun
    storage.write(piece.result, json.dumps(result | {"seconds": seconds}) + "\n")
    jax.clear_caches()
    return seconds


def results(pieces: Iterable[Piece]) -> dict[str, dict[str, Any]]:
    """Return a dict from name of a piece to its result, for pieces that have one."""
    return {piece.name: json.loads(piece.result.read_text()) for piece in pieces if piece.result.exists()}


def shares(cores: set[int], workers: int) -> list[set[int]]:
    """Return the cores of each worker: its own, or all of them if there are more workers than cores."""
    return [set(sorted(cores)[worker::workers]) or cores for worker in range(workers)]


def bind_cores(cores: Any) -> None:
    """Bind this process, and every thread that it will start, to cores that it takes from the queue.

    Workers whose threads move between each other's cores need a quarter more processor time.
    """
    os.sched_setaffinity(0, cores.get())


def pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of freshly started processes, each bound to its own cores if the system supports it (Linux).

    max_tasks_per_child is not used, because with it the executor can wait forever (CPython issue 115634).
    """
    context = multiprocessing.get_context("spawn")  # a forked process cannot use JAX's threads
    if not hasattr(os, "sched_setaffinity"):
        return ProcessPoolExecutor(workers, context)
    cores = context.Queue()
    for share in shares(os.sched_getaffinity(0), workers):
        cores.put(share)
    return ProcessPoolExecutor(workers, context, bind_cores, (cores,))
