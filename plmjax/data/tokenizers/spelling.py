"""Spellings: the normalization of a text before it is split, and the normalizer that fits a vocabulary.

If a normalizer changes a token of a vocabulary, the vocabulary was not made with it, and no text that it normalizes
contains the token.
"""

import re
from collections.abc import Collection, Sequence

LETTERS_WITH_MARKS = r"[\p{L}\p{Mc}]&&[^\p{Latin}\p{Greek}\p{Cyrillic}\p{Common}\p{Inherited}]"
"""Characters whose marks are a part of their script's spelling: those of Hangul, kana, Devanagari, Thai, Arabic, ..."""
ACCENTS = rf"(?<![\p{{Mn}}[{LETTERS_WITH_MARKS}]])\p{{Mn}}+"
"""Marks of Latin, Greek and Cyrillic letters, and those after no letter, such as the one that makes ❤ an emoji."""
_CHUNK = 100_000
_SPECIAL_NAME = re.compile(r"\[\S+\]|<\S+>")


def lowercase_and_strip():
    """Return a normalizer that lowercases, and drops the accents of Latin, Greek and Cyrillic.

    On a text in these scripts it equals BERT's own (`engines.wordpiece`), which also drops the marks of all other
    scripts and decomposes Hangul into its letters.
    """
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.BertNormalizer(clean_text=True, strip_accents=False, lowercase=False),
            normalizers.NFD(),
            normalizers.Replace(Regex(ACCENTS), ""),
            normalizers.Lowercase(),
            normalizers.NFC(),
        ]
    )


def training_normalizer(lowercase: bool):
    """Return the normalizer for a new tokenizer that splits words as BERT does."""
    return lowercase_and_strip() if lowercase else bert_normalizer(lowercase=False)


def bert_normalizer(lowercase: bool):
    """Return BERT's normalizer, which drops all marks if it lowercases (google-research/bert tokenization.py)."""
    from tokenizers import normalizers

    return normalizers.BertNormalizer(lowercase=lowercase)


def lowercase_only():
    """Return BERT's normalizer with strip_accents false: it lowercases and keeps all marks."""
    from tokenizers import normalizers

    return normalizers.BertNormalizer(strip_accents=False, lowercase=True)


def wordpiece_normalizer(tokens: Collection[str]):
    """Return the normalizer of a WordPiece vocabulary (vocab.txt) without options.

    It is BERT's cased normalizer if more than one token in a hundred has a capital letter. Otherwise it is BERT's
    uncased normalizer or `lowercase_and_strip`, the first that changes no token, or else `lowercase_only`.
    """
    if is_cased(tokens):
        return bert_normalizer(lowercase=False)
    words = [token.removeprefix("##") for token in tokens if not _SPECIAL_NAME.fullmatch(token)]
    return next(
        (one for one in (bert_normalizer(lowercase=True), lowercase_and_strip()) if _keeps(one, words, True)),
        lowercase_only(),
    )


def word_normalizer(words: Sequence[str], lowercase: bool):
    """Return a normalizer that changes none of these words, except for capital letters if it lowercases.

    It drops control characters, accents or all marks, and composes or decomposes characters, as far as this changes
    no word.
    """
    from tokenizers import Regex, normalizers

    accents, bert = normalizers.Replace(Regex(ACCENTS), ""), normalizers.BertNormalizer
    options = {"clean_text": False, "handle_chinese_chars": False}
    forms = [
        [normalizers.NFD(), accents, normalizers.NFC()],
        [bert(strip_accents=True, lowercase=False, **options)],
        [normalizers.NFC()],
        [normalizers.NFD()],
        [],
    ]
    cleaning = [[bert(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)], []]
    steps = [
        *next(form for form in cleaning if _keeps(normalizers.Sequence(form), words, lowercase)),
        *next(form for form in forms if _keeps(normalizers.Sequence(form), words, lowercase)),
    ]
    return normalizers.Sequence([*steps, *([normalizers.Lowercase()] if lowercase else [])])


def is_cased(tokens: Collection[str]) -> bool:
    """Return whether a vocabulary comes from cased text: more than one token in a hundred has a capital letter.

    Names in brackets, such as [CLS], are not counted.
    """
    words = [token for token in tokens if not _SPECIAL_NAME.fullmatch(token)]
    return sum(token != token.lower() for token in words) > len(words) / 100


def _keeps(normalizer, words: Sequence[str], lowercase: bool) -> bool:
    """Return whether a normalizer changes no word; words are lowercased first if `lowercase`."""
    from tokenizers import normalizers

    lower = normalizers.Lowercase().normalize_str if lowercase else str
    texts = (lower(" ".join(words[first : first + _CHUNK])) for first in range(0, len(words), _CHUNK))
    return all(normalizer.normalize_str(text).split() == text.split() for text in texts)
