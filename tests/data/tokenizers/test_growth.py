"""A tokenizer.json whose steps multiply a text is refused before it takes the memory for one."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

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
    "before a text": ("normalizer", sequence(*[{"type": "Prepend", "prepend": "b" * 10}] * 8)),
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


def test_the_bound_holds_for_what_the_library_makes(whole: dict[str, Any]) -> None:
    """Of one turn of the steps, for every character that they name."""
    for name in ("BERT", "taken apart", "composed", "pattern", "before a text"):
        steps = MULTIPLIED[name][1]["normalizers"][:3]
        normalizer = Tokenizer.from_str(json.dumps(whole | {"normalizer": sequence(*steps)})).normalizer
        bound = growth._bound(steps)
        assert bound < 1e5
        for text in ("a", "é", "e\u0301", "A", "\ufdfa", "\u0627", "中", "aé\u0627" * 5):
            assert len(normalizer.normalize_str(text)) <= bound * len(text), (name, text)


@pytest.mark.nightly
def test_a_refused_tokenizer_takes_no_memory(whole: dict[str, Any], tmp_path: Path) -> None:
    """4 GiB of addresses are enough to say it. The file has 2 KB."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | {"normalizer": sequence(*[TEN] * 9)}))
    code = "import resource, sys; from plmjax.data import tokenizers; limit = 4 * 2**30;"
    code += "resource.setrlimit(resource.RLIMIT_AS, (limit, limit)); tokenizers.load(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "UserError: Expected a tokenizer that makes a text at most 2,000 times as long" in done.stderr
