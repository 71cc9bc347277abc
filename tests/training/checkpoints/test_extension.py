"""A run is given more steps: what was done stays, and what is to come is as if it had always been so long."""

import dataclasses

import jax
import numpy as np
import pytest

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.training import loop, metrics
from plmjax.training.checkpoints import extension
from plmjax.training.optimizers.schedules import Constant, Linear
from tests.strangers import experiments
from tests.strangers.source import ChainSource


def options(steps: int, *fractions: float, **optimizer) -> experiment.Experiment:
    run = experiments.changed(
        experiments.recurrent(),
        training={"steps": steps, "log_every": 2, "batch_size": 8},
        checkpoint={"every": 2, "keep": 0},
        mesh={"data": 1},
        optimizer=optimizer,
    )
    lengths = (16, 24)
    phases = [experiment.Phase(fraction, length) for fraction, length in zip(fractions, lengths, strict=False)]
    return dataclasses.replace(run, phases=tuple(phases))


@pytest.fixture(scope="module", autouse=True)
def one_device():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
        yield


def train(run: experiment.Experiment, workdir) -> loop.Result:
    return loop.train(run, workdir, ChainSource(run.data), {})


def losses(workdir) -> dict[int, float]:
    return {
        line["step"]: line["train/loss"] for line in metrics.read(workdir / "metrics.jsonl") if "train/loss" in line
    }


def test_a_finished_run_goes_on_as_one_that_was_as_long_from_the_start(tmp_path, capsys):
    constant = {"schedule": Constant()}
    train(options(4, **constant), tmp_path / "parts")
    before = losses(tmp_path / "parts")
    capsys.readouterr()
    found = train(options(8, **constant), tmp_path / "parts")
    assert "steps    4 become 8: after step 4 the learning rate (constant) stays at 1.00e-02" in capsys.readouterr().out
    whole = train(options(8, **constant), tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(whole.state), jax.device_get(found.state))
    assert (
        losses(tmp_path / "parts") == losses(tmp_path / "whole")
        and before.items() <= losses(tmp_path / "parts").items()
    )
    assert experiment.read(tmp_path / "parts" / "experiment.json").training.steps == 8
    with pytest.raises(UserError, match=r"Expected training.steps = 8, found 4"):
        train(options(4, **constant), tmp_path / "parts")


def test_says_where_the_learning_rate_goes_on(tmp_path):
    linear = {"schedule": Linear(), "learning_rate": 0.01}
    said = extension.check(options(4, **linear), options(16, **linear), 4, tmp_path)
    assert said.endswith("4 become 16: after step 4 the learning rate (linear) goes from 0.00e+00 to 7.50e-03")
    said = extension.check(options(4, **linear), options(8, **linear), 2, tmp_path)
    assert said.endswith("after step 2 the learning rate (linear) goes from 5.00e-03 to 7.50e-03")


def test_no_step_done_changes_its_phase(tmp_path):
    short, long = options(8, 0.5, 0.5), options(16, 0.5, 0.5)
    assert "8 become 16" in extension.check(short, long, 3, tmp_path)
    assert "8 become 16" in extension.check(short, long, 4, tmp_path)
    for done in (5, 8):
        with pytest.raises(UserError, match=f"the {done} steps .* phase 0 would end at step 8, not 4, .*; begin"):
            extension.check(short, long, done, tmp_path)


def test_a_refused_extension_leaves_the_run_as_it_was(tmp_path):
    train(options(4, 0.5, 0.5), tmp_path)
    written = (tmp_path / "experiment.json").read_text()
    with pytest.raises(UserError, match="to stay in their phases"):
        train(options(8, 0.5, 0.5), tmp_path)
    with pytest.raises(UserError, match=r"optimizer.learning_rate = 0.01, found 0.5"):
        train(options(8, 0.5, 0.5, learning_rate=0.5), tmp_path)
    assert (tmp_path / "experiment.json").read_text() == written
    train(options(4, 0.5, 0.5), tmp_path)
