"""The published tokenizers as pipelines of the tokenizers library."""

import re
from collections.abc import Sequence

from plmjax.data.tokenizers.kinds import BERT_SPECIAL, SENTINEL, SENTINELS, T5_SPECIAL
from plmjax.data.tokenizers.spelling import is_cased
from plmjax.errors import UserError, quoted

MOST_SENTINELS = 1 << 14
"""Maximum number of sentinels of a tokenizer. T5 has 100."""
WHITE_SPACE = "\t\n\x0b\x0c\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""Characters at which the tokenizers library cuts words.

Deviation: the library also cuts at U+0085, as in transformers. To SentencePiece U+0085 is an unknown character.
"""
PRIVATE = 0x10F000
"""First of the characters that stand for symbols while a text is normalized."""


def wordpiece(
    table: dict[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    chinese: bool = True,
    unknown: str = "[UNK]",
):
    """Return BERT's tokenizer (google-research/bert tokenization.py).

    By default accents are stripped if case is folded.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    engine = Tokenizer(models.WordPiece(table, unk_token=unknown))
    engine.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix="##")
    return engine


def byte_bpe(model, prefix_space: bool, lowercase: bool):
    """Return GPT-2's tokenizer (openai/gpt-2 src/encoder.py), which RoBERTa also uses."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    engine = Tokenizer(model)
    engine.normalizer = normalizers.Lowercase() if lowercase else None
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    engine.decoder = decoders.ByteLevel()
    return engine


def bpe(model, lowercase: bool):
    """Return a tokenizer that merges characters inside words and marks the end of a word by </w>.

    Source: arXiv:1508.07909, and GPT's tokenizer.
    """
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    engine = Tokenizer(model)
    engine.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.BPEDecoder(suffix="</w>")
    return engine


def word(normalizer, splitter=None, table: dict[str, int] | None = None):
    """Return a tokenizer of whole words and punctuation marks, split by `splitter`, or as in BERT if it is None."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    engine = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    engine.normalizer = normalizer
    engine.pre_tokenizer = splitter or pre_tokenizers.BertPreTokenizer()
    # The prefix marks pieces that continue a word; no word has this one. An empty prefix would mark every word.
    engine.decoder = decoders.WordPiece(prefix="\0")
    return engine


def char(lowercase: bool):
    """Return a tokenizer of single characters, with spaces."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    engine = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    engine.normalizer = normalizers.Lowercase() if lowercase else None
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    engine.decoder = decoders.Fuse()
    return engine


def whitespace(lowercase: bool):
    """Return a tokenizer of the words between white space, in which a line end is the word `<eos>`.

    Source: kimiyoung/transformer-xl pytorch/utils/vocabulary.py, which reads WikiText in this way.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    engine = Tokenizer(models.WordLevel(unk_token="<unk>"))
    line_ends = normalizers.Replace("\n", " <eos> ")
    engine.normalizer = normalizers.Sequence([line_ends, normalizers.Lowercase()]) if lowercase else line_ends
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # The second step puts a space before each word (see `word`).
    engine.decoder = decoders.Sequence([decoders.Replace("<eos>", "\n"), decoders.WordPiece("\0", cleanup=False)])
    return engine


def byte(lowercase: bool):
    """Return a tokenizer of single bytes. It has no unknown token: a byte that its vocabulary lacks is an error."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    engine = Tokenizer(models.WordLevel())
    engine.normalizer = normalizers.Lowercase() if lowercase else None
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
        ]
    )
    engine.decoder = decoders.ByteLevel()
    return engine


def sentencepiece(content: bytes, config: dict, model_type: str = ""):
    """Convert a SentencePiece model to the tokenizers library, with the same normalization table, pieces and scores.

    If this does not change the result, text is first split at white space, as in transformers. That is several times as
    fast.

    config: contents of tokenizer_config.json.
    model_type: model_type of the model's config.json, if it is known.

    Some models need more than this conversion can do (`sentencepiece_check`).
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    proto = model_proto(content)
    trainer, rules = proto.trainer_spec, proto.normalizer_spec
    unknown, table = trainer.unk_id, {piece.piece: index for index, piece in enumerate(proto.pieces)}
    symbols = sorted((piece.piece for piece in proto.pieces if piece.type == piece.USER_DEFINED), key=len, reverse=True)
    crossing = any("▁" in piece.piece[1:] for piece in proto.pieces if piece.type in (piece.NORMAL, piece.USER_DEFINED))
    if trainer.model_type == trainer.BPE:
        options = {"unk_token": proto.pieces[unknown].piece, "fuse_unk": True, "byte_fallback": trainer.byte_fallback}
        model = models.BPE(table, _merges(proto, table), ignore_merges=bool(symbols), **options)
    else:
        least = min((piece.score for piece in proto.pieces if piece.type == piece.NORMAL), default=0.0)
        scores = [(one.piece, one.score if one.type != one.UNUSED else least - 100) for one in proto.pieces]
        model = models.Unigram(scores, unk_id=unknown, byte_fallback=trainer.byte_fallback)
    steps, engine = spelling_steps(proto, config, model_type), Tokenizer(model)
    if rules.precompiled_charsmap:
        folding = normalizers.Precompiled(rules.precompiled_charsmap)
        steps += _around_symbols(folding, [symbol for symbol in symbols if folding.normalize_str(symbol) != symbol])
    uneven = kept_spaces(normalizers.Sequence(steps))
    words = not uneven or splits_words(proto, config, model_type)
    prefix = "always" if rules.add_dummy_prefix else "never"
    if rules.add_dummy_prefix and rules.remove_extra_whitespaces and words and not crossing:
        splitters = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prefix)]
    else:
        first = [normalizers.Prepend(" ")] if rules.add_dummy_prefix else []
        if rules.remove_extra_whitespaces:
            ends = normalizers.Replace(Regex(r"\A +| +\z"), "") if uneven else normalizers.Strip()
            steps += [ends, normalizers.Replace(Regex(" {2,}"), " "), *first]
        else:
            # The library takes these two characters for one.
            steps = (
                [*first, normalizers.Replace("\r\n", "\n\n"), *steps] if rules.precompiled_charsmap else first + steps
            )
        splitters = [pre_tokenizers.Metaspace("▁", "never", split=not crossing)]
    if symbols and trainer.model_type == trainer.BPE:  # no merge makes a symbol, so the text is split at symbols
        pattern = Regex("|".join(re.escape(symbol) for symbol in symbols))
        splitters.append(pre_tokenizers.Split(pattern, "isolated"))
    engine.normalizer = normalizers.Sequence(steps)
    engine.pre_tokenizer = pre_tokenizers.Sequence(splitters)
    engine.decoder = decoders.Metaspace("▁", prefix)
    owner = (config.get("tokenizer_class") or model_type).lower()
    if owner.startswith("t5") if owner else [piece.piece for piece in proto.pieces[:3]] == list(T5_SPECIAL.values()):
        count = config.get("extra_ids", SENTINELS)
        if not isinstance(count, int) or not 0 <= count <= MOST_SENTINELS:
            raise UserError(f"Expected extra_ids from 0 to {MOST_SENTINELS:,}, found {quoted(count)}; correct it.")
        add_sentinels(engine, count)
    if owner.startswith("deberta"):  # DeBERTa's model lacks only this special token
        engine.add_special_tokens([AddedToken(BERT_SPECIAL["mask"], normalized=False, special=True)])
    return engine


def model_proto(content: bytes):
    """Return the contents of a spiece.model. Raises google.protobuf's DecodeError for other files."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(content)
    return proto


def kept_spaces(normalizer) -> list[str]:
    """Return white space that a normalizer neither drops nor turns into a space; SentencePiece treats it as letters."""
    return [space for space in WHITE_SPACE if normalizer.normalize_str(space) not in ("", " ")]


def _around_symbols(folding, symbols: Sequence[str]) -> list:
    """Return normalization steps that leave these symbols unchanged, as SentencePiece does.

    Each symbol is replaced by a character of a private use area of Unicode during the normalization.
    """
    from tokenizers import normalizers

    hidden = [(symbol, chr(PRIVATE + number)) for number, symbol in enumerate(symbols)]
    there = [normalizers.Replace(symbol, character) for symbol, character in hidden]
    return [*there, folding, *(normalizers.Replace(character, symbol) for symbol, character in hidden)]


def special_pieces(content: bytes) -> tuple[dict[str, str], list[str]]:
    """Return the special pieces of a SentencePiece model by role, and its control pieces, which no text contains."""
    proto = model_proto(content)
    ids = {role: getattr(proto.trainer_spec, f"{role}_id") for role in ("pad", "unk", "bos", "eos")}
    named = {role: proto.pieces[index].piece for role, index in ids.items() if 0 <= index < len(proto.pieces)}
    return named, [piece.piece for piece in proto.pieces if piece.type == piece.CONTROL]


def add_sentinels(engine, count: int) -> None:
    """Add T5's sentinels after all pieces, with the first sentinel last (`SentencePieceVocabulary` of google/seqio)."""
    from tokenizers import AddedToken

    names = [SENTINEL.format(number=number) for number in reversed(range(count))]
    engine.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])


def spelling_steps(proto, config: dict, model_type: str) -> list:
    """Return the normalizers that are applied to a text before a SentencePiece model's own normalization.

    ALBERT and XLNet unify quotation marks and drop accents. ALBERT also folds case (transformers
    tokenization_albert.py). DeBERTa composes accents and unifies white space (tokenization_deberta_v2.py). The
    tokenizer class, or else the model_type, tells which of these a model is. A model with neither is treated as
    ALBERT's if it has ALBERT's special tokens, no capital letters and no accents, and its own normalization keeps
    capital letters, which would all be unknown.

    Deviation: the releases of ALBERT and XLNet also separate a comma from the number before it if a piece joins them.
    This is not done here, nor in transformers' readers of a spiece.model. Those readers add a space after every symbol
    that the model's user defined (full stops and brackets in ALBERT's). Here, as in SentencePiece and the published
    tokenizer.json, no space is added.
    Deviation: transformers 5 leaves out the normalization table of a DeBERTa model, which maps for example ﬁ to fi. It
    is applied here, as in SentencePiece, which the released code calls.
    """
    from tokenizers import Regex, normalizers

    owner = (config.get("tokenizer_class") or model_type).lower()
    albert = owner.startswith("albert") if owner else _looks_like_albert(proto)
    steps = []
    if albert or owner.startswith("xlnet"):
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not config.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case", albert):
        steps.append(normalizers.Lowercase())
    if owner.startswith("deberta"):
        steps += [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
    return steps


def splits_words(proto, config: dict, model_type: str) -> bool:
    """Return whether the system of a model replaces runs of white space by one space (`remove_space`)."""
    owner = (config.get("tokenizer_class") or model_type).lower()
    albert = owner.startswith(("albert", "xlnet")) if owner else _looks_like_albert(proto)
    return albert and config.get("remove_space", True)


def _looks_like_albert(proto) -> bool:
    from tokenizers import normalizers

    marks = {piece.piece for piece in proto.pieces if piece.type == piece.CONTROL}
    pieces = [piece.piece for piece in proto.pieces if piece.type == piece.NORMAL]
    table = proto.normalizer_spec.precompiled_charsmap
    folds = table and normalizers.Precompiled(table).normalize_str("A") != "A"
    unaccented = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    changed = sum(unaccented.normalize_str(piece) != piece for piece in pieces)
    return {"[CLS]", "[SEP]"} <= marks and not is_cased(pieces) and changed <= len(pieces) / 100 and not folds


def _merges(proto, table: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece BPE model: every split of a piece into two pieces, best score first.

    SentencePiece joins the neighbors whose union has the highest score, however each of them was merged before.
    """
    merges = []
    for piece in sorted((p for p in proto.pieces if p.type == p.NORMAL), key=lambda p: -p.score):
        halves = [(piece.piece[:i], piece.piece[i:]) for i in range(1, len(piece.piece))]
        known = [(a, b) for a, b in halves if a in table and b in table]
        merges += sorted(known, key=lambda pair: (table[pair[0]], table[pair[1]]))
    return merges
