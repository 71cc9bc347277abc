"""ULMFiT on movie reviews with few and with all labels, with and without its language model, from both ends.

    python benchmarks/ulmfit.py DATA --output runs/ulmfit

DATA holds pretrain/wikipedia_en/train and finetune/movie_reviews. Every run is a folder of OUTPUT, and a command that
is run again goes on with those that are not finished. Prints the table of docs/finetuning.md: accuracies on the
development file, by which no choice is made.
"""

import argparse
import dataclasses
import gzip
import json
from pathlib import Path

from plmjax import experiment as experiments
from plmjax import storage
from plmjax.experiment import Experiment
from plmjax.finetuning.run import finetune
from plmjax.inference.evaluate import evaluate
from plmjax.pretraining.run import pretrain
from plmjax.training.start import RANDOM

EXPERIMENTS = Path(__file__).parents[1] / "experiments" / "ulmfit.py"
EPOCHS = {100: 15, 500: 6, 1600: 3}
"""Labels -> epochs: fewer labels are seen more often."""
WAYS = ("", "_backwards")
TOKENS = 256
"""Of a review, some 900 long, that are read: its first ones, in either direction."""


def load(name: str) -> Experiment:
    """An experiment of experiments/ulmfit.py."""
    return experiments.load(f"{EXPERIMENTS}:{name}")


def language_models(data: Path, output: Path, way: str) -> None:
    """The first two stages."""
    wikipedia = sorted((data / "pretrain" / "wikipedia_en" / "train").glob("AA_wiki_0[0-7]*"))
    reviews = data / "finetune" / "movie_reviews" / "train.jsonl.gz"
    for name, texts, start in (
        (f"general{way}", wikipedia, RANDOM),
        (f"task{way}", [reviews], output / f"general{way}"),
    ):
        run = load(name)
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, input=tuple(map(str, texts))))
        pretrain(run, output / name, checkpoint=start)


def some_labels(data: Path, output: Path, labels: int) -> Path:
    """The first reviews of the train file, in an order in which good and bad ones take turns."""
    path = output / f"train_{labels}.jsonl"
    with gzip.open(data / "finetune" / "movie_reviews" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    kinds = sorted({row["label"] for row in rows})
    turns = zip(*([row for row in rows if row["label"] == kind] for kind in kinds), strict=True)
    chosen = [row for turn in turns for row in turn][:labels]
    storage.write(path, "".join(json.dumps(row) + "\n" for row in chosen))
    return path


def classified(data: Path, output: Path, labels: int, way: str, pretrained: bool) -> Path:
    """The run directory of a classifier; without its language model nothing is unfrozen late, and all rates are one."""
    run, epochs = load("classifier"), EPOCHS[labels]
    folder, optimizer = data / "finetune" / "movie_reviews", run.optimizer
    files = {"train": str(some_labels(data, output, labels)), "validation": str(folder / "dev.jsonl.gz")}
    if not pretrained:
        optimizer = dataclasses.replace(optimizer, layer_decay=1.0)
    length = {"epochs": float(epochs), "unfreeze": epochs / 5 if pretrained else 0.0, "evaluations": 0.0}
    run = dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, sequence_length=TOKENS, **files),
        finetuning=dataclasses.replace(run.finetuning, **length),
        optimizer=optimizer,
    )
    workdir = output / f"reviews_{labels}{way}{'' if pretrained else '_random'}"
    if not (workdir / "evaluation.json").exists():
        language_model = output / f"task{way}"
        start, like = (language_model, None) if pretrained else (RANDOM, language_model)
        finetune(run, start, workdir, like)
    return workdir


def main() -> None:
    """Trains what is not trained yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--forward", action="store_true", help="leave out the models that read from the end")
    options = parser.parse_args()
    ways = WAYS[:1] if options.forward else WAYS
    options.output.mkdir(parents=True, exist_ok=True)
    lines = ["| labels | random | ULMFiT | from the end | both |", "|---|---|---|---|---|"]
    for way in ways:
        language_models(options.data, options.output, way)
    for labels in EPOCHS:
        runs = [classified(options.data, options.output, labels, "", pretrained=False)]
        runs += [classified(options.data, options.output, labels, way, pretrained=True) for way in ways]
        found = [json.loads((run / "evaluation.json").read_text())["eval/accuracy"] for run in runs]
        if len(ways) == 2:
            found.append(evaluate(runs[1], ensemble=[runs[2]])["eval/accuracy"])
        cells = [f"{100 * accuracy:.1f}" for accuracy in found] + ["-"] * (4 - len(found))
        lines.append(f"| {labels:,} | {' | '.join(cells)} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
