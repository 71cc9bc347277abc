"""Every mistake in a file of a task is one sentence: (task, file, contents, settings, what the sentence names)."""

import dataclasses
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from plmjax.errors import UserError
from plmjax.finetuning.metrics.text_metrics import ExactMatch
from plmjax.finetuning.tasks.choices import Choices
from plmjax.finetuning.tasks.label_sets import LabelSets
from plmjax.finetuning.tasks.mixture import Mixture, TextTask
from plmjax.finetuning.tasks.parsing import Parsing
from plmjax.finetuning.tasks.questions import Questions
from plmjax.finetuning.tasks.sentences import Sentences
from plmjax.finetuning.tasks.tagging import Tagging
from plmjax.finetuning.tasks.text_pairs import TextPairs

CHOICES = {"context": "c", "choices": ("x", "y")}
HEAD = "c\tx\ty\tlabel\n"
PAIRS = {"source": "en", "target": "de", "prefix": "to German: "}


def asked(*entries: Any) -> str:
    """A file of questions about one text, of which the first has no mistake."""
    good = {"id": "a", "question": "20", "answers": [{"answer_start": 3, "text": "11 12"}]}
    paragraph = {"context": "10 11 12 13", "qas": [good, *entries]}
    return json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}, indent=1)


def question(identifier: object, start: object, text: str, words: str = "x") -> dict[str, Any]:
    return {"id": identifier, "question": words, "answers": [{"answer_start": start, "text": text}]}


def parsed(*heads: object) -> str:
    words = (f"{number}\tword\t_\t_\t_\t_\t{head}\tr\t_\t_\n" for number, head in enumerate(heads, 1))
    return f"# text\n{''.join(words)}\n"


FILES: dict[str, tuple[type, str, str | bytes | None, dict[str, Any], str]] = {
    # tables
    "no name": (Sentences, "", None, {}, r"--data\.train, found none"),
    "no file": (Sentences, "none.tsv", None, {}, "none.tsv"),
    "another format": (Sentences, "rows.txt", "a\n", {}, ".tsv, .csv or .jsonl"),
    "a header alone": (Sentences, "rows.tsv", "text\tlabel\n", {}, "found none"),
    "semicolons": (Sentences, "rows.csv", "text;label\na;b\n", {}, "with ';' in its name; divide its columns by comma"),
    "no header": (Sentences, "rows.tsv", "a film\tgood\na plot\tbad\n", {}, "or name the columns with --data.columns"),
    "no column": (
        Sentences, "rows.tsv", "sentence\tlabel\na\tb\n", {}, "'text' in the header .*'sentence', 'label'.*--data.text",
    ),
    "no key": (Sentences, "rows.jsonl", '{"text": "a"}\n', {}, "'label' in line 1 .*'text'.*--data.label"),
    "few cells": (
        Sentences, "rows.tsv", "text\tlabel\na\tb\nc\n", {}, r"2 columns \(text, label\) in line 3 .*found 1",
    ),
    "no text": (Sentences, "rows.tsv", "text\tlabel\na\tb\n \tb\n", {}, "'text' in line 3 .*empty"),
    "a number as text": (Sentences, "rows.jsonl", '{"text": 3, "label": 1}\n', {}, "'text' in line 1 .*found 3"),
    "no JSON": (Sentences, "rows.jsonl", '{"text": "a", "label": 1}\n{"text"\n', {}, "JSON in line 2 of"),
    "a list": (Sentences, "rows.jsonl", "[1]\n", {}, "JSON object in line 1"),
    "Latin": (
        Sentences, "latin.tsv", "text\tlabel\na\tb\ncaf\u00e9\tb\n".encode("latin-1"), {},
        "0xe9 in line 3 of .*latin.tsv",
    ),
    "half an archive": (
        Sentences, "cut.tsv.gz", gzip.compress(b"text\tlabel\n" + b"a\tb\n" * 99)[:-9], {}, "gzip .*cut.tsv.gz",
    ),
    "no labels": (Sentences, "rows.tsv", "text\tlabel\na\t-\n", {}, "found only '-'"),
    # choices
    "a choice too many": (Choices, "rows.tsv", f"{HEAD}a\tb\tc\t2\n", CHOICES, "line 2 .* 0 to 1 or A to B, found '2'"),
    "letters and numbers": (
        Choices, "rows.tsv", f"{HEAD}a\tb\tc\tA\nd\te\tf\t1\n", CHOICES, "'A' and, in line 3 .*'1'",
    ),
    "an empty choice": (Choices, "rows.tsv", f"{HEAD}a\tb\t\t1\n", CHOICES, "'x y' in line 2 .*empty"),
    "no question": (
        Choices, "rows.tsv", f"{HEAD}a\tb\tc\t1\n", CHOICES | {"question": "q"}, "'q' in the header .*--data.question",
    ),
    "one choice": (
        Choices, "rows.tsv", f"{HEAD}a\tb\tc\t0\n", {"context": "c", "choices": ("x",)}, "2 choices in line 2 .*1",
    ),
    "fewer choices": (
        Choices, "rows.jsonl", '{"c": "a", "x": ["b", "c"], "label": 0}\n{"c": "a", "x": ["b"], "label": 0}\n',
        {"context": "c", "choices": ("x",)}, "2 choices in line 2 .*found 1.*--data.choices",
    ),
    # words and labels
    "no words": (Tagging, "rows.txt", "a\tb\n", {}, ".conll, .conllu or .jsonl"),
    "few columns": (Tagging, "rows.conll", "a\tb\na\n", {}, r"2 columns \(form, tag\) in line 2 of .*found 1"),
    "no column of labels": (
        Tagging, "rows.conll", "a\tb\n", {"label": "ner"}, "'ner' in line 1 .*'form', 'tag'.*--data.label",
    ),
    "no word": (Tagging, "rows.conll", "a\tb\n\tb\n", {}, "'form' in line 2 .*empty"),
    "lists of two lengths": (Tagging, "rows.jsonl", '{"form": ["a"], "tag": []}\n', {}, "line 1 .*form of 1, tag of 0"),
    "no sentence": (Tagging, "rows.conll", "\n\n", {}, "rows.conll, found none"),
    "no scheme": (Tagging, "rows.conll", "a\tO\n", {"scheme": "BIO"}, "'BIO'.*IOB1"),
    # trees
    "a head behind": (Parsing, "dev.conllu", parsed(2, "4", 0), {}, "0 to 3, .* found '4' in line 3 of"),
    "half a head": (Parsing, "dev.conllu", parsed(2, "1.5", 0), {}, "found '1.5' in line 3 of"),
    "a circle of two": (Parsing, "dev.conllu", parsed(2, 1, 0), {}, "circle in line 2 of"),
    "no heads": (Parsing, "dev.conll", "the\tDET\n", {}, "'head' in line 1 of .*'form', 'tag'.*--data.head"),
    # questions
    "an answer outside": (
        Questions, "dev.json", asked(question("q", 40, "19")), {}, r"'19' at character 40 .*11 in line \d+",
    ),
    "an answer elsewhere": (
        Questions, "dev.json", asked(question("q", 0, "99")), {}, "'99' at character 0 .*found '10'",
    ),
    "an answer before": (Questions, "dev.json", asked(question("q", -2, "10")), {}, "'10' at character -2"),
    "no place": (Questions, "dev.json", asked(question("q", "3", "10")), {}, "answer_start and a text in line"),
    "no id": (Questions, "dev.json", asked({"question": "x"}), {}, "a question and an id .*found question"),
    "an id twice": (Questions, "dev.json", asked(question("a", 0, "10")), {}, r"again in line \d+ of .*question a"),
    "no paragraphs": (Questions, "dev.json", '{"data": [{}]}', {}, "articles of paragraphs"),
    "no context": (Questions, "dev.json", '{"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}', {}, "a context"),
    "half an object": (Questions, "dev.json", '{"data": [\n}', {}, "JSON in line 2 of .*dev.json"),
    "deep lists": (Questions, "dev.json", "[" * 200_000, {}, r"JSON in .*dev\.json, found"),
    "no questions": (Questions, "dev.json", '{"data": []}', {}, "questions in .*found none"),
    "a table of questions": (Questions, "rows.tsv", "a", {}, r"\.json file"),
    # sets of labels
    "no label in a list": (
        LabelSets, "x.jsonl", '{"text": "t", "label": ["a", null]}\n', {}, "'label' in line 1 of .*null",
    ),
    # pairs of texts, to which tasks give the targets below
    "fewer targets": (TextPairs, "train.de", "zwei Hunde\nein Mann\n", PAIRS, r"train\.de as in \S*train\.en, found 2"),
    "an empty target": (TextPairs, "train.de", "a\n \nb\n", PAIRS, r"line 2 of \S*train\.de, found it empty"),
    "a prefix there": (
        TextPairs, "train.en", "two dogs\nto German: a man\nsnow\n", PAIRS,
        r"--data\.prefix .* in line 2 of \S*train\.en",
    ),
    "another suffix": (
        TextPairs, "train.en", "a\nb\nc\n", {"source": "fr", "target": "de"}, r"\.fr, found .*--data\.source",
    ),
    "other words": (
        TextPairs, "train.de", "a\nb\nc\n", PAIRS | {"words": ("a=x", "c=y")}, r"--data\.words, found 'b' in line 2 of",
    ),
    "no summary": (
        TextPairs, "rows.jsonl", '{"en": "snow"}\n', {"source": "en", "target": "summary"},
        r"'summary' in line 1 .*--data\.target",
    ),
    "an unknown word": (
        TextPairs, "rows.jsonl", '{"source": "b", "target": false}\n', {"words": ("1=good",)},
        "'false' in line 1 of .*: 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_files(case: str, tmp_path: Path) -> None:
    task, name, contents, settings, said = FILES[case]
    if task is TextPairs:
        (tmp_path / "train.en").write_text("two dogs\na man\nsnow\n")
        (tmp_path / "train.de").write_text("zwei Hunde\nein Mann\nSchnee\n")
    if contents is not None:
        (tmp_path / name).write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    name = "train.en" if name == "train.de" else name
    with pytest.raises(UserError, match=said) as error:
        task(train=str(tmp_path / name) if name else "", **settings).read("train")
    assert "\n" not in str(error.value)
    if task is Questions and (line := re.search(r"in line (\d+) of .*question ([qa])", str(error.value))):
        assert f'"id": "{line[2]}"' in (tmp_path / name).read_text().splitlines()[int(line[1]) - 1]


NUMBERS = TextTask(name="numbers", train="numbers.tsv", source="en", target="zh", prefix="5 ")
PARITY = TextTask(
    name="parity", train="labels.jsonl", source="number", target="odd", prefix="6 ", words=("false=40", "true=41"),
    judge=ExactMatch(),
)  # fmt: skip
MIXTURES: dict[str, tuple[dict[str, Any], str]] = {
    "one name": ({"tasks": (NUMBERS, dataclasses.replace(PARITY, name="numbers"))}, "found 'numbers'"),
    "one prefix": ({"tasks": (NUMBERS, dataclasses.replace(PARITY, prefix="5"))}, "'5' in numbers and in parity"),
    "no words": (
        {"tasks": (NUMBERS, dataclasses.replace(PARITY, words=("0",)))}, r"--data\.tasks\.1\.words, found '0'",
    ),
    "a misspelt task": ({"only": ("number",)}, r"--data\.only, found 'number'; did you mean 'numbers'\?"),
    "no limit": ({"limit": 0}, r"--data\.limit .*found 0"),
    "no weight": ({"weights": ("numbers=1", "parity=0")}, r"--data\.weights .*'parity=0'"),
    "one weight": ({"weights": ("numbers=1",)}, r"--data\.weights .*none of parity"),
    "both": ({"weights": ("numbers=1", "parity=1"), "temperature": 2.0}, "--data.weights or --data.temperature"),
    "no file": ({"train": ""}, r"--data\.tasks\.1\.train, found none"),
    "a prefix there": ({"prefix": "1"}, r"--data\.tasks\.1\.prefix '1', .* in line 1 of \S*labels\.jsonl"),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXTURES)
def test_mixtures(case: str, tmp_path: Path) -> None:
    (tmp_path / "numbers.tsv").write_text("en\tzh\n20 21\t60\n")
    (tmp_path / "labels.jsonl").write_text('{"number": "10", "odd": false}\n')
    changes, said = MIXTURES[case]
    if case in ("no file", "no column", "no word", "a prefix there"):  # of the second task
        changes = {"tasks": (NUMBERS, dataclasses.replace(PARITY, **changes))}
    with pytest.raises(UserError, match=said):
        Mixture(folder=str(tmp_path), **{"tasks": (NUMBERS, PARITY)} | changes).read("train")


def test_a_mixture_has_one_task_to_predict_or_evaluate() -> None:
    mixture = Mixture(tasks=(NUMBERS, PARITY))
    with pytest.raises(UserError, match=r"new\.txt, found numbers, parity"):
        list(mixture.parts("new.txt", 9))
    with pytest.raises(UserError, match=r"other=x\.tsv, .*--data NAME=FILE"):
        mixture.with_validation_file("other=x.tsv")
