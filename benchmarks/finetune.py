"""What pretraining is worth: a checkpoint and its random twin, fine-tuned alike on subjectivity and on SNLI.

    python benchmarks/finetune.py runs/bert DATA --output runs/finetune --seeds 3

DATA holds subjectivity/train.tsv.gz, subjectivity/dev.tsv.gz and snli/dev.tsv.gz. The twin has the checkpoint's sizes
and tokenizer and begins with random parameters. Run again with the same output, it goes on where it was stopped.
Options with a dot, such as --optimizer.learning_rate 1e-4, change both alike.
"""

import argparse
import csv
import dataclasses
import gzip
import hashlib
import statistics
from pathlib import Path

from plmjax import experiment as experiments
from plmjax.experiment import Experiment, Tokenizer
from plmjax.finetuning.run import RANDOM, finetune
from plmjax.training import checkpoints

EXPERIMENTS = Path(__file__).parents[1] / "experiments" / "finetune_sentences.py"


def split_by_premise(source: Path, directory: Path) -> tuple[Path, Path]:
    """(train, validation) files made of one: a tenth of the premises, chosen by their hash, with all their pairs.

    Every premise has about three hypotheses, so that a split by rows would show the model each validation premise.
    """
    with gzip.open(source, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    premise = header.index("premise")
    parts: dict[bool, list[list[str]]] = {False: [], True: []}
    for row in rows:
        parts[hashlib.sha256(row[premise].strip().lower().encode()).digest()[0] * 10 < 256].append(row)
    directory.mkdir(parents=True, exist_ok=True)
    paths = directory / "train.tsv", directory / "validation.tsv"
    for path, held_out in zip(paths, (False, True), strict=True):
        text = "".join("\t".join(row) + "\n" for row in [header, *parts[held_out]])
        path.write_text(text, encoding="utf-8", newline="")
    return paths


def tasks(data: Path, output: Path) -> dict[str, Experiment]:
    """Name -> experiment with its files."""
    files = {
        "subjectivity": (data / "subjectivity" / "train.tsv.gz", data / "subjectivity" / "dev.tsv.gz"),
        "snli": split_by_premise(data / "snli" / "dev.tsv.gz", output / "data"),
    }
    made = {}
    for name, (train, validation) in files.items():
        run = experiments.load(f"{EXPERIMENTS}:{name}")
        task = dataclasses.replace(run.data, train=str(train), validation=str(validation))
        made[name] = dataclasses.replace(run, data=task)
    return made


def cell(values: list[float]) -> str:
    """82.1 ± 0.4, in percent."""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def main() -> None:
    """Fine-tunes everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="run directory or checkpoint of a pretrained model")
    parser.add_argument("data", type=Path, help="folder of the tasks")
    parser.add_argument("--output", type=Path, default=Path("runs/finetune"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each")
    parser.add_argument("--tasks", nargs="+", default=["subjectivity", "snli"], help="which of the tasks")
    options, overrides = parser.parse_known_args()
    description = checkpoints.describe(checkpoints.find(options.checkpoint))
    tokenizer = description.write_tokenizer(options.output / "tokenizer")
    made = tasks(options.data, options.output)
    table = ["| task | metric | pretrained | random twin |", "|---|---|---|---|"]
    for name in options.tasks:
        found: dict[str, list[dict[str, float]]] = {"pretrained": [], RANDOM: []}
        for seed in range(options.seeds):
            run = experiments.override(made[name], [*overrides, "--training.seed", str(seed)])
            twin = dataclasses.replace(
                run, model=description.experiment.model, tokenizer=Tokenizer(path=str(tokenizer))
            )
            for start, (own, source) in {"pretrained": (run, options.checkpoint), RANDOM: (twin, RANDOM)}.items():
                print(f"\n{name}, {start}, seed {seed}", flush=True)
                found[start].append(finetune(own, source, options.output / name / f"{start}-{seed}"))
        for metric in ("eval/accuracy", "eval/matthews"):
            columns = [cell([metrics[metric] for metrics in runs]) for runs in found.values()]
            table.append(f"| {name} | {metric.removeprefix('eval/')} | {' | '.join(columns)} |")
    print("\n" + "\n".join(table))


if __name__ == "__main__":
    main()
