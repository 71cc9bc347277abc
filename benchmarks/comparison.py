"""Systems of one size with the same training FLOPs, beside random models, on five tasks.

    python benchmarks/comparison.py DATA --output runs/comparison

DATA holds pretrain/wikipedia_en/train and finetune/{subjectivity,snli,ud_english_ewt,wnut17,squad}. Every piece, a
pretraining or a fine-tuning run, is a run directory in OUTPUT with a log.txt. A command that was stopped and is run
again continues with the unfinished pieces. At the end it writes docs/comparison.md and its picture. With --report it
writes them from the finished pieces and computes nothing. With --tables it prints the tables of --systems and writes
nothing, for rows that are added to a page whose other pieces are elsewhere; --picture then draws the picture of the
page again.
"""

import argparse
import csv
import dataclasses
import functools
import gzip
import hashlib
import itertools
import json
import math
import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pieces
from pictures import drawn
from pieces import Piece

from plmjax import experiment as experiments
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.finetuning.files import tables
from plmjax.finetuning.tasks.mixture import Mixture
from plmjax.inference.embed import embed_file
from plmjax.runs.finetuning import finetune
from plmjax.runs.init_from import RANDOM
from plmjax.runs.pretraining import pretrain
from plmjax.training.checkpoints import checkpoints
from plmjax.training.metrics import read

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments" / "comparison.py"
SYSTEMS = ("bert", "roberta", "albert", "electra", "xlnet", "gpt", "modernbert", "deberta")
TASKS = {
    "subjectivity": ("accuracy", "subjectivity/train.tsv.gz", "subjectivity/dev.tsv.gz"),
    "snli": ("accuracy", "snli/dev.tsv.gz", ""),
    "pos": ("accuracy", "ud_english_ewt/en_ewt-ud-train.conllu.gz", "ud_english_ewt/en_ewt-ud-dev.conllu.gz"),
    "wnut17": ("f1", "wnut17/wnut17train.conll.gz", "wnut17/emerging.dev.conll.gz"),
    "squad": ("f1", "squad/squad_v1_style_train.json.gz", "squad/squad_v1_style_dev.json.gz"),
}
"""Task -> its metric, and its two files in DATA/finetune; a file without a second one is split by premise."""
STARTS = ("pretrained", RANDOM)
EVALUATIONS = 10
"""Evaluations of a pretraining run. The phases are whole tenths of it."""
STATIC = "The first two rows are static word vectors (benchmarks/static_vectors.py, word_vectors.md)."


def split_files(directory: Path) -> tuple[Path, Path]:
    """Return the paths of the files that `split_by_premise` makes."""
    return directory / "snli_train.tsv", directory / "snli_validation.tsv"


def split_by_premise(source: Path, directory: Path) -> tuple[Path, Path]:
    """Return (train, validation) files made from one: a tenth of the premises, chosen by hash, with all their pairs.

    Every premise has about three hypotheses. A split by rows would show the model each validation premise. The column
    `pair` is added: both texts as one, for a model that reads one.
    """
    paths = split_files(directory)
    if all(path.exists() for path in paths):
        return paths
    with gzip.open(source, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    premise, hypothesis = header.index("premise"), header.index("hypothesis")
    parts: dict[bool, list[list[str]]] = {False: [], True: []}
    for row in rows:
        pair = f"premise: {row[premise]} hypothesis: {row[hypothesis]}"
        parts[hashlib.sha256(row[premise].strip().lower().encode()).digest()[0] * 10 < 256].append([*row, pair])
    directory.mkdir(parents=True, exist_ok=True)
    for path, held_out in zip(paths, (False, True), strict=True):
        storage.write(path, "".join("\t".join(row) + "\n" for row in [[*header, "pair"], *parts[held_out]]))
    return paths


def flops(run: Experiment, steps: int) -> float:
    """Return the model FLOPs of a pretraining run of that many steps, in closed form."""
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, steps=steps))
    batches = [(phase, run.data.layout.batch(phase.batch_size, phase.sequence_length)) for phase in run.resolved_phases]
    return sum(phase.steps * run.objective.train_flops(run.model, batch) for phase, batch in batches)


def tokens(run: Experiment, steps: int) -> float:
    """Return the tokens that a pretraining run of that many steps reads; for GloVe, the cells of its counts."""
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, steps=steps))
    return sum(phase.steps * run.data.tokens(phase.batch_size, phase.sequence_length) for phase in run.resolved_phases)


def within(run: Experiment, budget: float, most: float = math.inf) -> Experiment:
    """Return the pretraining run with as many steps as the FLOP budget allows, and at most so many tokens.

    Raises:
        UserError: they allow less than a step for each evaluation.
    """
    many = 10_000
    steps = int(min(budget / flops(run, many), most / tokens(run, many)) * many)
    steps -= steps % EVALUATIONS  # so that every phase ends with an evaluation
    if steps < EVALUATIONS:
        least = EVALUATIONS * flops(run, many) / many
        raise UserError(
            f"Expected a budget of at least {least:.2g} FLOPs, for {EVALUATIONS} steps of a "
            f"{type(run.model).__name__}, found {budget:.2g} FLOPs and {most:.2g} tokens; raise --budget or --tokens."
        )
    every = steps // EVALUATIONS
    training = dataclasses.replace(run.training, steps=steps, evaluate_every=every)
    return dataclasses.replace(run, training=training, checkpoint=dataclasses.replace(run.checkpoint, every=every))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A system, the experiment that pretrains it, and the experiment of each task that it is fine-tuned on."""

    name: str
    pretraining: str
    tasks: Mapping[str, str]


def candidates(options: argparse.Namespace) -> list[Candidate]:
    """Return every system with the tasks for which its model has a head."""
    found = []
    for system in options.systems:
        model = experiments.load(f"{EXPERIMENTS}:{system}").model
        tasks = {task: f"{EXPERIMENTS}:{task}" for task in options.tasks}
        able = {task: name for task, name in tasks.items() if experiments.load(name).objective.purpose in model.system}
        found.append(Candidate(system, f"{EXPERIMENTS}:{system}", able))
    return found


def possible(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return every system with every task that it is fine-tuned on."""
    return [(system.name, task) for system in candidates(options) for task in system.tasks]


def pretrainings(options: argparse.Namespace, systems: Iterable[Candidate], most: float = math.inf) -> dict[str, Piece]:
    """Return experiment -> its pretraining piece, of at most so many tokens, from which the others start."""
    text = (str(options.data / "pretrain" / "wikipedia_en" / "train"),)
    found = {}
    for reference in dict.fromkeys(system.pretraining for system in systems):
        run, workdir = experiments.load(reference), options.output / reference.partition(":")[2]
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, input=text))
        found[reference] = Piece(workdir, pretraining, (within(run, options.budget, most),))
    return found


def finetunings(
    options: argparse.Namespace, systems: Sequence[Candidate], pretrained: Mapping[str, Piece], steps: int = 0
) -> list[Piece]:
    """Return the runs of all systems on all tasks, pretrained and random, with all seeds; the first seed comes first.

    steps: the number of steps of each; 0 for the epochs of its experiment.
    """
    split = split_files(options.output / "data")
    found = []
    judged = [(system, task) for system in systems for task in system.tasks]
    for seed, (system, task), start in itertools.product(range(options.seeds), judged, STARTS):
        whole = [options.data / "finetune" / name for name in TASKS[task][1:]]
        files, first = tuple(map(str, whole if TASKS[task][2] else split)), pretrained[system.pretraining]
        make = functools.partial(finetuning, start=start, pretrained=first.workdir, steps=steps)
        workdir = options.output / f"{system.name}-{task}-{start}-{seed}"
        found.append(Piece(workdir, make, (system.tasks[task], files, seed), first))
    return found


def spreads(options: argparse.Namespace, pretrained: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that measure over how many directions each system's vectors spread."""
    _, validation = split_files(options.output / "data")
    return [
        Piece(options.output / f"{first.name}-directions", spread, (first.workdir, validation), first)
        for first in pretrained
    ]


def stages(options: argparse.Namespace) -> tuple[list[Piece], list[Piece]]:
    """Return all pieces: the pretraining runs, and the pieces that start from them."""
    systems = candidates(options)
    first = pretrainings(options, systems)
    return [*first.values()], [*finetunings(options, systems, first), *spreads(options, first.values())]


def pretraining(run: Experiment, workdir: Path) -> dict[str, Any]:
    """Pretrain and return the result."""
    result = pretrain(run, workdir)
    lines = {line["step"]: line for line in read(workdir / "metrics.jsonl") if "eval/loss" in line}
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(result.state.params)),
        "flops": flops(run, run.training.steps),
        "steps": run.training.steps,
        "tokens": tokens(run, run.training.steps),
        "losses": {
            str(phase.sequence_length): [lines[phase.last_step]["eval/loss"], without_context(lines[phase.last_step])]
            for phase in run.resolved_phases
        },
    }


def without_context(line: Mapping[str, float]) -> float:
    """Return the loss of an evaluated model that knows only the frequencies of the targets."""
    return line["eval/unigram_loss"] if "eval/unigram_loss" in line else line["eval/unigram_entropy"]


def finetuning(
    reference: str, files: tuple[str, str], seed: int, *, start: str, pretrained: Path, steps: int, workdir: Path
) -> dict[str, Any]:
    """Fine-tune a checkpoint, or a model of the same sizes with random parameters and its tokenizer.

    steps: the number of steps; 0 for the epochs of the experiment.
    """
    run = experiments.load(reference)
    run = dataclasses.replace(
        run, data=on_files(run.data, *files), training=dataclasses.replace(run.training, seed=seed)
    )
    if steps:
        run = dataclasses.replace(
            run,
            training=dataclasses.replace(run.training, steps=steps),
            finetuning=dataclasses.replace(run.finetuning, epochs=0.0),
        )
    origin, like = (RANDOM, pretrained) if start == RANDOM else (pretrained, None)
    found = finetune(run, origin, workdir, like=like)
    if isinstance(run.data, Mixture):  # labels as texts: the share of those that are right
        return {**found, "eval/accuracy": found["eval/mean"] / 100}
    return found


def on_files(task: Any, train: str, validation: str) -> Any:
    """Return a task, or a mixture of one, with other files."""
    if isinstance(task, Mixture):
        (one,) = task.tasks
        return dataclasses.replace(task, tasks=(on_files(one, train, validation),))
    return dataclasses.replace(task, train=train, validation=validation)


def spread(pretrained: Path, validation: Path, workdir: Path) -> dict[str, Any]:
    """Return the `directions` of the premises' mean vectors, one number for the embeddings and for each layer."""
    premises = dict.fromkeys(row["premise"] for _, row in tables.rows(str(validation)))
    text, output = workdir / "premises.txt", workdir / "vectors.npz"
    storage.write(text, "".join(f"{premise}\n" for premise in premises))
    found = []
    for layer in range(checkpoints.describe(checkpoints.find(pretrained)).experiment.model.depth + 1):
        embed_file(pretrained, text, output, layer=layer)
        with np.load(output) as arrays:
            found.append(directions(arrays["embeddings"]))
    return {"directions": found}


def directions(vectors: np.ndarray) -> float:
    """Return the participation ratio of the variances of vectors [N D] along their principal axes.

    It is D if all variances are equal.
    """
    variances = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False).astype(np.float64) ** 2
    return float(variances.sum() ** 2 / (variances**2).sum())


def scores(found: dict[str, dict[str, Any]], system: str, task: str, *, start: str, seeds: int) -> list[float]:
    """Return the task's metric in percent, one number for each finished seed."""
    metric = f"eval/{TASKS[task][0]}"
    factor = 1 if task == "squad" else 100
    runs = [found.get(f"{system}-{task}-{start}-{seed}") for seed in range(seeds)]
    return [factor * run[metric] for run in runs if run]


def cell(values: list[float], twin: list[float]) -> str:
    """Return a table cell such as 82.1 ± 0.4, in bold if every seed is above all seeds of the random model."""
    if not values:
        return "-"
    text = f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")
    return f"**{text}**" if twin and min(values) > max(twin) else text


def static_rows(folder: Path | None) -> list[str]:
    """Return the rows of static word vectors, from the OUTPUT of benchmarks/static_vectors.py."""
    rows = []
    for kind in ("frozen", "trained") if folder else ():
        cells = []
        for task, (metric, *_) in TASKS.items():
            runs = json.loads((folder / f"{task}-{kind}" / "seeds.json").read_text())["seeds"].values()
            cells.append(cell([(1 if task == "squad" else 100) * run[f"eval/{metric}"] for run in runs], []))
        rows.append(f"| static vectors, {kind} | {' | '.join(cells)} |")
    return rows


def result_tables(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> list[str]:
    """Return the lines of the tables: the tasks of each system, pretrained and random, and what is known of it.

    That is the size and cost of its pretraining, its losses, and the directions of its vectors.
    """
    lines = [
        "| system | " + " | ".join(f"{task}, {metric}" for task, (metric, *_) in TASKS.items()) + " |",
        "|" + "---|" * (len(TASKS) + 1),
        *static_rows(options.static),
    ]
    for system, (start, twin) in itertools.product(options.systems, itertools.permutations(STARTS)):
        cells = [
            cell(*(scores(found, system, task, start=each, seeds=options.seeds) for each in (start, twin)))
            for task in TASKS
        ]
        lines.append(f"| {system}, {start} | {' | '.join(cells)} |")
    pretrained = {system: found[system] for system in options.systems if system in found}
    lengths = sorted({length for run in pretrained.values() for length in run["losses"]}, key=int)
    lines += ["", "| system | parameters | steps | tokens | FLOPs | minutes |", "|" + "---|" * 6]
    lines += [
        f"| {system} | {run['parameters']:,} | {run['steps']:,} | {run['tokens'] / 1e6:.1f} M | {run['flops']:.2g} | "
        f"{run['seconds'] / 60:.1f} |"
        for system, run in pretrained.items()
    ]
    lines += ["", f"| loss in rows of | {' | '.join(lengths)} |", "|" + "---|" * (len(lengths) + 1)]
    for system, run in pretrained.items():
        losses = ["{:.2f} of {:.2f}".format(*run["losses"][each]) if each in run["losses"] else "" for each in lengths]
        lines.append(f"| {system} | {' | '.join(losses)} |")
    lines += ["", "| system | directions |", "|---|---|"]
    for system in pretrained:
        numbers = found.get(f"{system}-directions", {}).get("directions", [])
        lines.append(f"| {system} | {', '.join(f'{number:.0f}' for number in numbers)} |")
    return lines


def page(found: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """Return the text of docs/comparison.md."""
    minutes = sum(run["seconds"] for run in found.values()) / 60
    worse = [
        f"{system} on {task}"
        for system, task in possible(options)
        if mean(found, system, task, start="pretrained", options=options)
        <= mean(found, system, task, start=RANDOM, options=options)
    ]
    total = len(possible(options)) * len(STARTS) * options.seeds
    made = sum(
        len(scores(found, system, task, start=start, seeds=options.seeds))
        for (system, task), start in itertools.product(possible(options), STARTS)
    )
    missing = [f"**{made} of the {total} fine-tunings are made so far.**"] if made < total else []
    verdict = f"Pretraining does not help {', '.join(worse)}" if worse else "Pretraining helps each system on each task"
    lines = [
        "# Systems with the same budget",
        "",
        "![Each system on each task, pretrained and from random parameters](pictures/comparison.png)",
        "",
        f"    {shlex.join(['python', *options.command])}",
        "",
        f"Every system is pretrained with {options.budget:.2g} model FLOPs on the same Wikipedia articles,",
        f"then fine-tuned on five tasks with {options.seeds} seeds, beside a model with random parameters. Mean and",
        "deviation over the seeds; accuracy or F1 in percent, at the best of the evaluations after each epoch; bold if",
        f"each seed is above every seed of the random model. All runs together took {minutes:.0f} minutes of one core.",
        verdict,
        "(see [what pretraining is worth](results/finetuning.md#what-pretraining-is-worth)).",
        *missing,
        *([STATIC] if options.static else []),
        "",
        *result_tables(found, options),
        "",
        "Losses are held-out, in nats per predicted token, of the unigram entropy of the same tokens, at the end of",
        "the phase with that row length. ELECTRA's are those of its generator. Minutes are of one core.",
        "Directions: the number of dimensions, of 128, over which the vectors spread, for embeddings and each layer",
        "(participation ratio of the variances of SNLI's premises, each the mean of its tokens).",
    ]
    return "\n".join(lines) + "\n"


def mean(found: dict[str, dict[str, Any]], system: str, task: str, *, start: str, options: argparse.Namespace) -> float:
    """Return the mean of `scores`, 0 if there are none."""
    return statistics.fmean(scores(found, system, task, start=start, seeds=options.seeds) or [0.0])


def page_scores(text: str) -> dict[tuple[str, str], list[tuple[float, float] | None]]:
    """Read the table of the page: dict from (system, start) to the mean and the deviation of each task.

    A task without a result has None.
    """
    found = {}
    for system, start, cells in re.findall(rf"^\| (\w+), ({'|'.join(STARTS)}) \| (.+) \|$", text, re.MULTILINE):
        numbers = [
            [float(number) for number in cell.strip("* ").split(" ± ") if number != "-"] for cell in cells.split("|")
        ]
        found[system, start] = [(*one, 0.0)[:2] if one else None for one in numbers]
    return found


def draw(
    found: Mapping[tuple[str, str], Sequence[tuple[float, float | None] | None]],
    tasks: Sequence[str],
    path: Path,
    best: bool = False,
) -> None:
    """Draw one panel per task: mean and deviation of every system, pretrained and random.

    found: (system, start) -> the mean and the deviation, None for one seed, of each of `tasks`; None without a result.
    best: True for a line of the best pretrained system so far, in the order of the systems.
    """
    systems = list(dict.fromkeys(system for system, _ in found))
    crowded = len(systems) > len(SYSTEMS)
    colours = {"pretrained": "#1b6ca8", RANDOM: "#c0693a"}
    with drawn(path, (4.5 if crowded else 3) * len(tasks), 3.4, len(tasks)) as (figure, axes):
        for number, (axis, task) in enumerate(zip(axes, tasks, strict=True)):
            reached: list[tuple[int, float]] = []
            for (system, start), cells in found.items():
                if cells[number] is not None:
                    mean, deviation = cells[number]
                    place = systems.index(system)
                    at = place + (0.12 if start == RANDOM else -0.12)
                    axis.errorbar(at, mean, deviation, fmt="o", color=colours[start], markersize=5, capsize=3)
                    if start != RANDOM:
                        reached.append((place, max(mean, reached[-1][1] if reached else mean)))
            if best and reached:
                reached.append((len(systems) - 1, reached[-1][1]))
                axis.step(*zip(*reached, strict=True), where="post", color=colours["pretrained"], alpha=0.4)
            axis.set_title(f"{task}, {TASKS[task][0]} (%)", fontsize=10)
            axis.set_xticks(range(len(systems)), systems, rotation=60 if crowded else 30, ha="right")
        handles = [axes[0].plot([], [], "o", color=colour, label=name)[0] for name, colour in colours.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)


def main() -> None:
    """Make the pieces and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the texts and the tasks")
    parser.add_argument("--output", type=Path, default=Path("runs/comparison"), help="folder of the runs")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the page and its picture")
    parser.add_argument("--budget", type=float, default=4e13, help="model FLOPs of each pretraining")
    parser.add_argument("--seeds", type=int, default=3, help="fine-tunings of each system, task and start")
    parser.add_argument("--workers", type=int, default=2, help="pieces made at once; each keeps about one core busy")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, help="which of the systems")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS, help="which of the tasks")
    parser.add_argument("--static", type=Path, help="OUTPUT of benchmarks/static_vectors.py, for the page's first rows")
    parser.add_argument(
        "--report", action="store_true", help="write the page from the finished pieces, compute nothing"
    )
    parser.add_argument("--tables", action="store_true", help="print the tables of the finished pieces, write no page")
    parser.add_argument("--picture", action="store_true", help="draw the picture of the page as it is, compute nothing")
    options = parser.parse_args()
    options.command = ["benchmarks/comparison.py", "DATA", *sys.argv[2:]]
    written, drawn = options.docs / "comparison.md", options.docs / "pictures" / "comparison.png"
    if options.picture:
        draw(page_scores(written.read_text(encoding="utf-8")), list(TASKS), drawn)
        return
    try:
        every = stages(options)
    except UserError as error:
        parser.exit(2, f"{error}\n")
    if not options.report:
        split_by_premise(options.data / "finetune" / TASKS["snli"][1], options.output / "data")
        pieces.work(every, options.workers)
    found = pieces.results(itertools.chain(*every))
    if options.tables:
        print("", *result_tables(found, options), sep="\n")
        return
    text = page(found, options)
    storage.write(written, text)
    draw(page_scores(text), list(TASKS), drawn)
    print(f"\n{written}")


if __name__ == "__main__":
    main()
