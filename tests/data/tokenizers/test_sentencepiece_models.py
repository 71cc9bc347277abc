"""A spiece.model of any options gives the ids of SentencePiece, or is refused in one sentence."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from plmjax.data import tokenizers
from plmjax.data.tokenizers import engines, sentencepiece_check
from tests.data.mistakes import refused

WORDS = "the quick brown fox jumps over lazy dogs and THE Cat at 42 tables in New York cafés".split()
SYMBOLS = ["<x>", "[X]", "<a>", "<a><b>", "New▁York", ":)", "™", "①", "Ａ", "…"]
PARTS = [
    *"abcdefg   THE .,'é\t\n",
    *("the ", "<sep>", "<a>", "<b>", "™", "New York", "  ", "ﬁ", "Ａ", "❤", "42", "\u3000"),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "symbols": {"user_defined_symbols": SYMBOLS},
    "no prefix": {"add_dummy_prefix": False},
    "all spaces": {"remove_extra_whitespaces": False},
    "over spaces": {"split_by_whitespace": False},
    "bytes": {"byte_fallback": True, "vocab_size": 360},
    "symbols, all spaces": {
        "user_defined_symbols": SYMBOLS,
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
    },
    "symbols over spaces": {"user_defined_symbols": SYMBOLS, "split_by_whitespace": False},
}


def model(**options: Any) -> bytes:
    order, written = random.Random(0), io.BytesIO()
    texts = [" ".join(order.choices(WORDS, k=12)) for _ in range(60)]
    sentencepiece.SentencePieceTrainer.train(
        **{"vocab_size": 120, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1} | options,
        sentence_iterator=iter(texts),
        model_writer=written,
    )
    return written.getvalue()


CASES = [(case, kind, "nmt_nfkc") for case in OPTIONS for kind in ("unigram", "bpe", "char")]
CASES += [(case, "unigram", rule) for case in ("plain", "symbols") for rule in ("nfkc", "identity", "nmt_nfkc_cf")]


@pytest.mark.parametrize(("case", "kind", "rule"), CASES)
def test_ids_are_those_of_sentencepiece(case: str, kind: str, rule: str, tmp_path: Path) -> None:
    """Texts are random, with every symbol and every kind of space."""
    content = model(model_type=kind, normalization_rule_name=rule, **OPTIONS[case])
    (tmp_path / "spiece.model").write_bytes(content)
    engine = tokenizers.load(tmp_path, model_type="reformer")._engine
    order = random.Random(1)
    texts = ["".join(order.choices(PARTS, k=order.randint(1, 12))) for _ in range(400)]
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    table = theirs.encode(texts)
    assert [encoding.ids for encoding in engine.encode_batch(texts, add_special_tokens=False)] == table
    for symbol in OPTIONS[case].get("user_defined_symbols", ()):
        ids = engine.encode(symbol.replace("▁", " "), add_special_tokens=False).ids
        assert engine.token_to_id(symbol) in ids or symbol == "New▁York"  # which some rules cut at its space
        assert theirs.unk_id() not in ids


def test_a_model_of_another_form_or_that_the_library_reads_otherwise_is_refused(tmp_path: Path) -> None:
    """Here the pieces of the library's normalization are other ones than the file's."""
    for options, found in (
        ({"treat_whitespace_as_suffix": True}, "(treat_whitespace_as_suffix)"),
        ({"model_type": "word", "vocab_size": 20}, "(model_type word)"),
    ):
        (tmp_path / "spiece.model").write_bytes(model(**options))
        refused(lambda: tokenizers.load(tmp_path), f"{found} .. spiece.model")
    content = model(user_defined_symbols=SYMBOLS)
    engine = engines.sentencepiece(model(user_defined_symbols=["<x>"]), {})
    said = "the tokenizers library can follow .. from token"
    refused(lambda: sentencepiece_check.check(engine, content, {}, ""), said)


def test_special_tokens_have_the_names_that_the_model_gives_them(tmp_path: Path) -> None:
    named = {"unk_piece": "<UNK>", "pad_piece": "<PAD>", "bos_piece": "<BOS>", "eos_piece": "<EOS>"}
    (tmp_path / "spiece.model").write_bytes(model(pad_id=3, control_symbols=["<c>"], **named))
    tokenizer = tokenizers.load(tmp_path, model_type="reformer")
    assert tokenizer.special == {"pad": "<PAD>", "unk": "<UNK>", "bos": "<BOS>", "eos": "<EOS>"}
    assert tokenizer.vocabulary.pad == 3 and 4 in tokenizer.vocabulary.special
    tokenizer.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").special == tokenizer.special
    # The Deviation of `engines.WHITE_SPACE`: U+0085 is a letter to SentencePiece and a space to transformers.
    assert tokenizer.encode("the\x85fox") == tokenizer.encode("the fox")
