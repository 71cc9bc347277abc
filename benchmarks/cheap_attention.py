"""Decoders with cheap attention beside GPT-2, trained with the same FLOPs on the same bytes: bits per byte.

    python benchmarks/cheap_attention.py TRAIN HELD_OUT

TRAIN is a folder of books and HELD_OUT a book or a folder of books. The models are those of the tiny experiments, which
all have a width of 128, with an optimizer and a schedule of their own, and here with bytes in place of tokens, 1,024
bytes a step and a warm-up of 50 steps. Rows have 512 bytes, except for the two models with a memory, which read
segments of 64 bytes. Each is a run directory in OUTPUT, so a command that was stopped continues. It prints a table, and
runs on one core if the system can bind to it.

FLOPs are those of `train_flops`: matrix products, with the scores of all pairs that a layer computes. Those of
Adaptive-Span are with the 64 bytes before each that it reads at first; it reads more when a head looks farther back.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from context_length import HEADER, ROOT, row, trained
from turns import use_one_core

from plmjax import experiment as experiments
from plmjax.data.layouts import ContiguousStreams
from plmjax.experiment import Experiment
from plmjax.inference.evaluate import evaluate

BYTES, LENGTH, ROWS, WINDOW, WARMUP = 257, 512, 2, 64, 50
"""Vocabulary size, tokens in a row, rows in a batch, tokens before each in a window, and steps of warm-up."""
DEVIATION = 0.05
"""Standard deviation of the initial weights of GPT-2 and Transformer-XL, as Longformer and Reformer have it."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("gpt2_tiny", {"n_positions": LENGTH, "initializer_range": DEVIATION}),
    "GPT-2, window": (
        "gpt2_tiny",
        {"n_positions": LENGTH, "initializer_range": DEVIATION, "attention_window": WINDOW},
    ),
    "Longformer": ("longformer_characters_tiny", {"attention_window": (WINDOW // 2, WINDOW)}),
    "Transformer-XL": ("transformer_xl_tiny", {"init_std": DEVIATION}),
    "Adaptive-Span": ("adaptive_span_tiny", {"computed_span": WINDOW}),
    "Reformer": ("reformer_tiny", {}),
    "Lite Transformer": ("lite_transformer_tiny", {"max_position_embeddings": LENGTH}),
}
"""Name in the table -> its experiment and what is changed in its model. The first one's tokenizer serves all."""


def run_of(name: str) -> Experiment:
    """Return the run of a model on bytes."""
    experiment, changes = MODELS[name]
    run = experiments.load(str(ROOT / "experiments" / f"{experiment}.py"))
    schedule = dataclasses.replace(run.optimizer.schedule, warmup_steps=WARMUP)
    run = dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, vocab_size=BYTES, **changes),
        tokenizer=dataclasses.replace(run.tokenizer, vocab_size=BYTES),
        optimizer=dataclasses.replace(run.optimizer, schedule=schedule),
    )
    if isinstance(run.data.layout, ContiguousStreams):
        return run
    data = dataclasses.replace(run.data, sequence_length=LENGTH)
    return dataclasses.replace(run, data=data, training=dataclasses.replace(run.training, batch_size=ROWS))


def measured(workdir: Path, run: Experiment, text: Path) -> tuple[dict[str, Any], str]:
    """Return the result of an evaluation, and the tokens before each as the table names them.

    The text is read in windows that move by half of their length, or in segments with a memory.
    """
    if isinstance(run.data.layout, ContiguousStreams):
        return evaluate(workdir, text, format="books"), "all, remembered"
    found = evaluate(workdir, text, window=LENGTH, stride=LENGTH // 2, format="books")
    return found, f"{LENGTH // 2} to {LENGTH - 1}, in windows"


def main() -> None:
    """Train the models and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path, help="folder of books to train on")
    parser.add_argument("held_out", type=Path, help="a book or a folder of books to evaluate on")
    parser.add_argument("--output", type=Path, default=Path("runs/cheap_attention"), help="folder of the runs")
    parser.add_argument("--budget", type=float, default=1e12, help="model FLOPs of each pretraining")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), help="the first one leads")
    options = parser.parse_args()
    use_one_core()
    print(HEADER, flush=True)
    workdirs = [options.output / name.lower().replace(", ", "_").replace(" ", "_") for name in options.models]
    for name, workdir in zip(options.models, workdirs, strict=True):
        run = run_of(name)
        trained(run, workdir, workdirs[0], options)
        print(row(name, workdir, *measured(workdir, run, options.held_out)), flush=True)


if __name__ == "__main__":
    main()
