"""The program of a phase: its options, its first state with keys and constants, and batches on their way to it."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.compression.pruning.pruned import GradualPruning
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.objectives.objective import ConstantSources, Objective
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.parallel.rings import Rings
from plmjax.training import constants, feed, placement
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints
from plmjax.training.checkpoints.checkpoints import Description
from plmjax.training.initial_state import InitialState
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


ONE = jax.sharding.NamedSharding(meshes.make(experiments.gpt2().mesh, jax.devices()[:1]), jax.sharding.PartitionSpec())


class TokenCounts(Objective):
    """Its constant is the count of each token."""

    def constants(self, config: Any, sources: ConstantSources) -> Any:
        return {"counts": jnp.asarray(sources.token_counts, jnp.float32)}


def variables(key: jax.Array) -> dict[str, Any]:
    first, second = jax.random.split(key)
    drawn = nn.LogicallyPartitioned(jax.random.uniform(first, (2,)), ("embed",))
    return {"params": {"a": {"kernel": drawn, "bias": jax.random.uniform(second)}}, "statistics": {"mean": jnp.ones(3)}}


def state_of(objective: Objective, constants: Any) -> tuple[InitialState, Any]:
    boxed = jax.eval_shape(variables, jax.random.key(0))
    carry = lambda: nn.LogicallyPartitioned(jnp.full((4, 2), 5.0), ("batch", None))  # noqa: E731
    made = InitialState(objective, None, ONE.mesh, variables, boxed, constants, carry, optax.adam(1.0))
    return made, made.initializer(made.abstract_state(jax.tree.map(lambda _: ONE, nn.meta.unbox(boxed["params"]))))


def test_a_seed_gives_parameters_and_the_key_of_all_steps_by_keys_of_their_own() -> None:
    _, begin = state_of(Objective(), ())
    states = [begin(seed) for seed in (3, 3, 4)]
    jax.tree.map(np.testing.assert_array_equal, states[0], states[1])
    state, key = states[0], jax.random.key(3)
    expected = nn.meta.unbox(variables(jax.random.fold_in(key, 0)))
    jax.tree.map(np.testing.assert_array_equal, state.params, expected["params"])
    np.testing.assert_array_equal(state.key, jax.random.key_data(jax.random.fold_in(key, 1)))
    assert not np.array_equal(states[2].key, state.key)
    assert state.step == 0 and state.step.dtype == jnp.int32 and state.constants == ()
    np.testing.assert_array_equal(state.carry, np.full((4, 2), 5.0))
    assert [*state.collections] == ["statistics"]
    replaced = begin(3, replaced=lambda name: name == "a/kernel").params["a"]
    assert not replaced["kernel"].any() and replaced["bias"] == state.params["a"]["bias"]


def test_constants_are_made_of_their_sources_and_not_left_out() -> None:
    counts = jax.ShapeDtypeStruct((3,), jnp.float32)
    made, begin = state_of(TokenCounts(), {"counts": counts})
    sources = ConstantSources(Vocabulary.placeholder(3), np.array([7, 0, 2]), list, None)
    state = begin(0, sources)
    assert state.constants["counts"].tolist() == [7, 0, 2]
    assert state.constants["counts"].sharding.is_equivalent_to(ONE, 1)
    described = made.abstract_state(jax.tree.map(lambda _: ONE, nn.meta.unbox(made.boxed["params"])))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), described)
    with pytest.raises(ValueError, match="Expected sources for the constants of TokenCounts, found none"):
        begin(0)
    short = ConstantSources(Vocabulary.placeholder(3), np.array([7, 0]), list, None)
    with pytest.raises(ValueError, match="shape"):
        begin(0, short)


def test_tokens_that_the_text_lacks_are_counted_as_none() -> None:
    """A model may have more tokens than the text, and a task counts none."""
    vocabulary, description = Vocabulary.placeholder(5), Description(experiments.gpt2(), 0, {})
    for counts, expected in ((np.array([7, 0, 3]), [7, 0, 3, 0, 0]), (None, [0] * 5)):
        found = constants.of_run(vocabulary, counts, description).token_counts
        assert found.tolist() == expected and found.dtype == np.int64


def test_parameters_of_another_checkpoint_have_the_axes_of_their_module(tmp_path: Path) -> None:
    def init(key: jax.Array) -> dict[str, Any]:
        kernel = nn.LogicallyPartitioned(jax.random.normal(key, (2, 3)), ("embed", "mlp"))
        return {"lm": {"kernel": kernel, "bias": jnp.zeros(3)}}

    sources = constants.of_run(Vocabulary.placeholder(5), None, Description(experiments.gpt2(), 0, {}))
    kernel, bias = np.full((2, 3), 7.0), np.ones(3)
    for name, found, message in (
        ("same", {"kernel": kernel, "bias": bias}, ""),
        ("turned", {"kernel": kernel.T, "bias": bias}, r"lm/kernel of shape \(2, 3\) .*/turned, found \(3, 2\)"),
        ("less", {"kernel": kernel}, r"lm/bias of shape \(3,\) .*/less, found no such parameter"),
    ):
        params = {"lm": found, "other": np.ones(9)}
        checkpoints.save_parameters(tmp_path / name, params, experiments.gpt2(), tokenizer={})
        with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
            made = sources.parameters(str(tmp_path / name), init)["lm"]
            assert made["kernel"].names == ("embed", "mlp") and (made["bias"] == 1).all()
            np.testing.assert_array_equal(made["kernel"].value, kernel)


def test_every_device_has_its_rows_until_the_source_ends_or_the_run_does() -> None:
    """The devices of a mesh need not be in the order of the rows, and some have the same rows."""
    devices = np.array(jax.devices())[[5, 2, 7, 0, 3, 6, 1, 4]].reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("data", "tensor"))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    sizes = {"ids": (12, 5), "weights": (12,)}
    shapes = {name: jax.ShapeDtypeStruct(size, np.float32, sharding=place) for name, size in sizes.items()}
    assert feed.local_rows(shapes).tolist() == list(range(12))
    draws = np.random.default_rng(0)
    source = [{name: draws.normal(size=size).astype(np.float32) for name, size in sizes.items()} for _ in range(4)]
    ended = []

    def opened() -> Iterator[feed.HostBatch]:
        try:
            yield from source
        finally:
            ended.append(True)

    for ahead in (1, 3, 9):
        found = list(feed.on_device(opened(), shapes, ahead))
        assert len(found) == 4 and ended.pop()
        for ours, batch in zip(found, source, strict=True):
            for name, array in ours.items():
                assert array.sharding == place
                np.testing.assert_array_equal(array, batch[name])
    own = opened()  # a name of its own: otherwise Python would close it with the frame that reads it
    batches = feed.on_device(own, shapes, 1)
    next(batches)
    assert not ended
    batches.close()
    assert ended
