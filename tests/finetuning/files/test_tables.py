"""Files of labelled rows: every format, and one sentence for every way in which they can be wrong."""

import dataclasses
import gzip

import pytest

from plmjax.errors import UserError
from plmjax.finetuning.files import json_file, tables, word_columns
from plmjax.finetuning.tasks.mixture import Mixture, TextTask
from plmjax.finetuning.tasks.sentences import SentenceExamples, Sentences

ROWS = [("a fine film", "it is good", "yes"), ('he said "no"', "nobody spoke", "no")]


def written(path, text: str) -> str:
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


FORMATS = {
    "rows.tsv": "first\tsecond\tanswer\n" + "\n".join("\t".join(row) for row in ROWS) + "\n",
    "rows.tsv.gz": "first\tsecond\tanswer\r\n" + "\r\n".join("\t".join(row) for row in ROWS),
    "rows.csv": 'answer,first,second\nyes,a fine film,it is good\n\nno,"he said ""no""",nobody spoke\n',
    "rows.jsonl.gz": '{"first": "a fine film", "second": "it is good", "answer": "yes"}\n\n'
    '{"answer": "no", "second": "nobody spoke", "first": "he said \\"no\\"", "other": 3}\n',
}


@pytest.mark.parametrize("name", FORMATS)
def test_reads_every_format_alike(tmp_path, name):
    path = written(tmp_path / name, FORMATS[name])
    examples = Sentences(validation=path, text="first", text_pair="second", label="answer").read("validation")
    blank = name in ("rows.csv", "rows.jsonl.gz")
    lines = [1, 3] if "jsonl" in name else [2, 4] if blank else [2, 3]
    assert examples == SentenceExamples(path, lines, [row[:2] for row in ROWS], ["yes", "no"])


def test_columns_are_named_where_the_file_does_not(tmp_path):
    path = written(tmp_path / "cola.tsv", 'gj04\t1\t\tThey drank "the pub.\nbc01\t0\t*\tHim left.\n')
    task = Sentences(
        train=path, text="sentence", label="acceptable", columns=("source", "acceptable", "mark", "sentence")
    )
    examples = task.read("train")
    assert examples.texts == [('They drank "the pub.',), ("Him left.",)] and examples.labels == ["1", "0"]
    assert examples.lines == [1, 2]


def test_without_labels_named_columns_may_lack_the_label_alone(tmp_path):
    task = Sentences(text="sentence", label="acceptable", columns=("source", "acceptable", "sentence"))
    whole = written(tmp_path / "whole.tsv", "gj04\t1\tThey drank.\nbc01\t0\tHim left.\n")
    bare = written(tmp_path / "bare.tsv", "gj04\tThey drank.\nbc01\tHim left.\n")
    for path in (whole, bare):
        (examples,) = task.parts(path, 5)
        assert examples.texts == [("They drank.",), ("Him left.",)] and examples.labels == [None, None]
    headed = written(tmp_path / "headed.tsv", "index\tsentence\n0\tThey drank.\n")
    (examples,) = dataclasses.replace(task, columns=()).parts(headed, 5)
    assert examples.texts == [("They drank.",)]
    torn = written(tmp_path / "torn.tsv", "gj04\t1\tThey drank.\nbc01\tHim left.\n")
    with pytest.raises(UserError, match=r"Expected 3 columns .* in line 2 of .*torn.tsv, found 2"):
        list(task.parts(torn, 5))
    short = written(tmp_path / "short.tsv", "a\tsentence\tacceptable\nx\tThey drank.\n")
    with pytest.raises(UserError, match=r"Expected 3 columns .* in line 2 of .*short.tsv, found 2"):
        list(dataclasses.replace(task, columns=()).parts(short, 5))


def test_old_macintosh_line_ends_and_other_separators_are_what_they_were(tmp_path):
    path = written(tmp_path / "rows.csv", 'text,label\ra,x\r"b\u2028c",y\r')
    assert Sentences(train=path).read("train").texts == [("a",), ("b\u2028c",)]


def test_numbers_and_truth_values_of_json_are_labels(tmp_path):
    path = written(tmp_path / "rows.jsonl", '{"text": "a", "label": 2.5}\n{"text": "b", "label": true}\n')
    assert Sentences(train=path).read("train").labels == ["2.5", "true"]


MISTAKES = {
    "missing": ("none.tsv", None, "no file .*none.tsv"),
    "unknown format": ("rows.txt", "a\n", "Expected a .tsv, .csv or .jsonl file"),
    "empty": ("rows.tsv", "", "Expected labelled rows in .*found none"),
    "header alone": ("rows.tsv", "text\tlabel\n", "Expected labelled rows in .*found none"),
    "column": (
        "rows.tsv",
        "sentence\tlabel\na\tb\n",
        "'text' in line 2 .*found 'sentence', 'label'; .*--data.text",
    ),
    "key": ("rows.jsonl", '{"text": "a"}\n', "column 'label' in line 1 .*found 'text'; .*--data.label"),
    "few": ("rows.tsv", "text\tlabel\na\tb\nc\n", r"Expected 2 columns \(text, label\) in line 3 .*found 1"),
    "many": ("rows.csv", "text,label\na,b,c\n", "in line 2 .*found 3"),
    "no text": ("rows.tsv", "text\tlabel\na\tb\n \tb\n", "Expected text in 'text' in line 3 .*found it empty"),
    "no label": ("rows.tsv", "text\tlabel\na\t\n", "Expected text in 'label' in line 2"),
    "number as text": ("rows.jsonl", '{"text": 3, "label": 1}\n', "Expected text in 'text' in line 1 .*found 3"),
    "json": ("rows.jsonl", '{"text": "a", "label": 1}\n{"text"\n', "Expected JSON in line 2 of .*, found"),
    "json list": ("rows.jsonl", "[1]\n", "Expected a JSON object in line 1"),
    "digits": ("rows.jsonl", f'{{"text": "a", "label": {"1" * 5000}}}\n', "Expected JSON in line 1 of .*4300 digits"),
    "surrogate": ("rows.jsonl", '{"text": "\\ud800", "label": 1}\n', "in line 1 of .*half of a surrogate pair"),
    "quote": ("rows.csv", 'text,label\n"a,b\n', "Expected a row in line . of .*, found"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_with_file_and_line(tmp_path, mistake):
    name, text, message = MISTAKES[mistake]
    path = str(tmp_path / name) if text is None else written(tmp_path / name, text)
    with pytest.raises(UserError, match=message) as error:
        Sentences(train=path).read("train")
    assert "\n" not in str(error.value)


def test_other_encodings_and_damaged_archives_are_named(tmp_path):
    (tmp_path / "latin.tsv").write_bytes("text\tlabel\na\tb\ncafé\tb\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"the byte 0xe9 in line 3 of .*latin.tsv"):
        Sentences(train=str(tmp_path / "latin.tsv")).read("train")
    whole = gzip.compress(b"text\tlabel\n" + b"some text\tlabel\n" * 100)
    (tmp_path / "cut.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"Expected a whole gzip file at .*cut.tsv.gz"):
        Sentences(train=str(tmp_path / "cut.tsv.gz")).read("train")
    with pytest.raises(UserError, match=r"in --data\.train, found none"):
        Sentences().read("train")


def test_real_files(shared_data):
    task = Sentences(
        train=str(shared_data / "finetune/subjectivity/train.tsv.gz"),
        validation=str(shared_data / "finetune/snli/dev.tsv.gz"),
        text="sentence",
    )
    examples = task.read("train")
    assert len(examples.texts) == 8000 and set(examples.labels) == {"subjective", "objective"}
    pairs = Sentences(validation=task.validation, text="premise", text_pair="hypothesis").read("validation")
    assert len(pairs.texts) == 9842 and len(set(pairs.labels)) == 3


def test_a_file_that_is_trained_on_and_evaluated_on():
    assert Sentences(train="a.tsv", validation="./a.tsv").trained_and_evaluated() == ["a.tsv"]
    assert Sentences(folder="x", train="a.tsv", validation="b.tsv").trained_and_evaluated() == []
    tasks = [TextTask(name=one, prefix=f"{one}:", train=one, validation=other) for one, other in ("ab", "cc", "de")]
    assert Mixture(tasks=tuple(tasks)).trained_and_evaluated() == ["c"]
    assert Mixture(tasks=tuple(tasks), only=("a", "d")).trained_and_evaluated() == []


def test_lines_of_json_name_their_own_columns(tmp_path):
    path = written(tmp_path / "rows.jsonl", '{"text": "a", "label": "x"}\n')
    with pytest.raises(UserError, match=r"no --data\.columns for .*rows\.jsonl, found some; leave them out"):
        list(tables.rows(path, ["text", "label"]))
    with pytest.raises(UserError, match=r"a \.conll, \.conllu or \.jsonl file .*, found .*rows\.tsv; convert it"):
        list(word_columns.sentences(written(tmp_path / "rows.tsv", "a\tx\n")))


def test_json_that_no_parser_can_hold_is_one_sentence(tmp_path):
    """Deeper than Python goes, or with a number of too many digits."""
    for text in ("[" * 200_000, '{"version": ' + "1" * 10_000 + "}"):
        path = written(tmp_path / "dev.json", text)
        with pytest.raises(UserError, match=r"Expected JSON in .*dev\.json, found") as error:
            json_file.parsed(path)
        assert "\n" not in str(error.value)
