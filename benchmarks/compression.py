"""Each way to compress a model beside its teacher, on two tasks: metric, size, multiply-adds and speed.

    python benchmarks/compression.py runs/bert DATA --output runs/compression [--seeds 3] [--picture FILE]

The first argument is the run of a pretrained encoder. DATA holds finetune/{subjectivity,snli}. The encoder is
fine-tuned on each task with each seed, and compressed in each way. A run that is there is read, so that a stopped
command continues. The metric is the accuracy on the task's validation file. Sizes and times are those of the first task
and seed: bytes of the checkpoint's parameters, multiply-adds of the layers for a row of 128 tokens, and the processor
time of one core for 1 row and for 32 rows, where all models take turns. Ways that train have twice the epochs of the
teacher on the task, and so has the teacher that is trained again. Linux only.
"""

import argparse
import contextlib
import dataclasses
import functools
import io
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pictures import drawn

from plmjax.commands import cli
from plmjax.files import storage

LENGTH, BATCHES, ROUNDS = 128, (1, 32), 9
TASKS = {"subjectivity": ("sentence", None), "snli": ("premise", "hypothesis")}
"""Task -> its columns of texts."""
TEACHERS = {"teacher": "teacher", "teacher, trained again": "teacher_again"}
"""Name -> run directory of the teacher, and of the model that the same command makes of it."""
WAYS = {
    "magnitude, 60 % zeros": ["prune", "--method", "magnitude", "--sparsity", "0.6"],
    "2 of 4 zeros": ["prune", "--method", "two_of_four"],
    "movement, 60 % zeros": ["prune", "--method", "movement", "--sparsity", "0.6"],
    "half of the heads": ["prune", "--method", "heads", "--sparsity", "0.5"],
    "60 % of heads and features": ["prune", "--method", "block_movement", "--sparsity", "0.6"],
    "int8 weights": ["quantize", "--method", "weight_only"],
    "int8 products, static": ["quantize", "--method", "static"],
    "int8 products, trained": ["quantize", "--method", "aware"],
    "half of the layers": ["distil", "--method", "soft_targets"],
    "rank for 90 % of the energy": ["factorize", "--energy", "0.9"],
}
"""Name of a way -> the words after `plmjax compress`, without the checkpoint."""


def files_of(task: str, data: Path, folder: Path) -> tuple[Path, Path]:
    """Return the files to train and to validate on; those of SNLI are made from one, with no premise in both."""
    if task == "snli":
        from comparison import split_by_premise  # beside this file

        return split_by_premise(data / "finetune" / "snli" / "dev.tsv.gz", folder)
    return data / "finetune" / task / "train.tsv.gz", data / "finetune" / task / "dev.tsv.gz"


def folder_of(way: str) -> str:
    """Return the name of the run directory of a way."""
    return way.replace(" ", "_").replace("%", "percent").replace(",", "")


def finished(run: Path) -> bool:
    """Return whether a run has its result."""
    return (run / "checkpoints").is_dir() and bool(storage.finished_steps(run / "checkpoints"))


def make(options: argparse.Namespace) -> None:
    """Fine-tune and compress everything that is not there yet."""
    for task, (text, pair) in TASKS.items():
        train, validation = files_of(task, options.data, options.output / "data")
        files = ["--data.train", str(train), "--data.validation", str(validation)]
        columns = ["--data.text", text, "--data.label", "label", *(["--data.text_pair", pair] if pair else [])]
        for seed in range(options.seeds):
            folder = options.output / task / str(seed)
            lengths = ["--finetuning.epochs", str(options.epochs), "--training.seed", str(seed)]
            start = options.teacher
            for run in (folder / name for name in TEACHERS.values()):
                if not (run / "evaluation.json").exists():
                    command = ["finetune", "experiments/finetune_sentences.py", "--from", str(start)]
                    rate = ["--optimizer.learning_rate", "2e-4"]
                    cli.run([*command, "--workdir", str(run), *files, *columns, *lengths, *rate])
                start = run
            for way, (verb, *words) in WAYS.items():
                run = folder / folder_of(way)
                if not finished(run):
                    cli.run(["compress", verb, str(folder / TEACHERS["teacher"]), "--output", str(run), *words])


def metrics_of(run: Path) -> float:
    """Return the accuracy of a run on its validation file; it is stored beside the run."""
    kept = run / "benchmark.json"
    if not kept.exists():
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            cli.run(["evaluate", str(run), "--json"])
        kept.write_text(shown.getvalue())
    return json.loads(kept.read_text())["eval/accuracy"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """The sizes of a model, and the seconds of a forward pass of each number of rows."""

    parameters: int
    nonzero: int
    bytes: int
    products: float
    seconds: dict[int, float]


def bytes_of(run: Path) -> int:
    """Return the number of bytes of the parameters of a run's checkpoint."""
    from plmjax.training.checkpoints import checkpoints

    folder = checkpoints.find(run) / "params"
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def forward(run: Path) -> tuple[Callable[[Any], Any], Any, Any]:
    """Return (compiled labels of rows of token ids, the experiment, the parameters) of a run."""
    import jax
    import jax.numpy as jnp

    from plmjax.contracts.system import Purpose
    from plmjax.training import program as programs
    from plmjax.training.checkpoints import checkpoints

    params, description = checkpoints.load_parameters(run)
    experiment = description.experiment
    execution = programs.execution(experiment, "cpu")
    module = experiment.model.module(Purpose.SEQUENCE_CLASSIFICATION, execution, len(experiment.objective.labels))
    params = jax.tree.map(jnp.asarray, params)
    apply = jax.jit(lambda params, ids: module.apply({"params": params}, ids).logits)
    return functools.partial(apply, params), experiment, params


def measure(runs: dict[str, Path], rounds: int = ROUNDS) -> dict[str, Measured]:
    """Measure the models of runs; their forward passes take turns on one core."""
    import jax
    import numpy as np

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    made = {name: forward(run) for name, run in runs.items()}
    seconds: dict[str, dict[int, list[float]]] = {name: {rows: [] for rows in BATCHES} for name in runs}
    for rows in BATCHES:
        ids = np.random.default_rng(0).integers(5, 1000, (rows, LENGTH), np.int32)
        for apply, _, _ in made.values():
            jax.block_until_ready(apply(ids))
        repeats = 32 // rows
        for _ in range(rounds):
            for name, (apply, _, _) in made.items():
                start = time.process_time()
                for _ in range(repeats):
                    jax.block_until_ready(apply(ids))
                seconds[name][rows].append((time.process_time() - start) / repeats)
    found = {}
    for name, (_, experiment, params) in made.items():
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
        found[name] = Measured(
            sum(leaf.size for leaf in leaves),
            sum(int(np.count_nonzero(leaf)) for leaf in leaves),
            bytes_of(runs[name]),
            experiment.model.train_flops(1, LENGTH, 0) / 6,
            {rows: statistics.median(times) for rows, times in seconds[name].items()},
        )
    return found


def table(accuracies: dict[str, dict[str, list[float]]], measured: dict[str, Measured]) -> list[str]:
    """Return the lines of the table; accuracies: name -> task -> one for each seed."""
    sizes_and_speeds = (
        "parameters | not zero | bytes | multiply-adds | 1 row, ms | 32 rows, ms | 1,000 tokens a second | speed"
    )
    lines = [f"| | {' | '.join(TASKS)} | {sizes_and_speeds} |", "|" + "---|" * (len(TASKS) + 9)]
    teacher = measured["teacher"]
    for name, one in measured.items():
        cells = []
        for task in TASKS:
            values = [100 * value for value in accuracies[name][task]]
            deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.1f}{deviation}")
        sizes = (f"{one.parameters:,}", f"{one.nonzero:,}", f"{one.bytes:,}", f"{one.products:.3g}")
        times = (f"{1e3 * one.seconds[rows]:.2f}" for rows in BATCHES)
        seconds = one.seconds[BATCHES[-1]]
        throughput, speed = BATCHES[-1] * LENGTH / seconds / 1000, teacher.seconds[BATCHES[-1]] / seconds
        lines.append(f"| {name} | {' | '.join((*cells, *sizes, *times))} | {throughput:.1f} | {speed:.2f} |")
    return lines


def picture(accuracies: dict[str, dict[str, list[float]]], measured: dict[str, Measured], path: Path) -> None:
    """Draw the mean accuracy of the tasks against the speed with 32 rows, relative to the teacher."""
    teacher = measured["teacher"]
    with drawn(path, 8.5, 4.5) as (_, (axis,)):
        for number, (name, one) in enumerate(measured.items()):
            mean = statistics.fmean(statistics.fmean(values) for values in accuracies[name].values())
            speed = teacher.seconds[BATCHES[-1]] / one.seconds[BATCHES[-1]]
            area, color = 400 * one.bytes / teacher.bytes, "#c0693a" if name == "teacher" else "#1b6ca8"
            axis.scatter(speed, 100 * mean, s=area, alpha=0.3, color=color)
            axis.annotate(str(number), (speed, 100 * mean), fontsize=9, ha="center", va="center")
            axis.plot([], [], " ", label=f"{number}  {name}")
        axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, handlelength=0, fontsize=9)
        axis.set(xlabel="speed with 32 rows, relative to the teacher", ylabel="mean accuracy of both tasks, %")
        axis.set_title("Area of a point: bytes of the checkpoint", fontsize=9)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="run of the pretrained encoder")
    parser.add_argument("data", type=Path, help="folder with finetune/subjectivity and finetune/snli")
    parser.add_argument("--output", type=Path, default=Path("runs/compression"), help="folder of all runs")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of each task")
    parser.add_argument("--epochs", type=float, default=2.0, help="epochs of every fine-tuning")
    parser.add_argument("--picture", type=Path, help="file of the picture to draw")
    return parser.parse_args(arguments)


def main() -> None:
    """Make all runs, and print the table."""
    options = parsed()
    make(options)
    names = TEACHERS | {way: folder_of(way) for way in WAYS}
    accuracies = {
        name: {
            task: [metrics_of(options.output / task / str(seed) / folder) for seed in range(options.seeds)]
            for task in TASKS
        }
        for name, folder in names.items()
    }
    first = options.output / next(iter(TASKS)) / "0"
    measured = measure({name: first / folder for name, folder in names.items()})
    print("\n".join(table(accuracies, measured)))
    if options.picture:
        picture(accuracies, measured, options.picture)


if __name__ == "__main__":
    main()
