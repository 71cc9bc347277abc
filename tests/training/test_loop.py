"""The loop: whatever ends a run, started again it ends as if nothing had happened. What an evaluation is made of."""

import dataclasses
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest

from plmjax import experiment
from plmjax.errors import SAVED, UserError
from plmjax.experiment import Experiment, Phase
from plmjax.objectives.objective import LossInputs
from plmjax.parallel.stopping import Interrupted
from plmjax.training import evaluation, loop, metrics, optimizers
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import Plateau
from tests.conftest import on_one_device
from tests.families import STEPS
from tests.paths import ROOT
from tests.third_party import experiments
from tests.third_party.source import ChainSource
from tests.xla_flags import cpu_flags

CLOCK = ("time", "tokens_per_second", "model_flops_per_second", "mfu", "input_wait")


def options(**groups):
    """A run on one device with two phases, of 12 steps in all, evaluated and saved on its way."""
    run = experiments.changed(
        experiments.recurrent(),
        training={"steps": 12, "log_every": 4, "evaluate_every": 6, "batch_size": 8},
        checkpoint={"every": 3, "keep": 0},
        mesh={"data": 1},
        **groups,
    )
    phases = (experiment.Phase(fraction=0.5), experiment.Phase(fraction=0.5, sequence_length=24, batch_size=4))
    return dataclasses.replace(run, phases=phases)


def short(**training):
    """The same of one phase and few steps."""
    return dataclasses.replace(experiments.changed(options(), training=training), phases=())


def train(run: Experiment, workdir: Path, source=ChainSource) -> loop.Result:
    return loop.train(run, workdir, source(run.data), tokenizer={})


@pytest.fixture(scope="module", autouse=True)
def one_device():
    """A mesh of one device is enough here; the others are in test_step and the strangers."""
    with on_one_device():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(result, workdir) of a run that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("whole")
    return train(options(), workdir), workdir


def lines(workdir: Path) -> list[dict]:
    return [
        {name: value for name, value in line.items() if name not in CLOCK}
        for line in metrics.read(workdir / "metrics.jsonl")
    ]


def assert_same_state(expected, found):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(expected), jax.device_get(found))


def test_logs_evaluates_and_saves_at_its_steps(whole):
    result, workdir = whole
    found = [(line["step"], "train/loss" in line, "eval/loss" in line) for line in lines(workdir)]
    logged, evaluated = (True, False), (False, True)
    assert found == [(4, *logged), (6, *logged), (6, *evaluated), (8, *logged), (12, *logged), (12, *evaluated)]
    assert sorted(int(entry.name) for entry in (workdir / "checkpoints").iterdir()) == [3, 6, 9, 12]
    kept = {step: checkpoints.describe(workdir / "checkpoints" / f"{step}").metrics for step in (3, 6, 9, 12)}
    assert kept[12] == result.metrics and kept[6]["eval/loss"] > 0
    assert kept[3] == kept[9] == {}  # an evaluation is that of its own step alone
    last = metrics.read(workdir / "metrics.jsonl")[-2]
    assert 0 <= last["input_wait"] < 1 and last["tokens_per_second"] > 0 and last["mfu"] > 0
    flops = options().training_objective.train_flops(options().model, result.program.batch)  # of 4 rows of 24 tokens
    assert last["model_flops_per_second"] / last["tokens_per_second"] == pytest.approx(flops / (4 * 24))
    assert (workdir / "tensorboard").is_dir()


def test_a_finished_run_started_again_changes_nothing(whole):
    result, workdir = whole
    before = metrics.read(workdir / "metrics.jsonl")
    again = train(options(), workdir)
    assert_same_state(result.state, again.state)
    assert again.metrics == result.metrics
    assert metrics.read(workdir / "metrics.jsonl") == before


# By day between two checkpoints of a phase; test_stages.py resumes in another phase. 3 s each for the other two.
@pytest.mark.parametrize("step", [5, *(pytest.param(step, marks=pytest.mark.nightly) for step in (6, 11))])
def test_an_exception_anywhere_and_a_second_start_end_in_the_same_bits(whole, tmp_path, step):
    result, workdir = whole

    class Broken(ChainSource):
        def train(self, phase, start, places):
            for done, batch in enumerate(super().train(phase, start, places), start=phase.first_step + start):
                if done == step:
                    raise OSError("the network is gone")
                yield batch

    with pytest.raises(OSError, match="network"):
        train(options(), tmp_path, Broken)
    again = train(options(), tmp_path)
    assert_same_state(result.state, again.state)
    assert lines(tmp_path) == lines(workdir)


MICROBATCHES = {"accumulation": 2, "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("name", "training", "mesh"),
    [
        # By day the resumes of this file carry the state of an LSTM as these memories are carried, test_step.py has
        # microbatches with a carry on a mesh, and test_permutation_language_model.py has the values of XLNet's memory.
        # 12 to 15 s: pytest -m nightly tests/training/test_loop.py
        pytest.param("transformer_xl", {}, {"data": 1}, marks=pytest.mark.nightly),
        pytest.param("transformer_xl", MICROBATCHES, {"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.nightly),
        pytest.param("xlnet", {}, {"data": 1}, marks=pytest.mark.nightly),
        pytest.param("xlnet", MICROBATCHES, {"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.nightly),
    ],
)
def test_a_memory_goes_on_with_the_same_bits(name, training, mesh, tmp_path, monkeypatch):
    """Six steps, and the last three of them again from the checkpoint after the third."""
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[: math.prod(mesh.values())])
    make, source = STEPS[name]
    run = experiments.changed(make(), training={"steps": 6} | training, checkpoint={"every": 3, "keep": 0}, mesh=mesh)
    whole = train(run, tmp_path / "whole", source)
    shutil.copytree(tmp_path / "whole", tmp_path / "again", ignore=lambda folder, names: {"6"} & {*names})
    again = train(run, tmp_path / "again", source)
    assert_same_state(whole.state, again.state)
    hidden, tokens = jax.tree.leaves(whole.state.carry)
    assert np.any(hidden) and np.any(tokens) and hidden.dtype == training.get("dtype", "float32")


@pytest.mark.parametrize(("broken", "message"), [(False, "disk is full"), (True, "the text is gone")])
def test_a_save_that_failed_is_reported_unless_the_run_failed_before(tmp_path, monkeypatch, broken, message):
    close = checkpoints.Checkpoints.close

    def failed(keeper):
        close(keeper)
        raise UserError("the disk is full")

    class Broken(ChainSource):
        def train(self, phase, start, places):
            if broken:
                raise UserError("the text is gone")
            return super().train(phase, start, places)

    monkeypatch.setattr(checkpoints.Checkpoints, "close", failed)
    with pytest.raises(UserError, match=message):
        train(short(steps=2, evaluate_every=0), tmp_path, Broken)


def test_a_signal_during_an_evaluation_stops_the_run_before_another_step(tmp_path):
    class Stopped(ChainSource):
        def evaluation(self, phase, places):
            os.kill(os.getpid(), signal.SIGTERM)
            return super().evaluation(phase, places)

    with pytest.raises(Interrupted, match=r"Stopped by SIGTERM and saved at step 2\."):
        train(short(steps=4, evaluate_every=2), tmp_path, Stopped)
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["2"]


def command(workdir: Path, doomed: str = "-1") -> subprocess.CompletedProcess:
    """The run of `options`, but of one phase on two devices, in a process of its own."""
    settings = ["--training.log_every", "3", "--checkpoint.every", "2", "--training.batch_size", "8"]
    line = [sys.executable, "-m", "tests.third_party.train", "recurrent", str(workdir), *settings]
    environment = os.environ | {"XLA_FLAGS": cpu_flags(2), "DOOMED": doomed}
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.nightly
def test_sigkill_and_sigterm_in_a_process_of_its_own(tmp_path):
    killed = command(tmp_path / "parts", doomed="5 SIGKILL")
    assert killed.returncode == -9, killed.stderr
    stopped = command(tmp_path / "parts", doomed="7 SIGTERM")
    assert stopped.returncode == SAVED == 75, stopped.stderr
    assert re.search(r"Stopped by SIGTERM and saved at step [567]\.", stopped.stderr)  # two batches wait on the device
    assert command(tmp_path / "parts").returncode == 0
    assert command(tmp_path / "whole").returncode == 0
    parts, whole = (checkpoints.load_parameters(tmp_path / part)[0] for part in ("parts", "whole"))
    assert_same_state(whole, parts)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_a_loss_that_is_no_number_stops_at_its_step_and_leaves_the_checkpoints(tmp_path):
    class Poisoned(ChainSource):
        def train(self, phase, start, places):
            for step, batch in enumerate(super().train(phase, start, places), start=phase.first_step + start):
                yield batch | {"next_weights": batch["next_weights"] * (math.nan if step == 4 else 1)}

    with pytest.raises(UserError, match=r"found nan at step 5;.*the last checkpoint is of step 3"):
        train(options(), tmp_path, Poisoned)
    assert sorted(entry.name for entry in (tmp_path / "checkpoints").iterdir()) == ["3"]


def test_other_data_is_refused(whole):
    _, workdir = whole
    with pytest.raises(UserError, match=r"\(digest chain\), found others \(other\)"):
        loop.train(options(), workdir, ChainSource(options().data, fingerprint="other"), tokenizer={})


def test_evaluates_the_same_every_time_and_as_the_mean_over_real_rows(whole):
    result, _ = whole
    source = ChainSource(options().data)
    loss_inputs = result.program.loss_inputs(result.state)
    first, second = (evaluation.HeldOut(source, seed=0)(result.program, loss_inputs) for _ in range(2))
    assert first == second == {name.removeprefix("eval/"): value for name, value in result.metrics.items()}
    totals = np.zeros(2)
    for batch in source.evaluation(result.program.phase):
        nats = np.log(source.unigram_counts.sum() + 64) - np.log(source.unigram_counts + 1)
        totals += np.sum(nats[batch["next_ids"]] * batch["next_weights"]), np.sum(batch["next_weights"])
    assert first["unigram_entropy"] == pytest.approx(totals[0] / totals[1], rel=1e-6)


@pytest.mark.nightly
def test_profiles_the_steps_asked_for_up_to_the_last(tmp_path):
    # In a process of its own: the profiler cannot begin in one that has compiled for a TPU that is not there.
    command = [sys.executable, "-m", "tests.third_party.train", "recurrent", str(tmp_path)]
    options = ["--training.steps", "6", "--training.profile_steps", "5", "6", "--checkpoint.every", "6"]
    environment = os.environ | {"XLA_FLAGS": cpu_flags(1)}
    done = subprocess.run([*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


RULE = StochasticGradientDescent(
    learning_rate=30.0,  # so large that the held-out loss rises and falls
    averaging="non-monotone",
    patience=1,
    schedule=Plateau(reduction=0.5, patience=0),
)


def run_of(steps: int) -> Experiment:
    run = experiments.changed(
        experiments.without_dropout(experiments.gpt2()),
        training={"steps": steps, "log_every": 1, "batch_size": 8, "evaluate_every": 1},
        checkpoint={"every": 2, "keep": 0, "best": "eval/loss"},
        mesh={"data": 1},
    )
    return dataclasses.replace(run, optimizer=RULE)


def values(workdir, name: str) -> list[float]:
    return [line[name] for line in metrics.read(workdir / "metrics.jsonl") if name in line]


# 6 s; by day test_loop.py resumes runs, and test_other_rules.py holds the form of this state
@pytest.mark.nightly
def test_a_resumed_run_follows_the_same_evaluations(tmp_path):
    whole = train(run_of(8), tmp_path / "whole")
    losses = values(tmp_path / "whole", "eval/loss")
    train(run_of(4), tmp_path / "parts")
    parts = train(run_of(8), tmp_path / "parts")
    chex.assert_trees_all_equal(jax.device_get(parts.state), jax.device_get(whole.state))
    assert values(tmp_path / "parts", "eval/loss") == losses and len(losses) == 8
    records = [checkpoints.describe(checkpoints.find(tmp_path / name)).record for name in ("whole", "parts")]
    assert records[0] == records[1] == (min(losses), 7 - losses.index(min(losses)))
    rates = values(tmp_path / "whole", "learning_rate")
    falls = sum(losses[number] > min(losses[:number]) * (1 - 1e-4) for number in range(1, 7))
    assert falls > 0 and rates[0] == 30.0 and rates[-1] == 30.0 * 0.5**falls

    # What the checkpoint stands for, and is fine-tuned or exported from, is the mean; a resume goes on from the rest.
    mean = optimizers.evaluation_params(whole.state.optimizer_state, whole.state.params)
    saved, _ = checkpoints.load_parameters(tmp_path / "whole")
    chex.assert_trees_all_equal(saved, jax.device_get(mean))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(saved, jax.device_get(whole.state.params))


def test_every_batch_is_corrupted_by_a_key_of_its_own_and_every_evaluation_alike() -> None:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {"row_ids": jax.ShapeDtypeStruct((1,), np.int32, sharding=place)}
    draws: list[float] = []

    def evaluate(loss_inputs: LossInputs, batch: Any, key: jax.Array) -> tuple[Any, dict, tuple]:
        draws.append(float(jax.random.uniform(key)))
        return (), {"loss": (np.float32(1), np.float32(1))}, ()

    program = types.SimpleNamespace(evaluation_phase=None, evaluation_batch=shapes, evaluate=evaluate)
    source = types.SimpleNamespace(evaluation=lambda phase, places: iter([{"row_ids": np.zeros(1, np.int32)}] * 3))
    for seed in (0, 0, 1):
        assert evaluation.HeldOut(source, seed)(program, LossInputs(())) == {"loss": 1}
    assert draws[:3] == draws[3:6] and len({*draws}) == 6
    evaluation.HeldOut(source, 0)(program, LossInputs(()), limit=2)
    assert draws[9:] == draws[:2]


def test_the_evaluation_of_a_run_has_its_seed_and_its_coefficients() -> None:
    """Nats of single bytes are told in bits too, where the exponential of the loss is a perplexity."""
    run = experiments.changed(experiments.electra(), training={"seed": 7})
    words, of_bytes = (types.SimpleNamespace(vocabulary=types.SimpleNamespace(bytes=one)) for one in (False, True))
    found = evaluation.HeldOut.of(run, words)
    assert (found.seed, found.coefficients, found.multiples) == (7, {"mlm": 1.0, "rtd": 50.0}, {})
    means = evaluation.HeldOut.of(experiments.gpt2(), of_bytes).means({"loss": np.array([np.log(8), 1.0])})
    assert means == pytest.approx({"loss": np.log(8), "bits_per_byte": 3.0})


def test_the_joint_loss_has_every_term_as_in_training() -> None:
    """A term without a coefficient counts once."""
    held_out = evaluation.HeldOut(None, seed=0, coefficients={"second": 50.0})
    totals = {"loss": (6.0, 3.0), "first_loss": (6.0, 3.0), "second_loss": (2.0, 4.0), "accuracy": (3.0, 4.0)}
    found = held_out.means({name: np.array(pair) for name, pair in totals.items()})
    assert found == pytest.approx({"loss": 2, "first_loss": 2, "second_loss": 0.5, "accuracy": 0.75, "joint_loss": 27})


@pytest.mark.nightly
def test_a_run_is_judged_by_the_joint_loss_with_the_coefficients_of_its_phase(tmp_path: Path) -> None:
    settings = {"steps": 2, "evaluate_every": 1, "evaluation_batches": 1}
    phases = (Phase(fraction=0.5), Phase(fraction=0.5, changes=("objective.discriminator_weight=3",)))
    run = dataclasses.replace(experiments.changed(experiments.electra(), training=settings), phases=phases)
    run = experiments.changed(run, checkpoint={"every": 1, "best": "eval/joint_loss"})
    loop.train(run, tmp_path, STEPS["electra"][1](run.data), tokenizer={})
    lines = [line for line in metrics.read(tmp_path / "metrics.jsonl") if "eval/joint_loss" in line]
    for line, weight in zip(lines, (50, 3), strict=True):
        joint = line["eval/mlm_loss"] + weight * line["eval/rtd_loss"]
        assert line["eval/joint_loss"] == pytest.approx(joint, rel=1e-5)
