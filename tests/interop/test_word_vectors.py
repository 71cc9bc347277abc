"""Nearest neighbours and analogies, against gensim, and what cannot be answered."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.errors import UserError
from plmjax.interop import word2vec, word_vectors
from plmjax.interop.word_vectors import WordVectors
from plmjax.models.bert import BertConfig

WORDS = [f"word{number}" for number in range(40)]
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


def test_no_word_of_the_question_is_the_answer():
    """Neither one whose direction is added nor one that is subtracted, although it is the nearest."""
    vectors = WordVectors("here", list("abcd"), np.array([[1, 0], [0.6, 0.8], [0, 1], [-1, 0.1]], np.float32))
    found = vectors.nearest(["c"], ["b"], top=4)  # c - b = (-0.6, 0.2)
    assert [word for word, _ in found] == ["d", "a"]
    found = vectors.nearest(["a", "c"], ["b"], top=4)  # (0.4, 0.2): nearest to a, then to b
    assert [word for word, _ in found] == ["d"]


def test_the_rows_nearest_to_many_directions_are_found_in_parts(monkeypatch):
    monkeypatch.setattr(word_vectors, "_SCORES", 80)  # two directions at once
    vectors = WordVectors("here", WORDS, NUMBERS)
    left_out = np.arange(5)[:, None]
    expected = [WORDS.index(vectors.nearest([word], top=1)[0][0]) for word in WORDS[:5]]
    np.testing.assert_array_equal(vectors.nearest_rows(3 * vectors.directions[:5], left_out), expected)
    assert vectors.nearest_rows(NUMBERS[:0], left_out[:0]).shape == (0,)


def test_what_cannot_be_answered_is_one_sentence(fails, file, tmp_path):
    assert "has vectors of, found 'Word3'; write it as that file does" in fails("nearest", file, "Word3")
    assert "Expected a word to find the neighbors of, found none" in fails("nearest", file)
    assert "Expected --top of at least 1, found 0" in fails("nearest", file, "word3", "--top", 0)
    assert "found no finished checkpoint; pretrain or import one first" in fails("nearest", tmp_path, "word3")
    (tmp_path / "text.txt").write_text("Running text, of no vectors.\n")
    assert "Expected words and their vectors in" in fails("nearest", tmp_path / "text.txt", "word3")
    (tmp_path / "zeros.txt").write_text("3 2\na 0 0\nb 1 2\nc 3 5\n")
    for words in (["a"], ["b", "--minus", "b"], ["b", "c", "--minus", "b", "c"]):
        said = fails("nearest", tmp_path / "zeros.txt", *words)
        assert f"do not sum to zero in {tmp_path / 'zeros.txt'}, found" in said and "name other words" in said
    for number in ("nan", "inf", "1e15", "-1e15"):
        (tmp_path / "odd.txt").write_text(f"2 2\na 1 2\nb 1 {number}\n")
        with pytest.raises(
            UserError, match=r"Expected finite numbers below 1e\+15 in .*, found others in the vector of 'b'"
        ):
            word_vectors.read(tmp_path / "odd.txt")


def test_questions_that_have_no_answer():
    made = WordVectors("here", ["a", "b", "c"], np.array([[3, 4], [3, 4], [-3, -4]], np.float32))
    for words, minus, top, message in (
        ([], [], 1, "a word to find the neighbors of, found none"),
        (["a"], [], 0, "--top of at least 1, found 0"),
        (["a"], ["b"], 1, "do not sum to zero in here, found a, minus b; name other words"),
        (["a", "c"], [], 1, "do not sum to zero"),
        (["d"], [], 1, "words that here has vectors of, found 'd'"),
    ):
        with pytest.raises(UserError, match=message):
            made.nearest(words, minus, top)
    with pytest.raises(UserError, match="a file of word vectors or a run, found nothing at"):
        word_vectors.read("/nowhere/vectors.txt")


def test_a_model_without_a_vector_for_each_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimpleNamespace(experiment=SimpleNamespace(model=BertConfig.tiny()))
    monkeypatch.setattr(word_vectors.checkpoints, "load_parameters", lambda path: ({}, run))
    with pytest.raises(UserError, match=f"a model that has a vector for each token in {tmp_path}, found BertConfig"):
        word_vectors.read(tmp_path)
