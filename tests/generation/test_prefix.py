"""A prefix language model writes: its prompt is the prefix, which is read from both sides."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.generation.generate import Generator
from plmjax.generation.writer import Settings, Writer
from plmjax.interop.run_directories import export_checkpoint
from tests.generation.model import CONFIG, END, PROMPTS, VOCABULARY, parameters, writer

NEW = 10


def test_cached_equals_the_whole_text_read_with_the_prompt_as_prefix() -> None:
    module, params = CONFIG.module(Purpose.WRITING, Execution()), parameters()

    @jax.jit
    def next_token(row: jax.Array, length: jax.Array, prefix: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = module.apply({"params": params}, row, prefix_lengths=prefix[None]).logits[0, length - 1]
        return jnp.argmax(logits), jax.nn.log_softmax(logits).max()

    texts = Writer(CONFIG, params, VOCABULARY, reads_prefix=True)(PROMPTS, Settings(max_new_tokens=NEW))
    for prompt, (text,) in zip(PROMPTS, texts, strict=True):
        row, total = list(prompt), 0.0
        while len(row) < len(prompt) + NEW and (row == prompt or row[-1] != END):
            padded = np.zeros((1, 32), np.int32)
            padded[0, : len(row)] = row
            token, nats = next_token(padded, len(row), np.int32(len(prompt)))
            row, total = [*row, int(token)], total + float(nats)
        assert text.tokens == row[len(prompt) :]
        np.testing.assert_allclose(text.log_probability, total, rtol=1e-5)
    causal = writer()(PROMPTS, Settings(max_new_tokens=NEW))
    assert [text.tokens for (text,) in texts] != [text.tokens for (text,) in causal]


def test_the_run_says_how_its_prompts_are_read(decoder_run: Path, prefix_run: Path) -> None:
    prompt, settings = "Returns the name of a", Settings(max_new_tokens=8)
    (((written,),), ((causal,),)) = (Generator.load(run)([prompt], settings) for run in (prefix_run, decoder_run))
    assert written.log_probability != causal.log_probability


def test_an_export_says_that_transformers_has_no_prefix(decoder_run: Path, prefix_run: Path, tmp_path: Path) -> None:
    said = export_checkpoint(prefix_run, tmp_path / "prefix")
    assert "lost: this run is a prefix language model" in said and "GPT2LMHeadModel reads them from left to" in said
    assert "prefix" not in export_checkpoint(decoder_run, tmp_path / "causal").replace(str(tmp_path), "")
