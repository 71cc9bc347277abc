"""Tokenizers: ids equal the tokenizers library's and transformers', whatever the kind and however they are loaded."""

import io
import json
import pickle
import unicodedata

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.data.tokenizers import word_cache
from plmjax.errors import UserError

PROSE = [
    "The quick brown fox, which had been asleep all day, jumps over the lazy dog's kennel at ten o'clock.",
    "Naïve cafés in İstanbul serve crème brûlée; nobody there speaks of ΣΊΣΥΦΟΣ or e\u0301clairs.",
    'He paid $3,500.25 for it (in 1999), didn\'t he? "Yes!" she said — “of course.”',
    "今天天气很好，我们去公园散步吧。他说：“好的！”然后走了。",
] * 8
ODD = [
    "",
    "   ",
    "two  spaces and a tab\there\nand a line ",
    "one space at the end ",
    "A [MASK] here, <mask> there and [SEP]x.",
    "zero\u200bwidth b\x0cell ﬁne … \u2028 end \ufffd",
    "x" * 300,
    "日本語とemoji 😀!",
]


@pytest.fixture(scope="module", params=tokenizers.KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def trained(kind, tmp_path_factory):
    """A tokenizer of every kind and its folder. Bytes that did not occur would be an error."""
    directory = tmp_path_factory.mktemp(kind)
    return tokenizers.train(kind, 420, PROSE + ODD * (kind == "byte"), directory), directory


def test_ids_equal_the_library_and_transformers(trained):
    from transformers import AutoTokenizer

    tokenizer, directory = trained
    texts = PROSE[:4] + ODD + [f" {text}" for text in PROSE[:4]]
    reading, engine = tokenizer.reading(), tokenizer._engine
    ids = reading.encode_batch(texts)
    assert ids == [engine.encode(text, add_special_tokens=False).ids for text in texts]
    assert ids == [reading.encode(text) for text in texts]
    plain = [number for number, text in enumerate(texts) if not tokenizer.names_in([text])]
    assert tokenizer.encode_batch([texts[number] for number in plain]) == [ids[number] for number in plain]
    assert len(plain) >= len(texts) - 1
    reference = AutoTokenizer.from_pretrained(directory)
    assert ids == reference(texts, add_special_tokens=False)["input_ids"]
    for found, expected in (("mask", tokenizer.vocabulary.mask), ("pad", tokenizer.vocabulary.pad)):
        assert getattr(reference, f"{found}_token_id") == (None if expected == -1 else expected)
    assert len(reference) == tokenizer.vocabulary.size


def test_saved_and_loaded_is_the_same(trained, tmp_path):
    tokenizer, directory = trained
    for again in (tokenizers.load(directory), pickle.loads(pickle.dumps(tokenizer))):
        assert again.fingerprint == tokenizer.fingerprint
        assert again.kind == tokenizer.kind
        assert again.vocabulary.special == tokenizer.vocabulary.special
    again.save(tmp_path / "copy")
    assert tokenizers.load(tmp_path / "copy").fingerprint == tokenizer.fingerprint


def test_training_is_deterministic(kind, trained, tmp_path):
    tokenizer, _ = trained
    texts = PROSE + ODD * (kind == "byte")
    assert tokenizers.train(kind, 420, texts, tmp_path).fingerprint == tokenizer.fingerprint


def test_vocabulary_names_special_tokens(kind, trained):
    tokenizer, _ = trained
    vocabulary, named = tokenizer.vocabulary, tokenizers.KINDS[kind]
    ids = {"pad": vocabulary.pad, "unk": vocabulary.unknown, "cls": vocabulary.cls, "sep": vocabulary.sep}
    ids |= {"mask": vocabulary.mask, "bos": vocabulary.begin, "eos": vocabulary.end, **vocabulary.others}
    assert {role: tokenizer.tokens([ids[role]])[0] for role in named} == named
    special = {ids[role] for role in named} | set(vocabulary.sentinels)
    assert special == set(vocabulary.special) and special | {-1} >= {vocabulary.begin, vocabulary.end}
    assert len(special) == len(set(named.values())) + len(vocabulary.sentinels)
    assert all(ids[role] == -1 for role in ("pad", "cls", "sep", "mask") if role not in named)
    if vocabulary.continuation is not None:
        assert vocabulary.continuation.shape == (vocabulary.size,)
        assert not vocabulary.continuation[list(vocabulary.special)].any()


def test_special_tokens_are_known_before_training(kind, trained):
    expected, found = tokenizers.special_vocabulary(kind), trained[0].vocabulary
    for role in ("pad", "cls", "sep", "mask", "begin", "end", "document_end", *expected.others):
        assert expected.id_of(role) == found.id_of(role), role
    assert expected.unknown == (-1 if kind == "whitespace" else found.unknown)


def test_the_full_stop_is_the_one_behind_a_word(trained):
    tokenizer, _ = trained
    if tokenizer.kind == "whitespace":  # the stop belongs to the word
        assert tokenizer.vocabulary.full_stop == -1
    else:
        assert tokenizer.vocabulary.full_stop == tokenizer.encode(" A kennel.")[-1]


@pytest.mark.parametrize("kind", ["wordpiece", "byte-bpe", "sentencepiece-unigram", "sentencepiece-bpe"])
def test_continuation_flags_mark_all_but_the_first_token_of_a_word(kind, tmp_path):
    tokenizer = tokenizers.train(kind, 420, PROSE, tmp_path)
    ids = tokenizer.encode(" unbelievable kennels")
    flags = tokenizer.vocabulary.continuation[ids]
    assert len(ids) > 2 and not flags[0] and (~flags).sum() == 2


@pytest.mark.parametrize("kind", ["sentencepiece-unigram", "sentencepiece-bpe"])
def test_a_mark_is_no_part_of_the_word_before_it(kind, tmp_path):
    """As in ALBERT's release. Deviation of its objective: digits continue a word too, there they begin one."""
    text = [*PROSE, "Ärger, 1999, 42. " * 40]
    tokenizer = tokenizers.train(kind, 440, text, tmp_path)
    ids = tokenizer.encode("kennels, 1999.")
    tokens, flags = tokenizer.tokens(ids), tokenizer.vocabulary.continuation[ids]
    assert {",", "."} <= set(tokens)
    for token, continues in zip(tokens, flags, strict=True):
        assert continues == (not token.startswith("▁") and token not in ",.")


def test_words_are_written_apart_and_marks_beside_them(tmp_path):
    text = "A man, who runs."
    tokenizer = tokenizers.train("word", 20, [text], tmp_path, lowercase=False)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["byte-bpe", "gpt2-bpe", "char", "byte"])
def test_nothing_is_lost(kind, tmp_path):
    tokenizer = tokenizers.train(kind, 420, PROSE, tmp_path, lowercase=False)
    assert tokenizer.decode(tokenizer.encode(PROSE[2])) == PROSE[2]


@pytest.mark.parametrize("kind", tokenizers.KINDS)
def test_a_vocabulary_is_never_larger_than_it_was_asked_for(kind, tmp_path):
    for size in (7, 60, 261, 300):
        try:
            trained = tokenizers.train(kind, size, PROSE, tmp_path / str(size))
        except UserError as error:
            assert f"found {size}; raise --vocab_size." in str(error)
        else:
            assert trained.vocabulary.size <= size


@pytest.mark.parametrize("kind", tokenizers.KINDS)
def test_case_is_kept_as_in_the_published_form_of_a_kind(kind, tmp_path):
    def folds(**options):
        trained = tokenizers.train(kind, 420, PROSE, tmp_path / str(options), **options)
        return trained.encode("The quick fox") == trained.encode("the quick fox")

    assert folds() == (kind not in ("byte-bpe", "gpt2-bpe", "t5-unigram", "xlnet-unigram", "whitespace", "byte"))
    assert folds(lowercase=True) and not folds(lowercase=False)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_ids_equal_sentencepiece(model_type, tmp_path):
    import sentencepiece

    tokenizer = tokenizers.train(f"sentencepiece-{model_type}", 420, PROSE, tmp_path, lowercase=False)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    texts = [*PROSE[:4], "  spaces   here ", "unseen ħ letters"]
    assert tokenizer.encode_batch(texts) == reference.encode(texts)
    bare = tokenizers.load(tmp_path / "spiece.model")
    assert bare.encode_batch(texts) == reference.encode(texts)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_unknown_characters_in_a_row_are_one_token_as_in_sentencepiece(model_type, tmp_path):
    import sentencepiece

    tokenizer = tokenizers.train(f"sentencepiece-{model_type}", 420, PROSE, tmp_path, lowercase=False)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    texts = ["ħŧŋ", "unseen ħŧŋħ letters", "ħŧ ŋħ"]
    assert tokenizer.encode_batch(texts) == reference.encode(texts)
    assert [ids.count(reference.unk_id()) for ids in tokenizer.encode_batch(texts)] == [1, 1, 2]


def albert_model(symbols=()):
    """A spiece.model as ALBERT's was made: of text without capitals and accents, its normalisation keeping both."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(without_accents(text).lower() for text in PROSE),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=symbols,
        minloglevel=2,
    )
    return model.getvalue()


def without_accents(text):
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))


QUOTED = ["THE Fox", "Café ÉCLAIR crème", "``Yes!'' he SAID  twice ", "İstanbul 1999, (ΣΊΣΥΦΟΣ)"]


@pytest.mark.parametrize(
    ("model", "options", "reference"),
    [
        ({"model_type": "albert"}, {}, "AlbertTokenizer"),
        ({"model_type": "albert"}, {"do_lower_case": True, "remove_space": True}, "AlbertTokenizer"),
        ({"model_type": "albert"}, {"do_lower_case": False, "keep_accents": True}, "AlbertTokenizer"),
        ({"model_type": "albert"}, {"keep_accents": True, "remove_space": False}, "AlbertTokenizer"),
        ({"model_type": "bert", "tokenizer_class": "AlbertTokenizer"}, {}, "AlbertTokenizer"),
        ({}, {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False}, "AlbertTokenizer"),
        ({"model_type": "xlnet"}, {}, "XLNetTokenizer"),
        ({"model_type": "xlnet"}, {"do_lower_case": True}, "XLNetTokenizer"),
        ({}, {}, "AlbertTokenizer"),
    ],
)
def test_a_spiece_model_is_spelt_as_its_system_spells(model, options, reference, tmp_path):
    """By the tokenizer class, the model_type and the options beside it; alone, one without capitals is ALBERT's."""
    import transformers

    (tmp_path / "spiece.model").write_bytes(albert_model())
    for name, content in {"config.json": model, "tokenizer_config.json": options}.items():
        if content:
            (tmp_path / name).write_text(json.dumps(content))
    named = getattr(transformers, reference)
    marks = {"unk_id": 1, "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    theirs = named.from_pretrained(tmp_path, **(marks if reference.startswith("XLNet") else {}))
    tokenizer, texts = tokenizers.load(tmp_path).reading(), PROSE[:4] + ODD + QUOTED
    assert tokenizer.encode_batch(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    tokenizer.save(tmp_path / "copy")
    assert tokenizers.load(tmp_path / "copy").fingerprint == tokenizer.fingerprint
    (tmp_path / "copy" / "config.json").write_text('{"model_type": "albert"}')
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert again(texts, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(texts)
    assert (again.pad_token_id, again.mask_token_id) == (tokenizer.vocabulary.pad, tokenizer.vocabulary.mask)


def test_symbols_that_albert_defined_are_split_off_as_in_its_release(tmp_path):
    import sentencepiece

    content = albert_model(["(", ")", '"', "-", ".", "–"])
    (tmp_path / "spiece.model").write_bytes(content)
    texts = [*PROSE[:4], *QUOTED, "(A.b-C)", 'x."y"']
    plain = [without_accents(text.replace("``", '"').replace("''", '"')) for text in texts]
    plain = ["".join(letter.lower() for letter in text) for text in plain]  # the library knows no final sigma
    reference = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert tokenizers.load(tmp_path).encode_batch(texts) == reference.encode(plain)


def test_a_spiece_model_of_another_system_stands_as_it_is(tmp_path):
    """With capital letters of its own, with case folding of its own, or of a system that does nothing to a text."""
    import sentencepiece

    (tmp_path / "spiece.model").write_bytes(albert_model())
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert tokenizers.load(tmp_path).encode("The Café ``x''") == reference.encode("The Café ``x''")
    for lowercase in (False, True):
        folder = tmp_path / str(lowercase)
        tokenizers.train("sentencepiece-unigram", 420, PROSE, folder, lowercase=lowercase)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
        reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        assert tokenizers.load(folder).encode_batch(PROSE + QUOTED) == reference.encode(PROSE + QUOTED)


def test_published_wordpiece_files(tmp_path):
    """A vocab.txt alone, with a tokenizer_config.json, cased and uncased, as BertTokenizer reads it."""
    from transformers import BertTokenizer

    tokenizers.train("wordpiece", 420, PROSE, tmp_path / "trained", lowercase=False)
    vocabulary = (tmp_path / "trained" / "vocab.txt").read_bytes()
    for lowercase in (False, True):
        folder = tmp_path / str(lowercase)
        folder.mkdir()
        (folder / "vocab.txt").write_bytes(vocabulary)
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowercase}))
        reference = BertTokenizer.from_pretrained(folder, do_lower_case=lowercase)
        ids = tokenizers.load(folder).reading().encode_batch(PROSE[:4] + ODD)
        assert ids == reference(PROSE[:4] + ODD, add_special_tokens=False)["input_ids"]
    (tmp_path / "bert-base-cased-vocab.txt").write_bytes(vocabulary)
    named = tokenizers.load(tmp_path / "bert-base-cased-vocab.txt")
    assert named.kind == "wordpiece" and named.encode("The Fox") != named.encode("the fox")
    assert (named.vocabulary.pad, named.vocabulary.mask) == (0, 4)


def test_a_byte_order_mark_is_no_part_of_the_first_token(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"\xef\xbb\xbf[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\nfox\r\n")
    tokenizer = tokenizers.load(tmp_path)
    assert tokenizer.vocabulary.pad == 0 and tokenizer.vocabulary.size == 6 and tokenizer.encode("fox") == [5]


def test_published_byte_level_files(tmp_path):
    """vocab.json and merges.txt, as RobertaTokenizer reads them."""
    from transformers import RobertaTokenizer

    tokenizers.train("byte-bpe", 420, PROSE, tmp_path / "trained", lowercase=False)
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((tmp_path / "trained" / name).read_bytes())
    tokenizer = tokenizers.load(tmp_path)
    reference = RobertaTokenizer.from_pretrained(tmp_path)
    ids = reference(PROSE + ODD, add_special_tokens=False)["input_ids"]
    assert tokenizer.reading().encode_batch(PROSE + ODD) == ids
    assert tokenizer.vocabulary.mask == reference.mask_token_id


@pytest.mark.parametrize("forms", [("tokenizer.json",), ("vocab.json", "merges.txt")], ids=" ".join)
def test_a_byte_level_tokenizer_is_robertas_to_transformers(forms, tmp_path):
    """From either of its forms: the same ids, <s> and </s> around them, and <mask> in place of a word and its space."""
    from transformers import AutoTokenizer

    tokenizer = tokenizers.train("byte-bpe", 420, PROSE, tmp_path / "trained", lowercase=False)
    (tmp_path / "copy").mkdir()
    for name in (*forms, "tokenizer_config.json"):
        (tmp_path / "copy" / name).write_bytes((tmp_path / "trained" / name).read_bytes())
    reference = AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert type(reference).__name__.startswith("RobertaTokenizer")
    texts = [*PROSE, *ODD, "The <mask> house <mask>."]
    reading = tokenizer.reading()
    surrounded = [[0, *ids, 2] for ids in reading.encode_batch(texts)]
    assert surrounded == reference(texts)["input_ids"]
    assert tokenizers.load(tmp_path / "copy").fingerprint == tokenizer.fingerprint
    ids = reading.encode("The <mask> house")
    assert ids == [*tokenizer.encode("The"), tokenizer.vocabulary.mask, *tokenizer.encode(" house")]


@pytest.mark.parametrize("forms", [("tokenizer.json",), ("vocab.json", "merges.txt")], ids=" ".join)
def test_a_gpt2_tokenizer_is_gpt2s_to_transformers(forms, tmp_path):
    """From either of its forms: the same ids and none around them; one token begins and ends a text."""
    from transformers import AutoTokenizer

    tokenizer = tokenizers.train("gpt2-bpe", 420, PROSE, tmp_path / "trained")
    (tmp_path / "copy").mkdir()
    for name in (*forms, "tokenizer_config.json"):
        (tmp_path / "copy" / name).write_bytes((tmp_path / "trained" / name).read_bytes())
    reference = AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert type(reference).__name__.startswith("GPT2Tokenizer")
    texts = [*PROSE, *ODD, "One text.<|endoftext|>Another."]
    ids, loaded = reference(texts)["input_ids"], tokenizers.load(tmp_path / "copy")
    assert tokenizer.reading().encode_batch(texts) == ids == loaded.reading().encode_batch(texts)
    assert loaded.fingerprint == tokenizer.fingerprint
    ids = {loaded.vocabulary.begin, loaded.vocabulary.end, reference.bos_token_id, reference.eos_token_id}
    assert len(ids) == 1 and tokenizer.reading().encode("<|endoftext|>") == list(ids)


def test_published_gpt2_files_load_as_they_are(tmp_path):
    """vocab.json and merges.txt alone, the last token of the vocabulary ends a text: as openai/gpt-2 has them."""
    from transformers import GPT2Tokenizer

    tokenizers.train("gpt2-bpe", 420, PROSE, tmp_path / "trained")
    table = json.loads((tmp_path / "trained" / "vocab.json").read_text(encoding="utf-8"))
    table = {token: index - 1 for token, index in table.items() if token != "<|endoftext|>"}
    table["<|endoftext|>"] = len(table)
    (tmp_path / "vocab.json").write_text(json.dumps(table), encoding="utf-8")
    (tmp_path / "merges.txt").write_bytes((tmp_path / "trained" / "merges.txt").read_bytes())
    tokenizer, reference = tokenizers.load(tmp_path), GPT2Tokenizer.from_pretrained(tmp_path)
    texts = [*PROSE, *ODD, "One text.<|endoftext|>Another."]
    assert tokenizer.reading().encode_batch(texts) == reference(texts)["input_ids"]
    vocabulary = tokenizer.vocabulary
    assert vocabulary.begin == vocabulary.end == reference.eos_token_id == len(table) - 1
    assert vocabulary.special == (len(table) - 1,) and vocabulary.pad == vocabulary.cls == vocabulary.sep == -1


@pytest.mark.nightly
def test_wordpiece_ids_over_all_of_the_shared_text(shared_data, tmp_path):
    """Every line of Wikipedia and novels, English and Chinese, one tokenizer: the cache changes no id."""
    import gzip

    paths = sorted((shared_data / "pretrain").rglob("*.txt.gz"))[::12]
    lines = [line for path in paths for line in gzip.decompress(path.read_bytes()).decode().split("\n")]
    tokenizer = tokenizers.train("wordpiece", 4000, lines[::20], tmp_path)
    ids, lengths = tokenizer.encode_arrays(lines)
    reference = tokenizer._engine.encode_batch_fast(lines, add_special_tokens=False)
    assert lengths.tolist() == [len(encoding.ids) for encoding in reference]
    assert np.array_equal(ids, np.concatenate([np.array(encoding.ids, np.int32) for encoding in reference]))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "found nothing"),
        (lambda path: path.mkdir(), "none of them"),
        (lambda path: (path.mkdir(), (path / "vocab.json").write_text("{}")), "found vocab.json"),
        (
            lambda path: (path.mkdir(), (path / "vocab.txt").write_text("a\nb\n")),
            r"\[UNK\] or <unk>, found no",
        ),
        (lambda path: (path.mkdir(), (path / "tokenizer.json").write_text("{")), "Expected JSON in"),
        (lambda path: (path.mkdir(), (path / "spiece.model").write_bytes(b"\x99junk")), "do not read"),
    ],
)
def test_bad_vocabularies_are_named(prepare, message, tmp_path):
    prepare(tmp_path / "bad")
    with pytest.raises(UserError, match=message):
        tokenizers.load(tmp_path / "bad")


@pytest.mark.parametrize(
    ("kind", "size", "texts", "message"),
    [
        ("wordpeice", 100, PROSE, "did you mean 'wordpiece'"),
        ("wordpiece", 6, PROSE, "at least 7 tokens for wordpiece, 5 special ones and 2 of the text, found 6"),
        ("byte-bpe", 100, PROSE, "at least 261 tokens for byte-bpe, 5 special ones and 256 bytes, found 100"),
        ("byte-bpe", 260, PROSE, "at least 261"),
        ("wordpiece", 100, ["", "  "], "found none"),
        ("sentencepiece-unigram", 40, PROSE, "at least 83 tokens for sentencepiece-unigram, .* found 40; raise"),
        ("byte", 5, PROSE, r"at least \d+ tokens for byte, the bytes of this text, found 5; raise"),
        ("sentencepiece-bpe", 20, PROSE, "at least 83 tokens for sentencepiece-bpe, .* found 20; raise"),
    ],
)
def test_bad_training_is_named(kind, size, texts, message, tmp_path):
    with pytest.raises(UserError, match=message):
        tokenizers.train(kind, size, texts, tmp_path)


WIKITEXT = " = A title = \n \n The <unk> of the A @-@ one , the one .\n"


def test_words_between_white_space_are_numbered_as_transformer_xl_numbers_them(tmp_path):
    """pytorch/utils/vocabulary.py: <eos> first, then by count, and words of one count as they occur."""
    tokenizer = tokenizers.train("whitespace", 100, [WIKITEXT[:20], WIKITEXT[20:]], tmp_path)
    counted = ["=", "A", "the", "one", "title", "The", "<unk>", "of", "@-@", ",", "."]
    assert tokenizer.tokens(range(tokenizer.vocabulary.size)) == ["<eos>", *counted]
    ids = tokenizer.encode(WIKITEXT)
    line_ends = [[*line.split(), "<eos>"] for line in WIKITEXT.split("\n")[:-1]]
    assert tokenizer.tokens(ids) == [word for line in line_ends for word in line]
    assert tokenizer.decode(ids).split() == WIKITEXT.split() and tokenizer.decode(ids).count("\n") == 3
    unknown, end = tokenizer.vocabulary.unknown, tokenizer.vocabulary.document_end
    assert (unknown, end) == (7, 0) and tokenizer.encode("one another") == [4, unknown]


def test_a_vocabulary_of_words_keeps_the_unknown_word(tmp_path):
    few = tokenizers.train("whitespace", 4, [WIKITEXT], tmp_path / "few")
    assert few.tokens(range(4)) == ["<eos>", "<unk>", "=", "A"]
    without = tokenizers.train("whitespace", 10, ["a b a"], tmp_path / "without")
    assert without.tokens(range(4)) == ["<eos>", "<unk>", "a", "b"] and without.vocabulary.size == 4


def test_bytes_are_those_that_occur(tmp_path):
    tokenizer = tokenizers.train("byte", 300, ["naïve\n", "an e"], tmp_path)
    data = "naïve\nan e".encode()
    most = sorted(set(data), key=lambda byte: (-data.count(byte), byte))
    assert tokenizer.encode("naïve\nan e") == [most.index(byte) for byte in data]
    assert tokenizer.vocabulary.size == len(set(data)) and tokenizer.vocabulary.document_end == -1
    assert tokenizer.vocabulary.bytes and tokenizers.load(tmp_path).vocabulary.bytes
    with pytest.raises(UserError, match=r"Expected text of the 8 bytes .*, found 'é'; leave it out"):
        tokenizer.encode("an é")


def test_a_counted_vocabulary_needs_all_text():
    assert tokenizers.sample("byte") is tokenizers.sample("whitespace") is None
    assert tokenizers.sample("word") == 2**26


def test_half_of_a_surrogate_pair_is_named_in_a_text(tmp_path):
    """A byte of an option that is no UTF-8 becomes one."""
    tokenizer = tokenizers.train("word", 30, ["some text to learn from"], tmp_path)
    for encode in (tokenizer.encode_batch, tokenizer.encode_spans, lambda texts: tokenizer.encode_words([texts])):
        with pytest.raises(
            UserError, match=r"Expected text, found half of a surrogate pair, .* in '.?x\\udcff'; leave"
        ):
            encode(["some text", "x\udcff"])


@pytest.mark.parametrize("kind", ["wordpiece", "word", "byte-bpe", "sentencepiece-unigram"])
def test_every_word_of_a_sentence_has_its_tokens(kind, tmp_path):
    """As after a space in a running text. One that normalization removes is an unknown word."""
    tokenizer = tokenizers.train(kind, 420, PROSE, tmp_path)
    words = PROSE[0].split()[:4]
    (first, empty), again = tokenizer.encode_words([words[:2], [], words])[:2], tokenizer.encode_words([words])[0]
    assert empty == [] and first == again[:2] and len(again) == 4
    assert [token for word in again for token in word] == tokenizer.encode(" " * (kind == "byte-bpe") + " ".join(words))
    if kind in ("wordpiece", "word"):
        assert tokenizer.vocabulary.unknown > 0
        assert tokenizer.encode_words([["\x01", words[0]]]) == [[[tokenizer.vocabulary.unknown], again[0]]]


def test_special_tokens_are_added_after_all_others(tmp_path):
    tokenizer = tokenizers.train("bpe", 420, PROSE, tmp_path)
    more = tokenizer.with_special(("start", "extract"))
    size = tokenizer.vocabulary.size
    assert more.vocabulary.others == {"start": size, "extract": size + 1} and more.vocabulary.size == size + 2
    assert more.tokens([size, size + 1]) == ["_start_", "_classify_"]
    assert more.special == {**tokenizer.special, "start": "_start_", "extract": "_classify_"}
    for role in ("pad", "unknown", "cls", "sep", "mask"):
        assert getattr(more.vocabulary, role) == getattr(tokenizer.vocabulary, role) >= 0
    assert {size, size + 1} < set(more.vocabulary.special) and more.encode(PROSE[0]) == tokenizer.encode(PROSE[0])
    assert more.reading().encode(" _start_") == [size] and tokenizer.with_special(("delimiter",)).tokens([size]) == [
        "_delimiter_"
    ]


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_a_token_that_takes_the_space_beside_it_is_encoded_as_by_the_library(side):
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    engine = Tokenizer(models.WordLevel({"a": 0, " b": 1, " c": 2, "Ġb": 3, "Ġc": 4, "c": 5, "b": 6}, unk_token="a"))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.add_special_tokens([AddedToken("<x>", normalized=False, **{side: True})])
    found = tokenizers.Tokenizer(engine, {}, {}).reading()
    for text in ("a <x> b", "a<x> b c", "a <x>b", "a b"):
        assert found.encode(text) == engine.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "options",
    [
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": True, "tokenize_chinese_chars": False},
    ],
    ids=str,
)
def test_options_beside_a_vocab_txt_are_those_of_transformers(options, tmp_path):
    from transformers import BertTokenizer

    words = "caf\u00e9 cafe Caf\u00e9 Cafe \u4eca \u5929 ##\u5929 x ##x".split()
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]), "utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    texts = ["Caf\u00e9 cafe caf\u00e9 x", "\u4eca\u5929x \u5929"]
    reference = BertTokenizer.from_pretrained(tmp_path)(texts, add_special_tokens=False)["input_ids"]
    assert tokenizers.load(tmp_path).encode_batch(texts) == reference


@pytest.mark.parametrize("prefix", [False, True])
def test_a_space_before_the_first_word_is_an_option_of_merges(prefix, tmp_path):
    tokenizers.train("gpt2-bpe", 300, PROSE, tmp_path / "trained")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((tmp_path / "trained" / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefix}))
    tokenizer = tokenizers.load(tmp_path)
    assert (tokenizer.encode("the dog") == tokenizer.encode(" the dog")) == prefix
    assert tokenizers.load(tmp_path / "merges.txt").encode("the") == tokenizer.encode("the")


def test_added_tokens_are_numbered_by_their_ids(tmp_path):
    """Not by the text of the ids, in which 10 comes before 9."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd"]))
    added = {str(number): {"content": f"<{number}>", "normalized": False} for number in (10, 9, 11)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert tokenizers.load(tmp_path).encode("a<10> <9>b<11>") == [5, 10, 9, 6, 11]


@pytest.mark.parametrize("extra", [0, 12])
def test_the_number_of_sentinels_is_an_option_of_a_spiece_model(extra, tmp_path):
    (tmp_path / "spiece.model").write_bytes(albert_model())
    size = tokenizers.load(tmp_path / "spiece.model").vocabulary.size
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": extra}))
    vocabulary = tokenizers.load(tmp_path).vocabulary
    assert vocabulary.sentinels == tuple(range(size + extra - 1, size - 1, -1)) and vocabulary.size == size + extra


def test_the_system_of_a_spiece_model_is_that_beside_it_then_that_of_the_caller(tmp_path):
    (tmp_path / "spiece.model").write_bytes(albert_model())
    albert, t5 = (tokenizers.load(tmp_path, system).encode("THE Fox") for system in ("", "t5"))
    assert albert != t5
    for named, expected in (({"model_type": "albert"}, albert), ({"model_type": "t5"}, t5)):
        (tmp_path / "config.json").write_text(json.dumps(named))
        for system in ("t5", "albert"):
            assert tokenizers.load(tmp_path, system).encode("THE Fox") == expected
    (tmp_path / "config.json").write_text('{"model_type": "t5", "tokenizer_class": "AlbertTokenizer"}')
    assert tokenizers.load(tmp_path).encode("THE Fox") == albert


def test_an_id_that_the_table_lacks_counts_as_one(tmp_path):
    from tokenizers import Tokenizer, models

    engine = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 12}, unk_token="[UNK]"))
    vocabulary = tokenizers.Tokenizer(engine, {}, {"unk": "[UNK]"}).vocabulary
    assert vocabulary.size == 13 and np.flatnonzero(vocabulary.continuation).tolist() == [12]
    assert vocabulary.special == (0,)


def test_the_cache_of_words_changes_no_id_when_it_is_full(tmp_path, monkeypatch):
    tokenizer = tokenizers.train("wordpiece", 420, PROSE, tmp_path)
    expected = tokenizer.encode_batch(PROSE[:4])
    monkeypatch.setattr(word_cache, "CACHED", 3)
    monkeypatch.setattr(word_cache, "LONGEST_CACHED", 4)
    found: list[str] = []
    small = word_cache._Cache(lambda text: found.append(text) or text.encode())
    texts = ["a", "fours", "four", "b", "a", "c", "b", "fours", "a"]
    assert [small[text] for text in texts] == [text.encode() for text in texts]
    assert found == ["a", "fours", "four", "b", "c", "b", "fours", "a"] and set(small) == {"c", "b", "a"}
    assert pickle.loads(pickle.dumps(tokenizer)).encode_batch(PROSE[:4]) == expected
