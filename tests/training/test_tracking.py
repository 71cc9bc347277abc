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
from plmjax.training import metrics
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
    for start, lines in ((0, {2: 1.0, 4: 2.0, 6: 3.0}), (4, {6: -1.0, 7: 3.5, 8: 4.0})):
        file = metrics.MetricsFile(tmp_path, start, RUN)
        for step, loss in lines.items():
            file.write(step, {"train/loss": loss})
        if start:
            file.write(8, {"eval/loss": 4.5})
        file.close(succeeded=bool(start))
    losses = {2: 1.0, 4: 2.0, 6: 3.0, 7: 3.5, 8: 4.0}
    history = {step: {"train/loss": loss} for step, loss in losses.items()}
    assert library.runs == {"made0": history | {8: {"train/loss": 4.0, "eval/loss": 4.5}}}
    assert library.ended == [1, 0]
    first = library.asked[0]
    assert (first["entity"], first["project"], first["name"]) == ("team", "encoders", tmp_path.name)
    assert first["config"] == flatten(RUN) and first["dir"] == str(file.folder)
    assert [asked["id"] for asked in library.asked] == [None, "made0"]
    assert all(asked["resume"] == "allow" for asked in library.asked)


def test_another_project_gets_a_run_of_its_own(tmp_path, library):
    """Nothing is sent unless one is named, and who is not logged in is told what to do."""
    metrics.MetricsFile(tmp_path, 0, experiments.recurrent()).close()
    assert not library.asked and not (tmp_path / "wandb.json").exists()
    metrics.MetricsFile(tmp_path, 0, RUN).close()
    other, closed = (dataclasses.replace(RUN, tracking=Tracking(wandb=name)) for name in ("decoders", "closed"))
    metrics.MetricsFile(tmp_path, 0, other).close()
    assert [(asked["entity"], asked["id"]) for asked in library.asked] == [("team", None), (None, None)]
    assert json.loads((tmp_path / "wandb.json").read_text()) == {"project": "decoders", "id": "made1"}
    with pytest.raises(UserError, match=r"'closed' .* No API key configured\. Use `wandb login`; run `wandb login`"):
        metrics.MetricsFile(tmp_path, 0, closed)


def test_without_the_library_a_run_ends_before_it_begins(tmp_path, monkeypatch, prose, fails):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    options = ["--data.input", prose, "--tracking.wandb", "encoders"]
    said = fails("pretrain", "experiments/bert_tiny.py", "--workdir", tmp_path / "run", *options)
    assert said.endswith("Expected wandb for --tracking.wandb, found none; pip install 'plmjax[wandb]'.")
    assert not (tmp_path / "run").exists()


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
