"""Labels of long movie reviews: a RoBERTa that reads their first 512 tokens, beside its Longformer that reads 2,048.

    python benchmarks/long_reviews.py DATA --output runs/long_reviews

DATA is the folder of data that holds finetune/movie_reviews, 1,600 reviews of some 800 words to train on and 200 to
evaluate on (Pang and Lee 2004). A RoBERTa of two layers of 64 is pretrained on the texts of the former, in short rows
first, and in the end in rows of as many tokens as it will read. It is then fine-tuned with each seed, once as it is and
once as the Longformer that `LongformerFromRoberta` makes of it, with windows of 128 tokens and <s> as the global one.
Every run is a folder of OUTPUT, and a command that is run again resumes. It prints the tokens of a review, and
accuracies in percent.

Deviation: the published models have 12 layers, windows of 512, and up to 4,096 tokens, and were pretrained on long
documents of many kinds (Beltagy et al. 2020, sections 5 and 6).
"""

import argparse
import statistics
from pathlib import Path

import numpy as np
from long_range_arena import trained_tokenizer
from turns import use_one_core

from plmjax.data import tokenizers
from plmjax.data.layouts import FullSentences
from plmjax.experiment import Checkpoint, Data, Experiment, Finetuning, Phase, Tokenizer, Training, WeightMapping
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.models.roberta import RobertaConfig
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.runs.finetuning import finetune
from plmjax.runs.pretraining import pretrain
from plmjax.runs.weight_mappings.longformer import LongformerFromRoberta
from plmjax.training.optimizers import AdamW
from plmjax.training.optimizers.schedules import Linear

VOCABULARY, WINDOW, SEEDS = 8000, 128, (0, 1, 2)
NAMES = "RoBERTa", "Longformer"


def pretraining(reviews: Path, length: int, tokenizer: Tokenizer, steps: int) -> Experiment:
    """Return the pretraining: 1,024 tokens a step, Adam at 1e-3 without dropout."""
    return Experiment(
        model=RobertaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=256,
            max_position_embeddings=length + 2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.05,
        ),
        objective=RobertaPretraining(),
        tokenizer=tokenizer,
        data=Data(layout=FullSentences(), format="jsonl", input=(str(reviews),), sequence_length=length, held_out=0.05),
        optimizer=AdamW(learning_rate=1e-3, schedule=Linear(warmup_steps=steps // 20), beta2=0.98),
        training=Training(
            steps=steps, batch_size=1024 // length, log_every=200, evaluate_every=1000, evaluation_batches=20
        ),
        phases=tuple(
            Phase(fraction=share, sequence_length=tokens, batch_size=1024 // tokens)
            for share, tokens in ((0.5, 32), (0.3, 128), (0.2, length))
        ),
        checkpoint=Checkpoint(every=1000, keep=1),
    )


def finetuning(name: str, length: int, seed: int, *, folder: Path, epochs: float) -> Experiment:
    """Return the run of a model in rows of `length` tokens: 8 reviews a step, AdamW at 1e-3 with dropout."""
    weight_mapping = LongformerFromRoberta(length=length, attention_window=(WINDOW,), max_global_tokens=1)
    return Experiment(
        model=None,
        objective=SequenceClassification(),
        data=Sentences(
            train=str(folder / "train.jsonl.gz"), validation=str(folder / "dev.jsonl.gz"), sequence_length=length
        ),
        optimizer=AdamW(learning_rate=1e-3),
        training=Training(steps=0, batch_size=8, log_every=50, seed=seed),
        finetuning=Finetuning(epochs=epochs, warmup=0.1, dropout=0.1),
        weight_mapping=weight_mapping if name == "Longformer" else WeightMapping(),
        checkpoint=Checkpoint(every=0),
    )


def token_counts(folder: Path, tokenizer: Tokenizer) -> np.ndarray:
    """Return the number of tokens of each review of the validation file, without special tokens."""
    examples = Sentences(validation=str(folder / "dev.jsonl.gz")).read("validation")
    encoded = tokenizers.load(tokenizer.path).encode_batch([text for (text,) in examples.texts])
    return np.array([len(ids) for ids in encoded])


def line(name: str, length: int, accuracies: list[float]) -> str:
    """Return the line of a model: the accuracies of its seeds, and their mean."""
    cells = [f"{100 * each:.1f}" for each in (*accuracies, statistics.mean(accuracies))]
    return f"| {name} | {length:,} | {' | '.join(cells)} |"


def main() -> None:
    """Train the missing runs, and print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder of the data")
    parser.add_argument("--output", type=Path, default=Path("runs/long_reviews"), help="folder of the runs")
    parser.add_argument("--short", type=int, default=512, help="tokens that the RoBERTa reads")
    parser.add_argument("--long", type=int, default=2048, help="tokens that the Longformer reads")
    parser.add_argument("--pretraining_steps", type=int, default=12000, help="steps of 1,024 tokens of the RoBERTa")
    parser.add_argument("--epochs", type=float, default=4.0, help="epochs of each fine-tuning")
    options = parser.parse_args()
    use_one_core()
    folder = options.data / "finetune" / "movie_reviews"
    tokenizer = trained_tokenizer(folder / "train.jsonl.gz", VOCABULARY, options.output / "tokenizer")
    counts = token_counts(folder, tokenizer)
    longer = " and ".join(
        f"{np.mean(counts > length):.0%} more than {length:,}" for length in (options.short, options.long)
    )
    print(f"A review has {np.median(counts):,.0f} tokens in the median; {longer}.", flush=True)
    pretrained = options.output / "roberta"
    pretrain(pretraining(folder / "train.jsonl.gz", options.short, tokenizer, options.pretraining_steps), pretrained)
    print(f"| model | tokens | {' | '.join(f'seed {seed}' for seed in SEEDS)} | mean |")
    print("|---" * (len(SEEDS) + 3) + "|", flush=True)
    for name, length in zip(NAMES, (options.short, options.long), strict=True):
        found = []
        for seed in SEEDS:
            run = finetuning(name, length, seed, folder=folder, epochs=options.epochs)
            found.append(finetune(run, pretrained, options.output / f"{name.lower()}_{seed}")["eval/accuracy"])
        print(line(name, length, found), flush=True)


if __name__ == "__main__":
    main()
