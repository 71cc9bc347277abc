"""Training text that is read in pieces from an object store: the order, the disk, the waits, and the loss.

    plmjax prepare --input TEXT --tokenizer TOKENIZER --output DATASET --piece_tokens 16384 --held_out 0.01
    python benchmarks/remote_reading.py DATASET
    python benchmarks/remote_reading.py DATASET --losses 0 8 64 458 --steps 800

The dataset, with a tokenizer of at most 4,096 tokens, is served by tests/object_store.py on this machine.
experiments/bert_tiny.py trains on it with a limit of a tenth of its size. `--losses` compares the order of two levels
with the full shuffle, 0, for three seeds.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import os
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from plmjax import experiment
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import order, remote, store, tokenizers
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.training import loop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the object store is one of the tests' tools
from tests.object_store import ObjectStore

BATCH_ROWS, SEEDS = 32, 3


def pieces_of_batches(pieces: np.ndarray) -> float:
    """Return the mean number of different pieces in a batch. pieces: int [N], in the order of the rows."""
    batches = pieces[: len(pieces) // BATCH_ROWS * BATCH_ROWS].reshape(-1, BATCH_ROWS)
    return float(np.mean([len(np.unique(batch)) for batch in batches]))


def spread(pieces: np.ndarray, count: int) -> float:
    """Return the mean standard deviation of the places of a piece's rows, relative to that of a full shuffle."""
    places = np.arange(len(pieces)) / len(pieces)
    number = np.bincount(pieces, minlength=count)
    mean, square = (np.bincount(pieces, values, minlength=count) for values in (places, places**2))
    seen = number > 1
    mean, square = mean[seen] / number[seen], square[seen] / number[seen]
    return float(np.sqrt(np.maximum(square - mean**2, 0)).mean() * np.sqrt(12))


def show_order(dataset: remote.RemoteDataset, length: int) -> None:
    """Print how far the order of an epoch is from a full shuffle, and what it costs."""
    visits = np.array([piece.tokens // length for piece in dataset.pieces])
    owner = np.repeat(np.arange(len(visits)), visits)
    shuffled = owner[order.permute(np.arange(len(owner)), len(owner), 0)]
    print("| window | lanes | share of the text | pieces in a batch | spread of a piece | a place, microseconds |")
    print("|---|---|---|---|---|---|")
    for window in (1, 4, 16, 64, 256):
        made = remote.LaneOrder(visits, window, order.fold_in(0, 0), BATCH_ROWS)
        pieces = np.concatenate(
            [made.places(np.arange(at, min(at + 4096, made.rows)))[1].pieces for at in range(0, made.rows, 4096)]
        )
        starts = np.random.default_rng(0).integers(0, 10**9, 200) * BATCH_ROWS
        made.places(starts[:1])
        begin = time.process_time()
        for start in range(200):
            made.places(made.rows // 2 + start * BATCH_ROWS + np.arange(BATCH_ROWS))
        row = (time.process_time() - begin) / 200 / BATCH_ROWS * 1e6
        print(
            f"| {window} | {made.lanes} | {window / len(visits):.1%} | {pieces_of_batches(pieces):.1f} "
            f"| {spread(pieces, len(visits)):.3f} | {row:.1f} |"
        )
    print(
        f"| full shuffle | - | 100.0% | {pieces_of_batches(shuffled):.1f} | {spread(shuffled, len(visits)):.3f} | - |"
    )
    tracemalloc.start()
    made = remote.LaneOrder(visits.copy(), 16, order.fold_in(0, 0), BATCH_ROWS)
    made.places(np.array([0, made.rows]))
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    manifest = storage.size(dataset.address / store.MANIFEST)
    published = store.writer.PIECE_TOKENS // length
    print(
        f"order      {memory / len(visits):.0f} bytes a piece in memory, {manifest / len(visits):.0f} bytes a piece in "
        f"the manifest; a million rows of {length} tokens in pieces of {store.writer.PIECE_TOKENS:,} tokens: "
        f"{1e6 / published * memory / len(visits):,.0f} and {1e6 / published * manifest / len(visits):,.0f} bytes"
    )


class Watcher:
    """Measures the size of a folder again and again, on a thread."""

    def __init__(self, folder: Path):
        self.most = self.times = 0
        self._folder, self._ended = folder, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            size = 0
            for path in self._folder.rglob("*"):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    size += path.stat().st_size if path.is_file() else 0
            self.most, self.times = max(self.most, size), self.times + 1


def train(run: Experiment, dataset: store.Dataset, window: int, folder: Path) -> list[dict[str, float]]:
    """Train a run on the dataset and return the lines of metrics.jsonl."""
    vocabulary = tokenizers.load(f"{run.data.path}/tokenizer").vocabulary
    source = remote.source(run.data.layout, dataset, vocabulary, seed=run.training.seed, window=window)
    with contextlib.redirect_stdout(io.StringIO()):
        loop.train(run, folder, source, tokenizer={})
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def show_reading(
    run: Experiment, dataset: remote.RemoteDataset, window: int, *, served: ObjectStore, cache: Path
) -> None:
    """Print what a run waits for, holds on the disk and asks of the store, and how it begins in the middle."""
    served.ranges.clear()
    with Watcher(cache / "pieces") as pieces, tempfile.TemporaryDirectory() as folder:
        lines = train(run, dataset, window, Path(folder))
    waits = [line["input_wait"] for line in lines if "input_wait" in line][1:]
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line][1:]
    tokens = run.training.batch_size * run.data.sequence_length
    print(
        f"training   {run.training.steps} steps of {tokens / np.mean(rates) * 1e3:.1f} ms, input wait "
        f"{np.mean(waits):.3%} of them (the largest of {len(waits)} intervals: {np.max(waits):.3%})"
    )
    most = dataset.copied_bytes + pieces.most
    print(
        f"disk       {most:,} bytes at most in {pieces.times} looks, {most / dataset.limit:.0%} of the limit "
        f"{dataset.limit:,}; {dataset.copied_bytes:,} of them are the held-out text and the tokenizer"
    )
    read = [(name, first) for name, first, _ in served.ranges if "corpus-train" in name]
    size = sum(last + 1 - first for name, first, last in served.ranges if "corpus-train" in name)
    print(
        f"store      {len(read)} ranges of {len(set(read))} pieces read for {run.training.steps * tokens:,} tokens, "
        f"{size / run.training.steps / tokens:.2f} bytes a token; the manifest names {len(dataset.pieces)} pieces"
    )
    vocabulary = tokenizers.load(f"{run.data.path}/tokenizer").vocabulary
    phase = SimpleNamespace(index=0, sequence_length=run.data.sequence_length, batch_size=run.training.batch_size)
    show_hosts(run, dataset, window, served=served, vocabulary=vocabulary)
    for start in (0, 1_000_000, 1_000_000_000):
        source = remote.source(run.data.layout, dataset, vocabulary, seed=0, window=window)
        served.ranges.clear()
        begin = time.perf_counter()
        batches = source.train(phase, start)
        next(batches)
        seconds, count = time.perf_counter() - begin, len(served.ranges)
        batches.close()
        print(f"start      at step {start:,}: first batch after {seconds:.2f} s and {count} ranges")


def show_hosts(
    run: Experiment, dataset: remote.RemoteDataset, window: int, *, served: ObjectStore, vocabulary: Vocabulary
) -> None:
    """Print what each of several hosts reads for the same batches."""
    phase = SimpleNamespace(index=0, sequence_length=run.data.sequence_length, batch_size=run.training.batch_size)
    steps, rows = 200, np.arange(phase.batch_size)
    for hosts in (1, 2, 4, 8):
        read = []
        for places in np.split(rows, hosts):
            batches = remote.source(run.data.layout, dataset, vocabulary, seed=0, window=window).train(phase, 0, places)
            served.ranges.clear()
            for _ in range(steps):
                next(batches)
            batches.close()
            read.append(sum(last + 1 - first for name, first, last in served.ranges if "corpus-train" in name))
        tokens = steps * phase.batch_size * phase.sequence_length
        print(f"hosts      {hosts}: {np.mean(read) / tokens:.2f} bytes read by each for a token of the batch")


def show_losses(run: Experiment, address: str, dataset: remote.RemoteDataset, windows: list[int]) -> None:
    """Print the held-out loss of each order for each seed. windows: pieces of a window; 0 is the full shuffle.

    The limit is a tenth of the dataset, or the bytes of two windows if these are more.
    """
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, evaluation_batches=200))
    losses: dict[int, list[float]] = {window: [] for window in windows}
    sizes = sorted((piece.range.size for piece in dataset.pieces), reverse=True)
    for seed in range(SEEDS):
        seeded = dataclasses.replace(run, training=dataclasses.replace(run.training, seed=seed))
        for window in windows:
            limit = max(dataset.limit, dataset.copied_bytes + sum(sizes[: 2 * window])) if window else None
            begin = time.process_time()
            with tempfile.TemporaryDirectory() as folder:
                lines = train(seeded, remote.open_dataset(address, limit), max(window, 1), Path(folder))
            losses[window].append([line["eval/loss"] for line in lines if "eval/loss" in line][-1])
            print(
                f"seed {seed}     {f'window of {window}' if window else 'full shuffle'}: held-out loss "
                f"{losses[window][-1]:.4f} nats a target after {run.training.steps} steps, "
                f"{time.process_time() - begin:.0f} CPU seconds",
                flush=True,
            )
    for window, values in losses.items():
        print(
            f"loss       {f'window of {window}' if window else 'full shuffle'}: {np.mean(values):.4f}, standard "
            f"deviation of a seed {np.std(values, ddof=1):.4f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="a prepared dataset on the disk")
    parser.add_argument(
        "--losses",
        type=int,
        nargs="+",
        default=[],
        help="compare the losses of windows of so many pieces; 0: full shuffle",
    )
    parser.add_argument("--steps", type=int, default=1200, help="steps of a run")
    parser.add_argument("--window", type=int, default=8, help="pieces of a window")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache, ObjectStore() as served, served.environment():
        os.environ["XDG_CACHE_HOME"] = cache
        served.create("corpus")
        for name, file in storage.files(arguments.dataset).items():
            if not name.startswith(("index/", "checked/")):
                served.put("corpus", f"set/{name}", file.path.read_bytes())
        address = "gs://corpus/set"
        manifest = store.read_manifest(storage.path(address))
        size = sum(entry["bytes"] for entry in store.all_files(manifest).values())
        dataset = remote.open_dataset(address, size // 10)
        run = experiment.load("experiments/bert_tiny.py")
        run = dataclasses.replace(
            run,
            data=dataclasses.replace(run.data, path=address),
            training=dataclasses.replace(run.training, steps=arguments.steps, log_every=100, evaluate_every=0),
            checkpoint=dataclasses.replace(run.checkpoint, every=0, minutes=0.0, best=""),
        )
        tokens = manifest["splits"]["train"]["streams"]["text"]["tokens"]
        print(
            f"dataset    {size:,} bytes, {tokens:,} tokens in {len(dataset.pieces)} pieces; limit {size // 10:,}, "
            f"window {arguments.window}"
        )
        if arguments.losses:
            show_losses(run, address, dataset, arguments.losses)
        else:
            show_order(dataset, run.data.sequence_length)
            show_reading(run, dataset, arguments.window, served=served, cache=Path(cache) / "plmjax")


if __name__ == "__main__":
    main()
