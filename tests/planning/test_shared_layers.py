"""The savings of ALBERT's sharing, in the compiled train step: the weights of one layer, whatever the depth."""

import dataclasses
import functools

import jax
import pytest

from plmjax import experiment as experiments
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentenceOrder, SentencePairs
from plmjax.experiment import Data, Experiment, Training
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import topologies
from plmjax.planning import compilation, hlo
from plmjax.training import placement
from plmjax.training.optimizers import Lamb
from tests.paths import ROOT

SIZE, INNER, ROWS, LENGTH, MICROBATCHES = 512, 2048, 4, 16, 2
SMALLEST_KERNEL = SIZE * SIZE  # far more numbers than a layer has activations of any one kind: ROWS * LENGTH * INNER
DEPTHS = (2, 7)  # 7 is no other dimension


def experiment(name: str, depth: int) -> Experiment:
    """The run of a model with large weights and small activations."""
    sizes = {"vocab_size": 256, "num_hidden_layers": depth, "hidden_size": SIZE, "num_attention_heads": 8}
    sizes |= {"intermediate_size": INNER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    of = {
        "albert": (AlbertConfig, AlbertPretraining(), SentenceOrder()),
        "bert": (BertConfig, BertPretraining(), SentencePairs()),
    }
    config, objective, layout = of[name]
    training = Training(steps=10, batch_size=ROWS * MICROBATCHES, accumulation=MICROBATCHES)
    data = Data(layout=layout, sequence_length=LENGTH)
    return Experiment(config(**sizes), objective, data, optimizer=Lamb(), training=training)


@functools.cache
def compiled(name: str, depth: int) -> compilation.Compilation:
    """Its train step for one TPU chip."""
    run = experiment(name, depth)
    (phase,) = run.resolved_phases
    batches = compilation.Batches.of_text(run)
    mesh = compilation.place(run, batches, topologies.parse("v5e:1x1")).mesh
    return compilation.compile_phase(run, batches, phase, mesh)


@pytest.mark.nightly  # the TPU's compiler takes 16 s; by day the test before this one: pytest -m nightly tests/planning
def test_no_array_holds_a_copy_of_a_weight_for_every_layer() -> None:
    """Arguments are the parameters of one layer and their optimizer state; activations alone have a place per layer."""
    deep = compiled("albert", DEPTHS[1])
    state = deep.program.state
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state.params, state.optimizer_state)))
    assert deep.memory.argument_size_in_bytes < 1.02 * held
    stacked = hlo.Program(deep.text).largest(DEPTHS[1])
    assert stacked is not None and stacked.size <= DEPTHS[1] * ROWS * LENGTH * INNER < DEPTHS[1] * SMALLEST_KERNEL


@pytest.mark.nightly  # half a minute of the compiler for each of two programs: pytest -m nightly tests/planning
def test_more_layers_add_activations_alone() -> None:
    shallow, deep = (compiled("albert", depth) for depth in DEPTHS)
    assert shallow.memory.argument_size_in_bytes == deep.memory.argument_size_in_bytes
    more = (deep.memory.temp_size_in_bytes - shallow.memory.temp_size_in_bytes) / (DEPTHS[1] - DEPTHS[0])
    activations = 2 * ROWS * LENGTH * (8 * SIZE + 3 * INNER)  # bfloat16: inputs and outputs of the products, norms
    weights = 2 * (4 * SIZE**2 + 2 * SIZE * INNER)  # of a layer, bfloat16
    assert more < 1.5 * activations < weights / 3
    own = hlo.Program(compiled("bert", DEPTHS[1]).text).largest(DEPTHS[1])
    assert own is not None and own.size >= DEPTHS[1] * SIZE * INNER, "where layers have weights of their own, they show"


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
