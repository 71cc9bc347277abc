"""Nearest neighbours and analogies, against gensim, and a file of word vectors as a run that every command reads."""

from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.data.layouts import SentencePairs
from plmjax.experiment import Data, Experiment
from plmjax.interop import word2vec, word_vectors
from plmjax.interop.word_vectors import WordVectors
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.training.checkpoints import checkpoints

WORDS = [f"word{number}" for number in range(40)]
FEW = ["the", "good", "<unk>", "bad", "good", "[MASK]"]
FIVE = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
NUMBERS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    word2vec.write(tmp_path / "vectors.txt", WORDS, NUMBERS)
    return tmp_path / "vectors.txt"


@pytest.mark.parametrize(("plus", "minus"), [(["word3"], []), (["word3", "word8"], ["word20"])])
def test_nearest_words_are_those_of_gensim(file, plus, minus, capsys):
    gensim = pytest.importorskip("gensim.models")
    expected = gensim.KeyedVectors.load_word2vec_format(str(file)).most_similar(plus, minus, topn=6)
    found = word_vectors.read(file).nearest(plus, minus, top=6)
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose([cosine for _, cosine in found], [cosine for _, cosine in expected], atol=1e-6)
    cli.run(["nearest", str(file), *plus, *(["--minus", *minus] if minus else []), "--top", "6"])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown == [[f"{cosine:.4f}", word] for word, cosine in found]


def test_fewer_words_than_asked_for_and_a_vector_of_zeros():
    one = WordVectors("here", ["a", "b", "a"], np.array([[3, 4], [0, 0], [4, -3]], np.float32))
    assert one.nearest(["a"], top=10) == [("b", 0.0)]
    np.testing.assert_allclose(one.directions[0], [0.6, 0.8], rtol=1e-6)
    assert one.rows == {"a": 0, "b": 1}


def test_case_is_left_out_and_the_first_vector_stays():
    kept = WordVectors("here", ["The", "the", "a", "THE"], NUMBERS[:4]).without_case()
    assert kept.words == ["the", "a"]
    np.testing.assert_array_equal(kept.vectors, NUMBERS[[0, 2]])


def test_the_rows_nearest_to_many_directions_are_found_in_parts(monkeypatch):
    """No word of a question is its answer."""
    monkeypatch.setattr(word_vectors, "_SCORES", 80)  # two directions at once
    vectors, left_out = WordVectors("here", WORDS, NUMBERS), np.arange(5)[:, None]
    expected = [WORDS.index(vectors.nearest([word], top=1)[0][0]) for word in WORDS[:5]]
    np.testing.assert_array_equal(vectors.nearest_rows(3 * vectors.directions[:5], left_out), expected)


def test_what_cannot_be_answered_is_one_sentence(fails, file, tmp_path):
    assert "has vectors of, found 'Word3'; write it as that file does" in fails("nearest", file, "Word3")
    assert "Expected a word to find the neighbors of, found none" in fails("nearest", file)
    assert "Expected --top of at least 1, found 0" in fails("nearest", file, "word3", "--top", 0)
    assert "run, found nothing at" in fails("nearest", tmp_path / "absent", "word3")
    (tmp_path / "text.txt").write_text("Running text, of no vectors.\n")
    assert "Expected words and their vectors in" in fails("nearest", tmp_path / "text.txt", "word3")
    (tmp_path / "zeros.txt").write_text("3 2\na 0 0\nb 1 2\nc 3 5\n")
    for words in (["a"], ["b", "--minus", "b"]):
        assert f"do not sum to zero in {tmp_path / 'zeros.txt'}" in fails("nearest", tmp_path / "zeros.txt", *words)
    run = Experiment(model=BertConfig.tiny(), objective=BertPretraining(), data=Data(SentencePairs()))
    checkpoints.save_parameters(tmp_path / "bert", {"x": np.zeros(1, np.float32)}, run, tokenizer={})
    said = fails("nearest", tmp_path / "bert", "a")
    assert f"a model that has a vector for each word in {tmp_path / 'bert'}, found BertConfig" in said
    for number in ("nan", "-1e15"):
        (tmp_path / "odd.txt").write_text(f"2 2\na 1 2\nb 1 {number}\n")
        assert "finite numbers below 1e+15 in" in fails("nearest", tmp_path / "odd.txt", "a")
    said = fails("import", tmp_path / "zeros.txt", tmp_path / "run", "--architecture", "BertModel")
    assert "Expected neither --architecture nor --tokenizer" in said


def test_a_file_becomes_a_run_that_serves_a_task(tmp_path: Path, capsys) -> None:
    word2vec.write(tmp_path / "vectors", FEW, FIVE, "glove")
    cli.run(["import", str(tmp_path / "vectors"), str(tmp_path / "run")])
    assert f"3 vectors of 5 numbers from {tmp_path / 'vectors'} to {tmp_path / 'run'}" in capsys.readouterr().out
    found = word_vectors.read(tmp_path / "run")
    assert found.words == ["the", "good", "bad"]
    np.testing.assert_array_equal(found.vectors, FIVE[[0, 1, 3]])  # the first of a word that stands there twice

    params, description = checkpoints.load_parameters(tmp_path / "run")
    table, tokenizer = params["static_vectors"]["words"]["embedding"], description.load_tokenizer()
    np.testing.assert_array_equal(table[tokenizer.encode("THE worst, good")], [*FIVE[[0, 2, 2, 1]]])
    assert not table[tokenizer.vocabulary.pad].any()

    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "the good\tyes\nthe bad\tno\n" * 8)
    task = ["--data.train", str(tmp_path / "rows.tsv"), "--data.validation", str(tmp_path / "rows.tsv")]
    sizes = "--optimizer.frozen encoder --finetuning.epochs 40 --data.sequence_length 16 --finetuning.evaluations 0.025"
    tuned = ["--from", str(tmp_path / "run"), "--workdir", str(tmp_path / "task"), *task, *sizes.split()]
    cli.run(["finetune", "static_vectors", *tuned])
    assert "accuracy 1.0000" in capsys.readouterr().out
    params, _ = checkpoints.load_parameters(tmp_path / "task")
    np.testing.assert_array_equal(params["static_vectors"]["words"]["embedding"], table)
