"""A prefix language model writes: its prompt is the prefix, which is read from both sides."""

from pathlib import Path

import numpy as np

from plmjax.generation.batch_generator import BatchGenerator, Settings
from plmjax.generation.generate import Generator
from plmjax.interop.run_directories import export_checkpoint
from tests.generation.model import CONFIG, PROMPTS, VOCABULARY, parameters, uncached, writer

NEW = 10


def test_cached_equals_the_whole_text_read_with_the_prompt_as_prefix() -> None:
    texts = BatchGenerator(CONFIG, parameters(), VOCABULARY, reads_prefix=True)(PROMPTS, Settings(max_new_tokens=NEW))
    for prompt, (text,) in zip(PROMPTS, texts, strict=True):
        tokens, nats = uncached(prompt, NEW, prefix_lengths=np.array([len(prompt)], np.int32))
        assert text.tokens == tokens
        np.testing.assert_allclose(text.log_probability, nats, rtol=1e-5)
    causal = writer()(PROMPTS, Settings(max_new_tokens=NEW))
    assert [text.tokens for (text,) in texts] != [text.tokens for (text,) in causal]


def test_the_run_says_how_its_prompts_are_read(decoder_run: Path, prefix_run: Path) -> None:
    prompt, settings = "Returns the name of a", Settings(max_new_tokens=8)
    (((written,),), ((causal,),)) = (Generator.load(run)([prompt], settings) for run in (prefix_run, decoder_run))
    assert written.log_probability != causal.log_probability


def test_an_export_says_that_transformers_has_no_prefix(decoder_run: Path, prefix_run: Path, tmp_path: Path) -> None:
    assert "lost: this run is a prefix" in export_checkpoint(prefix_run, tmp_path / "prefix")
    assert "prefix" not in export_checkpoint(decoder_run, tmp_path / "causal").replace(str(tmp_path), "")
