"""A model that no room was built for goes through all of them: an LSTM with a carry, in one file.

Prepared dataset, pipeline, step, a mesh, microbatches, checkpoint, resume.
"""

from pathlib import Path

import chex
import jax
import numpy as np
import pytest

from plmjax.data import pipeline
from plmjax.training import loop, metrics
from plmjax.training.checkpoints import checkpoints
from plmjax.training.optimizers.schedules import Constant
from tests.data import corpora
from tests.third_party import experiments


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


def losses(workdir: Path) -> list[tuple[int, float]]:
    lines = metrics.read(workdir / "metrics.jsonl")
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


def test_goes_through_every_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped and went on is the run that nothing stopped. A token of the text tells the next one."""
    draws = np.random.default_rng(0)

    def documents(count: int) -> list[list[list[int]]]:
        begins = draws.integers(0, 59, (count, 12))
        return [[((np.arange(9) + begin) % 59 + 5).tolist() for begin in document] for document in begins]

    dataset = corpora.write(tmp_path / "dataset", documents(80), documents(20), vocab_size=64)
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:4])
    run = experiments.changed(
        experiments.recurrent(),
        mesh={"data": 1, "fsdp": 2, "tensor": 2},
        training={"accumulation": 2, "evaluation_batches": 2, "steps": 12, "log_every": 6},
        optimizer={"learning_rate": 3e-2, "clip_norm": 0.0, "schedule": Constant()},
    )

    def train(folder: str, kind: type) -> loop.Result:
        source = kind(run.data.layout, dataset, corpora.Words(64).vocabulary, run.training.seed)
        return loop.train(run, tmp_path / folder, source, tokenizer={})

    whole = train("whole", pipeline.DatasetSource)
    with pytest.raises(Preempted):
        train("parts", Short)
    parts = train("parts", pipeline.DatasetSource)
    chex.assert_trees_all_equal(jax.device_get(whole.state), jax.device_get(parts.state))
    assert parts.metrics == whole.metrics and losses(tmp_path / "whole") == losses(tmp_path / "parts")
    params, description = checkpoints.load_parameters(tmp_path / "parts")
    chex.assert_trees_all_equal(jax.device_get(whole.state.params), params)
    assert description.experiment == run
    assert whole.metrics["eval/loss"] < whole.metrics["eval/unigram_entropy"] - 0.1
