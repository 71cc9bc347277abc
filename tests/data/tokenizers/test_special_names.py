"""Names of special tokens in a text: plain text unless they are asked for; and tokens as people read them."""

import pickle
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from plmjax.commands import cli
from plmjax.data import store, tokenizers
from plmjax.data.tokenizers.kinds import KINDS, SENTINEL, SENTINELS
from plmjax.data.tokenizers.readable import readable
from plmjax.data.tokenizers.tokenizer import Tokenizer as Ours
from tests.data.mistakes import refused

NAMES = sorted({name for special in KINDS.values() for name in special.values()})
NAMES += ["_start_", "_delimiter_", "_classify_", *(SENTINEL.format(number=number) for number in (0, 7, SENTINELS - 1))]
WRITINGS = (
    str,
    str.upper,
    str.lower,
    lambda name: f"a{name}b",
    lambda name: f"The {name} end.{name}{name}",
    lambda name: name.replace("<", "＜").replace(">", "＞"),
    lambda name: f"{name[:2]}\u200b{name[2:]}\x00",
    lambda name: unicodedata.normalize("NFD", f"é{name}"),
    lambda name: f"\n{name}\t{name} ",
)
ALPHABET = "".join(map(chr, range(33, 127)))
PROSE = [f"The quick brown fox jumps over the lazy dog. {ALPHABET} {' '.join(ALPHABET)} {' '.join(NAMES)}"] * 20


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ours:
    """A tokenizer of every kind, trained on text with all the names."""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    extra = ["é\u0301＜＞\u200b\x00\n\t　"] if kind == "byte" else []
    return tokenizers.train(kind, 700, [*PROSE, *extra], folder)


def test_no_text_gives_the_id_of_a_special_token(tokenizer: Ours):
    """Not by a name, nor by what a normalizer makes one: as in the releases of BERT, GPT-2 and SentencePiece."""
    special = {*tokenizer.vocabulary.special} - {tokenizer.vocabulary.unknown}
    lines = {tokenizer.vocabulary.end} if tokenizer.kind == "whitespace" else set()  # a line end is the word <eos>
    texts = [write(name) for name in NAMES for write in WRITINGS]
    for text, ids, (spans, places) in zip(
        texts, tokenizer.encode_batch(texts), tokenizer.encode_spans(texts), strict=True
    ):
        assert not special & {*ids} - (lines if "\n" in text else set()), text
        assert ids == spans.tolist() == tokenizer.encode(text)
        assert not len(places) or places.max() <= len(text)
    words = tokenizer.encode_words([[word for word in NAMES if " " not in word]])
    assert not special & {token for pieces in words[0] for token in pieces}
    if tokenizer.kind == "whitespace":
        assert tokenizer.encode("a <eos> \n").count(tokenizer.vocabulary.end) == 1


def test_a_name_is_read_where_it_is_asked_for(tokenizer: Ours):
    """All of them or some, in a copy of the tokenizer that differs in nothing else, and in its pickles."""
    vocabulary = tokenizer.vocabulary
    reading = tokenizer.with_parsed_special()
    names = dict(zip(vocabulary.special, tokenizer.tokens(vocabulary.special), strict=True))
    for number, name in [*names.items()][:8]:
        assert reading.encode(f"The {name} end").count(number) == 1 or number == vocabulary.unknown
        one = tokenizer.with_parsed_special([number])
        assert one.encode(f"{name} {name}").count(number) == 2 or number == vocabulary.unknown
        others = [other for other in names.values() if other != name]
        assert not {*vocabulary.special} - {number, vocabulary.unknown} & {*one.encode(" ".join(others))} or not others
    copy = pickle.loads(pickle.dumps(reading))
    text = "The " + " ".join(names.values())
    assert copy.encode(text) == reading.encode(text) and copy.fingerprint == tokenizer.fingerprint
    assert pickle.loads(pickle.dumps(tokenizer)).encode(text) == tokenizer.encode(text)
    assert reading.with_parsed_special([]) is reading and reading.decode(reading.encode("The fox")) == tokenizer.decode(
        tokenizer.encode("The fox")
    )
    engine = tokenizer._engine
    assert reading.encode(text) == engine.encode(text, add_special_tokens=False).ids
    counted = tokenizer.names_in(["a [MASK][MASK] <pad> </s>", "<mask> <|endoftext|>"])
    expected = {"[MASK]": 2, "<pad>": 1, "</s>": 1, "<mask>": 1, "<|endoftext|>": 1}
    assert counted == {name: count for name, count in expected.items() if name in names.values()}
    assert not reading.names_in(["a [MASK] <pad> </s> <|endoftext|>"])


@pytest.mark.parametrize("special", [False, True])
def test_added_tokens_without_a_role_are_read(special: bool):
    """Special or not: somebody added them to be read in a text."""
    engine = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "<url>": 2, "<end>": 3}, unk_token="[UNK]"))
    engine.normalizer, engine.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    engine.add_tokens([AddedToken("<user>", special=special, normalized=False)])
    engine.add_special_tokens([AddedToken("<end>", normalized=False)])
    tokenizer = Ours(engine, {}, {"unk": "[UNK]", "eos": "<end>"})
    for one in (tokenizer, tokenizer.with_parsed_special([]), pickle.loads(pickle.dumps(tokenizer))):
        assert one.encode("A <url> <END> <end> <user>x") == [1, 2, 0, 0, 4, 0]
        assert one.names_read == ({4: "<user>"} if special else {})
        assert one.names_in(["<user> <end>"]) == {"<end>": 1}
    assert tokenizer.vocabulary.special == ((0, 3, 4) if special else (0, 3))
    more = tokenizer.with_special(("delimiter",))
    assert more.encode("<user>") == [4] and more.encode("_delimiter_") == [0]


TEXT = "The fox.\n<|endoftext|>\nThe [MASK] dog <|endoftext|>.\n\nThe <mask> fox jumps. <|endoftext|>"
"""Two documents: with a name between their sentences, within one and at the end, and with names of other tokenizers."""


@pytest.mark.parametrize(("names", "as_what"), [((), "plain text"), (("<|endoftext|>",), "tokens")])
def test_prepare_reads_the_names_that_are_asked_for(names: tuple[str, ...], as_what: str, tmp_path: Path, capsys):
    """They have the ids of transformers, at the end of a document too."""
    said = f"3 names of special tokens in the text are read as {as_what}: <|endoftext|> 3"
    folder = tmp_path / "tokenizer"
    tokenizer = tokenizers.train("gpt2-bpe", 300, PROSE, folder)
    (tmp_path / "text.txt").write_text(TEXT)
    command = ["prepare", "--input", str(tmp_path / "text.txt"), "--tokenizer", str(folder), "--held_out", "0"]
    command += ["--output", str(tmp_path / "dataset"), "--special_names", *names]
    cli.run(command)
    assert f"special    {said}\n" in capsys.readouterr().out
    dataset = store.open_dataset(tmp_path / "dataset")
    split = dataset.split("train")
    documents = [" ".join(document.split()) for document in TEXT.split("\n\n")]
    reading = tokenizer.with_parsed_special() if names else tokenizer
    ids = [token for text in documents for token in reading.encode(text)]
    assert split.tokens(0, split.token_count).tolist() == ids and split.documents == 2
    end = tokenizer.vocabulary.end
    assert ids.count(end) == 3 * len(names) and (ids[-1] == end) == bool(names)
    assert dataset.manifest["description"].get("special_names", []) == [*names]
    cli.run(command)
    assert "nothing to do" in capsys.readouterr().out
    refused(lambda: tokenizer.with_parsed_names(["the"]), "--special_names")
    refused(lambda: tokenizer.with_parsed_names(["<|endoftext>"]), "did you mean '<|endoftext|>'")
    refused(lambda: cli.run([*command, "<|endoftext|>"] if not names else command[:-2]), "another special_names")


READ = ["the stout kennels were unbelievable and you knew", "naïve – “quoted” café 日本 😀"] * 30


@pytest.mark.parametrize("kind", tokenizers.KINDS)
def test_tokens_read_as_the_text_does(kind, tmp_path):
    tokenizer = tokenizers.train(kind, 420, READ, tmp_path)
    text = " the kennels you"
    found = readable(tokenizer, tokenizer.encode(text))
    assert not any(mark in piece for piece in found for mark in ("Ġ", "▁", "</w>"))
    if kind == "wordpiece":
        assert found == tokenizer.tokens(tokenizer.encode(text))
    else:
        joined = "" if kind not in ("word", "whitespace") else " "
        assert joined.join(found).strip() == text.strip()
    special = tokenizer.vocabulary.special
    assert bool(special) == (kind != "byte") and readable(tokenizer, special) == tokenizer.tokens(special)


def test_bytes_of_sentencepiece_names_and_ids_without_a_token() -> None:
    for kind, tokens, read in (
        ("sentencepiece-bpe", ["<0xE2>", "<0x41>", "▁", "▁a▁b", None], ["\\xe2", "A", " ", " a b", "[id 4]"]),
        ("byte-bpe", ["Ġyou", "<日本>", "Ã", "©", "Ċ"], [" you", "<日本>", "\\xc3", "\\xa9", "\\n"]),
    ):
        made = SimpleNamespace(kind=kind, tokens=lambda ids, tokens=tokens: tokens)
        assert readable(made, range(len(tokens))) == read
