"""Models that no room was built for go through all of them: an LSTM with a carry, a student of a teacher.

Prepared dataset, pipeline, step, a mesh of three axes, microbatches, checkpoint, resume: each is a file of its own here
and not a line elsewhere.
"""

import dataclasses
import shutil
from pathlib import Path

import chex
import jax
import numpy as np
import pytest

from plmjax.data import pipeline
from plmjax.data.store import Dataset
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.runs.init_from import InitFrom
from plmjax.training import loop, metrics
from plmjax.training.checkpoints import checkpoints, items
from plmjax.training.initial_state import InitialParameters
from plmjax.training.optimizers.schedules import Constant
from tests.data import corpora
from tests.third_party import experiments
from tests.third_party.student import EveryOtherLayer


class Preempted(Exception):
    """Ends a run from within."""


class Short(pipeline.DatasetSource):
    """A source that fails after five steps."""

    def train(self, phase, start, places):
        batches = super().train(phase, start, places)
        for step in range(start, phase.steps):
            if step == 5:
                batches.close()
                raise Preempted
            yield next(batches)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Sentences that count upwards, so that a token tells the next one."""
    draws = np.random.default_rng(0)

    def documents(count: int) -> list[list[list[int]]]:
        begins = draws.integers(0, 59, (count, 12))
        return [[((np.arange(9) + begin) % 59 + 5).tolist() for begin in document] for document in begins]

    return corpora.write(tmp_path_factory.mktemp("text") / "dataset", documents(80), documents(20), vocab_size=64)


def settings(run: Experiment) -> Experiment:
    """The run on a mesh of three axes, in microbatches."""
    return experiments.changed(
        run,
        mesh={"data": 2, "fsdp": 2, "tensor": 2},
        training={"accumulation": 2, "evaluation_batches": 4, "steps": 24, "log_every": 6},
        optimizer={"learning_rate": 3e-2, "clip_norm": 0.0, "schedule": Constant()},
    )


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is learned in many steps: a mesh of simulated devices, proved by the others, would take most of them."""
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:1])


def alone(run: Experiment) -> Experiment:
    """The run on one device, whose batch is not cut."""
    return experiments.changed(run, mesh={"data": 1, "fsdp": 1, "tensor": 1}, training={"accumulation": 1})


def trained(
    run: Experiment, dataset: Dataset, folder: Path, initial: InitialParameters = InitialParameters()
) -> loop.Result:
    """The result of a run, which is that of one that was stopped and went on."""

    def source(kind: type) -> pipeline.DatasetSource:
        return kind(run.data.layout, dataset, corpora.Words(64).vocabulary, run.training.seed)

    whole = loop.train(run, folder / "whole", source(pipeline.DatasetSource), tokenizer={}, initial=initial)
    with pytest.raises(Preempted):
        loop.train(run, folder / "parts", source(Short), tokenizer={}, initial=initial)
    parts = loop.train(run, folder / "parts", source(pipeline.DatasetSource), tokenizer={}, initial=initial)
    chex.assert_trees_all_equal(jax.device_get(whole.state), jax.device_get(parts.state))
    assert parts.metrics == whole.metrics
    assert losses(folder / "whole") == losses(folder / "parts")
    params, description = checkpoints.load_parameters(folder / "parts")
    chex.assert_trees_all_equal(jax.device_get(whole.state.params), params)
    assert description.experiment == run
    return whole


def test_goes_through_every_room(dataset, tmp_path):
    run = experiments.changed(settings(experiments.recurrent()), training={"steps": 12, "evaluation_batches": 2})
    found = trained(run, dataset, tmp_path).metrics
    assert found["eval/loss"] < found["eval/unigram_entropy"] - 0.1


@pytest.fixture
def teacher(dataset, tmp_path, one_device):
    """(its run, its directory, the result)."""
    run = experiments.changed(
        experiments.without_dropout(settings(experiments.gpt2())),
        model={"n_layer": 4},
        training={"steps": 60},
        optimizer={"learning_rate": 1e-2},
    )
    source = pipeline.DatasetSource(run.data.layout, dataset, corpora.Words(64).vocabulary, 0)
    taught = experiments.changed(alone(run), checkpoint={"every": 0})  # its last checkpoint alone is used
    return run, tmp_path / "teacher", loop.train(taught, tmp_path / "teacher", source, tokenizer={})


@pytest.mark.nightly
def test_a_student_learns_from_a_teacher_that_is_written_once(dataset, tmp_path, teacher):
    """On one device; constants on a mesh are those of word2vec in tests/training/test_step.py."""
    teacher, origin, taught = teacher
    teacher = experiments.changed(alone(teacher), training={"steps": 24})
    params, _ = checkpoints.load_parameters(origin)
    run = dataclasses.replace(
        teacher, objective=experiments.student().objective, weight_mapping=EveryOtherLayer(), model=None
    )
    run = experiments.changed(run, objective={"teacher": teacher.model, "checkpoint": str(origin)})
    begin = InitFrom.find(origin)
    run = begin.map_model(run)
    assert run.model.depth == 2
    layers = begin.parameters(run)
    every_other = jax.tree.map(lambda layer: layer[[0, 2]], params["gpt2"]["layers"])
    chex.assert_trees_all_equal(layers["gpt2"]["layers"], every_other)

    initial = begin.initialize(run, layers, None)
    found = trained(run, dataset, tmp_path / "student", initial)
    chex.assert_trees_all_equal(jax.device_get(found.state.constants), jax.device_get(taught.state.params))
    assert found.metrics["eval/agreement"] > 0.5
    folder = tmp_path / "student" / "whole"
    assert (folder / checkpoints.CONSTANTS / items.MANIFEST).exists()
    sizes = [sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in folder.glob("c*/*")]
    assert len(sizes) > 2  # the constants and several checkpoints, none of which holds them too
    (names,) = {tuple(sorted(checkpoints.load_parameters(path)[0])) for path in (folder, folder / "checkpoints" / "24")}
    assert names == tuple(sorted(params))
    shutil.rmtree(origin)  # a run that goes on needs its teacher no more
    again = loop.train(
        run,
        folder,
        pipeline.DatasetSource(run.data.layout, dataset, corpora.Words(64).vocabulary, 0),
        tokenizer={},
        initial=initial,
    )
    assert again.metrics == found.metrics
    shutil.rmtree(folder / checkpoints.CONSTANTS)
    with pytest.raises(UserError, match="Expected the constants of the run in"):
        loop.train(
            run,
            folder,
            pipeline.DatasetSource(run.data.layout, dataset, corpora.Words(64).vocabulary, 0),
            tokenizer={},
            initial=initial,
        )


def losses(workdir: Path) -> list[tuple[int, float]]:
    lines = metrics.read(workdir / "metrics.jsonl")
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]
