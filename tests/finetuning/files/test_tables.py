"""Files of labelled rows: every format."""

import dataclasses
import gzip

import pytest

from plmjax.errors import UserError
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
    columns = ("source", "acceptable", "mark", "sentence")
    task = Sentences(train=path, text="sentence", label="acceptable", columns=columns)
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

    path = written(tmp_path / "rows.jsonl", '{"text": "a", "label": 2.5}\n{"text": "b", "label": true}\n')
    assert Sentences(train=path).read("train").labels == ["2.5", "true"]


def test_a_file_that_is_trained_on_and_evaluated_on():
    assert Sentences(train="a.tsv", validation="./a.tsv").files_in_both_splits() == ["a.tsv"]
    assert Sentences(folder="x", train="a.tsv", validation="b.tsv").files_in_both_splits() == []
    tasks = [TextTask(name=one, prefix=f"{one}:", train=one, validation=other) for one, other in ("ab", "cc", "de")]
    assert Mixture(tasks=tuple(tasks)).files_in_both_splits() == ["c"]
    assert Mixture(tasks=tuple(tasks), only=("a", "d")).files_in_both_splits() == []
