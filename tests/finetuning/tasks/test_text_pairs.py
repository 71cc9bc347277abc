"""Pairs of texts: the files that hold them, and every mistake in one sentence with its line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from plmjax.errors import UserError
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


def test_a_file_that_does_not_end_as_the_sources_do(parallel: str, tmp_path: Path) -> None:
    message = r"or a file of sources that ends in \.fr, found \S*train\.en; .* set --data\.source to the suffix"
    with pytest.raises(UserError, match=message):
        read(parallel, source="fr", target="de")


def test_a_label_is_named_where_it_stands(parallel: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a label of --data\.words, found 'ein Mann' in line 2 of \S*train\.de"):
        read(parallel, source="en", target="de", words=("zwei Hunde=two", "Schnee=snow"))


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


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("train.de", "zwei Hunde\nein Mann\n", r"as many lines in \S*train\.de as in \S*train\.en, found 2 and more"),
        ("train.de", "a\nb\nc\nd\n", r"as many lines in \S*train\.en as in \S*train\.de, found 3 and more"),
        ("train.de", "zwei Hunde\n \nSchnee\n", r"text in line 2 of \S*train\.de, found it empty"),
        ("train.en", "two dogs\na man\n\n", r"text in line 3 of \S*train\.en, found it empty"),
        ("train.de", None, r"the targets of \S*train\.en in \S*train\.de, found no such file; .* set --data\.target"),
        ("train.en", None, r"a file of examples, found no file .*train\.en"),
        ("train.en", "two dogs\nto German: a man\nsnow\n", r"without --data\.prefix .* in line 2 of \S*train\.en"),
    ],
)
def test_mistakes_in_parallel_files(
    name: str, contents: str | None, message: str, parallel: str, tmp_path: Path
) -> None:
    (tmp_path / name).unlink()
    if contents is not None:
        (tmp_path / name).write_text(contents)
    with pytest.raises(UserError, match=message):
        read(parallel, source="en", target="de", prefix="to German: ")


def test_mistakes_in_tables(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"en": "snow", "de": "Schnee"}\n{"en": "a man", "de": ""}\n')
    with pytest.raises(UserError, match=r"text in 'de' in line 2 of \S*rows\.jsonl, found it empty"):
        read(tmp_path / "rows.jsonl", source="en", target="de")
    with pytest.raises(UserError, match=r"a column 'summary' in line 1 .* set --data\.target"):
        read(tmp_path / "rows.jsonl", source="en", target="summary")
    with pytest.raises(UserError, match=r"\.tsv, \.csv or \.jsonl file"):
        read(tmp_path / "rows.en", source="english", target="german")


def test_labels_are_written_in_words(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"source": "a", "target": 1}\n{"source": "b", "target": false}\n')
    words = ("1=very good", "false=a=b")
    assert read(tmp_path / "rows.jsonl", words=words) == [(1, "a", "very good"), (2, "b", "a=b")]
    assert next(TextPairs(words=words).rows(str(tmp_path / "rows.jsonl"), labelled=False)) == (1, "a", None)
    with pytest.raises(UserError, match=r"label of --data\.words, found 'false' in line 2 of \S*rows\.jsonl; known: 1"):
        read(tmp_path / "rows.jsonl", words=("1=good",))
    with pytest.raises(UserError, match=r"LABEL=WORDS in --data\.words, found 'good'; write it so"):
        TextPairs(words=("good",))
