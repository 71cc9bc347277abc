"""Calls of a run to Weights & Biases: to a library that writes down what it is asked, and to the real one offline."""

import dataclasses
import importlib.util
import json
import sys
import time
import types

import pytest

from plmjax.errors import UserError
from plmjax.experiment import Tracking, flatten
from plmjax.training import metrics, tracking
from tests.third_party import experiments

RUN = dataclasses.replace(experiments.recurrent(), tracking=Tracking(wandb="team/encoders"))


class Library(types.ModuleType):
    """The part of wandb's interface that is used; runs keep their history as the service does."""

    Error = type("Error", (Exception,), {})

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = importlib.util.spec_from_loader("wandb", None)
        self.runs, self.asked, self.ended = {}, [], []

    def Settings(self, **settings):  # noqa: N802
        return settings

    def init(self, **asked):
        if asked["project"] == "closed":
            raise self.Error("No API key configured.\nUse `wandb login`.")
        self.asked.append(asked)
        name = asked["id"] or f"made{len(self.runs)}"
        history = self.runs.setdefault(name, {})

        def log(values, step):
            history.setdefault(step, {}).update(values)

        step = max(history) + 1 if history else 0
        return types.SimpleNamespace(id=name, step=step, log=log, finish=lambda exit_code: self.ended.append(exit_code))


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", Library())
    return sys.modules["wandb"]


def test_a_resume_goes_on_with_the_same_run_and_repeats_nothing(tmp_path, library):
    file = metrics.MetricsFile(tmp_path, 0, RUN)
    for step in (2, 4, 6):
        file.write(step, {"train/loss": 0.5 * step})
    file.close(succeeded=False)
    file = metrics.MetricsFile(tmp_path, 4, RUN)
    file.write(6, {"train/loss": -1.0})
    file.write(7, {"train/loss": 3.5})
    file.write(8, {"train/loss": 4.0})
    file.write(8, {"eval/loss": 4.5})
    file.close()
    assert library.runs == {
        "made0": {
            2: {"train/loss": 1.0},
            4: {"train/loss": 2.0},
            6: {"train/loss": 3.0},
            7: {"train/loss": 3.5},
            8: {"train/loss": 4.0, "eval/loss": 4.5},
        }
    }
    assert library.ended == [1, 0]
    first = library.asked[0]
    assert (first["entity"], first["project"], first["name"]) == ("team", "encoders", tmp_path.name)
    assert first["config"] == flatten(RUN) and first["dir"] == str(file.folder)
    assert [asked["id"] for asked in library.asked] == [None, "made0"]
    assert all(asked["resume"] == "allow" for asked in library.asked)


def test_another_project_gets_a_run_of_its_own(tmp_path, library):
    metrics.MetricsFile(tmp_path, 0, RUN).close()
    other = dataclasses.replace(RUN, tracking=Tracking(wandb="decoders"))
    metrics.MetricsFile(tmp_path, 0, other).close()
    assert [(asked["entity"], asked["id"]) for asked in library.asked] == [("team", None), (None, None)]
    assert json.loads((tmp_path / "wandb.json").read_text()) == {"project": "decoders", "id": "made1"}


def test_nothing_is_sent_unless_a_project_is_named(tmp_path, library):
    metrics.MetricsFile(tmp_path, 0, experiments.recurrent()).close()
    assert not library.asked and not (tmp_path / "wandb.json").exists()


def test_who_is_not_logged_in_is_told_what_to_do(tmp_path, library):
    closed = dataclasses.replace(RUN, tracking=Tracking(wandb="closed"))
    with pytest.raises(UserError, match=r"'closed' .* No API key configured\. Use `wandb login`; run `wandb login`"):
        metrics.MetricsFile(tmp_path, 0, closed)


def test_without_the_library_a_run_ends_before_it_begins(tmp_path, monkeypatch, prose, fails):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    options = ["--data.input", prose, "--tracking.wandb", "encoders"]
    said = fails("pretrain", "experiments/bert_tiny.py", "--workdir", tmp_path / "run", *options)
    assert said.endswith("Expected wandb for --tracking.wandb, found none; pip install 'plmjax[wandb]'.")
    assert not (tmp_path / "run").exists()
    tracking.check(experiments.recurrent())


@pytest.mark.nightly
def test_the_library_itself_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "300")  # its service may take longer than 30 s on a busy machine
    named = []
    for step in (0, 4):
        if named:
            time.sleep(1)  # the folder of a start is named after its second
        file = metrics.MetricsFile(tmp_path, step, RUN)
        file.write(step + 2, {"train/loss": 2.5})
        file.close()
        named.append(json.loads((tmp_path / "wandb.json").read_text()))
    wandb.teardown()  # its service writes the records after a run has finished: wait for the service's end
    assert named[0] == named[1] and named[0]["project"] == "team/encoders"
    records = list((tmp_path / "wandb").glob(f"offline-run-*-{named[0]['id']}/run-{named[0]['id']}.wandb"))
    assert len(records) == 2 and all(b"train/loss" in record.read_bytes() for record in records)
