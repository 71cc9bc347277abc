"""Two tasks of Long Range Arena at a quarter of their length: ListOps, and labels of texts that are read by bytes.

    python benchmarks/long_range_arena.py DATA --output runs/long_range_arena

DATA is the folder of data that holds finetune/movie_reviews. Three small encoders, with whole rows, with a window and
with LSH (Reformer), are fine-tuned from random parameters on each task. Every run is a folder of OUTPUT, and a command
that is run again resumes. It prints accuracies in percent beside the published ones (Tay et al. 2020, arXiv
2011.04006, table 1), and accuracies without reading on: of the most frequent label of the held-out examples, and in
ListOps of the most frequent label of those with the same first operator, that of the whole tree.

ListOps is made by the published rules (google-research/long-range-arena lra_benchmarks/data/listops.py). A tree is a
digit, or with the probability 1/4 an operator with 2 to 10 trees, to a depth of 10. Operators are the minimum, the
maximum, the median, rounded down, and the sum modulo 10. A tree is kept if it has more symbols than the shortest length
and fewer than the longest. Here one character is one symbol.

Deviation: 125 to 500 symbols, not 500 to 2,000; 512 bytes of a text, not 1,000 and more; fewer examples and steps;
models of two layers of 64. Reviews are those of Pang and Lee (2004) in place of IMDB.
"""

import argparse
import random
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import use_one_core

from plmjax.data import tokenizers
from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training
from plmjax.files import storage
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.interop.reformer import choose_buckets
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.runs.finetuning import finetune
from plmjax.runs.init_from import RANDOM
from plmjax.training.optimizers import AdamW

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "<": min,
    ">": max,
    "=": lambda values: int(statistics.median(values)),
    "+": lambda values: sum(values) % 10,
}
"""Symbol -> the operator; in the published files they are [MIN, [MAX, [MED and [SM."""
END = "]"
DEPTH, ARGUMENTS, BRANCHES = 10, 10, 0.25
"""Largest depth, most trees of an operator, and the probability of an operator."""
SHORTEST, LONGEST = 125, 500
"""Numbers of symbols between which a tree has its length."""
LENGTH, VOCABULARY, WINDOW, CHUNK = 512, 261, 32, 32
"""Bytes in a row, bytes and special tokens, tokens of the window, and tokens of Reformer's chunks."""
PUBLISHED = {
    "Transformer": {"ListOps": 36.37, "text": 64.27},
    "local attention": {"ListOps": 15.82, "text": 52.98},
    "Reformer": {"ListOps": 37.27, "text": 56.10},
}
TASKS = ("ListOps", "text")
GUESSES = {"most frequent label": TASKS, "most frequent label of the first operator": TASKS[:1]}
"""Guess without reading on -> the tasks that it is printed for."""


def tree(draw: random.Random, depth: int = 1) -> tuple[str, int]:
    """Return a random tree as symbols, and its value."""
    if depth >= DEPTH or draw.random() > BRANCHES:
        value = draw.randrange(10)
        return str(value), value
    parts = [tree(draw, depth + 1) for _ in range(draw.randint(2, ARGUMENTS))]
    operator = draw.choice(list(OPERATORS))
    return operator + "".join(symbols for symbols, _ in parts) + END, OPERATORS[operator]([value for _, value in parts])


def listops(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Return `count` different trees between the two lengths, as symbols, and their values."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        symbols, value = tree(draw)
        if SHORTEST < len(symbols) < LONGEST:
            found[symbols] = value
    return list(found.items())


def write_listops(folder: Path, train: int, held_out: int) -> tuple[Path, Path]:
    """Write train.tsv and validation.tsv with the columns text and label, and return them."""
    rows = listops(train + held_out)
    paths = folder / "train.tsv", folder / "validation.tsv"
    folder.mkdir(parents=True, exist_ok=True)
    for path, part in zip(paths, (rows[:train], rows[train:]), strict=True):
        storage.write(path, "text\tlabel\n" + "".join(f"{symbols}\t{value}\n" for symbols, value in part))
    return paths


def config_of(name: str) -> Any:
    """Return the sizes of a model: two layers of 64."""
    if name == "Reformer":
        return ReformerConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            attn_layers=("lsh", "lsh"),
            num_attention_heads=4,
            attention_head_size=16,
            feed_forward_size=128,
            axial_pos_shape=(LENGTH // 32, 32),
            axial_pos_embds_dim=(32, 32),
            axial_norm_std=0.05,
            is_decoder=False,
            lsh_attn_chunk_length=CHUNK,
            num_buckets=choose_buckets(LENGTH, CHUNK),
            num_hashes=2,
            hidden_dropout_prob=0.0,
            lsh_attention_probs_dropout_prob=0.0,
            initializer_range=0.05,
            pad_token_id=1,
            eos_token_id=None,
        )
    return RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH + 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,
        attention_window=WINDOW if name == "local attention" else None,
    )


def trained_tokenizer(train: Path, vocabulary: int, folder: Path) -> Tokenizer:
    """Return a byte-level BPE of the texts of a file, which is trained once; with 261 tokens it is the bytes."""
    if not folder.exists():
        examples = Sentences(train=str(train)).read("train")
        tokenizers.train("byte-bpe", vocabulary, (text for (text,) in examples.texts), folder)
    return Tokenizer(path=str(folder))


def run_of(name: str, files: tuple[Path, Path], tokenizer: Tokenizer, epochs: float) -> Experiment:
    """Return the run of a model on a task: 8 rows a step, AdamW at 1e-3."""
    train, validation = map(str, files)
    return Experiment(
        model=config_of(name),
        objective=SequenceClassification(),
        tokenizer=tokenizer,
        data=Sentences(train=train, validation=validation, sequence_length=LENGTH),
        optimizer=AdamW(learning_rate=1e-3),
        training=Training(steps=0, batch_size=8, log_every=50),
        finetuning=Finetuning(epochs=epochs, warmup=0.1),
        checkpoint=Checkpoint(every=0),
    )


def most_frequent(labels: list[Any]) -> int:
    """Return how many labels are the most frequent one."""
    return Counter(labels).most_common(1)[0][1]


def simple_guesses(path: Path) -> dict[str, float]:
    """Return the accuracies of two guesses: the most frequent label of a file, and that of each first symbol."""
    examples = Sentences(validation=str(path)).read("validation")
    by_first: dict[str, list[str]] = {}
    for (text,), label in zip(examples.texts, examples.labels, strict=True):
        by_first.setdefault(text[0], []).append(label)
    right = most_frequent(examples.labels), sum(map(most_frequent, by_first.values()))
    return {name: count / len(examples) for name, count in zip(GUESSES, right, strict=True)}


def main() -> None:
    """Train the missing runs, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--output", type=Path, default=Path("runs/long_range_arena"), help="folder of the runs")
    parser.add_argument("--examples", type=int, default=1600, help="trees to train on")
    parser.add_argument("--held_out", type=int, default=400, help="trees to evaluate on")
    parser.add_argument("--epochs", type=float, default=1.0, help="epochs of each run")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    options = parser.parse_args()
    use_one_core()
    reviews = options.data / "finetune" / "movie_reviews"
    files = {
        "ListOps": write_listops(options.output / "listops", options.examples, options.held_out),
        "text": (reviews / "train.jsonl.gz", reviews / "dev.jsonl.gz"),
    }
    tokenizer = trained_tokenizer(files["ListOps"][0], VOCABULARY, options.output / "tokenizer")
    print(f"| model | {' | '.join(f'{task} | published' for task in options.tasks)} |")
    print("|---" * (1 + 2 * len(options.tasks)) + "|", flush=True)
    for name, published in PUBLISHED.items():
        cells = []
        for task in options.tasks:
            workdir = options.output / f"{task}_{name}".replace(" ", "_").lower()
            found = finetune(run_of(name, files[task], tokenizer, options.epochs), RANDOM, workdir)
            cells += [f"{100 * found['eval/accuracy']:.1f}", f"{published[task]:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    guesses = {task: simple_guesses(files[task][1]) for task in options.tasks}
    for guess, tasks in GUESSES.items():
        cells = [f"{100 * guesses[task][guess]:.1f} | -" if task in tasks else "- | -" for task in options.tasks]
        print(f"| {guess} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
