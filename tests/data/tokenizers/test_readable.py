"""Tokens as people read them, of every kind of tokenizer."""

from types import SimpleNamespace

import pytest

from plmjax.data import tokenizers
from plmjax.data.tokenizers.readable import readable

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
