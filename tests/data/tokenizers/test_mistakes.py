"""Vocabularies, settings and texts that no tokenizer can be made of, and steps that multiply a text."""

import base64
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from plmjax.data import tokenizers
from plmjax.data.tokenizers import growth
from tests.data.mistakes import refused

PROSE = ["The quick brown fox, which had been asleep all day, jumps over the lazy dog's kennel at ten o'clock."] * 8
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "##es"]


CONFIG = "tokenizer_config.json"
VOCABULARIES: list[tuple[dict[str, Any], str]] = [
    ({}, "none of them"),
    ({"vocab.json": {}}, "vocab.json"),
    ({"vocab.txt": ["a", "b"]}, "[UNK] or <unk>"),
    ({"tokenizer.json": "{"}, "JSON in"),
    ({"spiece.model": b"\x99junk"}, "do not read"),
    (
        {"vocab.txt": ["[PAD]", "<unk>", *WORDS[2:]], CONFIG: {"unk_token": "[UNK]"}},
        "unknown words .. vocab.txt, '[UNK]'",
    ),
    (
        {"vocab.txt": [*WORDS, "fox", "the"], CONFIG: {"additional_special_tokens": ["<e>"]}},
        "no gap below its added tokens",
    ),
]
BESIDE: list[tuple[str, dict[str, Any], str]] = [
    ("added_tokens.json", {"<ent>": 400}, "'<ent>' .. 400 .. the files of"),
    ("special_tokens_map.json", {"cls_token": 3}, "cls_token in special_tokens_map.json"),
    ("special_tokens_map.json", {"cls_token": ""}, "cls_token in special_tokens_map.json is empty"),
    (CONFIG, {"do_lower_case": "no"}, "do_lower_case in tokenizer_config.json .. 'no'"),
    (CONFIG, {"added_tokens_decoder": {"x": {"content": "a"}}}, "of tokenizer_config.json has 'x'"),
    (CONFIG, {"tokenizer_class": 3}, "tokenizer_class is 3"),
]
USUAL = {"vocab.txt": WORDS, "config.json": {"model_type": "bert"}}
VOCABULARIES += [(USUAL | {name: content}, parts) for name, content, parts in BESIDE]


@pytest.mark.parametrize(("files", "parts"), VOCABULARIES, ids=[parts for _, parts in VOCABULARIES])
def test_vocabularies_and_settings_beside_them(files: dict[str, Any], parts: str, tmp_path: Path) -> None:
    for name, content in files.items():
        text = "\n".join(content) if isinstance(content, list) else content
        text = json.dumps(text) if isinstance(text, dict) else text
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(lambda: tokenizers.load(tmp_path), parts)
    refused(lambda: tokenizers.load(tmp_path / "absent"), "nothing")


TRAINED = [
    ("wordpeice", 100, PROSE, "did you mean 'wordpiece'"),
    ("wordpiece", 6, PROSE, "at least 7 .. 5 special ones and 2 of the text .. 6"),
    ("byte-bpe", 260, PROSE, "at least 261 .. 5 special ones and 256 bytes .. 260"),
    ("wordpiece", 100, ["", "  "], "none"),
    ("sentencepiece-unigram", 20, PROSE, "at least .. sentencepiece-unigram .. 20; raise --vocab_size"),
    ("sentencepiece-bpe", 20, PROSE, "at least .. sentencepiece-bpe .. 20; raise --vocab_size"),
    ("byte", 5, PROSE, "byte, the bytes of this text .. 5; raise"),
    ("t5-unigram", 104, PROSE, "at least 105 .. 103 special ones and 2 of the text"),
]


def test_training(tmp_path: Path) -> None:
    for kind, size, texts, parts in TRAINED:
        refused(functools.partial(tokenizers.train, kind, size, texts, tmp_path), parts)


def test_texts(tmp_path: Path) -> None:
    """A byte of an option that is no UTF-8 becomes half of a surrogate pair."""
    words = tokenizers.train("word", 30, ["some text to learn from"], tmp_path / "words")
    for encode in (words.encode_batch, words.encode_spans, lambda texts: words.encode_words([texts])):
        refused(lambda encode=encode: encode(["some text", "x\udcff"]), "half of a surrogate pair .. \\udcff'")
    few = tokenizers.train("byte", 300, ["an e\n"], tmp_path / "bytes")
    refused(lambda: few.encode("an é"), "the 5 bytes .. 'é'")


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
PIECES = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def replace(pattern: str | dict[str, str], content: str) -> dict[str, Any]:
    return {
        "type": "Replace",
        "pattern": {"String": pattern} if isinstance(pattern, str) else pattern,
        "content": content,
    }


def sequence(*steps: dict[str, Any], name: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", name: list(steps)}


def form(name: str) -> dict[str, Any]:
    return {"type": name}


def table(text: str) -> dict[str, Any]:
    charsmap = (0).to_bytes(4, "little") + text.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


TEN = replace("a", "a" * 10)
MULTIPLIED = {
    "replaced": ("normalizer", sequence(*[TEN] * 9)),
    "nested": ("normalizer", sequence(sequence(*[TEN] * 4), sequence(*[TEN] * 4))),
    "pattern": ("normalizer", sequence(*[replace({"Regex": "[a-z]"}, "b" * 10)] * 8)),
    "taken apart": ("normalizer", sequence(*[replace("\u0627", "\ufdfa" * 9), form("NFKD")] * 5)),
    "composed": ("normalizer", sequence(*[replace("a", "e\u0301" * 5), form("NFC"), replace("é", "a" * 9)] * 4)),
    "BERT": ("normalizer", sequence(*[replace("a", "Á" * 10), BERT] * 6)),
    "a table": ("normalizer", sequence(*[table("a" * 50)] * 3)),
    "bytes": ("pre_tokenizer", sequence(*[BYTES] * 16, name="pretokenizers")),
    "pieces": ("pre_tokenizer", sequence(*[PIECES] * 12, name="pretokenizers")),
    "decoded": ("decoder", sequence(*[TEN] * 9, name="decoders")),
}
USED = [replace("``", '"'), form("NFKD"), form("StripAccents"), form("Lowercase"), table("\ufdfa" * 18)]
KEPT = {
    "signs": sequence(*[replace(sign, "...") for sign in "…“”„‟‘’‚‛«»‹›"]),
    "spaces": sequence(*[replace({"Regex": r"\s+"}, " ")] * 8),
    "ALBERT": sequence(*USED, replace({"Regex": " {2,}"}, " ")),
    "nothing": None,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("words")
    tokenizers.train("word", 30, ["some text to learn from"], folder)
    return json.loads((folder / "tokenizer.json").read_text())


def test_steps_that_multiply_a_text_are_refused_and_usual_ones_kept(whole: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for place, steps in MULTIPLIED.values():
        path.write_text(json.dumps(whole | {place: steps}))
        refused(lambda: tokenizers.load(tmp_path), "at most 2,000 times as long .. tokenizer.json")
    for steps in KEPT.values():
        path.write_text(json.dumps({"normalizer": steps}))
        growth.check(path)
