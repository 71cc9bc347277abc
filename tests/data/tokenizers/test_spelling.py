"""Lower case that leaves other scripts whole, and the normalizer that a vocabulary has."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.data.tokenizers import spelling
from tests.data.tokenizers.scripts import TEXTS
from tests.optional import transformers

BERT = spelling.bert_normalizer(lowercase=True)


def test_lower_case_is_berts_on_latin_greek_and_cyrillic():
    """Deviation named in `training.train`: BERT drops marks of all scripts, not only of these."""
    scripts = ("LATIN", "GREEK", "CYRILLIC", "DIGIT", "MODIFIER", "MATHEMATICAL", "SUPERSCRIPT", "NOT", "LESS-THAN")
    letters = [
        chr(code)
        for code in range(0x20, 0x1D800)
        if unicodedata.name(chr(code), "").split(" ")[0] in scripts and "GEORGIAN" not in unicodedata.name(chr(code))
    ]
    assert len(letters) > 3000
    random = np.random.default_rng(0)
    marks = [chr(code) for code in range(0x300, 0x370)] + ["\ufe0f", "\u20e3"]
    spelt = "".join(letter + mark for letter in letters for mark in ("", random.choice(marks), random.choice(marks)))
    odd = "❤️ 1️⃣ a≠b c≮d\u0301 é.\u0301 \u212bngstr\u00f6m \u212a İstanbul ẞ 我e\u0301 \u0301 ſ\u200d\u0301"
    for text in (spelt, unicodedata.normalize("NFD", spelt), odd):
        assert spelling.lowercase_and_strip().normalize_str(text) == BERT.normalize_str(text)


@pytest.mark.parametrize(
    ("kind", "language"), [*(("wordpiece", language) for language in TEXTS), ("bpe", "hindi"), ("word", "hindi")]
)
def test_a_trained_tokenizer_knows_the_words_of_its_text(kind: str, language: str, tmp_path: Path):
    """A folder of any of its files gives the same ids, here and in transformers. Other scripts stay whole."""
    text = unicodedata.normalize("NFC", TEXTS[language])
    assert BERT.normalize_str(text) != text
    for form in ("NFC", "NFD"):
        assert spelling.lowercase_and_strip().normalize_str(unicodedata.normalize(form, text)) == text
    tokenizer = tokenizers.train(kind, 300, [f"{text} Café"] * 5, tmp_path / "tokenizer")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and tokenizer.vocabulary.unknown not in ids
    assert tokenizer.encode("CAFÉ") == tokenizer.encode("cafe")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "tokenizer"))
    assert theirs(text, add_special_tokens=False)["input_ids"] == ids
    if kind == "wordpiece":
        (tmp_path / "tokenizer" / "tokenizer.json").unlink()
        assert tokenizers.load(tmp_path / "tokenizer").encode(text) == ids
        assert tokenizers.load(tmp_path / "tokenizer" / "vocab.txt").encode(text) == ids


@pytest.mark.parametrize(
    ("words", "normalizer"),
    [
        (["the", "##s", "de", "я", "##й".replace("й", "и"), "か", "我", "##我"], BERT),
        (["für", "##ä", "한국", "##어"], spelling.lowercase_only()),
        (["한국", "##어", "the", "cafe"], spelling.lowercase_and_strip()),
        (["[ENTITY]", "<URL>", *"abcdefgh"], BERT),
        (["A", *(f"b{number}" for number in range(99))], BERT),  # more than one in a hundred makes it cased
        (["A", *(f"b{number}" for number in range(98))], spelling.bert_normalizer(lowercase=False)),
    ],
)
def test_a_vocabulary_of_pieces_without_options_has_the_spelling_of_its_pieces(words, normalizer, tmp_path: Path):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *words]), "utf-8")
    found, table = tokenizers.load(tmp_path / "vocab.txt"), [*special, *words]
    assert found.normalize("Ab É 한국 が ज़्") == normalizer.normalize_str("Ab É 한국 が ज़्")
    for word in words:
        if not word.startswith(("##", "[", "<", "A", "b")):
            assert found.encode(word) == [table.index(word)]
