"""The step: the same numbers on one device and on eight, at once and in microbatches, for every model family; carries
that are reset."""

import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.objectives.objective import ConstantSources, LossSums, Objective, cross_entropy
from plmjax.parallel import mesh as meshes
from plmjax.parallel import parameter_shards as shares
from plmjax.parallel.rings import Rings
from plmjax.training import carries, loop, step
from plmjax.training import program as programs
from plmjax.training.gradients import Gradient
from plmjax.training.gradients.all_gather import AllGather
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import Linear
from plmjax.training.state import TrainState
from tests import devices_in_turn
from tests.families import STEPS
from tests.third_party import experiments
from tests.third_party.source import ChainSource
from tests.training.built import program as build

MESHES = {"data": (8, 1, 1), "fsdp": (1, 8, 1), "tensor": (4, 1, 2), "all": (2, 2, 2)}
CUT = ("gpt2", "recurrent", "word2vec", "glove")
"""Steps that a mesh cuts in different ways: layers, states of an LSTM, tables of words, and sums over rows."""
# The mesh of three axes cuts all that a system has; the others prove the step, which knows no system. 3 to 19 s each
# for the other systems: pytest -m nightly tests/training/test_step.py
MESHED = [
    pytest.param(name, mesh, marks=() if by_day else pytest.mark.nightly)
    for name in STEPS
    for mesh in MESHES
    for by_day in [(name, mesh) == ("gpt2", "data") or (mesh == "all" and name in CUT)]
]
TERMS = ("gpt2", "recurrent", "word2vec", "glove")
"""Objectives whose losses are weighed in ways of their own, and a carry."""
# Microbatches are weighed by the objective, whatever the model: the others weigh as one of these does, and cost 6 to 20
# s each: pytest -m nightly tests/training/test_step.py
ACCUMULATED = [
    pytest.param(name, marks=() if name in TERMS else pytest.mark.nightly)
    for name in STEPS
    if name not in ("ulmfit", "reformer")  # whose batch normalization and hashes are those of a microbatch
]
UNRINGED = ("word2vec", "hierarchical_softmax", "ulmfit", "reformer", "elmo")
"""Steps that are not compared. word2vec looks up rows of a table, hierarchical softmax has no pieces, and ULMFiT keeps
statistics of all rows. Reformer draws its hashes with the key of each device. XLA for CPUs does not compile ELMo's step
with `devices_in_turn`."""
# By day layers travel with each of two microbatches; test_ring_exchange.py has one, too. 2 to 14 s each for the others:
# pytest -m nightly tests/training/test_step.py
RINGED = [
    pytest.param("gpt2", {"accumulation": 2, "unroll": 1}, id="by day"),
    pytest.param("bert", {"accumulation": 2, "remat": "dots"}, marks=pytest.mark.nightly),
    pytest.param("transformer_xl", {"accumulation": 2}, marks=pytest.mark.nightly),
    *(pytest.param(name, {"remat": "dots"}, marks=pytest.mark.nightly) for name in STEPS if name not in UNRINGED),
]
# Where a gradient is rounding noise, Adam's quotient makes a large update of it unless epsilon is larger.
SMOOTH = {"epsilon": 1e-3, "schedule": Linear()}


@functools.cache
def program(name: str, mesh: tuple[int, int, int] = (1, 1, 1), dropout: bool = False, **settings) -> programs.Program:
    """One phase of a run of 2 steps; its step is compiled when it is first taken, and shared by the tests."""
    make, source = STEPS[name]
    run = experiments.changed(make(), optimizer=SMOOTH)
    zero = settings.pop("zero", True)
    sizes = dict(zip(meshes.AXES, mesh, strict=True)) | {"zero": zero}
    run = experiments.changed(run, training={"steps": 2} | settings, mesh=sizes)
    run = run if dropout else experiments.without_dropout(run)
    built = build(run, source, int(np.prod(mesh)))
    compiled = functools.cache(lambda: built.train.lower(built.state, built.batch).compile())
    return dataclasses.replace(built, train=lambda state, batch: compiled()(state, batch))


@functools.cache
def begun(name: str):
    """The first state, on the host."""
    return jax.device_get(program(name).initialize(0, materials(name)))


def materials(name: str) -> ConstantSources:
    """The sources of constants: the counts of the source's text, and numbers for its tokens."""
    make, source = STEPS[name]
    source = source(make().data)
    return ConstantSources(
        source.vocabulary, source.unigram_counts, lambda: [*map(str, range(source.size))], lambda checkpoint, init: None
    )


@functools.cache
def batches(name: str) -> list[dict[str, np.ndarray]]:
    """Two batches in which the rows, and so the devices, have very different numbers of targets."""
    make, source = STEPS[name]
    (phase,) = experiments.changed(make(), training={"steps": 2}).resolved_phases
    found = list(source(make().data).train(phase, 0))
    for batch in found:
        if "next_weights" in batch:
            batch["next_weights"][4:, 1:] = 0
    return found


def train(built: programs.Program, name: str, count: int = 2):
    """(state, metrics of the last step) after so many steps, on the host."""
    state = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), begun(name), built.state)
    for batch in batches(name)[:count]:
        on_mesh = {field: jax.device_put(batch[field], like.sharding) for field, like in built.batch.items()}
        state, metrics = built.train(state, on_mesh)
    return jax.device_get(state), dict(jax.device_get(metrics))


def assert_close(expected, found, tolerance: float):
    """Every leaf within so much of its largest value."""
    leaves = jax.tree_util.tree_leaves_with_path(expected)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    for (name, a), b in zip(named.items(), jax.tree.leaves(found), strict=True):
        measure = a
        # A parser's softmax is over heads: the terms of their bias cancel each other, those of the dependents' do not.
        if name.endswith("head_hidden/bias"):
            measure = named[name.replace("head_hidden", "dependent_hidden")]
        # The softmax is over keys: the terms of a query's bias cancel each other too, those of its kernel do not.
        if name.endswith("attention/query/bias"):
            measure = named[name.replace("bias", "kernel")]
        # The gradient of a scale is the product of a table, with a norm above 1, and the table's gradient.
        if "/mean" in name and name.endswith("cvt/word_scale"):
            measure = np.linalg.norm(named[name.replace("word_scale", "words/embedding")])
        # The gradient of a type of tokens is the sum of those of all words, which may cancel each other too.
        words = name.replace("token_type_embeddings", "word_embeddings")
        if "/mean" in name and words != name:
            measure = np.sum(np.abs(named[words]), axis=0)
        if "/mean_square/" in name:  # as the gradients they are of: squaring doubles the relative error of a sum
            a, b, measure = np.sqrt(a), np.sqrt(b), np.sqrt(measure)
        scale = float(np.max(np.abs(measure), initial=1e-6))
        if name.endswith("attention/key/bias"):  # softmax does not see it, so that its gradient is rounding noise
            assert max(scale, float(np.max(np.abs(b)))) <= 1e-6, name
        else:
            np.testing.assert_allclose(b, a, rtol=0, atol=tolerance * scale, err_msg=name)


@pytest.mark.parametrize("name", ACCUMULATED)
def test_microbatches_give_the_gradient_and_the_carry_of_the_big_batch(name):
    expected, metrics = train(program(name), name, 1)
    found, found_metrics = train(program(name, accumulation=4), name, 1)
    assert_close(expected.optimizer_state, found.optimizer_state, 1e-6)
    assert_close(expected.params, found.params, 1e-6)
    assert_close(expected.carry, found.carry, 1e-6)
    assert_close(metrics, found_metrics, 1e-6)


@pytest.mark.parametrize(("name", "mesh"), MESHED)
def test_eight_devices_equal_one(name, mesh):
    expected, metrics = train(program(name), name)
    found, found_metrics = train(program(name, MESHES[mesh]), name)
    assert_close(expected, found, 5e-6)
    assert_close(metrics, found_metrics, 5e-6)


@pytest.mark.parametrize(("name", "settings"), RINGED)
def test_eight_devices_with_rings_equal_one(name, settings, monkeypatch, request):
    """In two rows of four. Parameters and gradients travel from one to the next."""
    monkeypatch.setattr(Rings, "of", classmethod(lambda cls, mesh: cls((2, 4))))
    monkeypatch.setattr(jax, "shard_map", devices_in_turn.shard_map)
    # The models are small: pieces of their matrices, but of no biases; by day of feed-forward alone.
    monkeypatch.setattr(shares, "SMALLEST_PIECE", 64 if "by day" in request.node.name else 32)
    built = program(name, MESHES["data"], dropout_prng="rbg", **settings)
    assert built.rings == Rings((2, 4))
    expected, metrics = train(program(name), name)
    found, found_metrics = train(built, name)
    assert_close(expected, found, 5e-6)
    assert_close(metrics, found_metrics, 5e-6)


def test_steps_with_tables_of_rows_or_statistics_of_all_rows_have_no_rings(monkeypatch):
    monkeypatch.setattr(Rings, "of", classmethod(lambda cls, mesh: cls((2, 4))))
    for name in ("word2vec", "ulmfit"):
        assert program(name, MESHES["data"], dropout_prng="rbg", remat="full").rings is None


def test_microbatches_on_a_mesh_with_a_carry_equal_one_device():
    """Whose parameters begin equal."""
    built = program("recurrent", MESHES["all"], accumulation=2)
    jax.tree.map(np.testing.assert_array_equal, begun("recurrent"), jax.device_get(built.initialize(0)))
    assert_close(train(program("recurrent"), "recurrent")[0], train(built, "recurrent")[0], 5e-6)


def test_loss_is_the_global_sum_over_the_global_weight_and_the_rate_that_of_the_step():
    built, batch = program("gpt2", MESHES["data"]), batches("gpt2")[0]
    inputs = {name: batch[name] for name in ("input_ids", "positions", "segment_ids")}
    logits = jax.jit(built.module.apply)({"params": begun("gpt2").params}, **inputs).logits
    nats = np.asarray(cross_entropy(logits, jnp.asarray(batch["next_ids"])), np.float64)
    loss = np.sum(nats * batch["next_weights"]) / np.sum(batch["next_weights"])
    per_device = np.sum((nats * batch["next_weights"]).reshape(8, -1), 1) / batch["next_weights"].reshape(8, -1).sum(1)
    metrics, later = (train(built, "gpt2", count)[1] for count in (1, 2))
    assert metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert abs(np.mean(per_device) - loss) > 1e-4  # the mean of the devices' means is another number
    # `Linear` has the peak in the first of two steps and half of it in the second.
    rate = STEPS["gpt2"][0]().optimizer.learning_rate
    assert [metrics["learning_rate"], later["learning_rate"]] == pytest.approx([rate, rate / 2], rel=1e-6)


def test_a_run_traces_its_step_and_its_evaluation_once(tmp_path, monkeypatch):
    """Over eight steps, several evaluations and a carry that goes from batch to batch, on two devices."""
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:2])
    chex.clear_trace_counter()
    monkeypatch.setattr(programs, "train_step", chex.assert_max_traces(programs.train_step, n=1))
    monkeypatch.setattr(programs, "evaluation_step", chex.assert_max_traces(programs.evaluation_step, n=1))
    make, source = STEPS["recurrent"]
    run = experiments.changed(make(), training={"evaluate_every": 2, "evaluation_batches": 2})
    assert loop.train(run, tmp_path, source(run.data), tokenizer={}).metrics["eval/loss"] > 0


CARRIED, NUMBER, CORRUPTION, DROPOUT = range(4)


@dataclasses.dataclass(frozen=True)
class Telling(Objective):
    """kernel . x of every row. Its carry [B 4] tells for every row what was carried to it, the number of the step, and
    what its keys draw."""

    def corrupt(self, batch: Any, key: jax.Array, vocabulary: Vocabulary, constants: Any = ()) -> Any:
        return batch | {"drawn": jnp.full(len(batch["x"]), jax.random.uniform(key))}

    def weights(self, batch: Any) -> dict[str, jax.Array]:
        return {"product": jnp.float32(1)}

    def sums(self, module: Any, loss_inputs: Any, batch: Any, key: jax.Array, *, training: bool) -> LossSums:
        loss = jnp.sum(loss_inputs.params["kernel"] * batch["x"].astype(loss_inputs.params["kernel"].dtype))
        dropout = jnp.full(len(batch["x"]), jax.random.uniform(key))
        number = jnp.full(len(batch["x"]), loss_inputs.step, jnp.float32)
        carry = jnp.stack([loss_inputs.carry[:, CARRIED], number, batch["drawn"], dropout], axis=1)
        metrics = {"none": (jnp.float32(0), jnp.float32(0)), "half": (jnp.float32(2), jnp.float32(4))}
        return LossSums({"product": loss.astype(jnp.float32)}, metrics, carry)

    def constrain(self, params: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.maximum(leaf, 0.95), params)


class Copies:
    """Copies in bfloat16 of parameters that one device has."""

    rings = None

    def gather(self, params: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)

    def add(self, gradient: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), gradient)

    def scatter(self, gradient: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradient)


def told(number: int = 0, accumulation: int = 1, shards: int = 1, count: int = 8, **fields: jax.Array) -> tuple:
    """(carry [B 4], metrics, kernel after it) of the step of this number. Rows carry 7, and the first carry is 1.

    The model computes in bfloat16; row i has x = 1 + i / 128.
    """
    params = {"kernel": jnp.ones(())}
    optimizer = StochasticGradientDescent().build(8, params)
    state = TrainState(
        step=jnp.int32(number),
        params=params,
        optimizer_state=optimizer.init(params),
        carry=jnp.full((count, 4), 7.0),
        key=jax.random.key_data(jax.random.key(0)),
    )
    axes = ("batch", None)
    first = nn.LogicallyPartitioned(jnp.ones((count, 4)), axes)

    def update(gradient: Gradient, optimizer_state: Any, params: Any) -> tuple[Any, Any]:
        updates, optimizer_state = optimizer.update(gradient.params, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state

    training = step.Training(
        objective=Telling(),
        module=None,
        vocabulary=None,
        gradient=AllGather(Copies(), axes, accumulation, shards),
        update=update,
        learning_rate=lambda state, number: jnp.float32(1),
        reset_carry=carries.reset(lambda: first),
        dropout_prng="threefry2x32",
    )
    run = functools.partial(step.train_step, training=training)
    after, found = jax.jit(run)(state, {"x": 1 + jnp.arange(count) / 128, **fields})
    return jax.device_get((after.carry, found, after.params["kernel"]))


def test_steps_differ_in_corruption_and_in_dropout():
    """A loss is told its step, and its parameters are constrained; a metric without any weight is no number."""
    first, again, second = (told(number)[0][0] for number in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len({*first[CORRUPTION:], *second[CORRUPTION:]}) == 4
    carry, metrics, kernel = told(5, accumulation=2, shards=2)
    assert set(carry[:, NUMBER]) == {5} and kernel == np.float32(0.95)
    assert metrics["half"] == 0.5 and np.isnan(metrics["none"])


def test_every_microbatch_and_every_shard_draws_its_own_dropout_and_rows_that_begin_anew_the_initial_carry():
    """Row i is of the shard i // 8, and of its microbatch i % 4."""
    found = told(accumulation=4, shards=2, count=16)[0][:, DROPOUT].reshape(2, 2, 4)
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    assert len({*found.ravel()}) == 8
    found, *_ = told(is_first=jnp.array([1, 0, 0, 1, 0, 0, 1, 0]), accumulation=2)
    np.testing.assert_array_equal(found[:, CARRIED], [1, 7, 7, 1, 7, 7, 1, 7])


@pytest.mark.parametrize("shards", [1, 2])
def test_gradients_in_bfloat16_are_summed_over_microbatches_in_float32(shards):
    """So is the loss, over the shards too."""
    _, found, _ = told(accumulation=64 // shards, shards=shards, count=64)
    expected = sum(1 + row / 128 for row in range(64))
    assert found["gradient_norm"] == pytest.approx(expected, rel=1e-6)
    assert found["loss"] == pytest.approx(expected, rel=1e-6)


def test_the_state_is_cut_over_data_and_this_changes_nothing():
    cut, whole = program("gpt2", MESHES["data"]), program("gpt2", MESHES["data"], zero=False)

    def share(built: programs.Program) -> float:
        """Bytes of the parameters and the optimizer state on one device, relative to all of them."""
        leaves = jax.tree.leaves((built.state.params, built.state.optimizer_state))
        held = sum(np.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
        return held / sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    assert share(whole) == 1
    assert share(cut) < 0.13
    assert_close(train(whole, "gpt2")[0], train(cut, "gpt2")[0], 1e-6)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves((whole.state.params, cut.copy)))


def test_fsdp_and_tensor_cut_the_parameters_and_the_activations():
    built = program("bert", MESHES["all"])

    def pieces(params: dict) -> list[tuple[int, ...]]:
        kernel = params["bert"]["encoder"]["layers"]["attention"]["query"]["kernel"]  # [L D N H]
        words = params["bert"]["embeddings"]["word_embeddings"]["embedding"]  # [V D]
        return [leaf.sharding.shard_shape(leaf.shape) for leaf in (kernel, words)]

    assert pieces(built.copy) == [(2, 8, 1, 8), (32, 8)]
    assert pieces(built.state.params) == [(1, 8, 1, 8), (32, 8)]  # the layers over data too
    assert built.batch["input_ids"].sharding.shard_shape((16, 16)) == (4, 16)
    # Where flax finds no mesh it leaves every constraint out, without a word.
    lowered = built.evaluate.lower(built.state.loss_inputs, built.evaluation_batch, jax.random.key(0)).as_text()
    assert '[{"data", "fsdp"}, {}, {"tensor"}]' in lowered


def test_same_seed_and_step_give_the_same_bits_with_dropout():
    """By Threefry; the chip's own generator drops other values, as many."""
    built = program("recurrent", dropout=True)
    (once, metrics), (twice, _) = (train(built, "recurrent", 1) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, once, twice)
    other = begun("recurrent").replace(key=np.array([0, 7], np.uint32))
    state = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), other, built.state)
    state, _ = built.train(state, batches("recurrent")[0])
    assert not np.array_equal(once.params["words"]["embedding"], state.params["words"]["embedding"])
    plain = train(program("recurrent"), "recurrent", 1)[1]["loss"]
    own = train(program("recurrent", dropout=True, dropout_prng="rbg"), "recurrent", 1)[1]["loss"]
    assert len({float(metrics["loss"]), float(own), float(plain)}) == 3 and own == pytest.approx(plain, rel=2e-2)


# Gradients alone take 2 s; by day, test_an_evaluation_does_not_depend_on_the_dtype_of_gradients and the sums above
@pytest.mark.parametrize(
    "setting", [{"dtype": "bfloat16"}, pytest.param({"gradient_dtype": "bfloat16"}, marks=pytest.mark.nightly)]
)
def test_bfloat16_keeps_float32_parameters_and_comes_close(setting):
    _, metrics = train(program("gpt2"), "gpt2")
    found, found_metrics = train(program("gpt2", **setting), "gpt2")
    assert {leaf.dtype for leaf in jax.tree.leaves(found.params)} == {np.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(found.optimizer_state)} <= {np.dtype("float32"), np.dtype("int32")}
    assert found_metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-2)
    assert found_metrics["loss"] != metrics["loss"]


def test_an_evaluation_does_not_depend_on_the_dtype_of_gradients():
    found = []
    for built in (program("gpt2"), program("gpt2", gradient_dtype="bfloat16")):
        state = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), begun("gpt2"), built.state)
        found.append(jax.device_get(built.evaluate(built.loss_inputs(state), batches("gpt2")[0], jax.random.key(0))))
    chex.assert_trees_all_equal(*found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_dtype": "bfloat"}, "known --training.gradient_dtype, found 'bfloat'; did you mean 'bfloat16'?"),
        ({"evaluation_batch_size": 6}, "--training.evaluation_batch_size to divide by 8 devices"),
        ({"batch_size": 12}, "divides by 8 devices x 1 microbatches, found 12; take 8 or 16"),
        ({"evaluation_sequence_length": 33}, "of 33; shorten --training.evaluation_sequence_length"),
    ],
)
def test_a_setting_that_cannot_be_is_named(settings, message):
    with pytest.raises(UserError) as raised:
        program("gpt2", (8, 1, 1), **settings)
    assert message in str(raised.value)


def test_a_tokenizer_or_a_row_too_long_for_the_model_is_named():
    run = experiments.gpt2()
    (phase,) = run.resolved_phases
    for tokens, length, message in ((65, 32, "the model's 64 tokens, found 65"), (64, 33, "32 positions, found .* 33")):
        with pytest.raises(UserError, match=f"at most {message}|rows of at most the model's {message}"):
            programs.check_model(
                run, dataclasses.replace(phase, sequence_length=length), Vocabulary.placeholder(tokens)
            )
    programs.check_model(run, dataclasses.replace(phase, sequence_length=32), Vocabulary.placeholder(64))


def test_rows_that_begin_anew_begin_with_the_initial_carry() -> None:
    carry = (jnp.full((2, 4, 3), 7.0), {"memory": jnp.full((4, 5), 7.0), "shared": jnp.full(3, 7.0)})
    axes = (("layers", "batch", "embed"), {"memory": ("batch", None), "shared": (None,)})
    first = jax.tree.map(lambda x, names: nn.LogicallyPartitioned(jnp.zeros_like(x), names), carry, axes)
    reset = carries.reset(lambda: first)
    states, others = reset(carry, {carries.IS_FIRST: jnp.array([1, 0, 0, 1])})
    np.testing.assert_array_equal(states[0, :, 0], [0, 7, 7, 0])
    np.testing.assert_array_equal(others["memory"][:, 0], [0, 7, 7, 0])
    np.testing.assert_array_equal(others["shared"], [7, 7, 7])
    chex.assert_trees_all_equal(reset(carry, {}), carry)


def test_an_evaluation_of_rows_that_begin_anew_forgets_the_carry() -> None:
    """Its loss is that of a fresh carry, whatever was carried before; nor does dropout's key change it."""
    run = experiments.recurrent()
    program = build(run)
    phase, state = program.phase, program.initialize(0)
    batch = dict(next(ChainSource(run.data).train(phase, 3)))
    losses = {}
    for begins in (0, 1):
        for carried in (0.0, 0.9):
            loss_inputs = state.loss_inputs.replace(carry=jax.tree.map(lambda x, value=carried: x + value, state.carry))
            fields = batch | {"is_first": np.full(phase.batch_size, begins, np.int32)}
            found = [program.evaluate(loss_inputs, fields, jax.random.key(seed))[1]["loss"][0] for seed in (0, 1)]
            assert found[0] == found[1] and run.model.dropout > 0
            losses[begins, carried] = float(found[0])
    assert losses[1, 0.0] == losses[1, 0.9] == losses[0, 0.0] != losses[0, 0.9]
