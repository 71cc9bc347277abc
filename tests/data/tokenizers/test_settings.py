"""The files beside a vocabulary: the ids, special tokens and added tokens that they give are those of transformers."""

import copy
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plmjax.data import tokenizers
from tests.data.mistakes import refused

TEXTS = [
    "The quick brown fox, asleep all day, Naïve Zoë paid € 3 – “twice”!",
    "今天天气很好，我们去。",
    "ÉCLAIRS at ten.",
] * 8
BESIDE = "The {0} fox{0}jumps, {0}! x{0} the"
OLD = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
KINDS = {
    "wordpiece": (["vocab.txt"], {"model_type": "bert"}, {"do_lower_case": False}),
    "byte-bpe": (["vocab.json", "merges.txt"], {"model_type": "roberta"}, {}),
    "sentencepiece-unigram": (
        ["spiece.model"],
        {"model_type": "albert"},
        {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False, "keep_accents": True},
    ),
    "gpt2-bpe": (["vocab.json", "merges.txt"], {"model_type": "gpt2"}, {}),
}
"""Kind -> files of its vocabulary, config.json of its model, and tokenizer_config.json."""
Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in folders.items():
        tokenizers.train(kind, 320, TEXTS, folder, lowercase=False)
    return folders


@pytest.fixture
def made(trained: dict[str, Path], tmp_path: Path) -> Folder:
    """A folder as other writers leave it: files of a vocabulary, and JSON beside it by name."""

    def make(kind: str, whole: bool, options: dict[str, Any], **beside: dict[str, Any]) -> Path:
        files, model, usual = KINDS[kind]
        for name in [*files, *(["tokenizer.json"] if whole else [])]:
            (tmp_path / name).write_bytes((trained[kind] / name).read_bytes())
        beside = {"config": model, "tokenizer_config": usual | options} | beside
        for name, content in beside.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return make


def same(ours: tokenizers.Tokenizer, folder: Path) -> None:
    """The tokens, their flags and the ids of texts that contain each are those of transformers."""
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert ours._engine.get_vocab() == theirs.get_vocab()
    added = ours._engine.get_added_tokens_decoder()
    assert {number: repr(token) for number, token in added.items()} == {
        number: repr(token) for number, token in theirs.added_tokens_decoder.items()
    }
    texts = [*TEXTS[:3], *(BESIDE.format(token.content) for token in added.values()), BESIDE.format("ent")]
    for text in texts:
        ids = ours._engine.encode(text, add_special_tokens=False).ids
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    for role, token in theirs.special_tokens_map.items():
        assert ours.special.get(role.removesuffix("_token"), token) == token


def size(folder: Path) -> int:
    return tokenizers.load(folder).vocabulary.size


ENT = {"__type": "AddedToken", "content": "<ent>"} | OLD | {"lstrip": True}
PADDING = {"pad_token": {"content": "<Pad>"} | OLD | {"lstrip": True}}
NAMED = {"model_specific_special_tokens": {"img_token": "<img>", "ent": ENT}, "extra_special_tokens": ["<rel>"]}
LISTED = {"additional_special_tokens": ["<ent>"]}
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "added_tokens": {"added_tokens": {"<ent>": 0, "<REL>": 1}},  # behind the last id
    "both": {"added_tokens": {"<ent>": 0, "<rel>": 1}, "special_tokens_map": {"pad_token": "<rel>"} | LISTED},
    "special_tokens_map": {"special_tokens_map": {"pad_token": "<PADDING>"} | LISTED},
    "flags in the map": {"special_tokens_map": PADDING},
    "list": {"options": LISTED},
    "names": {"options": {"extra_special_tokens": {"ent_token": "<ent>"}, "image_token": "<img>"}},
    "table": {"options": NAMED},
}


# transformers drops additional_special_tokens of the older file beside a spiece.model.
CASES = [
    pytest.param(kind, change, whole, id=f"{kind}-{change}-{'tokenizer.json' if whole else 'vocabulary'}")
    for kind in KINDS
    for change in CHANGES
    for whole in (False, True)
    if (whole or kind != "sentencepiece-unigram" or change not in ("both", "special_tokens_map"))
    and (kind == "wordpiece" or change in ("both", "table", "names"))
]


@pytest.mark.parametrize("kind, change, whole", CASES)
def test_tokens_beside_a_vocabulary_are_those_of_transformers(kind, change, whole, trained, made, tmp_path) -> None:
    beside = copy.deepcopy(CHANGES[change])
    if added := beside.get("added_tokens"):
        beside["added_tokens"] = {token: size(trained[kind]) + number for token, number in added.items()}
    folder = made(kind, whole, beside.pop("options", {}), **beside)
    ours = tokenizers.load(folder)
    same(ours, folder)
    ours.save(tmp_path / "saved")
    again = tokenizers.load(tmp_path / "saved")
    assert (again.fingerprint, again.special) == (ours.fingerprint, ours.special)
    (tmp_path / "saved" / "config.json").write_text(json.dumps(KINDS[kind][1]))
    same(ours, tmp_path / "saved")


@pytest.mark.parametrize("whole", [False, True], ids=["vocabulary", "tokenizer.json"])
@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized", "special"])
def test_every_flag_of_an_added_token_counts(flag: str, whole: bool, made: Folder, trained: dict[str, Path]) -> None:
    token = {"content": "ENT", flag: True}
    listed = {str(size(trained["wordpiece"])): {**OLD, "normalized": False, "special": False} | token}
    for number, name in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")):
        listed[str(number)] = {"content": name, **OLD, "normalized": False, "special": True}
    folder = made("wordpiece", whole, {"do_lower_case": True, "added_tokens_decoder": listed})
    same(tokenizers.load(folder), folder)


@pytest.mark.parametrize("whole", [False, True], ids=["vocabulary", "tokenizer.json"])
def test_added_tokens_may_be_white_space(whole: bool, made: Folder, trained: dict[str, Path]) -> None:
    """As those of GPT-NeoX, OLMo and ModernBERT."""
    flags, first = OLD | {"normalized": False, "special": False}, size(trained["gpt2-bpe"])
    listed = {str(first + number): {"content": one} | flags for number, one in enumerate(("  ", "\t\t", "\n\n"))}
    folder = made("gpt2-bpe", whole, {"added_tokens_decoder": listed})
    same(tokenizers.load(folder), folder)


OPTIONS = [
    ("wordpiece", {"do_lower_case": True, "strip_accents": False}),
    ("wordpiece", {"strip_accents": True}),
    ("wordpiece", {"do_lower_case": True, "tokenize_chinese_chars": False}),
    ("wordpiece", {"tokenizer_class": "ElectraTokenizerFast", "do_lower_case": True}),
    ("byte-bpe", {"add_prefix_space": True}),
    ("wordpiece", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}),
    ("byte-bpe", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}),
    ("sentencepiece-unigram", {"do_lower_case": True, "keep_accents": False}),
]
WITH_AND_WITHOUT = [(*row, True) for row in OPTIONS] + [(*row, False) for row in OPTIONS[:5]]


@pytest.mark.parametrize("kind, options, whole", WITH_AND_WITHOUT, ids=str)
def test_options_beside_a_tokenizer_count_as_in_transformers(
    kind: str, options: dict, whole: bool, made: Folder
) -> None:
    """A class with these options builds the tokenizer from them; the general one follows tokenizer.json alone."""
    folder = made(kind, whole, options)
    same(tokenizers.load(folder), folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"\n", b"\r\n"), (b"\nfox\n", b"\n\nfox\n"), (b"\nfox\n", b"\nfox \n"), (b"\nfox\n", b"\nfox\nfox\n")],
    ids=["CRLF", "empty line", "space behind a token", "token twice"],
)
def test_odd_lines_of_a_vocabulary_are_read_as_in_transformers(old: bytes, new: bytes, made: Folder) -> None:
    """Deviation: transformers takes empty lines at its end for one token more, which a model has no embedding for."""
    path = made("wordpiece", False, {}) / "vocab.txt"
    usual = path.read_bytes()
    path.write_bytes(usual.replace(old, new))
    same(ours := tokenizers.load(path.parent), path.parent)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\n\r\n \n")
    assert tokenizers.load(path.parent).fingerprint == ours.fingerprint
    path.write_bytes(usual.replace(b"[UNK]", b"<unk>"))  # the unknown word without options
    ours = tokenizers.load(path.parent)
    assert ours.vocabulary.unknown == 1 and 1 in ours.encode("\U0001f600")


def test_options_that_change_ids_are_refused_or_named(made: Folder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizers.load(made("wordpiece", False, {"never_split": ["fox"], "do_basic_tokenize": True}))
    assert "tokenizer_config.json has options that plmjax does not support and leaves out" in caplog.text
    assert "never_split = ['fox']" in caplog.text and "do_basic" not in caplog.text
    for place in ("tokenizer_config", "config"):  # a class that reads a vocabulary in its own way
        beside = {"tokenizer_config": {}} | {place: {"tokenizer_class": "BertJapaneseTokenizer"}}
        folder = made("wordpiece", False, {}, **beside)
        refused(lambda folder=folder: tokenizers.load(folder), "tokenizer_class .. 'BertJapaneseTokenizer'")


def test_merges_are_never_dropped_by_chance(made: Folder, caplog: pytest.LogCaptureFixture) -> None:
    file = made("byte-bpe", True, {}) / "tokenizer.json"
    expected, found = tokenizers.load(file.parent), json.loads(file.read_text())
    found["model"]["dropout"] = 0.5
    file.write_text(json.dumps(found))
    tokenizer = tokenizers.load(file.parent)
    assert "dropout of merges in" in caplog.text and tokenizer.fingerprint == expected.fingerprint
    assert tokenizer.encode_batch(TEXTS * 3) == expected.encode_batch(TEXTS * 3)
