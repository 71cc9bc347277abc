"""How each published tokenizer splits and spells text, as pipelines of the tokenizers library."""


def wordpiece(table: dict[str, int], *, lowercase: bool, strip_accents: bool | None = None, chinese: bool = True):
    """BERT's tokenizer (google-research/bert tokenization.py): accents follow the case unless told otherwise."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    engine = Tokenizer(models.WordPiece(table, unk_token="[UNK]"))
    engine.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix="##")
    return engine


def byte_bpe(model, prefix_space: bool, lowercase: bool):
    """GPT-2's tokenizer (openai/gpt-2 src/encoder.py), which RoBERTa shares."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    engine = Tokenizer(model)
    engine.normalizer = normalizers.Lowercase() if lowercase else None
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    engine.decoder = decoders.ByteLevel()
    return engine


def bpe(model, lowercase: bool):
    """Merges of characters inside words, a word's end marked by </w> (arXiv:1508.07909, and GPT's tokenizer)."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    engine = Tokenizer(model)
    engine.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.BPEDecoder(suffix="</w>")
    return engine


def word(lowercase: bool):
    """Whole words and punctuation marks, split as BERT splits them."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    engine = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    engine.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix="")
    return engine


def char(lowercase: bool):
    """Single characters, spaces among them."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    engine = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    engine.normalizer = normalizers.Lowercase() if lowercase else None
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    engine.decoder = decoders.Fuse()
    return engine


def sentencepiece(content: bytes, config: dict):
    """A SentencePiece model in the tokenizers library: same normalisation table, same pieces and scores."""
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
    steps = []
    # ALBERT and XLNet fold case and accents before their models see the text (transformers tokenization_albert.py).
    if config.get("tokenizer_class", "").startswith(("Albert", "XLNet")):
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not config.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if config.get("do_lower_case", config["tokenizer_class"].startswith("Albert")):
            steps += [normalizers.Lowercase()]
    if proto.normalizer_spec.precompiled_charsmap:
        steps += [normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)]
    engine = Tokenizer(model)
    if proto.normalizer_spec.add_dummy_prefix:
        split, prefix = [pre_tokenizers.WhitespaceSplit()], "always"
    else:
        split, prefix = [], "never"
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    engine.normalizer = normalizers.Sequence(steps)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.Metaspace("▁", prefix)])
    engine.decoder = decoders.Metaspace("▁", prefix)
    return engine


def _merges(proto, table: dict[str, int]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece BPE model: every split of a piece into two pieces, best score first.

    SentencePiece joins the neighbours whose union scores highest, however it came about.
    """
    merges = []
    for piece in sorted((p for p in proto.pieces if p.type == p.NORMAL), key=lambda p: -p.score):
        halves = [(piece.piece[:i], piece.piece[i:]) for i in range(1, len(piece.piece))]
        known = [(a, b) for a, b in halves if a in table and b in table]
        merges += sorted(known, key=lambda pair: (table[pair[0]], table[pair[1]]))
    return merges
