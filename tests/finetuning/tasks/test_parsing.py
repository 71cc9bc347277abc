"""Trees of files, how they are judged, and every mistake in one sentence."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.contracts.template import Template
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.finetuning.tasks.parsing import DependencyParsing, ParsedExamples, Parsing, attachment_scores

ROWS = (("the", 2, "det"), ("cat", 3, "nsubj"), ("eats", 0, "root"))


def conllu(rows=ROWS) -> str:
    words = "".join(f"{n}\t{word}\t_\t_\t_\t_\t{head}\t{name}\t_\t_\n" for n, (word, head, name) in enumerate(rows, 1))
    return f"# text = ...\n{words}\n"


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "dev.conllu", **columns: str) -> ParsedExamples:
        (tmp_path / name).write_text(text)
        return Parsing(train=str(tmp_path / name), **columns).read("train")

    return read


def test_files_hold_words_heads_and_relations(read):
    found = read(conllu() + "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tdo\t_\t_\t_\t_\t0\troot\t_\t_\n")
    assert found.words == [["the", "cat", "eats"], ["do"]] and found.lines == [4, 7]
    assert found.heads == [[2, 3, 0], [0]] and found.relations == [["det", "nsubj", "root"], ["root"]]
    lists = {"form": ["the", "cat", "eats"], "head": [2, 3, 0], "deprel": ["det", "nsubj", "root"]}
    assert read(json.dumps(lists), "dev.jsonl").heads == [[2, 3, 0]]


def test_sentences_to_predict_need_no_trees(tmp_path):
    (tmp_path / "new.txt").write_text("the cat\n")
    (part,) = Parsing().parts(str(tmp_path / "new.txt"), 9)
    assert part.words == [["the", "cat"]] and part.heads == [[None, None]]
    (tmp_path / "new.conllu").write_text(conllu([("the", "_", "_")]))
    assert next(Parsing().parts(str(tmp_path / "new.conllu"), 9)).relations == [[None]]


def test_scores_are_those_of_counting():
    """Random trees, against numpy over all words at once."""
    random, sizes = np.random.default_rng(0), (3, 8, 1, 5)
    trees = [[(random.integers(0, 3, size), random.integers(0, 2, size)) for size in sizes] for _ in range(2)]
    gold, said = ([(heads.tolist(), relations.tolist()) for heads, relations in one] for one in trees)
    found = attachment_scores(gold, said)
    (heads, relations), (their_heads, their_relations) = (np.concatenate(one, axis=1) for one in trees)
    attached = heads == their_heads
    assert found == pytest.approx({"uas": attached.mean(), "las": (attached & (relations == their_relations)).mean()})
    assert 0 < found["las"] < found["uas"] < 1
    cut = attachment_scores([([0, 1], ["a", "b"])], [([0, None], ["a", None])])
    assert cut == {"las": 0.5, "uas": 0.5}


def test_a_head_that_was_cut_off_is_not_learned_and_the_last_word_is_one():
    examples = ParsedExamples("x", [1], [["a", "b", "c", "d"]], [[3, 4, 0, 3]], [["r", "s", "t", "r"]])
    words = SimpleNamespace(
        vocabulary=Vocabulary.placeholder(9), encode_words=lambda sentences: [[[8]] * len(one) for one in sentences]
    )
    model, task = SimpleNamespace(template=Template("A", "A B"), characters=None), Parsing(sequence_length=3)
    fields = DependencyParsing().fit_labels(examples).encode(examples, words, model, task).token_fields
    assert fields["heads"].tolist() == [3, 0, 0] and fields["label_weights"].tolist() == [1, 0, 1]


def test_words_that_were_cut_have_no_prediction():
    examples = ParsedExamples("x", [1], [["a", "b", "c"]], [[2, 3, 0]], [["r", "s", "t"]])
    objective = DependencyParsing().fit_labels(examples)
    assert objective.relations == ("r", "s", "t")
    (record,) = objective.records(examples, None, [np.array([[2, 0, 0.5], [0, 2, 0.25]])])
    assert record == {
        "line": 1, "words": ["a", "b", "c"], "heads": [2, 0, None], "relations": ["r", "t", None],
        "probabilities": [0.5, 0.25, None],
    }  # fmt: skip
    assert "".join(objective.submission([record])).splitlines()[2] == "3\tc\t_\t_\t_\t_\t_\t_\t_\t_"
