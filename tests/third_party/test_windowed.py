"""A visibility, a score term and a vocabulary of its own in one file: every verb takes the model."""

import dataclasses
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.generation.batch_generator import BatchGenerator, Settings
from plmjax.generation.sampling import Greedy
from plmjax.training import loop
from plmjax.training.optimizers.schedules import Constant
from tests.products import flops
from tests.systems.modules import outputs
from tests.third_party import experiments, windowed
from tests.third_party.source import ChainSource

NEW = 6


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> loop.Result:
    model = windowed.WindowedConfig(**dataclasses.asdict(experiments.gpt2().model))
    run = dataclasses.replace(experiments.gpt2(), model=model)
    rate = {"learning_rate": 2e-2, "schedule": Constant()}
    run = experiments.changed(run, training={"steps": 60, "log_every": 60}, checkpoint={"every": 0}, optimizer=rate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:1])  # the steps of simulated devices are slow
        return loop.train(run, tmp_path_factory.mktemp("windowed"), ChainSource(run.data), tokenizer={})


@pytest.mark.nightly
def test_it_is_trained_and_evaluated(result: loop.Result) -> None:
    assert result.metrics["eval/loss"] < result.metrics["eval/unigram_entropy"] - 0.3
    assert result.metrics["eval/accuracy"] > 2 / 59  # twice that of a guess


@pytest.mark.nightly
def test_it_generates_the_likeliest_tokens(result: loop.Result) -> None:
    config, params = result.program.module.config, jax.device_get(result.state.params)
    writer = BatchGenerator(config, params, ChainSource(experiments.gpt2().data).vocabulary)
    prompt = [9, 22, 61]
    ((text,),) = writer([prompt], Settings(Greedy(), max_new_tokens=NEW, min_new_tokens=NEW))
    row = {"input_ids": np.array([prompt + text.tokens])}
    logits = np.asarray(outputs(config.module(Purpose.PRETRAINING, Execution()), params, row).scores.logits())
    logits = logits[0, len(prompt) - 1 : -1]
    assert len(text.tokens) == NEW
    np.testing.assert_allclose(text.log_probability, logits.max(axis=-1).sum(), rtol=1e-5)


@pytest.mark.nightly
def test_it_sees_what_its_condition_says() -> None:
    """Before it learns: its slopes may then make the far end of the window so faint that float32 has no number."""
    config = windowed.WindowedConfig(**dataclasses.asdict(experiments.gpt2().model))
    module, row = config.module(Purpose.PRETRAINING, Execution()), jnp.asarray([np.arange(5, 17)])
    params = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), row))["params"]

    @jax.jit
    @jax.jacrev
    def reached(words: jax.Array) -> jax.Array:
        changed = params | {"words": {"embedding": words}}
        return module.apply({"params": changed}, row).last_hidden_state[0, -1]

    gradient = reached(params["words"]["embedding"])  # [D V D]
    seen = np.abs(gradient).max((0, 2))[row[0]] > 0
    np.testing.assert_array_equal(seen, np.arange(11, -1, -1) % 2 == 0)  # two layers reach twice the window


@pytest.mark.parametrize("attention", ["dense", "blockwise"])
def test_its_window_saves_work_in_every_backend(attention: str) -> None:
    def products(length: int) -> float:
        sizes = dataclasses.asdict(experiments.gpt2().model) | {"n_positions": length}
        module = windowed.Windowed(windowed.WindowedConfig(**sizes), Execution(attention=attention))
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
        return flops(lambda params, ids: module.apply(params, ids).last_hidden_state, params, ids)

    assert products(1024) < 2.2 * products(512)


@pytest.mark.nightly
def test_the_command_line_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is pretrained from raw text, evaluated, writes, is planned for a slice and exported."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    documents = [" ".join(words[(begin + i) % 9] for i in range(80)) for begin in range(60)]
    (tmp_path / "counting.txt").write_text("\n\n".join(documents) + "\n")
    run, experiment = tmp_path / "run", "tests/third_party/experiments.py:windowed"
    text = ["--data.input", tmp_path / "counting.txt", "--data.held_out", 0.2, "--tokenizer.vocab_size", 64]

    def command(*arguments: object) -> str:
        cli.run([str(argument) for argument in arguments])
        return capsys.readouterr().out

    command("pretrain", experiment, "--workdir", run, *text, "--training.evaluation_batches", 2)
    assert "perplexity" in command("evaluate", run)
    assert command("generate", run, "one two three", "--max_new_tokens", 4).strip()
    assert "v5e:2x4" in command("plan", experiment, "--topology", "v5e:2x4", "--model.vocab_size", 64)
    command("export", run, tmp_path / "words.txt", "--vectors", "text")
    assert any(line.startswith("seven ") for line in (tmp_path / "words.txt").read_text().splitlines())
