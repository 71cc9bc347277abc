"""Word vectors of a file as the first rows of a model's table of tokens."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from plmjax import cli
from plmjax.data import tokenizers
from plmjax.initialization import token_embeddings
from plmjax.interop import word2vec
from plmjax.training import loop
from plmjax.training.checkpoints import checkpoints
from plmjax.word_vectors.vectors import WordVectors

WORDS = ["red", "blue", "pink", "[MASK]"]
NUMBERS = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
TEXT = "a red house and a blue house beside a green one\n\n" * 40


def test_rows_of_words_in_the_file_are_its_vectors_and_all_others_stay(tmp_path: Path) -> None:
    tokenizer = tokenizers.train("word", 13, [TEXT], tmp_path)
    drawn = np.random.default_rng(1).standard_normal((15, 6)).astype(np.float32)  # two rows more than tokens
    params = {"words": {"embedding": jnp.asarray(drawn)}, "bias": jnp.ones(3)}
    found, said = token_embeddings.with_vectors(
        params, "words/embedding", tokenizer, WordVectors("here", WORDS, NUMBERS)
    )
    expected = drawn.copy()
    for row, word in enumerate(WORDS[:2]):
        expected[tokenizer.encode(word)] = NUMBERS[row]
    np.testing.assert_array_equal(found["words"]["embedding"], expected)
    assert said == "2 of 8 words have a vector in here; the others are random"
    assert found["bias"] is params["bias"]


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


def test_vectors_that_do_not_fit_are_refused_in_one_sentence(fails, tmp_path) -> None:
    word2vec.write(tmp_path / "vectors", WORDS, NUMBERS)
    (tmp_path / "text.txt").write_text(TEXT)
    asked = ("pretrain", "nnlm_tiny", "--from", tmp_path / "vectors", *options(tmp_path))
    said = fails(*asked, "--model.vector_size", "5")
    assert "Expected vectors of size 5, the embedding size of words/embedding, found 6 in" in said
    assert "change the model's embedding size or name another file." in said
    assert not (tmp_path / "run" / "experiment.json").exists()
    said = fails(*asked, "--tokenizer.kind", "wordpiece")
    assert "Expected a tokenizer of words" in said and "found one of the kind wordpiece" in said
    (tmp_path / "vectors").write_text("2 2\na 1 2\n")
    assert "Expected 2 words in" in fails(*asked)


def options(folder: Path) -> list[str]:
    """Of a run of one step that changes nothing."""
    sizes = (
        "--tokenizer.vocab_size 13 --model.vocab_size 13 --model.vector_size 6 --model.hidden_size 4 "
        "--data.sequence_length 16 --data.held_out 0 --training.batch_size 2 --training.steps 1 "
        "--training.evaluate_every 0 --checkpoint.every 0 --optimizer.learning_rate 0"
    )
    return ["--workdir", str(folder / "run"), "--data.input", str(folder / "text.txt"), *sizes.split()]
