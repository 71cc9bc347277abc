"""The savings of ALBERT's sharing, in the compiled train step: the weights of one layer, whatever the depth."""

import dataclasses

import jax
import pytest

from plmjax import experiment as experiments
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentenceOrder
from plmjax.experiment import Data, Experiment, Training
from plmjax.models.albert import AlbertConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.parallel import topologies
from plmjax.planning import compilation, hlo
from plmjax.training import placement
from plmjax.training.optimizers import Lamb
from tests.paths import ROOT

SIZE, INNER, ROWS, LENGTH, MICROBATCHES, DEPTH = 512, 2048, 4, 16, 2, 7  # 7 is no other dimension


@pytest.mark.nightly  # the TPU's compiler takes 16 s; by day the test below: pytest -m nightly tests/planning
def test_no_array_holds_a_copy_of_a_weight_for_every_layer() -> None:
    """Arguments are the parameters of one layer and their optimizer state; activations alone have a place per layer."""
    sizes = {"vocab_size": 256, "num_hidden_layers": DEPTH, "hidden_size": SIZE, "num_attention_heads": 8}
    sizes |= {"intermediate_size": INNER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    training = Training(steps=10, batch_size=ROWS * MICROBATCHES, accumulation=MICROBATCHES)
    data = Data(layout=SentenceOrder(), sequence_length=LENGTH)
    run = Experiment(AlbertConfig(**sizes), AlbertPretraining(), data, optimizer=Lamb(), training=training)
    (phase,) = run.resolved_phases
    batches = compilation.Batches.of_text(run)
    mesh = compilation.place(run, batches, topologies.parse("v5e:1x1")).mesh
    deep = compilation.compile_phase(run, batches, phase, mesh)
    state = deep.program.state
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state.params, state.optimizer_state)))
    assert deep.memory.argument_size_in_bytes < 1.02 * held
    stacked = hlo.Program(deep.text).largest(DEPTH)
    assert stacked is not None and stacked.size <= DEPTH * ROWS * LENGTH * INNER < DEPTH * SIZE**2


def test_the_largest_size_takes_what_one_layer_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """ALBERT-xxlarge: 223,158,450 float32 parameters, LAMB's two moments of each, and nothing else that grows."""
    monkeypatch.chdir(ROOT)
    run = experiments.load("experiments/albert_base_8x8.py:xxlarge")
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, batch_size=run.training.accumulation))
    (phase,) = run.resolved_phases
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    state = placement.state_bytes(
        run, phase, (1, 1, 1), devices=jax.devices()[:1], vocabulary=vocabulary, shapes=placement.text_batch_shapes(run)
    )
    assert state.copy == 4 * 223_158_450
    assert 0 <= state.kept - 3 * state.copy < 100
