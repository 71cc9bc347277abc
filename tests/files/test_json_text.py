"""JSON and numbers that anybody may have written: each text is a value or one error, and no other module reads JSON."""

import json
import re
from pathlib import Path

import pytest

from plmjax.errors import UserError
from plmjax.files import json_text, storage
from plmjax.files.decimals import decimal
from plmjax.files.json_text import COUNT
from tests.paths import ROOT

WRONG = {
    "nested": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "digits": ("1" * 5_000, "4300 digits"),
    "infinity": ('{"a": Infinity}', "Infinity, which JSON does not have"),
    "surrogate": (r'{"a": "\ud800"}', "half of a surrogate pair"),
    "cut": ('{"a"', "delimiter"),
    "no text": (b'"\xff"', "utf-8"),
}
READERS = {"plmjax/files/json_text.py", "plmjax/inference/embed.py", "plmjax/data/tokenizers/tokenizer.py"}
READERS |= {"plmjax/data/tokenizers/training.py", "plmjax/selfcheck/speed.py", "tpu/flex_start.py", "tpu/queue.py"}
"""Files that call json.loads: this module, and those that read JSON which a library of the same process wrote."""


@pytest.mark.parametrize("text, reason", WRONG.values(), ids=WRONG)
def test_a_text_that_is_no_json_is_one_error(text: str | bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        json_text.parse(text)
    file = tmp_path / "options.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=rf"Expected JSON in .*options\.json, options, found: .*{reason}.*; fetch it"):
        json_text.read_object(file, "options", "fetch it")


def test_a_text_that_is_json_is_its_value(tmp_path: Path) -> None:
    found = {"a": [1, 2.5, None, True], "b": "\U0001f600\\ud800"}
    for text in (json.dumps(found), json.dumps(found, ensure_ascii=False).encode()):
        assert json_text.parse(text) == found
    assert json_text.parse("\ufeff[1]") == json_text.parse(b"\xef\xbb\xbf[1]") == [1]
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(UserError, match=r"Expected a JSON object in .*list\.json, options, found a list; fetch it\."):
        json_text.read_object(tmp_path / "list.json", "options", "fetch it")
    with pytest.raises(UserError, match=r"Expected options at .*none\.json, found no file; fetch it\."):
        json_text.read_object(tmp_path / "none.json", "options", "fetch it")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (("folder", "Is a directory"), ("loop", "Too many levels of symbolic links")):
        with pytest.raises(UserError, match=rf"Expected a file that can be read at .*{name}, found: {reason}; check"):
            storage.contents(tmp_path / name)


SHAPE = {"name": str, "count": COUNT, "share": float, "on": bool, "any": object, "parts": [{str: (str, [COUNT])}]}
FITS = {"name": "a", "count": 3, "share": 1, "on": True, "any": None, "parts": [{"x": "y", "z": [1, 2]}, {}]}


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"name": 1}, "name is 1"),
        ({"count": -1}, "count is no number from 0 to"),
        ({"count": True}, "count is no number from 0 to .* but True"),
        ({"parts": {}}, "parts is no list but {}"),
        ({"parts": [{"x": ["a"]}]}, "a part of x of a part of parts is no number"),
    ],
)
def test_a_value_of_another_shape_is_one_error(changed: dict, reason: str) -> None:
    json_text.check(FITS, SHAPE)
    with pytest.raises(ValueError, match=reason):
        json_text.check(FITS | changed, SHAPE)
    for found in ([], None, "a", {key: value for key, value in FITS.items() if key not in changed}):
        with pytest.raises(ValueError, match=r"it is no object|it has no"):
            json_text.check(found, SHAPE)


def test_every_file_of_others_is_read_here() -> None:
    found = set()
    for file in [*ROOT.glob("plmjax/**/*.py"), *ROOT.glob("tpu/**/*.py")]:
        if re.search(r"\bjson\.(loads?|JSONDecoder)\b", file.read_text(encoding="utf-8")):
            found.add(file.relative_to(ROOT).as_posix())
    assert found == READERS


def test_a_decimal_number_is_read_and_what_python_alone_takes_for_one_is_refused() -> None:
    for number in ("0", "-1.5", "+2.", ".5", " 1e3 ", "1E-2", 7, 2.5, -0.0):
        assert decimal(number) == float(number)
    texts = ("", "1_0", "nan", "-Infinity", "1e999", "\u0663", "1 2", "0x1", ".", "9" * 5000)
    for other in (*texts, None, True, 10**400, [1]):
        with pytest.raises(ValueError, match="no finite number"):
            decimal(other)
