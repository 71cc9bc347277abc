"""ULMFiT on movie reviews with few and with all labels, with and without its language model, in both directions.

    python benchmarks/ulmfit.py DATA --output runs/ulmfit
    python benchmarks/ulmfit.py DATA --output runs/ulmfit --forward --labels 1600 --tokens 1024

DATA holds pretrain/wikipedia_en/train and finetune/movie_reviews. Every run is a folder of OUTPUT, and a command that
is run again resumes unfinished runs. Prints the table of docs/results/finetuning.md: accuracies on the development
file, which is not used for any choice.
"""

import argparse
import dataclasses
import gzip
import json
from pathlib import Path

from plmjax import experiment as experiments
from plmjax.data import formats, tokenizers
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.inference.evaluate import evaluate
from plmjax.runs.finetuning import finetune
from plmjax.runs.init_from import RANDOM
from plmjax.runs.pretraining import pretrain

EXPERIMENTS = Path(__file__).parents[1] / "experiments" / "ulmfit.py"
EPOCHS = {100: 8, 500: 3, 1600: 2}
"""Number of labels -> number of epochs. Few labels are seen more often."""
ALL = max(EPOCHS)
BACKWARDS = "_backwards"
TOKENS = 400
"""Number of tokens of a review that are read by default, from its beginning in either direction; it has some 750."""
UNFREEZE = 1 / 8
"""Fraction of a classifier's run after which one more group is unfrozen, so that all groups train for most of the few
steps."""
RANDOM_RATE = 3e-3
"""Learning rate of all parameters if none is pretrained: about that of the middle groups of a pretrained model."""


def load(name: str) -> Experiment:
    """Return an experiment of experiments/ulmfit.py."""
    return experiments.load(f"{EXPERIMENTS}:{name}")


def texts(data: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of the first two stages."""
    wikipedia = sorted((data / "pretrain" / "wikipedia_en" / "train").glob("AA_wiki_0[0-7]*"))
    return wikipedia, [data / "finetune" / "movie_reviews" / "train.jsonl.gz"]


def words(data: Path, output: Path) -> Path:
    """Return the folder of the tokenizer, with the words of both texts, so that the task's words are not unknown."""
    folder, own = output / "tokenizer", load("general").tokenizer
    if not folder.exists():
        files = [file for files in texts(data) for file in files]
        tokenizers.train(own.kind, own.vocab_size, formats.texts(files), folder)
    return folder


def language_models(data: Path, output: Path, way: str) -> None:
    """Run the first two stages."""
    general, task = texts(data)
    for name, files, start in ((f"general{way}", general, RANDOM), (f"task{way}", task, output / f"general{way}")):
        run = load(name)
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, input=tuple(map(str, files))))
        if start == RANDOM:
            own = dataclasses.replace(run.tokenizer, path=str(words(data, output)))
            run = dataclasses.replace(run, tokenizer=own)
        pretrain(run, output / name, start)


def some_labels(data: Path, output: Path, labels: int) -> Path:
    """Write the first reviews of the train file, with positive and negative ones in turn. Return the file."""
    path = output / f"train_{labels}.jsonl"
    with gzip.open(data / "finetune" / "movie_reviews" / "train.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    kinds = sorted({row["label"] for row in rows})
    turns = zip(*([row for row in rows if row["label"] == kind] for kind in kinds), strict=True)
    chosen = [row for turn in turns for row in turn][:labels]
    storage.write(path, "".join(json.dumps(row) + "\n" for row in chosen))
    return path


def classified(data: Path, output: Path, labels: int, *, way: str, pretrained: bool, tokens: int) -> Path:
    """Return the run directory of a classifier that reads so many tokens of a review.

    Without a language model no layer is unfrozen later, and all rates are equal.
    """
    run, epochs = load("classifier"), EPOCHS[labels]
    folder, optimizer = data / "finetune" / "movie_reviews", run.optimizer
    files = {"train": str(some_labels(data, output, labels)), "validation": str(folder / "dev.jsonl.gz")}
    if not pretrained:
        optimizer = dataclasses.replace(optimizer, learning_rate=RANDOM_RATE, layer_decay=1.0)
    length = {"epochs": float(epochs), "unfreeze": UNFREEZE * epochs if pretrained else 0.0, "evaluations": 0.0}
    run = dataclasses.replace(
        run,
        data=dataclasses.replace(run.data, sequence_length=tokens, **files),
        finetuning=dataclasses.replace(run.finetuning, **length),
        optimizer=optimizer,
    )
    read = "" if tokens == TOKENS else f"_of_{tokens}"
    workdir = output / f"reviews_{labels}{read}{way}{'' if pretrained else '_random'}"
    if not (workdir / "evaluation.json").exists():
        language_model = output / f"task{way}"
        start, like = (language_model, None) if pretrained else (RANDOM, language_model)
        finetune(run, start, workdir, like=like)
    return workdir


def accuracy(run: Path) -> float:
    """Return the accuracy of a finished run."""
    return json.loads((run / "evaluation.json").read_text())["eval/accuracy"]


def main() -> None:
    """Train the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--forward", action="store_true", help="leave out the models that read from the end")
    parser.add_argument("--labels", type=int, nargs="*", choices=EPOCHS, default=list(EPOCHS), help="numbers of labels")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of a review that are read")
    options = parser.parse_args()
    data, output, tokens = options.data, options.output, options.tokens
    output.mkdir(parents=True, exist_ok=True)
    language_models(data, output, "")
    forward = {
        labels: classified(data, output, labels, way="", pretrained=True, tokens=tokens) for labels in options.labels
    }
    random = {
        labels: classified(data, output, labels, way="", pretrained=False, tokens=tokens) for labels in options.labels
    }
    found = {labels: [accuracy(random[labels]), accuracy(forward[labels])] for labels in options.labels}
    if not options.forward and ALL in found:
        language_models(data, output, BACKWARDS)
        backward = classified(data, output, ALL, way=BACKWARDS, pretrained=True, tokens=tokens)
        found[ALL] += [accuracy(backward), evaluate(forward[ALL], ensemble=[backward])["eval/accuracy"]]
    print("| labels | random | ULMFiT | from the end | both |", "|---|---|---|---|---|", sep="\n")
    for labels, shares in found.items():
        cells = [f"{100 * share:.1f}" for share in shares] + ["-"] * (4 - len(shares))
        print(f"| {labels:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
