"""A tokenizer.json whose steps multiply a text is refused before it takes the memory for one."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from plmjax.data import tokenizers
from plmjax.data.tokenizers import growth
from tests.data.mistakes import refused

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
