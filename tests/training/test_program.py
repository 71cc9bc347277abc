"""The program of a phase: the options with which its step is compiled, for a run and for a plan."""

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from plmjax.compression.pruning.pruned import GradualPruning
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Phase, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.parallel.rings import Rings
from plmjax.plan import compilation
from plmjax.training import placement, rows
from plmjax.training import program as programs
from plmjax.training.optimizers import Adagrad, BertAdamW
from tests.families import STEPS
from tests.strangers import experiments
from tests.strangers.source import ChainSource


def bert(rows: int) -> Experiment:
    return Experiment(
        model=BertConfig.tiny(vocab_size=128),
        objective=BertPretraining(),
        data=Data(layout=SentencePairs(), sequence_length=16),
        optimizer=BertAdamW(),
        training=Training(steps=2, batch_size=rows, evaluation_batch_size=rows),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("planned", [False, True])
def test_a_run_and_its_plan_compile_the_step_with_the_options_of_the_device(planned, monkeypatch):
    asked = []

    def refused(device: jax.Device, *, rings: bool) -> dict[str, str]:
        asked.append(device.device_kind)
        return {"xla_option_that_is_not_there": "1"}

    monkeypatch.setattr(topologies, "compiler_options", refused)
    run = bert(rows=4)
    devices = topologies.parse("v5e:1x1").devices() if planned else jax.devices()[:1]
    mesh, (phase,) = meshes.make(run.mesh, devices), run.resolved_phases
    with pytest.raises((jax.errors.JaxRuntimeError, UserError), match="xla_option_that_is_not_there"):
        if planned:
            compilation.compile_phase(run, compilation.Batches.of_text(run), phase, mesh)
        else:
            program = programs.build(run, phase, mesh, Vocabulary.placeholder(128), placement.of_layout(run))
            program.train.lower(program.state, program.batch).compile()
    assert {*asked} == {devices[0].device_kind}


def rings_of(run: Experiment, topology: str = "v5e:4x4") -> Rings | None:
    """The rings of the step of a run on a slice, and whether its options are those of a step with rings."""
    (phase,) = run.resolved_phases
    mesh = meshes.make(run.mesh, topologies.parse(topology).devices())
    vocabulary, asked = Vocabulary.placeholder(128), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topologies, "compiler_options", lambda device, *, rings: asked.append((device, rings)) or {})
        patch.setattr(programs, "Forward", lambda *given, **named: asked.append(named["shares"].rings) or named)
        programs.build(run, phase, mesh, vocabulary, placement.of_layout(run))
    training, evaluation, (device, with_rings) = asked
    assert device in mesh.devices
    assert evaluation is None
    assert with_rings == (training is not None)
    return training


@dataclasses.dataclass(frozen=True)
class Counting(BertPretraining):
    """Carries the number of its steps, which belongs to no row."""

    def initial_carry(self, config: Any, batch_size: int, sequence_length: int, dtype: Any = None) -> jax.Array:
        return jnp.zeros(())


def test_a_step_has_rings_where_every_device_can_compute_by_itself() -> None:
    run = bert(rows=32)
    assert rings_of(run) == Rings((4, 4))
    assert rings_of(run, "v3:2x2") is None
    assert rings_of(experiments.changed(run, training={"accumulation": 2})) == Rings((4, 4))
    many = bert(rows=16 * 8)
    assert rings_of(experiments.changed(many, training={"accumulation": 4})) == Rings((4, 4))
    assert rings_of(experiments.changed(many, training={"accumulation": 8})) is None
    assert rings_of(dataclasses.replace(run, compression=GradualPruning())) is None
    assert rings_of(dataclasses.replace(run, objective=Counting())) is None

    assert rings_of(experiments.changed(run, mesh={"tensor": 2})) is None
    assert rings_of(experiments.changed(run, mesh={"zero": False})) is None
    assert rings_of(experiments.changed(run, training={"dropout_generator": "threefry2x32"})) is None


def test_phases_share_one_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of the update and that of the log fall over the whole run, not over each phase."""
    asked, build = [], BertAdamW.build
    monkeypatch.setattr(BertAdamW, "build", lambda self, steps, *rest: asked.append(steps) or build(self, steps, *rest))
    run = experiments.changed(bert(rows=4), training={"steps": 8}, optimizer={"learning_rate": 1.0})
    run = dataclasses.replace(run, phases=(Phase(0.5), Phase(0.5, sequence_length=8)))
    last = run.resolved_phases[1]
    mesh = meshes.make(run.mesh, jax.devices()[:1])
    programs.build(run, last, mesh, Vocabulary.placeholder(128), placement.of_layout(run))
    assert asked == [8]
    optimizer = build(run.optimizer, 8, {"kernel": jnp.ones(2)})
    update = programs.update_rule(run, last, optimizer, mesh)
    state = optimizer.init({"kernel": jnp.ones(2)})
    assert [float(update.learning_rate(state, jnp.int32(step))) for step in (0, 4, 6)] == [1.0, 0.5, 0.25]


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
    (phase,) = run.resolved_phases
    mesh, source = meshes.make(run.mesh, jax.devices()[:1]), ChainSource(run.data)
    program = programs.build(run, phase, mesh, source.vocabulary, source.batch)
    assert program.batch["input_ids"].shape == (16, 16) and program.evaluation_batch["input_ids"].shape == (4, 24)
    carries = (jax.eval_shape(make) for make in (program.start_carry, program.start_evaluation_carry))
    rows = [{leaf.shape[1] for leaf in jax.tree.leaves(carry)} for carry in carries]
    assert rows == [{16}, {4}]


def test_a_memory_has_the_dtype_of_the_products_in_training_and_in_evaluation() -> None:
    make, source = STEPS["transformer_xl"]
    run = experiments.changed(make(), training={"dtype": "bfloat16"}, mesh={"data": 1})
    (phase,), source = run.resolved_phases, source(run.data)
    mesh = meshes.make(run.mesh, jax.devices()[:1])
    program = programs.build(run, phase, mesh, source.vocabulary, source.batch)
    for made in (program.state.carry, *map(jax.eval_shape, (program.start_carry, program.start_evaluation_carry))):
        assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype("bfloat16"), jnp.dtype("int32")}


@pytest.mark.parametrize(("optimizer", "by_rows"), [(Adagrad(), True), (BertAdamW(), False), (None, False)])
def test_tables_are_updated_by_rows_if_the_rule_allows_it(optimizer: Any, by_rows: bool, monkeypatch) -> None:
    class Called(Exception):
        """Ends a program where its tables are found."""

    def of(owned: Any, names: Any, batch: Any, *, by_rows: bool) -> None:
        raise Called([*names], by_rows)

    make, source = STEPS["word2vec"]
    run = dataclasses.replace(make(), optimizer=optimizer)
    (phase,), source = run.resolved_phases, source(run.data)
    monkeypatch.setattr(rows.Tables, "of", of)
    with pytest.raises(Called) as called:
        programs.build(run, phase, meshes.make(run.mesh, jax.devices()[:1]), source.vocabulary, source.batch)
    names, found = called.value.args
    assert names and found is by_rows


def test_the_state_of_a_step_and_of_an_evaluation_of_the_optimizer_is_given_away() -> None:
    """Its memory is that of the next state: a step never holds two of them."""
    make, source = STEPS["word2vec"]
    run = make()
    (phase,), source = run.resolved_phases, source(run.data)
    program = programs.build(run, phase, meshes.make(run.mesh, jax.devices()[:1]), source.vocabulary, source.batch)
    loss = jax.ShapeDtypeStruct((), jnp.float32)
    for lowered in (
        program.train.lower(program.state, program.batch),
        program.on_evaluation.lower(program.state, loss),
    ):
        (state, given), _ = lowered.args_info
        assert all(leaf.donated for leaf in jax.tree.leaves(state))
        assert not any(leaf.donated for leaf in jax.tree.leaves(given))


def test_a_step_trains_what_a_compression_trains_and_evaluates_what_it_evaluates(monkeypatch) -> None:
    """The same tables and the same module, with copies of their own; the counts of words are for the evaluation."""
    run = dataclasses.replace(bert(rows=4), compression=GradualPruning())
    (phase,), made, told = run.resolved_phases, [], []
    forward = programs.Forward
    monkeypatch.setattr(programs, "Forward", lambda *given, **named: made.append(forward(*given, **named)) or made[-1])
    monkeypatch.setattr(programs, "train_step", lambda *given: told.append(given[2:]) or given[:1])
    monkeypatch.setattr(programs, "evaluation_step", lambda *given: told.append(given[3:]) or (given[0].carry, {}, ()))
    mesh, vocabulary = meshes.make(run.mesh, jax.devices()[:1]), Vocabulary.placeholder(128)
    program = programs.build(run, phase, mesh, vocabulary, placement.of_layout(run), "nats")
    training, held_out = made
    assert (training.objective, held_out.objective) == (run.trained, run.evaluated)
    assert training.module is held_out.module is program.module and training.vocabulary is vocabulary
    assert training.tables is held_out.tables and training.shares is not held_out.shares
    key = jax.eval_shape(lambda: jax.random.key(0))
    program.evaluate.lower(program.state.loss_inputs, program.evaluation_batch, key)
    with contextlib.suppress(ValueError):  # what the pretended step returns has other shardings
        program.train.lower(program.state, program.batch)
    (of_evaluation, (of_training, update)) = told
    assert of_evaluation == (held_out, "nats") and of_training is training
    assert (update.accumulation, update.shards) == (1, 1)


@pytest.mark.parametrize(("mesh", "shards"), [({"data": 4, "fsdp": 2}, 4), ({"data": 8}, 8), ({"tensor": 8}, 1)])
def test_an_update_has_the_microbatches_of_its_phase_and_the_shards_of_its_mesh(mesh: dict, shards: int) -> None:
    run = experiments.changed(bert(rows=64), mesh=mesh, training={"accumulation": 1, "dropout_generator": "rbg"})
    run = dataclasses.replace(run, phases=(Phase(1.0, accumulation=4),))
    (phase,), rule = run.resolved_phases, object()
    update = programs.update_rule(run, phase, rule, meshes.make(run.mesh, jax.devices()))
    assert (update.optimizer, update.accumulation, update.shards, update.generator) == (rule, 4, shards, "rbg")
