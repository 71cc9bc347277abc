"""The program of docs/python.md, run in a folder of a user's own with fewer steps."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.inference.rows import inputs
from plmjax.models.bert import BertConfig
from plmjax.models.roberta import RobertaConfig
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHORTER = {
    "steps=2000": "steps=4, unroll=1",
    "steps=0": "steps=0, unroll=1",
    "log_every=100": "log_every=2",
    "SentencePairs()": "SentencePairs(duplicates=1)",
    "jax.devices()": "jax.devices()[:1]",
}
"""Replacements that make the page run in seconds. Nothing else of it is changed."""
CHECKS = """
assert int(state.step) == 3 and noisy.logits.shape == outputs.logits.shape
assert logits.shape == (2, 2) and trained.objective.labels == ("bad", "good")
assert text.tokens == len(pieces) <= 20 and len(texts[1]) == 2
assert result.metrics["eval/loss"] > 0 and tiny.training.seed == 1
"""


@pytest.mark.nightly
def test_the_page_is_a_program_of_its_own(
    tmp_path: Path, small_run: Path, decoder_run: Path, prose: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_run / "export", "exported")
    shutil.copytree(decoder_run, "runs/gpt2_tiny")
    Path("my_text").mkdir()
    for name in "abcd":  # files for worker processes
        shutil.copy(prose, f"my_text/{name}.txt")
    for name in ("train.tsv", "dev.tsv"):
        Path(name).write_text("sentence\tlabel\n" + "a fine example\tgood\na poor example\tbad\n" * 8)
    program = "".join(BLOCKS)
    for long, short in SHORTER.items():
        assert long in program
        program = program.replace(long, short)
    Path("page.py").write_text(f"print('begun')\n{program}{CHECKS}", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "page.py"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("begun") == 1
    assert not done.stderr


def test_texts_are_laid_out_as_in_pretraining(small_run: Path) -> None:
    tokenizer = tokenizers.load(small_run / "tokenizer")
    words = tokenizer.vocabulary
    first, second = tokenizer.encode("a class"), tokenizer.encode("the object of")
    config = BertConfig.tiny(vocab_size=800)
    found = {
        name: np.asarray(field)
        for name, field in inputs(config, tokenizer, ["a class", ("a class", "the object of")]).items()
    }
    pair = [words.cls, *first, words.sep, *second, words.sep]
    assert found["input_ids"][1].tolist() == pair
    assert found["input_ids"][0, : len(first) + 2].tolist() == [words.cls, *first, words.sep]
    assert (found["input_ids"][0, len(first) + 2 :] == words.pad).all()
    assert found["attention_mask"].sum(axis=1).tolist() == [len(first) + 2, len(pair)]
    assert found["token_type_ids"].tolist() == [[0] * len(pair), [0] * (len(first) + 2) + [1] * (len(second) + 1)]
    assert inputs(config, tokenizer, ["a class"], length=9)["input_ids"].shape == (1, 9)
    twice = inputs(RobertaConfig.tiny(vocab_size=800), tokenizer, [("a class", "the object of")])["input_ids"]
    assert twice.shape == (1, len(pair) + 1)  # RoBERTa's two separators
    short = inputs(config, tokenizer, ["a class " * 99], length=7)["input_ids"]
    assert short.shape == (1, 7) and short[0, -1] == words.sep
    assert inputs(config, tokenizer, ["a"], length=512)["input_ids"].shape == (1, 512)
    with pytest.raises(UserError, match="at most the model's 512 positions, found 513"):
        inputs(config, tokenizer, ["a"], length=513)
    with pytest.raises(UserError, match="one or more texts, found none"):
        inputs(config, tokenizer, [])
