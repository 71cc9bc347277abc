"""A visibility, a score term and a vocabulary of its own in one file: every verb takes the model."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from tests.products import flops
from tests.third_party import experiments, windowed


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
