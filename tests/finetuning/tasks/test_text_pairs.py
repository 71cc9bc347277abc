"""Pairs of texts, and the files that hold them."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from plmjax.finetuning.tasks.text_pairs import TextPairs

PAIRS = [("two dogs", "zwei Hunde"), ("a man", "ein Mann"), ("snow", "Schnee")]


@pytest.fixture
def parallel(tmp_path: Path) -> str:
    """The path of the sources; the targets are beside it."""
    for suffix, side in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / f"train.{suffix}").write_text("\n".join(side) + "\n")
        (tmp_path / f"packed.{suffix}.gz").write_bytes(gzip.compress("\n".join(side).encode()))
    return str(tmp_path / "train.en")


def read(path: str | Path, **settings: Any) -> list[tuple]:
    return list(TextPairs(**settings).rows(str(path)))


def test_parallel_files_and_tables_hold_the_same(parallel: str, tmp_path: Path) -> None:
    expected = [(line, *pair) for line, pair in enumerate(PAIRS, start=1)]
    sides = {"source": "en", "target": "de"}
    assert read(parallel, **sides) == read(tmp_path / "packed.en.gz", **sides) == expected
    (tmp_path / "rows.tsv").write_text("en\tde\n" + "".join(f"{en}\t{de}\n" for en, de in PAIRS))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"de": de, "en": en}) + "\n" for en, de in PAIRS))
    assert read(tmp_path / "rows.tsv", **sides) == [(line + 1, *pair) for line, *pair in expected]
    assert read(tmp_path / "rows.jsonl", **sides) == expected
    there_and_back = read(str(tmp_path / "train.de"), source="de", target="en", prefix="to English: ")
    assert there_and_back[0] == (1, "to English: zwei Hunde", "two dogs")


def test_sources_alone(parallel: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("snow\n")
    (tmp_path / "rows.jsonl").write_text('{"en": "snow"}\n')
    (tmp_path / "alone.en").write_text("snow\n")
    task = TextPairs(source="en", target="de")
    for name in ("lines.txt", "rows.jsonl", "alone.en"):
        assert list(task.rows(str(tmp_path / name), labelled=False)) == [(1, "snow", None)]


def test_texts_for_a_tokenizer_are_those_of_both_sides(parallel: str) -> None:
    task = TextPairs(train=parallel, source="en", target="de")
    assert sorted(task.texts(task.read("train"))) == sorted(text for pair in PAIRS for text in pair)


def test_labels_are_written_in_words(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"source": "a", "target": 1}\n{"source": "b", "target": false}\n')
    words = ("1=very good", "false=a=b")
    assert read(tmp_path / "rows.jsonl", words=words) == [(1, "a", "very good"), (2, "b", "a=b")]
    assert next(TextPairs(words=words).rows(str(tmp_path / "rows.jsonl"), labelled=False)) == (1, "a", None)
