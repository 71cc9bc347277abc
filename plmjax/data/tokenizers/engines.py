"""The published tokenizers as pipelines of the tokenizers library."""

from plmjax.data.tokenizers.kinds import SENTINEL, SENTINELS, T5_SPECIAL
from plmjax.data.tokenizers.spelling import cased
from plmjax.errors import UserError, quoted

MOST_SENTINELS = 1 << 14
"""Maximum number of sentinels of a tokenizer. T5 has 100."""


def wordpiece(table: dict[str, int], *, lowercase: bool, strip_accents: bool | None = None, chinese: bool = True):
    """Return BERT's tokenizer (google-research/bert tokenization.py).

    By default accents are stripped if case is folded.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    engine = Tokenizer(models.WordPiece(table, unk_token="[UNK]"))
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
    """Return a tokenizer of whole words and punctuation marks, split as in BERT without another `splitter`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    engine = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    engine.normalizer = normalizer
    engine.pre_tokenizer = splitter or pre_tokenizers.BertPreTokenizer()
    # The prefix marks pieces that continue a word. There are none here. With an empty prefix every word would be one.
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

    Source: kimiyoung/transformer-xl pytorch/utils/vocabulary.py, which reads WikiText so.
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
    """Return a tokenizer of single bytes. It has no unknown token, so text with another byte is an error."""
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

    config: contents of tokenizer_config.json.
    model_type: model_type of the model's config.json, if it is known.
    """
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(content)
    unknown = proto.trainer_spec.unk_id
    fallback = proto.trainer_spec.byte_fallback
    if proto.trainer_spec.model_type == proto.trainer_spec.BPE:
        table = {piece.piece: index for index, piece in enumerate(proto.pieces)}
        options = {"unk_token": proto.pieces[unknown].piece, "fuse_unk": True, "byte_fallback": fallback}
        model = models.BPE(table, _merges(proto, table), **options)
    else:
        model = models.Unigram([(p.piece, p.score) for p in proto.pieces], unk_id=unknown, byte_fallback=fallback)
    steps = _spelling(proto, config, model_type)
    if proto.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap))
    engine = Tokenizer(model)
    if proto.normalizer_spec.add_dummy_prefix:
        split, prefix = [pre_tokenizers.WhitespaceSplit()], "always"
    else:
        split, prefix = [], "never"
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    engine.normalizer = normalizers.Sequence(steps)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.Metaspace("▁", prefix)])
    engine.decoder = decoders.Metaspace("▁", prefix)
    owner = (config.get("tokenizer_class") or model_type).lower()
    if owner.startswith("t5") if owner else [piece.piece for piece in proto.pieces[:3]] == list(T5_SPECIAL.values()):
        count = config.get("extra_ids", SENTINELS)
        if not isinstance(count, int) or not 0 <= count <= MOST_SENTINELS:
            raise UserError(f"Expected extra_ids from 0 to {MOST_SENTINELS:,}, found {quoted(count)}; correct it.")
        add_sentinels(engine, count)
    return engine


def add_sentinels(engine, count: int) -> None:
    """Add T5's sentinels after all pieces, with the first sentinel last (`SentencePieceVocabulary` of google/seqio)."""
    from tokenizers import AddedToken

    names = [SENTINEL.format(number=number) for number in reversed(range(count))]
    engine.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])


def _spelling(proto, config: dict, model_type: str) -> list:
    """Return the normalizers that are applied to a text before a SentencePiece model's own normalization.

    ALBERT and XLNet unify quotation marks and drop accents. ALBERT also folds case (transformers
    tokenization_albert.py). The tokenizer class tells the system of a model, or else the model_type. A model with
    neither is treated as ALBERT's if it has ALBERT's special tokens, no capital letters and no accents, and its own
    normalization keeps capital letters, which would all be unknown. `remove_space` makes no difference: SentencePiece
    treats a run of spaces as one.

    Deviation: both releases also separate a comma from the number before it where a piece joins them; transformers'
    readers of a spiece.model do not either. Those readers add a space after every symbol that the model's user defined
    (full stops and brackets in ALBERT's). Here, as in SentencePiece and the published tokenizer.json, no space is
    added.
    """
    from tokenizers import normalizers

    owner = (config.get("tokenizer_class") or model_type).lower()
    albert = owner.startswith("albert") if owner else _looks_like_albert(proto)
    steps = []
    if albert or owner.startswith("xlnet"):
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not config.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case", albert):
        steps.append(normalizers.Lowercase())
    return steps


def _looks_like_albert(proto) -> bool:
    from tokenizers import normalizers

    marks = {piece.piece for piece in proto.pieces if piece.type == piece.CONTROL}
    pieces = [piece.piece for piece in proto.pieces if piece.type == piece.NORMAL]
    table = proto.normalizer_spec.precompiled_charsmap
    folds = table and normalizers.Precompiled(table).normalize_str("A") != "A"
    unaccented = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    changed = sum(unaccented.normalize_str(piece) != piece for piece in pieces)
    return {"[CLS]", "[SEP]"} <= marks and not cased(pieces) and changed <= len(pieces) / 100 and not folds


def _merges(proto, table: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges of a SentencePiece BPE model: every split of a piece into two pieces, best score first.

    SentencePiece joins the neighbors whose union has the highest score, for any history of merges.
    """
    merges = []
    for piece in sorted((p for p in proto.pieces if p.type == p.NORMAL), key=lambda p: -p.score):
        halves = [(piece.piece[:i], piece.piece[i:]) for i in range(1, len(piece.piece))]
        known = [(a, b) for a, b in halves if a in table and b in table]
        merges += sorted(known, key=lambda pair: (table[pair[0]], table[pair[1]]))
    return merges
