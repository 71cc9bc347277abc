"""Texts and records that are too long to hold."""

import json
from pathlib import Path

import pytest

from plmjax.data import formats, text_files
from plmjax.data.formats import cutting
from plmjax.errors import UserError
from tests.data.formats.samples import WIKI, read


def test_long_documents_are_cut_between_words(tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "LONGEST_DOCUMENT", 100)
    for format in ("text", "books"):
        text = " ".join(f"word{n}" for n in range(500))
        (tmp_path / "a.txt").write_text(text)
        parts = [d.text for d in formats.documents([tmp_path / "a.txt"], format)]
        assert " ".join(parts) == text and max(map(len, parts)) <= 100


def test_every_line_has_its_number_however_a_text_is_read():
    blocks = ["one\n", " \ntw", "o\nthree"]
    assert list(cutting.lines(Path("a"), blocks)) == [("a line 1", "one"), ("a line 3", "two"), ("a line 4", "three")]


def test_a_record_without_end_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "LONGEST_RECORD", 1000)
    monkeypatch.setattr(text_files, "BLOCK", 100)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "x" * 5000}))
    (tmp_path / "a.xml").write_text(WIKI % ("x" * 5000))
    for name in ("a.jsonl", "a.xml"):
        with pytest.raises(UserError, match="1000 characters"):
            read([tmp_path / name])


@pytest.mark.parametrize(
    ("text", "first", "rest"),
    [
        (
            "a" * 60 + "\n\n" + "b" * 10 + "\n" + "c" * 10 + " " + "d" * 90,
            "a" * 60,
            "b" * 10 + "\n" + "c" * 10 + " " + "d" * 90,
        ),
        ("a" * 60 + "\n" + "b" * 10 + " " + "c" * 90, "a" * 60, "b" * 10 + " " + "c" * 90),
        ("a" * 20 + "\n\n" + "b" * 40 + " " + "c" * 90, "a" * 20 + "\n\n" + "b" * 40, "c" * 90),
        ("a" * 49 + " " + "b" * 90, "a" * 49 + " " + "b" * 50, "b" * 40),
        ("a" * 50 + " " + "b" * 90, "a" * 50, "b" * 90),
        ("a" * 99 + " " + "b" * 90, "a" * 99, "b" * 90),
        ("a" * 100 + " " + "b" * 90, "a" * 100, " " + "b" * 90),
    ],
)
def test_a_cut_is_at_the_best_end_in_the_second_half(text: str, first: str, rest: str, monkeypatch) -> None:
    monkeypatch.setattr(cutting, "LONGEST_DOCUMENT", 100)
    assert cutting.cut(text) == (first, rest)
