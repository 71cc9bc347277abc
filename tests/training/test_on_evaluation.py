"""An optimizer's state of evaluations goes through checkpoints: a resume is bit-identical, a mean is saved."""

import dataclasses

import chex
import jax
import pytest

from plmjax.experiment import Experiment
from plmjax.training import loop, metrics, optimizers
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import Plateau
from tests.third_party import experiments
from tests.third_party.source import ChainSource

RULE = StochasticGradientDescent(
    learning_rate=30.0,  # so large that the held-out loss rises and falls
    averaging="non-monotone",
    patience=1,
    schedule=Plateau(reduction=0.5, patience=0),
)


@pytest.fixture(scope="module", autouse=True)
def one_device():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
        yield


def run_of(steps: int) -> Experiment:
    run = experiments.changed(
        experiments.without_dropout(experiments.gpt2()),
        training={"steps": steps, "log_every": 1, "batch_size": 8, "evaluate_every": 1},
        checkpoint={"every": 2, "keep": 0, "best": "eval/loss"},
        mesh={"data": 1},
    )
    return dataclasses.replace(run, optimizer=RULE)


def train(run: Experiment, workdir) -> loop.Result:
    return loop.train(run, workdir, ChainSource(run.data), {})


def values(workdir, name: str) -> list[float]:
    return [line[name] for line in metrics.read(workdir / "metrics.jsonl") if name in line]


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
    mean = optimizers.evaluated(whole.state.optimizer_state, whole.state.params)
    saved, _ = checkpoints.load_parameters(tmp_path / "whole")
    chex.assert_trees_all_equal(saved, jax.device_get(mean))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(saved, jax.device_get(whole.state.params))
