"""The size of a raw text: its lines with an end each, without markup and blank lines, under the key that is named."""

import json
from pathlib import Path

from plmjax.data import text_size
from plmjax.data.text_size import TextSize


def test_lines_are_counted_with_their_ends_and_blank_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Déjà vu.\n\n \nTwo  words\n天\n", encoding="utf-8")
    assert text_size.measure([tmp_path / "a.txt"], "text") == TextSize(
        bytes=11 + 11 + 4, characters=9 + 11 + 2, words=5
    )


def test_the_text_of_a_record_is_that_under_the_key(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "No.", "body": body}) for body in ("One two.", "Three.")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert text_size.measure([tmp_path / "a.jsonl"], text_key="body") == TextSize(bytes=16, characters=16, words=3)
    assert text_size.measure([tmp_path / "a.jsonl"]) == TextSize(bytes=8, characters=8, words=2)
