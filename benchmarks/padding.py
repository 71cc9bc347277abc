"""The gain of packing: real tokens per second of fine-tuning steps, packed beside every pair in its own padded row.

    python benchmarks/padding.py snli/dev.tsv.gz

The vocabulary is trained on the file. All settings have nearly the same number of examples per step. They alternate and
are measured in wall-clock time and in processor time, which other work on the machine disturbs less. Figures are
medians over the rounds.
"""

import argparse
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from one_device import compiled

from plmjax import experiment as experiments
from plmjax.data import tokenizers
from plmjax.experiment import Experiment
from plmjax.finetuning.batches.source import TaskSource
from plmjax.finetuning.inputs import rows
from plmjax.models.bert import BertConfig
from plmjax.training.feed import local_rows, on_device

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "finetune_sentences.py"
SETTINGS = {
    "packed, rows of 128": (128, 16, 8),
    "packed, rows of 64": (64, 8, 16),
    "padded to 64": (64, 1, 32),
    "padded to 128": (128, 1, 32),
}
"""Name -> (row length, maximum number of examples in a row, rows of a step)."""


class Steps:
    """Training steps of one setting, each with its own batch."""

    def __init__(self, run: Experiment, source: TaskSource) -> None:
        (phase,) = run.resolved_phases
        program = compiled(run, source.vocabulary, source.batch)
        self._state, self._step = program.initialize(0), program.train
        shapes = program.batch
        self._batches: Iterator[dict[str, jax.Array]] = on_device(source.train(phase, 0, local_rows(shapes)), shapes)

    def turn(self, count: int) -> np.ndarray:
        """Return the real tokens, examples, seconds and processor seconds of that many steps, with the batches."""
        tokens = examples = 0
        start, start_cpu = time.perf_counter(), time.process_time()
        for batch in itertools.islice(self._batches, count):
            self._state, metrics = self._step(self._state, batch)
            tokens += int(np.sum(np.asarray(batch["segment_ids"]) > 0))
            examples += int(np.sum(np.asarray(batch["example_ids"]) >= 0))
            jax.block_until_ready(metrics)
        return np.array([tokens, examples, time.perf_counter() - start, time.process_time() - start_cpu])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="SNLI's pairs")
    parser.add_argument("--turns", type=int, default=5, help="turns of each setting")
    parser.add_argument("--steps", type=int, default=2, help="steps of a turn")
    options = parser.parse_args()
    run = experiments.load(f"{EXPERIMENT}:snli")
    examples = dataclasses.replace(run.data, train=options.file).read("train")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tokenizers.train("wordpiece", 8192, [" ".join(pair) for pair in examples.texts], folder)
    model = BertConfig(8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    run = dataclasses.replace(run, model=model, objective=run.objective.fit_labels(examples))
    measured = {}
    for name, (length, pack, batch_size) in SETTINGS.items():
        data = dataclasses.replace(run.data, sequence_length=length, pack=pack)
        training = dataclasses.replace(run.training, steps=10_000, batch_size=batch_size)
        own = dataclasses.replace(run, data=data, training=training)
        made = rows(own, examples, tokenizer)
        measured[name] = Steps(own, TaskSource([made], made, tokenizer.vocabulary, seed=0))
        measured[name].turn(1)  # the first step warms up
    # [turns settings (tokens, examples, seconds, processor seconds)]
    turns = np.array([[steps.turn(options.steps) for steps in measured.values()] for _ in range(options.turns)])
    rates, cpu_rates = turns[..., 0] / turns[..., 2], turns[..., 0] / turns[..., 3]
    print("| | examples a step | real tokens a second | range | a processor second | padded to 64 | to 128 |")
    print("|---|---|---|---|---|---|---|")
    for place, name in enumerate(SETTINGS):
        held = turns[:, place, 1].mean() / options.steps
        own, cpu = rates[:, place], cpu_rates[:, place]
        cells = [
            f"{held:.0f}",
            f"{np.median(own):,.0f}",
            f"{own.min():,.0f} to {own.max():,.0f}",
            f"{np.median(cpu):,.0f}",
        ]
        for other in (list(SETTINGS).index(setting) for setting in ("padded to 64", "padded to 128")):
            clock, processor = np.median(own / rates[:, other]), np.median(cpu / cpu_rates[:, other])
            cells.append(f"{clock:.2f}, {processor:.2f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
