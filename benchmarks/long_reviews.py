"""Labels of long movie reviews: a BERT that reads their beginning, beside a Longformer that reads four times as much.

    python benchmarks/long_reviews.py DATA --output runs/long_reviews

DATA is the folder of data that holds finetune/movie_reviews, 1,600 reviews of some 800 words to train on and 200 to
evaluate on (Pang and Lee 2004). Both models have two layers of 64 and the same tokenizer, and are trained from random
parameters with each seed. Longformer has windows of 64 tokens, and <s> is global. Every run is a folder of OUTPUT, and
a command that is run again resumes. It prints accuracies in percent.

Deviation: the published models are pretrained and read 512 and up to 4,096 tokens (Beltagy et al. 2020, section 6).
`--short 512 --long 2048` reads four times as much.
"""

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

from long_range_arena import trained_tokenizer

from plmjax.experiment import Checkpoint, Experiment, Finetuning, Tokenizer, Training
from plmjax.finetuning.run import finetune
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.models.bert import BertConfig
from plmjax.models.longformer.longformer import LongformerConfig
from plmjax.training.checkpoints.start import RANDOM
from plmjax.training.optimizers import AdamW

VOCABULARY, WINDOW, SEEDS = 8000, 64, (0, 1, 2)
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.05,
    "pad_token_id": 1,
}


def config_of(name: str, length: int) -> Any:
    """Return the sizes of a model for rows of `length` tokens."""
    if name == "BERT":
        return BertConfig(**SIZES, max_position_embeddings=length)
    window = {"attention_window": (WINDOW,), "max_global_tokens": 1}
    return LongformerConfig(**SIZES, **window, max_position_embeddings=length + 2)


def run_of(name: str, length: int, seed: int, data: Path, tokenizer: Tokenizer, epochs: float) -> Experiment:
    """Return the run of a model: 8 reviews a step, AdamW at 1e-3 with dropout."""
    folder = data / "finetune" / "movie_reviews"
    files = {"train": str(folder / "train.jsonl.gz"), "validation": str(folder / "dev.jsonl.gz")}
    return Experiment(
        model=config_of(name, length),
        objective=SequenceClassification(),
        tokenizer=tokenizer,
        data=Sentences(**files, sequence_length=length),
        optimizer=AdamW(learning_rate=1e-3),
        training=Training(steps=0, batch_size=8, log_every=50, seed=seed),
        finetuning=Finetuning(epochs=epochs, warmup=0.1),
        checkpoint=Checkpoint(every=0),
    )


def line(name: str, length: int, accuracies: list[float]) -> str:
    """Return the line of a model: the accuracies of its seeds, and their mean."""
    cells = [f"{100 * each:.1f}" for each in (*accuracies, statistics.mean(accuracies))]
    return f"| {name} | {length:,} | {' | '.join(cells)} |"


def main() -> None:
    """Train the missing runs, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--output", type=Path, default=Path("runs/long_reviews"), help="folder of the runs")
    parser.add_argument("--short", type=int, default=128, help="tokens that BERT reads")
    parser.add_argument("--long", type=int, default=512, help="tokens that Longformer reads")
    parser.add_argument("--epochs", type=float, default=2.0, help="epochs of each run")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # before JAX starts its threads
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"| model | tokens | {' | '.join(f'seed {seed}' for seed in SEEDS)} | mean |")
    print("|---" * (len(SEEDS) + 3) + "|", flush=True)
    train = options.data / "finetune" / "movie_reviews" / "train.jsonl.gz"
    tokenizer = trained_tokenizer(train, VOCABULARY, options.output / "tokenizer")
    for name, length in (("BERT", options.short), ("Longformer", options.long)):
        found = []
        for seed in SEEDS:
            workdir = options.output / f"{name.lower()}_{length}_{seed}"
            run = run_of(name, length, seed, options.data, tokenizer, options.epochs)
            found.append(finetune(run, RANDOM, workdir)["eval/accuracy"])
        print(line(name, length, found), flush=True)


if __name__ == "__main__":
    main()
