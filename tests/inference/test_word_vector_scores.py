"""Scores on similarities and analogies, against gensim on the published lists, and pictures of words."""

import json
from pathlib import Path

import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.inference import word_vector_scores as scores
from plmjax.inference.word_vector_plane import plane
from plmjax.interop import word2vec, word_vectors
from plmjax.interop.word_vectors import WordVectors
from tests.metric_names import undocumented

QUESTIONS = ": capitals\nAthens Greece Oslo Norway\n: gram1-plural\ncar cars bird birds\ncar cars pig pigs\n"


@pytest.fixture(scope="module")
def published(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of the words of half of both lists, that answer some questions: a category's pairs share an offset."""
    random = np.random.default_rng(0)
    vectors: dict[str, np.ndarray] = {}
    for number, line in enumerate((shared_data / "eval/wordsim/EN-WS-353-ALL.txt").read_text().splitlines()):
        for word in line.split()[: 2 * (number % 2)]:
            vectors[word.lower()] = random.normal(size=8)
    lines = (shared_data / "eval/analogy/questions-words.txt").read_text().lower().splitlines()
    for line in lines[::40]:
        if line.startswith(":"):
            continue
        offset = random.normal(size=8)
        for first, second in (line.split()[:2], line.split()[2:]):
            vectors[first] = vectors.get(first, random.normal(size=8))
            vectors[second] = vectors[first] + 0.5 * offset
    file = tmp_path_factory.mktemp("vectors") / "vectors.bin"
    word2vec.write(file, list(vectors), np.array(list(vectors.values()), np.float32), "binary")
    return file


def test_similarities_are_those_of_gensim(published, shared_data, tmp_path):
    gensim = pytest.importorskip("gensim.models").KeyedVectors.load_word2vec_format(str(published), binary=True)
    folder = shared_data / "eval" / "wordsim"
    cli.run(["evaluate", str(published), "--task", "similarity", "--data", str(folder), "--output", str(tmp_path)])
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert len(found) == 3 * 5
    for file in folder.iterdir():
        _, spearman, unknown = gensim.evaluate_word_pairs(str(file))
        pairs = len(file.read_text().splitlines())
        np.testing.assert_allclose(found[f"similarity/{file.stem}"], spearman.statistic, atol=1e-6)
        assert found[f"similarity/{file.stem}/unknown_pairs"] == round(unknown * pairs / 100) > 0
        assert found[f"similarity/{file.stem}/pairs"] == pairs - round(unknown * pairs / 100)


def test_analogies_are_those_of_gensim(published, shared_data, tmp_path):
    gensim = pytest.importorskip("gensim.models").KeyedVectors.load_word2vec_format(str(published), binary=True)
    file, lines = tmp_path / "questions.txt", shared_data / "eval" / "analogy" / "questions-words.txt"
    lines = lines.read_text().splitlines(keepends=True)
    file.write_text("".join(line for number, line in enumerate(lines) if line[0] == ":" or number % 8 == 0))
    found = scores.score(word_vectors.read(published), "analogy", file)
    accuracy, sections = gensim.evaluate_word_analogies(str(file))
    assert 0.05 < accuracy < 0.95
    np.testing.assert_allclose(found["analogy/accuracy"], accuracy)
    answered = 0
    for section in sections[:-1]:  # the last one is all of them
        right, wrong = len(section["correct"]), len(section["incorrect"])
        answered += right + wrong
        share = found.get(f"analogy/{section['section']}")
        assert (share is None) == (right + wrong == 0)
        assert share is None or share == pytest.approx(right / (right + wrong))
    assert found["analogy/questions"] == answered
    assert found["analogy/unknown_questions"] == file.read_text().count("\n") - 14 - answered > 0


def test_both_kinds_of_analogies_and_words_without_vectors(tmp_path):
    (tmp_path / "questions.txt").write_text(QUESTIONS)
    words = ["athens", "Greece", "Oslo", "norway", "car", "cars", "bird", "birds"]
    grid = np.array([[x, y, 3] for x in (0, 1, 2, 3) for y in (0, 1)], np.float32)
    found = scores.score(WordVectors("here", words, grid), "analogy", tmp_path / "questions.txt")
    shares = ("accuracy", "semantic", "syntactic", "capitals", "gram1-plural")
    counts = {"analogy/questions": 2, "analogy/unknown_questions": 1}
    assert found == {f"analogy/{name}": 1.0 for name in shares} | counts
    assert not undocumented([*found, *(f"similarity/words{name}" for name in ("", "/pairs", "/unknown_pairs"))])


@pytest.mark.parametrize("angles", [(0, -20, 20, 10, 180), (0, 60, 5, 66, 180), (0, 5, 60, 66, 180)])
def test_no_word_of_a_question_is_its_answer(angles: tuple[int, ...], tmp_path: Path) -> None:
    """On a circle, b - a + c is next to a, to b or to c, and d is the nearest of the other words."""
    (tmp_path / "questions.txt").write_text(": places\na b c d\n")
    circle = np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], axis=1).astype(np.float32)
    a, b, c = circle[:3]
    assert np.argmax(circle @ (b - a + c)) != 3
    found = scores.score(WordVectors("here", list("abcde"), circle), "analogy", tmp_path / "questions.txt")
    assert found["analogy/accuracy"] == 1


def test_words_of_two_kinds_lie_apart_along_the_first_axis():
    """The axes are directions: a vector's length does not count. Points in a plane keep their distances."""
    random = np.random.default_rng(0)
    angles = np.array([0.1, 0.2, 0.3, 2.1, 2.2, 2.3])
    basis, _ = np.linalg.qr(random.normal(size=(7, 2)))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    lengths = random.uniform(0.5, 5, (6, 1))
    vectors = WordVectors("here", list("abcdef"), np.float32(lengths * directions @ basis.T))
    found = plane(vectors, list("fedcba"))[::-1]
    assert found.shape == (6, 2)
    assert len({*np.sign(found[:3, 0])}) == 1 and (np.sign(found[:3, 0]) == -np.sign(found[3:, 0])).all()
    distances = lambda x: np.linalg.norm(x[:, None] - x[None], axis=-1)  # noqa: E731
    np.testing.assert_allclose(distances(found), distances(directions), atol=1e-6)
