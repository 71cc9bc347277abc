"""Word vectors of a file as the first rows of a model's table of tokens."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.data import tokenizers
from plmjax.interop import word2vec
from plmjax.interop.word_vectors import WordVectors
from plmjax.runs import word_vectors
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints

WORDS = ["red", "blue", "pink", "[MASK]"]
NUMBERS = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
TEXT = "a red house and a blue house beside a green one\n\n" * 40


def test_rows_of_words_in_the_file_are_its_vectors_and_all_others_stay(tmp_path: Path) -> None:
    tokenizer = tokenizers.train("word", 13, [TEXT], tmp_path)
    drawn = np.random.default_rng(1).standard_normal((15, 6)).astype(np.float32)  # two rows more than tokens
    params = {"words": {"embedding": jnp.asarray(drawn)}, "bias": jnp.ones(3)}
    found, said = word_vectors.fill(params, "words/embedding", tokenizer, WordVectors("here", WORDS, NUMBERS))
    expected = drawn.copy()
    for row, word in enumerate(WORDS[:2]):
        expected[tokenizer.encode(word)] = NUMBERS[row]
    np.testing.assert_array_equal(found["words"]["embedding"], expected)
    assert said == "2 of 8 words have a vector in here; the others are random"
    assert found["bias"] is params["bias"]


def test_words_are_found_as_the_tokenizer_spells_them(tmp_path: Path) -> None:
    """As they stand first, then without capital letters and accents: of several the first."""
    words = ["Café", "café", "été", "ete", "한국어", "が"]
    tokenizer = tokenizers.train("word", 20, ["the cafe été 한국어 が"] * 3, tmp_path)
    numbers = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    params = {"words": {"embedding": jnp.zeros((tokenizer.vocabulary.size, 3))}}
    found, said = word_vectors.fill(params, "words/embedding", tokenizer, WordVectors("here", words, numbers))
    rows = found["words"]["embedding"][jnp.array(tokenizer.encode("cafe été 한국어 が the"))]
    np.testing.assert_array_equal(rows, [*numbers[[0, 3, 4, 5]], np.zeros(3)])
    assert said == "4 of 5 words have a vector in here; the others are random"


@pytest.mark.nightly
def test_a_run_begins_with_a_file_and_says_how_many_words_it_found(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
    word2vec.write(tmp_path / "vectors", WORDS, NUMBERS, "binary")
    (tmp_path / "text.txt").write_text(TEXT)
    cli.run(["pretrain", "nnlm_tiny", "--from", str(tmp_path / "vectors"), *options(tmp_path)])
    assert f"start      2 of 8 words have a vector in {tmp_path / 'vectors'}" in capsys.readouterr().out
    params, description = checkpoints.load_parameters(tmp_path / "run")
    tokenizer = tokenizers.load(tmp_path / "run" / "tokenizer")
    (red,), (green,) = tokenizer.encode("red"), tokenizer.encode("green")
    np.testing.assert_array_equal(params["words"]["embedding"][red], NUMBERS[0])
    assert params["words"]["embedding"][green].any() and description.experiment.model.vector_size == 6


def test_vectors_are_those_of_a_file_that_has_words_and_vectors(tmp_path: Path) -> None:
    word2vec.write(tmp_path / "vectors", WORDS, NUMBERS)
    (tmp_path / "text.txt").write_text(TEXT)
    found = word_vectors.at(tmp_path / "vectors")
    assert found.words == WORDS
    np.testing.assert_allclose(found.vectors, NUMBERS, atol=1e-5)
    assert [word_vectors.at(place) for place in (tmp_path / "text.txt", tmp_path)] == [None, None]


def options(folder: Path) -> list[str]:
    """The options of a run of one step that changes nothing."""
    sizes = (
        "--tokenizer.vocab_size 13 --model.vocab_size 13 --model.vector_size 6 --model.hidden_size 4 "
        "--data.sequence_length 16 --data.held_out 0 --training.batch_size 2 --training.steps 1 "
        "--training.evaluate_every 0 --checkpoint.every 0 --optimizer.learning_rate 0"
    )
    return ["--workdir", str(folder / "run"), "--data.input", str(folder / "text.txt"), *sizes.split()]
