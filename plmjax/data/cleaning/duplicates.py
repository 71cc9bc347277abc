"""Rules that drop repeated text: documents, lines, spans of sentences, and near duplicates.

The keys of a text are hashes of its parts, and any process computes them. They are compared with the keys of all
earlier documents in the order of reading. So the first of several copies is kept, for any number of processes.
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

import numpy as np

from plmjax.data import sentences
from plmjax.data.cleaning.rule import CorpusRule, Dropped, Settings, words
from plmjax.errors import UserError

SPAN = 3
"""Number of sentences of a span (Raffel et al. 2020, section 2.2)."""
GRAM, BANDS, BAND = 5, 14, 8
"""Words of an n-gram, number of bands, and hashes of a band, as in examples/fineweb.py of huggingface/datatrove. Two
documents whose sets of n-grams have the Jaccard similarity s are found with the probability 1 - (1 - s^8)^14: 0.05 at
0.5, 0.92 at 0.8.
"""
SEED = 1


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _hashes(texts: Iterable[str]) -> np.ndarray:
    return np.fromiter(map(_hash, texts), np.uint64)


# ------------------------------------------------------------------------------------------------ whole documents


def _digest(text: str, settings: Settings) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(), np.uint64)


def _without_copy(text: str, repeated: np.ndarray, settings: Settings) -> str | Dropped:
    return Dropped("the same text occurred before") if repeated.any() else text


# ---------------------------------------------------------------------------------------------------------- lines


def _line_keys(text: str, settings: Settings) -> np.ndarray:
    return _hashes(line.strip().lower() for line in text.split("\n"))


def _without_lines(text: str, repeated: np.ndarray, settings: Settings) -> str:
    """Return the lines that did not occur before.

    Deviation: of several copies of a line, the code of C4 keeps the copy on the page whose URL has the smallest hash.
    Here the first copy in the order of reading is kept.
    """
    return "\n".join(line for line, again in zip(text.split("\n"), repeated, strict=True) if not again)


# -------------------------------------------------------------------------------------------------------- spans


def _span_keys(text: str, settings: Settings) -> np.ndarray:
    found = sentences.split(text.split("\n"), settings.language)
    return _hashes("\n".join(found[at : at + SPAN]) for at in range(len(found) - SPAN + 1))


def _without_spans(text: str, repeated: np.ndarray, settings: Settings) -> str:
    """Return the sentences that are in no repeated span."""
    if not repeated.any():
        return text
    removed = {at + offset for at in np.flatnonzero(repeated).tolist() for offset in range(SPAN)}
    lines, number = [], 0
    for line in text.split("\n"):
        found = sentences.split([line], settings.language)
        kept = [sentence for at, sentence in enumerate(found, start=number) if at not in removed]
        number += len(found)
        if kept:
            lines.append(" ".join(kept) if len(kept) < len(found) else line)
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------- near duplicates


_PUNCTUATION = re.compile(r"[^\w\s]|_")
_NUMBER = re.compile(r"\d+")


def simplify(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case, without punctuation and accents; numbers become 0.

    As in simplify_text of huggingface/datatrove, src/datatrove/utils/text.py.
    """
    text = unicodedata.normalize("NFD", _PUNCTUATION.sub("", text.lower()))
    if not text.isascii():
        text = "".join(character for character in text if unicodedata.category(character) != "Mn")
    return words(_NUMBER.sub("0", text))


@functools.cache
def rensa() -> Any:
    """Return the MinHash library.

    Raises:
        UserError: it is not installed.
    """
    try:
        import rensa
    except ImportError:
        raise UserError(
            "Expected rensa for the rule near_duplicates in --clean, found it not installed; "
            "pip install 'plmjax[clean]' or leave the rule out."
        ) from None
    return rensa


def _band_keys(text: str, settings: Settings) -> np.ndarray:
    found = simplify(text)
    grams = [" ".join(found[at : at + GRAM]) for at in range(len(found) - GRAM + 1)]
    if not grams:
        return np.empty(0, np.uint64)
    sketch = rensa().RMinHash(num_perm=BANDS * BAND, seed=SEED)
    sketch.update(grams)
    bands = np.array(sketch.digest(), "<u4").reshape(BANDS, BAND)
    keys = (
        hashlib.blake2b(hashes.tobytes(), digest_size=8, salt=bytes([number])).digest()
        for number, hashes in enumerate(bands)
    )
    return np.frombuffer(b"".join(keys), np.uint64)


def _without_similar(text: str, repeated: np.ndarray, settings: Settings) -> str | Dropped:
    """Return the text if it shares no band with an earlier document.

    Deviation: FineWeb keeps one document of each group that is linked by shared bands. Here a document is compared
    only with earlier documents. If it links two earlier documents that were kept, both stay.
    """
    return Dropped("nearly the same text occurred before") if repeated.any() else text


NEAR = CorpusRule(
    "near_duplicates",
    "huggingface/datatrove, src/datatrove/pipeline/dedup/minhash.py and examples/fineweb.py",
    _band_keys,
    _without_similar,
)
RULES = (
    CorpusRule(
        "exact_duplicates",
        "huggingface/datatrove, src/datatrove/pipeline/dedup/exact_dedup.py",
        _digest,
        _without_copy,
        width=2,
    ),
    CorpusRule(
        "c4_duplicate_lines",
        "tensorflow/datasets, tensorflow_datasets/text/c4_utils.py, remove_duplicate_text",
        _line_keys,
        _without_lines,
    ),
    CorpusRule("three_sentence_spans", "Raffel et al. 2020, section 2.2", _span_keys, _without_spans),
    NEAR,
)
