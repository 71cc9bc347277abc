"""A vocabulary of two clusters is a file of its own: it is trained, evaluated and generates."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.generation.sampling import Greedy
from plmjax.generation.writer import Settings, Writer
from plmjax.training import loop
from plmjax.training.optimizers.schedules import Constant
from tests.strangers import adaptive, experiments
from tests.strangers.source import ChainSource

NEW = 6


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> loop.Result:
    model = adaptive.AdaptiveConfig(**dataclasses.asdict(experiments.gpt2().model))
    run = dataclasses.replace(experiments.gpt2(), model=model)
    rate = {"learning_rate": 2e-2, "schedule": Constant()}
    run = experiments.changed(run, training={"steps": 60, "log_every": 60}, checkpoint={"every": 0}, optimizer=rate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:1])  # the steps of simulated devices are slow
        return loop.train(run, tmp_path_factory.mktemp("adaptive"), ChainSource(run.data), {})


def test_it_is_trained_and_evaluated(result: loop.Result) -> None:
    assert result.metrics["eval/loss"] < result.metrics["eval/unigram_entropy"] - 0.3
    assert result.metrics["eval/accuracy"] > 2 / 59  # twice that of a guess


def test_it_generates_the_likeliest_tokens(result: loop.Result) -> None:
    config, params = result.program.module.config, jax.device_get(result.state.params)
    writer = Writer(config, params, ChainSource(experiments.gpt2().data).vocabulary)
    prompt = [9, 22, 61]
    ((text,),) = writer([prompt], Settings(Greedy(), max_new_tokens=NEW, min_new_tokens=NEW))
    row = jnp.asarray([prompt + text.tokens])
    logits = (
        config.module(Purpose.PRETRAINING, Execution()).apply({"params": params}, row).logits[0, len(prompt) - 1 : -1]
    )
    assert len(text.tokens) == NEW
    np.testing.assert_allclose(text.log_probability, logits.max(axis=-1).sum(), rtol=1e-5)


def test_it_is_small() -> None:
    assert len(Path(adaptive.__file__).read_text().splitlines()) < 120
