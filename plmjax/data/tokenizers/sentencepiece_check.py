"""Compares the conversion of a SentencePiece model with SentencePiece itself.

The samples contain every piece that a text can have, and all kinds of spaces. If two segmentations have the same score,
the libraries may choose different ones.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plmjax.data.tokenizers import engines
from plmjax.errors import UserError, quoted

if TYPE_CHECKING:
    import tokenizers

SPACES = [*engines.WHITE_SPACE, "  ", " \t ", "\r\n", "\u200b", "\ufeff", "\u3000\u3000"]
TEXTS = ["", "The quick brown fox jumps.", "naïve Zoë, e\u0301 ﬁ ½ ﷺ İ", "日本語 ħŧŋ ħ 😀 가나", "3.5 don't (U.S.) 50%"]
TOGETHER = 64
"""Number of pieces in one sample."""


def check(engine: "tokenizers.Tokenizer", content: bytes, config: dict[str, Any], model_type: str) -> None:
    """Raise UserError if the engine and SentencePiece give different ids, or if an option is not supported.

    content: the spiece.model of the engine. config, model_type: as in `engines.sentencepiece`.
    """
    import sentencepiece
    from tokenizers import normalizers

    proto = engines.model_proto(content)
    trainer, rules = proto.trainer_spec, proto.normalizer_spec
    wrong = {
        "with the space behind a word in its piece (treat_whitespace_as_suffix)": trainer.treat_whitespace_as_suffix,
        "that does not write spaces as ▁ (escape_whitespaces false)": not rules.escape_whitespaces,
        "of whole words (model_type word)": trainer.model_type == trainer.WORD,
    }
    for kind, found in wrong.items():
        if found:
            raise UserError(f"Expected a SentencePiece model of pieces, found one {kind}; take another tokenizer.")
    steps, table = engines.spelling_steps(proto, config, model_type), rules.precompiled_charsmap
    texts = list(_samples(proto))
    spelt = [normalizers.Sequence(steps).normalize_str(text) for text in texts]
    if engines.splits_words(proto, config, model_type):
        kept = engines.kept_spaces(normalizers.Sequence([normalizers.Precompiled(table)] if table else []))
        spelt = [text.translate(dict.fromkeys(map(ord, kept), " ")) for text in spelt]
    expected = sentencepiece.SentencePieceProcessor(model_proto=content).encode(spelt)
    found = [encoding.ids for encoding in engine.encode_batch(texts, add_special_tokens=False)]
    for text, ours, ids in zip(texts, found, expected, strict=True):
        if ours != ids and not _as_likely(proto, ours, ids):
            place = next((at for at, pair in enumerate(zip(ours, ids, strict=False)) if pair[0] != pair[1]), 0)
            first = max(0, place - 1)
            raise UserError(
                f"Expected a SentencePiece model that the tokenizers library can follow, found "
                f"{ours[first : first + 6]} for its {ids[first : first + 6]} from token {first + 1} on of "
                f"{quoted(text)}; take another tokenizer."
            )


def _as_likely(proto: Any, *ways: list[int]) -> bool:
    """Return whether two segmentations have the same score, up to the rounding of float32."""
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        return False
    pieces = [[proto.pieces[index] for index in way] for way in ways]
    texts = ["".join(piece.piece for piece in way) for way in pieces]
    scores = [sum(piece.score for piece in way) for way in pieces]
    return texts[0] == texts[1] and math.isclose(*scores, rel_tol=1e-5)


def _samples(proto: Any) -> Iterator[str]:
    yield from TEXTS
    for space in SPACES:
        yield from (f"the{space}fox", f"{space}the{space}{space}fox{space}", space)
    pieces = [piece for piece in proto.pieces if piece.type in (piece.NORMAL, piece.USER_DEFINED, piece.UNUSED)]
    for first in range(0, len(pieces), TOGETHER):
        yield "".join(piece.piece for piece in pieces[first : first + TOGETHER]).replace("▁", " ")
    for piece in pieces:
        if piece.type != piece.NORMAL:
            symbol = piece.piece.replace("▁", " ")
            yield f"{symbol}the{symbol} fox {symbol}{symbol}, {symbol}"
