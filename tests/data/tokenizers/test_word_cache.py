"""Words whose ids are remembered: with every kind of tokenizer, the ids of a text are those of the library."""

import json

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from plmjax.data.tokenizers import spelling
from plmjax.data.tokenizers.word_cache import WordCache

LETTERS = [*"abcd#.,!", "Ġ", "▁", "天", "气", " ", "A", "é"]
PIECES = ["[UNK]", *LETTERS, "ab", "▁a", "Ġb", "a b", "aĠb", ". a", "天气", "##b", "##.", "b a"]
TABLE = {piece: number for number, piece in enumerate(PIECES)}
MODELS = {
    "WordPiece": models.WordPiece(TABLE, unk_token="[UNK]"),
    "WordLevel": models.WordLevel(TABLE, unk_token="[UNK]"),
    "BPE": models.BPE(TABLE, [("Ġ", "b"), ("a", "Ġb"), ("a", "b"), ("▁", "a")], unk_token="[UNK]"),
    "Unigram": models.Unigram([(piece, -len(piece) / 9) for piece in PIECES], unk_id=0),
}
SPLIT = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
CUTS = {
    "BERT": pre_tokenizers.BertPreTokenizer(),
    "BERT twice": pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer()] * 2),
    "spaces": pre_tokenizers.WhitespaceSplit(),
    "spaces and pieces": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
    "spaces and split": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), SPLIT]),
    "pieces": pre_tokenizers.Metaspace(),
    "split": SPLIT,
    "two words": pre_tokenizers.Split(Regex(r"a b|\S+| "), "isolated"),
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "bytes across": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
}
FORMS = {
    "nothing": normalizers.Sequence([]),
    "BERT": normalizers.BertNormalizer(),
    "BERT without Chinese": normalizers.BertNormalizer(handle_chinese_chars=False),
    "BERT and a mark": normalizers.Sequence([normalizers.BertNormalizer(), normalizers.Replace(".", "")]),
    "across a mark": normalizers.Sequence([normalizers.BertNormalizer(), normalizers.Replace("a.b", "ab")]),
    "folded": spelling.lowercase_and_strip(),
    "composed": normalizers.NFC(),
    "lower case": normalizers.Lowercase(),
    "stripped": normalizers.Strip(),
    "prepended": normalizers.Prepend("b"),
}
WORDS = ["a", "b", "ab", "a.b", "天气a", "Aé", "e\u0301", "a\u00a0b", "", "c\td"]
TEXTS = [*WORDS, *(f"{first} {second}" for first in WORDS for second in WORDS), "a b ", " a  b a"]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("model", MODELS)
def test_ids_are_those_of_the_library(model: str, cut: str) -> None:
    """Also of tokenizers that look across a space, or write before a text."""
    for form, normalizer in FORMS.items():
        engine = Tokenizer(MODELS[model])
        engine.normalizer, engine.pre_tokenizer = normalizer, CUTS[cut]
        engine.post_processor = processors.TemplateProcessing(single="a $A", special_tokens=[("a", 1)])
        ids, lengths = WordCache(engine, json.loads(engine.to_str())).encode(TEXTS)
        expected = [engine.encode(text, add_special_tokens=False).ids for text in TEXTS]
        found = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
        assert dict(zip(TEXTS, found, strict=True)) == dict(zip(TEXTS, expected, strict=True)), form
        assert ids.dtype == lengths.dtype == np.int32


def test_marks_and_chinese_characters_are_always_words_of_their_own() -> None:
    """Characters of Unicode's first plane, every seventh of the Chinese and Korean ones, between two letters."""
    engine = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    edges = (0x4DBF, 0x4DC0, 0x4DFF, 0x4E00, 0x9FFF, 0xA000)
    codes = [*range(0x21, 0x3400), *range(0x3400, 0xD800, 7), *edges, *range(0xE000, 0x10000)]
    texts = [f"a{chr(code)}b" for code in codes]
    for chinese in (True, False):
        engine.normalizer = normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=chinese)
        ids, _ = WordCache(engine, json.loads(engine.to_str())).encode(texts)
        assert ids.tolist() == [token for one in engine.encode_batch(texts) for token in one.ids]
