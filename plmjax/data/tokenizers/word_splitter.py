"""Splits text into the words of a given vocabulary, such as the vocabulary of a file of word vectors.

Vocabularies define words differently: "don't" or "do" and "n't", "U.S." or "U", ".", "S", ".", "new_york", "3.5",
Chinese words of several characters in a text without spaces. So the words decide: at each position the longest word is
taken, but not a part of a run of letters and digits in a script with spaces. Other text is split at punctuation.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

MOST_LISTED = 200_000
"""Maximum number of words with inner punctuation, or in a script without spaces, that a splitter knows: the first ones
of the vocabulary. A pattern of this many words takes 0.3 seconds to load and 100 MB.
"""
LONGEST_LISTED = 64
"""Maximum number of characters of such a word."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters: a text has no space between words."""
_NEGATION = "n't"
"""A word of its own in the Penn Treebank's tokens, and so in GloVe's: "do n't"."""


def word_splitter(words: Sequence[str]):
    """Return a pre-tokenizer that does not split these words.

    Words with punctuation inside, or in a script without spaces, would be split. So its pattern lists them: the first
    `MOST_LISTED` that have at most `LONGEST_LISTED` characters. Others of this kind are split.

    words: in the form after normalization, most frequent first.
    """
    from tokenizers import Regex, pre_tokenizers

    joiner = "_" if any("_" in word[1:-1] for word in words) else ""  # word2vec's phrases, such as new_york
    whole = rf"[\p{{L}}\p{{M}}\p{{N}}{joiner}&&[^{_UNSPACED}]]"
    others = [rf"{whole}+", rf"[{_UNSPACED}]\p{{M}}*", r"\S\p{M}*"]

    def splitter(patterns: Iterable[str]):
        pieces = pre_tokenizers.Split(Regex("|".join(patterns)), "removed", invert=True)
        return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])

    plain = splitter(others)
    split = (word for word in words if not (word.isascii() and word.isalnum()) and len(word) <= LONGEST_LISTED)
    split = (word for word in split if len(plain.pre_tokenize_str(word)) > 1)
    listed = sorted({*itertools.islice(split, MOST_LISTED)})
    if not listed:
        return plain
    edge = rf"(?!(?<={whole}){whole})"  # not inside of a run
    first = [f"{edge}{_one_of(listed)}{edge}"]
    if _NEGATION in words:
        first += [rf"(?<={whole}){_NEGATION}(?!{whole})", rf"{whole}+?(?={_NEGATION}(?!{whole}))"]
    return splitter([*first, *others])


def _one_of(words: Sequence[str]) -> str:
    """Return a pattern that matches the longest of these sorted words, as a prefix tree.

    Each character of a text is compared with the characters that may follow, not with each word.
    """
    if words == [""]:
        return ""
    ends, words = words[0] == "", [word for word in words if word]
    groups = itertools.groupby(words, key=lambda word: word[0])
    branches = [re.escape(first) + _one_of([word[1:] for word in group]) for first, group in groups]
    if len(branches) == 1 and not ends:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if ends else ''}"
