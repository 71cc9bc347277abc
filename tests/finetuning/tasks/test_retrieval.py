"""Files of queries and passages: tables, folders of BEIR and lines, and every mistake in them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from plmjax.errors import UserError
from plmjax.finetuning.tasks.contrastive import Contrastive
from plmjax.finetuning.tasks.retrieval import PairExamples, Retrieval, SearchExamples, SimilarityExamples
from plmjax.models.bert import BertConfig
from plmjax.models.gpt2 import Gpt2Config
from tests.finetuning.tasks.test_tagging import written

CORPUS = [
    {"_id": "d1", "title": "Foxes", "text": "Foxes dig."},
    {"_id": "d2", "title": "", "text": "Wolves howl."},
    {"_id": "d3", "text": ""},
]
QUERIES = [{"_id": "1", "text": "Who digs?"}, {"_id": "2", "text": "Who howls?"}, {"_id": "3", "text": "Nobody?"}]
JUDGED = "query-id\tcorpus-id\tscore\n2\td2\t1\n1\td1\t2\n2\td1\t0\n"


def beir(folder: Path, corpus: Any = CORPUS, queries: Any = QUERIES, **splits: str) -> str:
    """A folder of BEIR, with a compressed corpus."""
    (folder / "qrels").mkdir(parents=True)
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in corpus).encode())
    (folder / "corpus.jsonl.gz").write_bytes(packed)
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries), encoding="utf-8")
    for split, text in (splits or {"train": JUDGED, "dev": JUDGED}).items():
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    return str(folder)


def test_reads_a_folder_of_beir(tmp_path: Path) -> None:
    """A query without a judgement is left out, as in the library beir."""
    folder = beir(tmp_path / "foxes")
    task = Retrieval(train=folder, validation=folder)
    assert task.read("train") == PairExamples(
        folder, [2, 1], ["Who howls?", "Who digs?"], ["Wolves howl.", "Foxes Foxes dig."], [[], []]
    )
    assert task.read("validation") == SearchExamples(
        folder, [2, 1], ["2", "1"], ["Who howls?", "Who digs?"], [{"d2": 1, "d1": 0}, {"d1": 2}],
        ["d1", "d2", "d3"], ["Foxes Foxes dig.", "Wolves howl.", ""],
    )  # fmt: skip
    assert not task.files_in_both_splits()
    with pytest.raises(UserError, match=r"test\.tsv, found splits: dev, train; name one of them in --data\.split"):
        task.with_validation_file(folder).read("validation")


TABLES = {
    "rows.tsv": ("query\tpositive\tone\ttwo\nq\tp\tn\tm\nr\ts\tp\to\nq\ts\tn\tk\n", {"negatives": ("one", "two")}),
    "rows.csv.gz": (
        'q,"p",n,m\nr,s,p,o\nq,s,n,k\n',
        {"negatives": ("one", "two"), "columns": ("query", "positive", "one", "two")},
    ),
    "rows.jsonl": (
        "".join(
            json.dumps({"query": query, "positive": positive, "others": others}) + "\n"
            for query, positive, others in (("q", " p", ["n", "m"]), ("r", "s", ["p", "o"]), ("q", "s", ["n", "k"]))
        ),
        {"negatives": ("others",)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_reads_every_table_alike(tmp_path: Path, name: str) -> None:
    text, options = TABLES[name]
    path = written(tmp_path / name, text)
    task = Retrieval(train=path, validation=path, **options)
    lines = [2, 3, 4] if name == "rows.tsv" else [1, 2, 3]
    others = [["n", "m"], ["p", "o"], ["n", "k"]]
    assert task.read("train") == PairExamples(path, lines, ["q", "r", "q"], ["p", "s", "s"], others)
    first, second, third = lines
    assert task.read("validation") == SearchExamples(
        path, [first, second], [f"q{first}", f"q{second}"], ["q", "r"],
        [{f"p{first}": 1, f"p{second}": 1}, {f"p{second}": 1}],
        [f"p{first}", f"n{first}.1", f"n{first}.2", f"p{second}", f"n{second}.2", f"n{third}.2"],
        ["p", "n", "m", "s", "o", "k"],
    )  # fmt: skip
    assert task.files_in_both_splits() == [path]


def test_lines_are_their_own_passages_and_pairs_have_scores(tmp_path: Path) -> None:
    lines = written(tmp_path / "lines.txt", "A fox.\n\n A wolf. \n")
    scores = written(tmp_path / "sts.tsv", "sentence1\tsentence2\tscore\na\tb\t2.5\nc\td\t0\n")
    task = Retrieval(train=lines, validation=scores, query="sentence1", positive="sentence2", score="score")
    assert task.read("train") == PairExamples(lines, [1, 3], ["A fox.", "A wolf."], ["A fox.", "A wolf."], [[], []])
    assert task.read("validation") == SimilarityExamples(scores, [2, 3], [("a", "b"), ("c", "d")], [2.5, 0.0])
    assert Contrastive().evaluation_metrics(task) == ("spearman", "pearson")


def test_what_published_folders_have_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A passage that the corpus lacks (ArguAna), a query that is not there (NFCorpus), scores such as 1.0, no title."""
    dev = "query-id\tcorpus-id\tscore\n1\td1\t1.0\n1\tgone\t1\n7\td1\t1\n"
    corpus = [{"_id": "d1", "title": None, "text": "a"}]
    folder = beir(tmp_path / "folder", dev=dev, corpus=corpus)
    found = Retrieval(validation=folder).read("validation")
    assert found.query_ids == ["1"] and found.judgements == [{"d1": 1, "gone": 1}] and found.passages == ["a"]
    assert "2 judgements in" in caplog.text


FOLDERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "an empty split": ("dev", {"dev": JUDGED[:25]}, r"judgements in .*dev\.tsv, found none"),
    "no whole number": ("dev", {"dev": f"{JUDGED[:25]}1\td1\tyes\n"}, "whole number as the score in line 2 .*'yes'"),
    "unknown queries alone": ("dev", {"dev": f"{JUDGED[:25]}7\td1\t1\n"}, "found none of its queries"),
    "a blank query": ("dev", {"queries": [{"_id": "1", "text": " "}]}, r"'text' in line 1 of .*queries\.jsonl"),
    "an id again": ("dev", {"corpus": CORPUS[:1] * 2}, "every _id once, found 'd1' again in line 2"),
    "no answers": ("train", {"train": f"{JUDGED[:25]}1\td1\t0\n"}, "a score above 0, in the judgements"),
}
ROWS: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "an empty query": ("train", "rows.tsv", "query\tpositive\nq\tp\n \tp\n", {}, "'query' in line 3 .* empty"),
    "a negative is missing": (
        "train", "rows.jsonl",
        '{"query": "q", "positive": "p", "n": ["a", "b"]}\n{"query": "r", "positive": "s", "n": ["a"]}\n',
        {"negatives": ("n",)}, "2 negatives in line 2 .* as in the first line, found 1",
    ),
    "an empty negative": (
        "train", "rows.tsv", "query\tpositive\tn\nq\tp\t\n", {"negatives": ("n",)}, "'n' in line 2 .* empty",
    ),
    "a score in words": (
        "validation", "rows.tsv", "query\tpositive\ts\nq\tp\thigh\n", {"score": "s"}, "similarity in line 2 .*'high'",
    ),
    "negatives of lines": (
        "train", "lines.txt", "A fox.\n", {"negatives": ("n",)}, r"no --data\.negatives for .*lines\.txt",
    ),
    "lines to evaluate on": ("validation", "lines.txt", "A fox.\n", {}, r"to evaluate on, found .*lines\.txt"),
    "no folder": ("train", "none", "", {}, "found no folder"),
    "no name": ("validation", "", "", {}, r"--data\.validation, found none"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", [*FOLDERS, *ROWS])
def test_a_mistake_in_a_file_is_named(tmp_path: Path, mistake: str) -> None:
    if mistake in FOLDERS:
        split, changes, sentence = FOLDERS[mistake]
        split, path, settings = {"dev": "validation"}.get(split, split), beir(tmp_path / "folder", **changes), {}
    else:
        split, name, text, settings, sentence = ROWS[mistake]
        path = written(tmp_path / name, text) if text else name and str(tmp_path / name)
    with pytest.raises(UserError, match=sentence):
        Retrieval(**{split: path}, **settings).read(split)


CONTRASTIVE: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({"temperature": 0.0}, r"--objective\.temperature above 0, found 0\.0"),
    "pooling": ({"pooling": "max"}, "'max'.*cls, mean"),
    "sizes": ({"sizes": (8, 8)}, r"different numbers above 0 for --objective\.sizes, found 8 8"),
    "weights": ({"sizes": (8, 4), "size_weights": (1.0,)}, "a weight for each of the 2"),
    "more features": ({"sizes": (8, 25)}, "at most the 24 features of the model's vectors, found 25"),
    "a decoder": ({}, "a text from both sides, found Gpt2Config, a decoder"),
}


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_a_wrong_setting_is_named(name: str) -> None:
    settings, sentence = CONTRASTIVE[name]
    model = Gpt2Config.tiny() if name == "a decoder" else BertConfig.tiny(hidden_size=24, num_attention_heads=3)
    with pytest.raises(UserError, match=sentence):
        Contrastive(**settings).check_model(model)
