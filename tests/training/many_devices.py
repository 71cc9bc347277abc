"""A few steps of a narrow BERT-Base on 1 and on 32 (v2:4x4) simulated devices; prints JSON.

The tests' own process has eight devices, so that this one must be a process of its own, with 32 in its XLA_FLAGS.
"""

import dataclasses
import json

import jax

from plmjax import experiment as experiments
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.experiment import Experiment
from plmjax.models.bert import BertConfig
from plmjax.training import placement
from plmjax.training import program as programs
from plmjax.training.optimizers.schedules import Linear
from plmjax.training.state import TrainState
from tests.third_party.experiments import changed, without_dropout

STEPS = 2


def narrow() -> Experiment:
    """The published BERT-Base run, 64 rows of 16, with one layer of 32 features."""
    run = experiments.load("experiments/bert_base_4x4.py")
    tiny = BertConfig.tiny(
        vocab_size=512, num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=64
    )
    run = changed(
        run,
        data={"sequence_length": 16},
        training={"steps": STEPS, "batch_size": 64, "unroll": 1},
        optimizer={"learning_rate": 1e-2, "schedule": Linear()},
    )
    return without_dropout(dataclasses.replace(run, model=tiny, phases=()))


def program(run: Experiment, devices: list[jax.Device]) -> programs.Program:
    """The program of the run's only phase on the mesh that is chosen for it."""
    (phase,) = run.resolved_phases
    vocabulary, shapes = Vocabulary.placeholder(512), placement.of_layout(run)
    mesh = placement.choose_mesh(run, devices, vocabulary, shapes).mesh
    return programs.build(run, phase, mesh, vocabulary, shapes)


def losses(run: Experiment, built: programs.Program, start: TrainState) -> list[float]:
    """The loss of every step from a first state, which lies on the host."""
    state, found = jax.tree.map(lambda value, like: jax.device_put(value, like.sharding), start, built.state), []
    for number in range(STEPS):
        batch = run.data.layout.synthetic(built.phase.batch_size, built.phase.sequence_length, 512, number)
        placed = {name: jax.device_put(values, built.batch[name].sharding) for name, values in batch.items()}
        state, metrics = built.train(state, placed)
        found.append(float(metrics["loss"]))
    return found


if __name__ == "__main__":
    run = narrow()
    built = [program(run, jax.devices()[:count]) for count in (1, 32)]
    start = jax.device_get(built[0].initialize(run.training.seed))
    print(json.dumps([[one.mesh.devices.shape, losses(run, one, start)] for one in built]))
