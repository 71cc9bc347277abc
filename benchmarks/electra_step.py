"""ELECTRA's joint training step beside the steps of its two networks alone, alternately on the CPU.

    python benchmarks/electra_step.py [--rows 8] [--repeats 9]

ELECTRA-Small, length 128, 19 predictions per row, float32, dropout 0.1, AdamW: corruption, forward, backward and
update. The generator alone predicts the masked tokens. The discriminator alone reads tokens that a hash replaced. The
joint step adds the sampling of tokens, and saves one of two updates of the embeddings that both networks share. A step
is measured in CPU-seconds of the process, which is bound to one core. Linux only.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import jax

from plmjax import experiment
from plmjax.contracts.system import Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import Segments
from plmjax.models.electra import ElectraConfig, ElectraForReplacedTokenDetection
from plmjax.objectives.electra import ElectraPretraining, detection_sums
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import LossSums, apply
from plmjax.parallel import mesh
from plmjax.training import program as programs
from plmjax.training.optimizers import BertAdamW

LENGTH, VOCABULARY = 128, 30522


class Generator(ElectraPretraining):
    """The masked language model alone."""

    def module(self, config, execution):
        return config.module(Purpose.MASKED_TOKENS, execution)

    def weights(self, batch):
        return {"mlm": super().weights(batch)["mlm"]}

    def sums(self, module, loss_inputs, batch, key, *, training):
        return MaskedLanguageModel.masked_sums(
            apply(self, module, loss_inputs, batch, key, training=training).logits, batch
        )

    def train_flops(self, config, batch):
        return config.train_flops(*batch["input_ids"].shape, self.predictions(batch))


class Discriminator(ElectraPretraining):
    """Replaced token detection alone, with a seventh of the tokens replaced."""

    def module(self, config, execution):
        return ElectraForReplacedTokenDetection(config, execution)

    def model_inputs(self, batch):
        return {name: field for name, field in super().model_inputs(batch).items() if name != "masked_positions"}

    def corrupt(self, batch, key, vocabulary, constants=()):
        fake = batch["input_ids"] % 7 == 0
        return batch | {"input_ids": (batch["input_ids"] + fake) % VOCABULARY, "fake": fake}

    def weights(self, batch):
        return {"rtd": (batch["segment_ids"] > 0).sum().astype("float32")}

    def sums(self, module, loss_inputs, batch, key, *, training):
        found = detection_sums(
            apply(self, module, loss_inputs, batch, key, training=training).logits, batch, batch["fake"]
        )
        return LossSums(found.losses, found.metrics)

    def train_flops(self, config, batch):
        return ElectraPretraining().train_flops(config, batch) - Generator().train_flops(config, batch)


def stepper(objective: ElectraPretraining, rows: int) -> tuple[Callable[[], float], float]:
    """Return (a function that takes one step and returns its loss, the model FLOPs of a step in closed form)."""
    run = experiment.Experiment(
        model=ElectraConfig.small(),
        objective=objective,
        data=experiment.Data(Segments(), sequence_length=LENGTH),
        optimizer=BertAdamW(),
        training=experiment.Training(batch_size=rows, steps=1000),
    )
    phase = run.resolved_phases[0]
    shapes = run.data.layout.batch(rows, LENGTH)
    vocabulary = Vocabulary.placeholder(VOCABULARY)
    program = programs.build(run, phase, mesh.make(run.mesh, jax.devices()[:1]), vocabulary, lambda _: shapes)
    batch = run.data.layout.synthetic(rows, LENGTH, VOCABULARY, 0)
    state = program.initialize(0)

    def take() -> float:
        nonlocal state
        state, metrics = program.train(state, batch)
        return float(metrics["loss"])

    return take, objective.train_flops(run.model, shapes)


def main() -> None:
    """Alternate the three steps and print medians, ranges and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    steps = {"joint": ElectraPretraining(), "generator": Generator(), "discriminator": Discriminator()}
    made = {name: stepper(objective, arguments.rows) for name, objective in steps.items()}
    measured = {name: [] for name in made}
    for repeat in range(-2, arguments.repeats):  # two steps warm up: compilation, memory, caches
        for name, (take, _) in made.items():
            cpu = time.process_time()
            take()
            if repeat >= 0:
                measured[name].append(time.process_time() - cpu)
    median = {name: statistics.median(seconds) for name, seconds in measured.items()}
    for name, seconds in measured.items():
        print(
            f"{name:13} {median[name]:6.3f} CPU-seconds a step ({min(seconds):.3f} to {max(seconds):.3f}), "
            f"{made[name][1] / 1e9:7.2f} model GFLOP"
        )
    parts = median["generator"] + median["discriminator"]
    print(f"the joint step takes {median['joint'] / parts:.3f} of the total time of its parts")


if __name__ == "__main__":
    main()
