"""Tokens as people read them, of every kind of tokenizer."""

from types import SimpleNamespace

import pytest

from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.data import tokenizers
from plmjax.data.layouts import FullSentences
from plmjax.data.tokenizers.readable import readable
from plmjax.experiment import Data, Experiment
from plmjax.inference.fill_mask import fill_mask
from plmjax.models.roberta import RobertaConfig
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.training.checkpoints import checkpoints
from tests.interop.odd_bert import SIZES, random_params

TEXT = ["the stout kennels were unbelievable and you knew", "naïve – “quoted” café 日本 😀"] * 30


@pytest.mark.parametrize("kind", tokenizers.KINDS)
def test_tokens_read_as_the_text_does(kind, tmp_path):
    tokenizer = tokenizers.train(kind, 420, TEXT, tmp_path)
    text = " the kennels you"
    found = readable(tokenizer, tokenizer.encode(text))
    assert not any(mark in piece for piece in found for mark in ("Ġ", "▁", "</w>"))
    if kind == "wordpiece":
        assert found == tokenizer.tokens(tokenizer.encode(text))
    else:
        joined = "" if kind not in ("word", "whitespace") else " "
        assert joined.join(found).strip() == text.strip()
    special = tokenizer.vocabulary.special
    assert bool(special) == (kind != "byte") and readable(tokenizer, special) == tokenizer.tokens(special)


def test_bytes_of_sentencepiece_names_and_ids_without_a_token() -> None:
    for kind, tokens, read in (
        ("sentencepiece-bpe", ["<0xE2>", "<0x41>", "▁", "▁a▁b", None], ["\\xe2", "A", " ", " a b", "[id 4]"]),
        ("byte-bpe", ["Ġyou", "<日本>", "Ã", "©", "Ċ"], [" you", "<日本>", "\\xc3", "\\xa9", "\\n"]),
    ):
        made = SimpleNamespace(kind=kind, tokens=lambda ids, tokens=tokens: tokens)
        assert readable(made, range(len(tokens))) == read


@pytest.mark.nightly
def test_masks_are_filled_with_text_that_reads(tmp_path, capsys):
    tokenizers.train("byte-bpe", 300, TEXT, tmp_path / "tokenizer")
    config = RobertaConfig(**SIZES | {"vocab_size": 300})
    run = Experiment(model=config, objective=RobertaPretraining(), data=Data(FullSentences()))
    params = random_params(run.objective.module(config, Execution()))
    checkpoints.save_parameters(
        tmp_path / "run", params, run, tokenizer=checkpoints.tokenizer_files(tmp_path / "tokenizer")
    )
    (filled,) = fill_mask(tmp_path / "run", "the [MASK] you", 300)
    every = [piece for piece, _ in filled]
    begins = next(piece for piece in every if piece.startswith(" ") and piece[1:].isalpha())
    assert "\\xc3" in every and not any("Ġ" in piece for piece in every)
    cli.run(["fill-mask", str(tmp_path / "run"), "the [MASK] you", "--top", "300"])
    said = capsys.readouterr().out
    assert f"'{begins}' 0." in said and "Ġ" not in said
