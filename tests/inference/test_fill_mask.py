"""Masked tokens of a text."""

import string
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.data import tokenizers
from plmjax.inference import fill_mask as filling
from plmjax.inference.fill_mask import MASK, fill_mask
from plmjax.training.checkpoints import checkpoints
from tests.systems.modules import random_params
from tests.third_party import experiments


def test_fills_every_mask_with_the_likeliest_tokens(small_run, reference) -> None:
    text = "the [MASK] was [MASK]"
    _, logits = reference(text)
    filled = fill_mask(small_run, text, 3)
    tokenizer = tokenizers.load(small_run / "tokenizer")
    assert len(filled) == 2
    for place, candidates in zip((2, 4), filled, strict=True):
        probabilities = np.exp(logits[place]) / np.exp(logits[place]).sum()
        best = np.argsort(-probabilities)[:3]
        assert [token for token, _ in candidates] == tokenizer.tokens(best)
        np.testing.assert_allclose([share for _, share in candidates], probabilities[best], atol=1e-6)


def test_a_row_of_the_table_without_a_token_is_never_likely(small_run: Path, tmp_path: Path) -> None:
    """Probabilities are of the tokens that there are, and equal ones come in their order."""
    description = checkpoints.describe(checkpoints.find(small_run))
    size = tokenizers.load(small_run / "tokenizer").vocabulary.size
    run = experiments.changed(description.experiment, model={"vocab_size": size + 8})
    params = jax.tree.map(np.zeros_like, random_params(run.objective.module(run.model, Execution())))
    bias = np.zeros(size + 8, np.float32)
    bias[[7, 9]], bias[size:] = np.log([5.0, 3.0]), 99.0
    (path,) = [path for path, leaf in jax.tree.leaves_with_path(params) if leaf.shape == bias.shape]
    flat = dict(jax.tree.leaves_with_path(params)) | {path: bias}
    params = jax.tree.unflatten(jax.tree.structure(params), flat.values())
    checkpoints.save_parameters(tmp_path / "run", params, run, description.tokenizer)
    (found,) = fill_mask(tmp_path / "run", f"the {MASK}", top=size)
    assert len(found) == size and sum(share for _, share in found) == pytest.approx(1)
    assert [share for _, share in found[:3]] == pytest.approx([5 / (size + 6), 3 / (size + 6), 1 / (size + 6)])


def test_a_text_that_just_fits_the_positions_is_read(small_run: Path) -> None:
    """Two of the 128 positions are those of the tokens around it."""
    found = fill_mask(small_run, " ".join([MASK] * 126), top=1)
    assert len(found) == 126 and all(len(words) == 1 for words in found)


def test_a_gap_has_the_names_of_every_tokenizer(small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of the command says so. Other special tokens in the text are plain text."""
    expected = fill_mask(small_run, "the [MASK] of [MASK]")
    for text in ("the <mask> of <extra_id_0>", "the [MASK] of <mask>"):
        assert fill_mask(small_run, text) == expected
        cli.run(["fill-mask", str(small_run), text])
        assert capsys.readouterr().out.count("[MASK]") == 2
    assert len(fill_mask(small_run, "[SEP] the [MASK] [PAD]")) == 1


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "sentencepiece-unigram", "xlnet-unigram", "word"])
def test_only_gaps_are_special_in_the_text(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizers.train(kind, 300, [f"the fox of {string.printable}"] * 9, tmp_path)
    ids = filling.masked_ids(tokenizer, "the [MASK] of <mask> <extra_id_3> </s><s>[SEP][PAD]<pad><sep>")
    special = [token for token in ids if token in tokenizer.vocabulary.special]
    assert [token for token in special if token != tokenizer.vocabulary.unknown] == [tokenizer.vocabulary.mask] * 3
