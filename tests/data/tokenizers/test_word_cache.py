"""Words whose ids are remembered: of which tokenizers, and where a text may be cut for it."""

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from plmjax.data.tokenizers import spelling, word_cache
from plmjax.data.tokenizers.word_cache import WordCache, _at_spaces, _before_spaces, _separation


def description(pre_tokenizers: list[dict[str, Any]], normalizers: list[dict[str, Any]], model: str) -> dict[str, Any]:
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "model": {"type": model},
    }


BERT, SPLIT = [{"type": "BertPreTokenizer"}], [{"type": "Split"}]
FOLDED = json.loads(spelling.folded().__getstate__())["normalizers"][1:]
CHINESE, PLAIN = ({"type": "BertNormalizer", "handle_chinese_chars": handles} for handles in (True, False))


@pytest.mark.parametrize(
    ("pre_tokenizers", "normalizers", "model", "expected"),
    [
        (BERT, [CHINESE], "WordPiece", (_at_spaces, word_cache._MARKS_CHINESE_AND_RUNS)),
        (BERT, [PLAIN], "WordPiece", (_at_spaces, word_cache._MARKS_AND_RUNS)),
        (BERT, [CHINESE, {"type": "Replace"}], "WordPiece", (_at_spaces, None)),
        (BERT, [CHINESE, *FOLDED], "WordPiece", (_at_spaces, word_cache._MARKS_CHINESE_AND_RUNS)),
        (BERT, [CHINESE, {"type": "NFC"}], "WordPiece", (_at_spaces, None)),
        ([{"type": "WhitespaceSplit"}, *SPLIT], [*FOLDED], "WordLevel", (_at_spaces, None)),
        (BERT, [{"type": "Strip"}], "WordPiece", (None, None)),
        (BERT, [CHINESE, {"type": "Prepend"}], "WordPiece", (None, None)),
        (
            [{"type": "WhitespaceSplit"}, {"type": "Metaspace"}],
            [{"type": "Precompiled"}],
            "Unigram",
            (_at_spaces, None),
        ),
        ([{"type": "WhitespaceSplit"}], [], "WordLevel", (_at_spaces, None)),
        ([{"type": "Metaspace"}], [], "Unigram", (None, None)),
        (SPLIT, [{"type": "Lowercase"}], "WordLevel", (_before_spaces, None)),
        (SPLIT, [], "BPE", (None, None)),
        (BERT * 2, [], "WordPiece", (None, None)),
    ],
)
def test_only_tokenizers_that_do_not_look_across_a_space_are_cached(
    pre_tokenizers: list[dict[str, Any]], normalizers: list[dict[str, Any]], model: str, expected: tuple
) -> None:
    assert _separation(description(pre_tokenizers, normalizers, model)) == expected


@pytest.mark.parametrize(("uses_pattern", "cut"), [(True, _before_spaces), (False, None)])
def test_bytes_are_cut_before_spaces_where_their_pattern_cuts_there(uses_pattern: bool, cut: object) -> None:
    found = description([], [], "BPE") | {"pre_tokenizer": {"type": "ByteLevel", "use_regex": uses_pattern}}
    assert _separation(found) == (cut, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b", ["a", " b"]),
        (" a b", [" a", " b"]),
        ("", []),
        ("a  b", None),
        ("a b ", None),
        ("a\tb", None),
        ("a\u00a0b", None),
    ],
)
def test_a_word_takes_the_one_space_before_it(text: str, words: list[str] | None) -> None:
    assert _before_spaces(text) == words


def test_marks_and_chinese_characters_are_always_words_of_their_own() -> None:
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    characters = [chr(code) for code in range(0x21, 0x10000) if not 0xD800 <= code < 0xE000]
    marks = [one for one in characters if len(word_cache._MARKS_AND_RUNS.findall(f"a{one}b")) == 3]
    assert len(marks) > 50
    for one in marks:
        assert [word for word, _ in BertPreTokenizer().pre_tokenize_str(f"a{one}b")] == ["a", one, "b"]
    every = [one for one in characters if len(word_cache._MARKS_CHINESE_AND_RUNS.findall(f"a{one}b")) == 3]
    chinese = [one for one in every if one not in marks]
    assert (chinese[0], chinese[-1]) == ("\u4e00", "\u9fff")
    assert BertNormalizer(lowercase=False).normalize_str("".join(chinese)).split() == chinese


def test_a_tokenizer_that_looks_across_spaces_encodes_whole_texts() -> None:
    """Here a space is a part of the pieces on both of its sides."""
    alphabet = {letter: number for number, letter in enumerate(["a", "b", "Ġ", "Ġb", "aĠb"])}
    engine = Tokenizer(models.BPE(alphabet, [("Ġ", "b"), ("a", "Ġb")]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.post_processor = processors.TemplateProcessing(single="b $A", special_tokens=[("b", 1)])
    cache = WordCache(engine, json.loads(engine.to_str()))
    ids, lengths = cache.encode(["a b", "", "b ba"])
    assert ids.tolist() == [4, 1, 3, 0] and lengths.tolist() == [1, 0, 3]
    assert ids.dtype == lengths.dtype == np.int32
