"""The program of docs/python.md, run in a folder of a user's own with fewer steps."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.inference.rows import inputs
from plmjax.models.bert import BertConfig
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
assert logits.shape == (2, 2) and classifier.labels == ("bad", "good") and description.step > 0
pair = ["One text.", ("The first of a pair,", "and the second.")]
assert float(abs(plmjax.load("mine/")(pair).logits - outputs.logits).max()) == 0
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


def test_rows_longer_than_the_positions_are_refused(small_run: Path) -> None:
    config, tokenizer = BertConfig.tiny(vocab_size=800), tokenizers.load(small_run / "tokenizer")
    assert inputs(config, tokenizer, ["a"], length=512)["input_ids"].shape == (1, 512)
    with pytest.raises(UserError, match="at most the model's 512 positions, found 513"):
        inputs(config, tokenizer, ["a"], length=513)
