"""The program of a phase: the options with which its step is compiled, for a run and for a plan."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from plmjax.compression.pruning.pruned import GradualPruning
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Data, Experiment, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.parallel.rings import Rings
from plmjax.training import placement
from plmjax.training import program as programs
from plmjax.training.optimizers import BertAdamW
from tests.families import STEPS
from tests.third_party import experiments
from tests.training import built


def bert(rows: int) -> Experiment:
    return Experiment(
        model=BertConfig.tiny(vocab_size=128),
        objective=BertPretraining(),
        data=Data(layout=SentencePairs(), sequence_length=16),
        optimizer=BertAdamW(),
        training=Training(steps=2, batch_size=rows, evaluation_batch_size=rows),
    )


def rings_of(run: Experiment) -> Rings | None:
    """The rings of the step of a run on a slice."""
    return on_text(run, topologies.parse("v5e:4x4").devices()).rings


def on_text(run: Experiment, devices: Sequence[jax.Device]) -> programs.Program:
    """The program of a run on text, on these devices."""
    mesh, (phase,) = meshes.make(run.mesh, devices, run.training.rings), run.resolved_phases
    of_text = {"vocabulary": Vocabulary.placeholder(128), "shapes": placement.text_batch_shapes(run)}
    return programs.build(run, phase, mesh, **of_text)


@dataclasses.dataclass(frozen=True)
class Counting(BertPretraining):
    """Carries the number of its steps, which belongs to no row."""

    def initial_carry(self, config: Any, batch_size: int, sequence_length: int, dtype: Any = None) -> jax.Array:
        return jnp.zeros(())


def test_a_step_has_rings_where_every_device_can_compute_by_itself() -> None:
    run = bert(rows=32)
    assert rings_of(run) == Rings((4, 4))
    many = bert(rows=16 * 8)
    assert rings_of(experiments.changed(many, training={"accumulation": 4})) == Rings((4, 4))
    for other in (
        experiments.changed(many, training={"accumulation": 8}),
        dataclasses.replace(run, compression=GradualPruning()),
        dataclasses.replace(run, objective=Counting()),
        experiments.changed(run, mesh={"zero": False}),
        experiments.changed(run, training={"dropout_prng": "threefry2x32"}),
    ):
        assert rings_of(other) is None


@pytest.mark.parametrize(
    ("platform", "dtype", "unroll"), [("cpu", jnp.float32, 2), ("gpu", jnp.bfloat16, 1), ("tpu", jnp.bfloat16, 1)]
)
def test_what_is_left_open_is_chosen_for_the_platform(platform: str, dtype: Any, unroll: int) -> None:
    run = experiments.gpt2()
    run = experiments.changed(run, training={"dtype": "auto", "unroll": 0})
    found = programs.execution(run, platform)
    assert (found.dtype, found.unroll) == (dtype, unroll)
    named = experiments.changed(run, training={"dtype": "bfloat16", "unroll": 5, "remat": "dots"})
    found = programs.execution(named, platform)
    assert (found.dtype, found.unroll, found.remat) == (jnp.bfloat16, 5, "dots")


def test_an_evaluation_has_rows_of_its_own_number_and_length() -> None:
    """And so has the state that it carries."""
    run = experiments.changed(
        experiments.recurrent(), training={"evaluation_batch_size": 4, "evaluation_sequence_length": 24}
    )
    program = built.program(run)
    assert program.batch["input_ids"].shape == (16, 16) and program.evaluation_batch["input_ids"].shape == (4, 24)
    carries = (jax.eval_shape(make) for make in (program.start_carry, program.start_evaluation_carry))
    rows = [{leaf.shape[1] for leaf in jax.tree.leaves(carry)} for carry in carries]
    assert rows == [{16}, {4}]


def test_a_memory_has_the_dtype_of_the_products_in_training_and_in_evaluation() -> None:
    make, source = STEPS["transformer_xl"]
    run = experiments.changed(make(), training={"dtype": "bfloat16"}, mesh={"data": 1})
    program = built.program(run, source)
    for made in (program.state.carry, *map(jax.eval_shape, (program.start_carry, program.start_evaluation_carry))):
        assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype("bfloat16"), jnp.dtype("int32")}


def test_the_state_of_a_step_and_of_an_evaluation_of_the_optimizer_is_given_away() -> None:
    """Its memory is that of the next state: a step never holds two of them."""
    make, source = STEPS["word2vec"]
    program = built.program(make(), source)
    loss = jax.ShapeDtypeStruct((), jnp.float32)
    for lowered in (
        program.train.lower(program.state, program.batch),
        program.on_evaluation.lower(program.state, loss),
    ):
        (state, given), _ = lowered.args_info
        assert all(leaf.donated for leaf in jax.tree.leaves(state))
        assert not any(leaf.donated for leaf in jax.tree.leaves(given))
