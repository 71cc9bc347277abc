"""Two models that no room was built for go through all of them: a causal transformer and an LSTM with a carry.

Prepared dataset, pipeline, step, a mesh of three axes, microbatches, checkpoint, resume: each is a file of its own here
and not a line elsewhere.
"""

from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.data import pipeline
from plmjax.training import checkpoints, loop, metrics
from tests.data import corpora
from tests.strangers import experiments

STRANGERS = ["causal", "recurrent"]


class Preempted(Exception):
    """Ends a run from within."""


class Short(pipeline.Source):
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

    return corpora.write(tmp_path_factory.mktemp("text") / "dataset", documents(80), documents(20), 64)


@pytest.mark.parametrize("name", STRANGERS)
def test_goes_through_every_room(name, dataset, tmp_path):
    run = experiments.changed(
        getattr(experiments, name)(),
        mesh={"data": 2, "fsdp": 2, "tensor": 2},
        training={"accumulation": 2, "evaluation_batches": 4, "steps": 24, "log_every": 6},
        optimizer={"learning_rate": 3e-2, "clip_norm": 0.0, "schedule": "constant"},
    )

    def source(kind: type) -> pipeline.Source:
        return kind(run.data, dataset, corpora.Words(64).vocabulary, run.training.seed)

    whole = loop.train(run, tmp_path / "whole", source(pipeline.Source), {})
    with pytest.raises(Preempted):
        loop.train(run, tmp_path / "parts", source(Short), {})
    parts = loop.train(run, tmp_path / "parts", source(pipeline.Source), {})
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(whole.state), jax.device_get(parts.state))
    assert parts.metrics == whole.metrics
    assert whole.metrics["eval/loss"] < whole.metrics["eval/unigram_entropy"] - 0.1
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    params, description = checkpoints.load_parameters(tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(whole.state.params), params)
    assert description.experiment == run


def losses(workdir: Path) -> list[tuple[int, float]]:
    lines = metrics.read(workdir / "metrics.jsonl")
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


@pytest.mark.parametrize("name", STRANGERS)
def test_is_small(name):
    assert len(Path(__file__).with_name(f"{name}.py").read_text().splitlines()) < 100
