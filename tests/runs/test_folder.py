"""The records of a run in its folder, and when a run may go on there with other options or more steps."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax import experiment
from plmjax.data import store
from plmjax.errors import UserError
from plmjax.parallel import hosts
from plmjax.runs import folder
from plmjax.training import loop, metrics
from plmjax.training.optimizers.schedules import Constant, Linear
from tests.third_party import experiments
from tests.third_party.source import ChainSource


def options(steps: int, *fractions: float, **optimizer) -> experiment.Experiment:
    run = experiments.changed(
        experiments.recurrent(),
        training={"steps": steps, "log_every": 2, "batch_size": 8},
        checkpoint={"every": 2, "keep": 0},
        mesh={"data": 1},
        optimizer=optimizer,
    )
    phases = [experiment.Phase(fraction, length) for fraction, length in zip(fractions, (16, 24), strict=False)]
    return dataclasses.replace(run, phases=tuple(phases))


def trained(workdir: Path, *steps: int) -> Path:
    for step in steps:
        (workdir / "checkpoints" / str(step)).mkdir(parents=True)
    return workdir


def test_before_the_first_checkpoint_every_option_may_change_and_later_only_free_ones(tmp_path: Path) -> None:
    folder.record_experiment(tmp_path, options(4))
    for changed in ({"model": {"dropout": 0.2}}, {"tokenizer": {"vocab_size": 77}}, {"training": {"steps": 2}}):
        run = experiments.changed(options(4), **changed)
        folder.record_experiment(tmp_path, run, pytest.fail)
        assert experiment.read(tmp_path / "experiment.json") == run
    trained(tmp_path, 2)
    with pytest.raises(UserError, match=r"model\.dropout = 0\.1, found 0\.2"):
        folder.record_experiment(tmp_path, experiments.changed(run, model={"dropout": 0.2}))
    free = experiments.changed(run, training={"remat": "full"}, checkpoint={"keep": 7})
    folder.record_experiment(tmp_path, free, pytest.fail)
    assert experiment.read(tmp_path / "experiment.json") == free


def test_host_0_alone_writes_the_records_which_the_others_must_see(tmp_path, monkeypatch):
    workdir = tmp_path / "run"
    monkeypatch.setattr(hosts, "is_primary", lambda: False)
    with pytest.raises(UserError, match="what host 0 writes there"):
        folder.record_experiment(workdir, options(4))
    folder.record_start(workdir, "random", None)
    assert not workdir.exists()
    monkeypatch.setattr(hosts, "is_primary", lambda: True)
    folder.record_experiment(workdir, options(4))
    monkeypatch.setattr(hosts, "is_primary", lambda: False)
    folder.record_experiment(workdir, options(3))
    assert experiment.read(workdir / "experiment.json") == options(4)


def test_a_run_goes_on_from_its_own_start_alone(tmp_path: Path) -> None:
    """Before a step is trained, another start is accepted."""
    ones, zeros = {"kernel": np.ones(3)}, {"kernel": np.zeros(3)}
    assert not folder.record_start(tmp_path, "random", None)
    assert folder.record_start(tmp_path, "runs/other", ones)
    assert json.loads((tmp_path / "start.json").read_text())["from"] == "runs/other"
    trained(tmp_path, 4)
    assert not folder.record_start(tmp_path, "runs/moved", ones)
    others = (("random", None, "random"), ("runs/third", zeros, "runs/third"), ("runs/other", zeros, "others"))
    for name, arrays, part in others:
        with pytest.raises(UserError, match=f"the parameters of runs/other, .*, found .*{part}.*--from runs/other"):
            folder.record_start(tmp_path, name, arrays)
    (tmp_path / "start.json").write_text("{}")
    with pytest.raises(UserError, match=r"start\.json.*restore the file"):
        folder.record_start(tmp_path, "random", None)


@pytest.mark.parametrize(("first", "finished"), [(True, True), (True, False), (False, False)])
def test_what_a_refused_first_command_wrote_is_removed_but_for_a_finished_dataset(
    first: bool, finished: bool, tmp_path: Path
) -> None:
    names = ["experiment.json", "start.json", "mixture.json", "tokenizer", f"dataset/{store.MANIFEST}"]
    if not first:
        (tmp_path / "experiment.json").write_text("{}")
    with pytest.raises(UserError, match="none"), folder.forget_after_mistakes(tmp_path):
        (tmp_path / "dataset").mkdir()
        for name in names if finished else names[:-1]:
            (tmp_path / name).write_text("{}")
        raise UserError("Expected text, found none; name some.")
    assert [(tmp_path / name).exists() for name in names[:-1]] == [finished or not first] * 4


@pytest.mark.nightly  # three runs; tests/training/test_loop.py has a resumed run by day
def test_a_finished_run_goes_on_as_one_that_was_as_long_from_the_start(tmp_path: Path) -> None:
    said: list[str] = []

    def train(steps: int, name: str) -> loop.Result:
        run = options(steps, schedule=Constant())
        folder.record_experiment(tmp_path / name, run, said.append)
        return loop.train(run, tmp_path / name, ChainSource(run.data), tokenizer={})

    def losses(name: str) -> dict[int, float]:
        lines = metrics.read(tmp_path / name / "metrics.jsonl")
        return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}

    train(4, "parts")
    before = losses("parts")
    found, whole = train(8, "parts"), train(8, "whole")
    assert said == ["steps    4 become 8: after step 4 the learning rate (constant) stays at 1.00e-02"]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(whole.state), jax.device_get(found.state))
    assert losses("parts") == losses("whole") and before.items() <= losses("parts").items()
    assert experiment.read(tmp_path / "parts" / "experiment.json").training.steps == 8
    with pytest.raises(UserError, match=r"training.steps = 8, found 4"):
        train(4, "parts")


def test_says_where_the_learning_rate_goes_on(tmp_path: Path) -> None:
    linear, found = {"schedule": Linear(), "learning_rate": 0.01}, []
    folder.record_experiment(tmp_path, options(4, **linear))
    folder.record_experiment(trained(tmp_path, 1, 2), options(8, **linear), found.append)
    (line,) = found
    assert line.endswith("4 become 8: after step 2 the learning rate (linear) goes from 5.00e-03 to 7.50e-03")


def test_a_fine_tuning_has_more_epochs_with_the_warm_up_that_follows(tmp_path: Path) -> None:
    """As many steps with another warm-up are refused still."""

    def tuned(epochs: float, steps: int, warmup: int) -> experiment.Experiment:
        run = options(steps, schedule=Linear(warmup_steps=warmup))
        return dataclasses.replace(run, finetuning=experiment.Finetuning(epochs=epochs, warmup=0.1))

    folder.record_experiment(tmp_path, tuned(1.0, 40, 4))
    trained(tmp_path, 40)
    with pytest.raises(UserError, match=r"Expected optimizer.schedule.warmup_steps = 4, found 6"):
        folder.record_experiment(tmp_path, tuned(1.0, 40, 6))
    found: list[str] = []
    folder.record_experiment(tmp_path, tuned(2.0, 80, 8), found.append)
    assert found[0].startswith("steps    40 become 80: after step 40 the learning rate (linear) goes from 0.00e+00")
    assert experiment.read(tmp_path / "experiment.json") == tuned(2.0, 80, 8)


@pytest.mark.parametrize(("done", "fits"), [(4, True), (5, False)])
def test_no_step_done_changes_its_phase(done: int, fits: bool, tmp_path: Path) -> None:
    """A run that is refused more steps stays as it was."""
    folder.record_experiment(tmp_path, options(8, 0.5, 0.5))
    trained(tmp_path, done)
    if fits:
        return folder.record_experiment(tmp_path, options(16, 0.5, 0.5), lambda line: None)
    with pytest.raises(UserError, match=f"the {done} steps .* phase 0 would end at step 8, not 4, .*; begin"):
        folder.record_experiment(tmp_path, options(16, 0.5, 0.5))
    assert experiment.read(tmp_path / "experiment.json") == options(8, 0.5, 0.5)
