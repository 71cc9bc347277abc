"""Checks of speed: the measured step compared with its plan, and the rate of the input pipeline."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import remote, store
from plmjax.parallel import hosts
from plmjax.runs import bench
from plmjax.selfcheck.ground import Ground, slice_name, vocabulary
from plmjax.selfcheck.verdicts import OK, SKIPPED, SLOWER, Found
from plmjax.training import feed

PLAN_SECONDS = 600
"""Maximum seconds for the compilation of a plan."""


class Measured:
    """The benchmark of the step, made once for all checks: 5 steps on a CPU, 50 elsewhere."""

    def __init__(self) -> None:
        self._made: dict[str, Any] | Exception | None = None

    def __call__(self, ground: Ground) -> dict[str, Any]:
        """Return the record. After an error, raise it again: other hosts would not join a new measurement."""
        if self._made is None:
            try:
                (self._made,) = bench.bench(ground.measured, 5 if ground.platform == "cpu" else 50)
            except Exception as error:
                self._made = error
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


def step(ground: Ground, record: dict[str, Any]) -> Found:
    """Compare the measured step with the plan's interval for the slice."""
    seconds = record["step_seconds"]
    rate = f"{seconds * 1e3:.1f} ms a step of {record['batch_size']} rows of {record['sequence_length']}"
    name = slice_name(ground.devices)
    if name is None:
        kind = f"{len(ground.devices)} x {record['device']}"
        return Found(SKIPPED, f"{rate}; plans know no slice of {kind}", {"measured": record})
    if not hosts.is_primary():
        return Found(OK, rate, {"measured": record})
    planned = _plan(name, len(ground.devices))
    if isinstance(planned, str):
        return Found(SKIPPED, f"{rate}; {planned}", {"measured": record})
    fast, slow = planned["fast_seconds"], planned["slow_seconds"]
    where = "slower than" if seconds > slow else "faster than" if seconds < fast else "within"
    return Found(
        SLOWER if seconds > slow else OK,
        f"{rate}, {where} the plan's {fast * 1e3:.1f} to {slow * 1e3:.1f} ms for {name}",
        {"measured": record, "planned": planned},
    )


def _plan(topology: str, devices: int) -> dict[str, float] | str:
    """Return the interval of a plan, or the reason why there is no plan.

    A separate process makes the plan, because libtpu writes its schedules only if asked before it is loaded.
    """
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "plmjax.selfcheck.planned", topology, str(devices)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PLAN_SECONDS)
    except subprocess.TimeoutExpired:
        return f"the plan for {topology} took more than {PLAN_SECONDS} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        return f"the plan for {topology} failed: {lines[-1]}"
    return json.loads(done.stdout.splitlines()[-1])


class _Numbers:
    """The stand-in for the tokenizer of a dataset of random tokens."""

    fingerprint, kind = "selfcheck", "word"

    def __init__(self, size: int) -> None:
        self.vocabulary = Vocabulary.placeholder(size)

    def save(self, directory: Path) -> None:
        """Write a vocabulary of one token."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "vocab.txt").write_text("[PAD]\n", encoding="utf-8")


def input_rate(ground: Ground, record: dict[str, Any]) -> Found:
    """Measure the rows per second of the input pipeline on this host, and compare them with those of the step."""
    program, seconds = ground.plain.program, 1.0 if ground.platform == "cpu" else 10.0
    with tempfile.TemporaryDirectory(prefix="plmjax-selfcheck-") as folder:
        dataset = _dataset(Path(folder) / "dataset", ground)
        run, (phase,) = ground.measured, ground.measured.resolved_phases
        source = remote.source(run.data.layout, dataset, vocabulary(run), seed=0, window=1)
        batches = feed.on_device(source.train(phase, 0, feed.local_rows(program.batch)), program.batch)
        jax.block_until_ready([next(batches) for _ in range(2)])
        begin, count = time.perf_counter(), 0
        while count < 5 or time.perf_counter() - begin < seconds:
            jax.block_until_ready(next(batches))
            count += 1
        rate = count * phase.batch_size / (time.perf_counter() - begin)
        batches.close()
    needed = phase.batch_size / record["step_seconds"]
    verdict = OK if rate >= needed else SLOWER
    sentence = f"{rate:,.0f} rows a second, the step takes {needed:,.0f}"
    return Found(verdict, sentence, {"rows_per_second": rate, "needed": needed, "cores": os.cpu_count()})


def _dataset(directory: Path, ground: Ground) -> store.Dataset:
    """Write a dataset of random documents that fill a few batches."""
    size, random = ground.measured.model.vocab_size, np.random.default_rng(0)
    length = ground.measured.data.sequence_length
    wanted = 4 * ground.measured.training.batch_size * length
    writer, written = store.ShardWriter(directory, "train", 0, vocab_size=size), 0
    while written < wanted:
        sentences = [random.integers(5, size, random.integers(5, 40)).tolist() for _ in range(length // 4)]
        writer.add({"text": sentences})
        written += sum(map(len, sentences))
    store.finish(
        directory, {"train": [writer.close()]}, _Numbers(size), sources=[{"path": "random", "bytes": 0}], description={}
    )
    return store.open_dataset(directory)
