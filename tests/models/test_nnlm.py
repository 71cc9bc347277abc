"""NNLM's masks, its rule, and the run by the commands; tests/families has its row."""

import contextlib
import dataclasses
import io
from pathlib import Path

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax import experiment
from plmjax.commands import cli
from plmjax.contracts.execution import Execution
from plmjax.interop.word_vectors import read
from plmjax.models.nnlm import Nnlm, NnlmCache
from plmjax.training import loop, metrics
from tests.families.word_vectors import BOTH_LAYERS, NNLM
from tests.systems.modules import boxed_shapes, outputs, random_params

WITH_BOTH = dataclasses.replace(NNLM, **BOTH_LAYERS)
IDS = np.random.default_rng(1).integers(0, 23, (2, 9))


def test_a_mask_is_padding_and_a_row_of_one_sequence_needs_no_places() -> None:
    module, params = Nnlm(NNLM), random_params(Nnlm(NNLM))
    mask = np.arange(9) < np.array([[9], [4]])
    masked = outputs(module, params, {"input_ids": np.where(mask, IDS, 3), "attention_mask": mask.astype(np.int32)})
    packed = {"positions": mask * np.arange(9), "segment_ids": mask.astype(np.int32)}
    same = outputs(module, params, {"input_ids": IDS, **packed})
    for row, words in enumerate((9, 4)):
        np.testing.assert_allclose(masked.logits[row, :words], same.logits[row, :words], atol=1e-6)
    alone = outputs(module, params, {"input_ids": IDS})
    np.testing.assert_allclose(masked.logits[0], alone.logits[0], atol=1e-6)


def test_no_word_is_seen_across_a_gap_of_positions() -> None:
    module, params = Nnlm(NNLM), random_params(Nnlm(NNLM))
    places = np.tile(np.arange(9), (2, 1))
    gap = {"positions": places + 2 * (places >= 4), "segment_ids": np.ones_like(places)}
    apart = {"positions": places % 4, "segment_ids": 1 + places // 4}
    found, expected = (outputs(module, params, {"input_ids": IDS, **each}).logits for each in (gap, apart))
    np.testing.assert_allclose(found[:, :8], expected[:, :8], atol=1e-6)


def test_the_update_is_the_papers() -> None:
    """A step adds rate / (1 + r t) times the gradient of the log-likelihood less decay times weights, not biases."""
    run = experiment.load("experiments/nnlm_tiny.py")
    shapes = boxed_shapes(Nnlm(WITH_BOTH))
    settings = dataclasses.replace(run.optimizer, weight_decay=0.25)
    params, gradients = (random_params(Nnlm(WITH_BOTH), seed) for seed in (0, 1))
    update = settings.build(10, shapes)
    state = update.init(params)
    for step in range(3):
        found, state = jax.jit(update.update)(gradients, state, params)
        rate = settings.learning_rate / (1 + settings.schedule.decay * step)
        named = flax.traverse_util.flatten_dict(params, sep="/")
        for name, value in flax.traverse_util.flatten_dict(found, sep="/").items():
            gradient = flax.traverse_util.flatten_dict(gradients, sep="/")[name]
            decay = 0 if name in ("output_bias", "hidden/bias") else 0.25
            np.testing.assert_allclose(value, -rate * (gradient + decay * named[name]), rtol=1e-5, atol=1e-7)


WORDS = [a + b for a in "bcdfg" for b in ("ar", "el", "in", "op", "un")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a text in which each word is one of five, drawn by the word two places before it."""
    folder = tmp_path_factory.mktemp("nnlm")
    random, documents = np.random.default_rng(0), []
    for _ in range(300):
        classes = list(random.integers(5, size=2))
        while len(classes) < 40:
            classes.append((classes[-2] + 1) % 5)
        documents.append(" ".join(WORDS[5 * kind + random.integers(5)] for kind in classes))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    options = (
        "--tokenizer.vocab_size 30 --model.vocab_size 30 --model.vector_size 6 --model.hidden_size 16 --model.order 3 "
        "--data.layout.overlap 1 --data.held_out 0.1 --data.sequence_length 32 --training.batch_size 16 "
        "--training.steps 200 --training.evaluate_every 0 --checkpoint.every 0"
    )
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
        named = ["--workdir", f"{folder}/run", "--data.input", f"{folder}/text.txt"]
        cli.run(["pretrain", "nnlm_tiny", *named, *options.split()])
    return folder / "run"


@pytest.mark.nightly
def test_learns_from_a_word_that_is_not_the_last_one(run: Path) -> None:
    """Whoever sees two words knows which five may follow, log 5 = 1.61 nats; the last one alone tells nothing."""
    found = metrics.read(run / "metrics.jsonl")[-1]
    assert found["eval/unigram_entropy"] > 3.1 and found["eval/loss"] < 2.0


@pytest.mark.nightly  # 7 s; by day the commands of docs/word_vectors.md in test_word2vec.py, and tests/inference
def test_perplexity_neighbours_and_vectors_by_the_commands(run: Path, tmp_path: Path, capsys) -> None:
    trained = metrics.read(run / "metrics.jsonl")[-1]["eval/loss"]
    cli.run(["evaluate", str(run)])
    assert f"{np.exp(trained):.4g}"[:4] in capsys.readouterr().out
    (tmp_path / "text.txt").write_text("bar cel din\n")
    cli.run(["evaluate", str(run), "--data", str(tmp_path / "text.txt"), "--stride", "1"])
    assert "perplexity" in capsys.readouterr().out
    cli.run(["nearest", str(run), "bar", "--top", "4"])
    assert {line.split()[-1] for line in capsys.readouterr().out.splitlines()[-4:]} == set(WORDS[1:5])
    cli.run(["export", str(run), str(tmp_path / "vectors.txt"), "--vectors", "text"])
    assert "25 vectors of 6 numbers" in capsys.readouterr().out
    np.testing.assert_array_equal(read(tmp_path / "vectors.txt").vectors, read(run).vectors)


def test_a_cache_holds_the_last_words_and_what_is_no_word() -> None:
    cache = NNLM.empty_cache(1, 5, Execution())
    assert cache.words.shape == cache.mask.shape == (1, NNLM.order - 1) and not cache.mask.any()
    cache = NnlmCache(np.array([[7, 8, 9]]), np.array([[0, 1, 1]]))
    assert cache.append(np.array([[4, 5]]), None).mask.tolist() == [[0, 1, 1, 1, 1]]
    longer = cache.append(np.array([[4, 5]]), np.array([[1, 0]]))
    assert longer.words.tolist() == [[7, 8, 9, 4, 5]] and longer.mask.tolist() == [[0, 1, 1, 1, 0]]
    assert longer.last(3).words.tolist() == [[9, 4, 5]] and longer.last(3).mask.tolist() == [[1, 1, 0]]
