"""Tokenizers: ids equal the tokenizers library's and transformers', whatever the kind and however they are loaded."""

import io
import json
import pickle
import unicodedata

import pytest

from plmjax.data import tokenizers
from plmjax.data.tokenizers import word_cache

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
    reading, engine = tokenizer.with_parsed_special(), tokenizer._engine
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


def test_saved_and_loaded_and_trained_again_is_the_same(kind, trained, tmp_path):
    tokenizer, directory = trained
    tokenizer.save(tmp_path / "copy")
    folders = (directory, tmp_path / "copy")
    trained_again = tokenizers.train(kind, 420, PROSE + ODD * (kind == "byte"), tmp_path)
    for again in (*map(tokenizers.load, folders), pickle.loads(pickle.dumps(tokenizer)), trained_again):
        assert (again.fingerprint, again.kind) == (tokenizer.fingerprint, tokenizer.kind)
        assert again.vocabulary.special == tokenizer.vocabulary.special
    if kind == "wordpiece":
        with pytest.MonkeyPatch.context() as patch:  # a full cache of words changes no id
            patch.setattr(word_cache, "CACHED", 3)
            patch.setattr(word_cache, "LONGEST_CACHED", 4)
            small = pickle.loads(pickle.dumps(tokenizer))
            assert small.encode_batch(PROSE[:4] * 2) == tokenizer.encode_batch(PROSE[:4]) * 2


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
    if kind in ("wordpiece", "byte-bpe", "sentencepiece-unigram", "sentencepiece-bpe"):  # all but a word's first token
        flags = vocabulary.continuation[tokenizer.encode(" unbelievable kennels")]
        assert len(flags) > 2 and not flags[0] and (~flags).sum() == 2
    folds = tokenizer.encode("The quick fox") == tokenizer.encode("the quick fox")  # as in its published form
    assert folds == (kind not in ("byte-bpe", "gpt2-bpe", "t5-unigram", "xlnet-unigram", "whitespace", "byte"))
    before = tokenizers.special_vocabulary(kind)  # known before training
    for role in ("pad", "cls", "sep", "mask", "begin", "end", "document_end", *before.others):
        assert before.id_of(role) == vocabulary.id_of(role), role
    assert before.unknown == (-1 if kind == "whitespace" else vocabulary.unknown)
    last = -1 if kind == "whitespace" else tokenizer.encode(" A kennel.")[-1]  # or the full stop belongs to the word
    assert vocabulary.full_stop == last


@pytest.mark.parametrize("kind", ["gpt2-bpe", "char", "byte", "word"])
def test_nothing_is_lost_unless_lower_case_is_asked_for(kind, tmp_path):
    """Words are written apart, and marks beside them."""
    text = "A man, who runs." if kind == "word" else PROSE[2]
    tokenizer = tokenizers.train(kind, 420, [*PROSE, text], tmp_path, lowercase=False)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    folded = tokenizers.train(kind, 420, [*PROSE, text], tmp_path, lowercase=True)
    assert folded.decode(folded.encode(text)) == text.lower()


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_ids_equal_sentencepiece(model_type, tmp_path):
    """Unknown characters in a row are one token."""
    import sentencepiece

    tokenizer = tokenizers.train(f"sentencepiece-{model_type}", 420, PROSE, tmp_path, lowercase=False)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    texts = ["ħŧŋ", "unseen ħŧŋħ letters", "ħŧ ŋħ", *PROSE[:4], "  spaces   here ", "unseen ħ letters"]
    for one in (tokenizer, tokenizers.load(tmp_path / "spiece.model")):
        assert one.encode_batch(texts) == reference.encode(texts)
    assert [ids.count(reference.unk_id()) for ids in tokenizer.encode_batch(texts[:3])] == [1, 1, 2]


def albert_model(symbols=()):
    """A spiece.model as ALBERT's was made: of text without capitals and accents, its normalisation keeping both."""
    import sentencepiece

    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(without_accents(text).lower() for text in PROSE), model_writer=(model := io.BytesIO()),
        vocab_size=300, hard_vocab_limit=False, user_defined_symbols=symbols, minloglevel=2, **ids,
    )  # fmt: skip
    return model.getvalue()


def without_accents(text):
    return "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))


QUOTED = ["THE Fox", "Café ÉCLAIR crème", "``Yes!'' he SAID  twice ", "İstanbul 1999, (ΣΊΣΥΦΟΣ)"]


@pytest.mark.parametrize(
    ("model", "options", "reference"),
    [
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
    tokenizer, texts = tokenizers.load(tmp_path).with_parsed_special(), PROSE[:4] + ODD + QUOTED
    assert tokenizer.encode_batch(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    tokenizer.save(tmp_path / "copy")
    assert tokenizers.load(tmp_path / "copy").fingerprint == tokenizer.fingerprint
    (tmp_path / "copy" / "config.json").write_text('{"model_type": "albert"}')
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert again(texts, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(texts)
    assert (again.pad_token_id, again.mask_token_id) == (tokenizer.vocabulary.pad, tokenizer.vocabulary.mask)


def test_the_system_of_a_spiece_model_is_that_beside_it_then_that_of_the_caller(tmp_path):
    """What is no ALBERT's stands as it is: of a system that does nothing to a text, or with letters of its own."""
    import sentencepiece

    (tmp_path / "spiece.model").write_bytes(albert_model())
    albert, t5 = (tokenizers.load(tmp_path, system).encode_batch(QUOTED) for system in ("", "t5"))
    assert albert != t5 == sentencepiece.SentencePieceProcessor(model_proto=albert_model()).encode(QUOTED)
    for named, expected in (
        ({"model_type": "albert"}, albert),
        ({"model_type": "t5"}, t5),
        ({"model_type": "t5", "tokenizer_class": "AlbertTokenizer"}, albert),
    ):
        (tmp_path / "config.json").write_text(json.dumps(named))
        assert tokenizers.load(tmp_path, "t5").encode_batch(QUOTED) == expected
    size = tokenizers.load(tmp_path / "spiece.model").vocabulary.size
    for extra in (0, 12):  # the number of sentinels is an option
        options = {"tokenizer_class": "T5Tokenizer", "extra_ids": extra}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
        vocabulary = tokenizers.load(tmp_path).vocabulary
        assert vocabulary.sentinels == tuple(range(size + extra - 1, size - 1, -1)) and vocabulary.size == size + extra
    for lowercase in (False, True):
        tokenizers.train("sentencepiece-unigram", 420, PROSE, folder := tmp_path / str(lowercase), lowercase=lowercase)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / file).unlink()
        reference = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        assert tokenizers.load(folder).encode_batch(PROSE + QUOTED) == reference.encode(PROSE + QUOTED)


@pytest.mark.parametrize("forms", [("tokenizer.json",), ("vocab.json", "merges.txt")], ids=" ".join)
@pytest.mark.parametrize(("kind", "name"), [("byte-bpe", "RobertaTokenizer"), ("gpt2-bpe", "GPT2Tokenizer")])
def test_a_byte_level_tokenizer_is_robertas_or_gpt2s_to_transformers(kind, name, forms, tmp_path):
    """From either of its forms: the same ids, and those of RoBERTa between <s> and </s>."""
    from transformers import AutoTokenizer

    tokenizer = tokenizers.train(kind, 420, PROSE, tmp_path / "trained", lowercase=False)
    (tmp_path / "copy").mkdir()
    for file in (*forms, "tokenizer_config.json"):
        (tmp_path / "copy" / file).write_bytes((tmp_path / "trained" / file).read_bytes())
    reference, loaded = AutoTokenizer.from_pretrained(tmp_path / "copy"), tokenizers.load(tmp_path / "copy")
    assert type(reference).__name__.startswith(name) and loaded.fingerprint == tokenizer.fingerprint
    texts = [*PROSE, *ODD, "The <mask> house <mask>.", "One text.<|endoftext|>Another."]
    reading, around = tokenizer.with_parsed_special(), ([0], [2]) if kind == "byte-bpe" else ([], [])
    ids = reading.encode_batch(texts)
    assert ids == loaded.with_parsed_special().encode_batch(texts)
    assert [[*around[0], *one, *around[1]] for one in ids] == reference(texts)["input_ids"]
    if kind == "byte-bpe":  # <mask> stands in place of a word and its space
        expected = [*tokenizer.encode("The"), tokenizer.vocabulary.mask, *tokenizer.encode(" house")]
        assert reading.encode("The <mask> house") == expected
    else:  # one token begins and ends a text, in openai/gpt-2 the last one
        vocabulary = loaded.vocabulary
        ends = {vocabulary.begin, vocabulary.end, reference.bos_token_id, reference.eos_token_id}
        assert len(ends) == 1 and reading.encode("<|endoftext|>") == [*ends] == [*vocabulary.special]
        assert vocabulary.pad == vocabulary.cls == vocabulary.sep == -1


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
    few = tokenizers.train("whitespace", 4, [WIKITEXT], tmp_path / "few")  # the unknown word is kept
    assert few.tokens(range(few.vocabulary.size)) == ["<eos>", "<unk>", "=", "A"]
    # Counted over all text; other kinds learn from a sample.
    assert [tokenizers.sample(kind) for kind in ("byte", "whitespace", "word")] == [None, None, 2**26]


def test_bytes_are_those_that_occur(tmp_path):
    tokenizer = tokenizers.train("byte", 300, ["naïve\n", "an e"], tmp_path)
    data = "naïve\nan e".encode()
    most = sorted(set(data), key=lambda byte: (-data.count(byte), byte))
    assert tokenizer.encode("naïve\nan e") == [most.index(byte) for byte in data]
    assert tokenizer.vocabulary.size == len(set(data)) and tokenizer.vocabulary.document_end == -1
    assert tokenizer.vocabulary.bytes and tokenizers.load(tmp_path).vocabulary.bytes


def test_special_tokens_are_added_after_all_others(tmp_path):
    tokenizer = tokenizers.train("bpe", 420, PROSE, tmp_path)
    more = tokenizer.with_special(("start", "extract"))
    size = tokenizer.vocabulary.size
    assert more.vocabulary.others == {"start": size, "extract": size + 1} and more.vocabulary.size == size + 2
    assert more.tokens([size, size + 1]) == ["_start_", "_classify_"]
    assert more.special == {**tokenizer.special, "start": "_start_", "extract": "_classify_"}
    assert {size, size + 1} < set(more.vocabulary.special) and more.encode(PROSE[0]) == tokenizer.encode(PROSE[0])
    assert more.with_parsed_special().encode(" _start_") == [size]


@pytest.mark.parametrize("kept", [("tokenizer.json", "tokenizer_config.json"), ()])
def test_any_file_of_t5_is_the_same_tokenizer_here_and_in_transformers(kept, tmp_path):
    """The spiece.model alone, as it was published, has neither the sentinels nor a word about them.

    Sentinels count down from the last id.
    """
    import transformers

    trained = tokenizers.train("t5-unigram", 420, PROSE, tmp_path / "trained").with_parsed_special()
    for name in ("spiece.model", *kept):
        (tmp_path / name).write_bytes((tmp_path / "trained" / name).read_bytes())
    found, texts = (
        tokenizers.load(tmp_path).with_parsed_special(),
        [*PROSE, *ODD, "A <extra_id_0> <extra_id_99>x.</s>"],
    )
    vocabulary = found.vocabulary
    assert (vocabulary.pad, vocabulary.end, vocabulary.unknown, vocabulary.document_end) == (0, 1, 2, 1)
    last = vocabulary.size - 1
    assert vocabulary.sentinels == tuple(range(last, last - 100, -1)) == trained.vocabulary.sentinels
    assert found.encode_batch(texts) == trained.encode_batch(texts)
    found.save(tmp_path / "saved")
    for theirs in (
        transformers.T5Tokenizer.from_pretrained(tmp_path),
        transformers.AutoTokenizer.from_pretrained(tmp_path / "saved"),
    ):
        assert theirs(texts)["input_ids"] == [[*ids, 1] for ids in found.encode_batch(texts)]
        assert theirs(*texts[:2])["input_ids"] == [*found.encode(texts[0]), 1, *found.encode(texts[1]), 1]
