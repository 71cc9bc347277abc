"""NNLM beside an oracle of its equations, what it may see, its counts, its rule, and the run by the commands."""

import contextlib
import dataclasses
import io
from pathlib import Path

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax import cli, experiment
from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.models.nnlm import Nnlm, NnlmConfig
from plmjax.training import loop, metrics
from plmjax.word_vectors.vectors import read
from tests.products import step_flops
from tests.systems.modules import boxed_shapes, count, outputs, random_params

SMALL = NnlmConfig(vocab_size=23, vector_size=5, hidden_size=7, order=4)
SWITCHES = {
    "hidden layer": SMALL,
    "direct connections": dataclasses.replace(SMALL, direct_connections=True),
    "direct connections alone": dataclasses.replace(SMALL, direct_connections=True, hidden_size=0),
    "bigrams": dataclasses.replace(SMALL, order=2),
}
every_switch = pytest.mark.parametrize("config", SWITCHES.values(), ids=SWITCHES)
SEGMENTS = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0], [1, 2, 2, 2, 2, 2, 2, 3, 3]])
POSITIONS = np.array([[0, 1, 2, 3, 4, 0, 1, 2, 0], [0, 0, 1, 2, 3, 4, 5, 0, 1]])
IDS, NEXT = np.random.default_rng(1).integers(0, 23, (2, 2, 9))
WEIGHTS = np.random.default_rng(2).random((2, 9)) * (SEGMENTS > 0)


def oracle(config: NnlmConfig, params: dict) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Scores [2 9 V] of the rows above, and gradients of the weighted nats of NEXT: equation 1, word by word.

    The gradients are those that section 3.1 of the paper writes down for its parallel implementation.
    """
    flat = {name: np.float64(value) for name, value in flax.traverse_util.flatten_dict(params, sep="/").items()}
    gradient = {name: np.zeros_like(value) for name, value in flat.items()}
    scores, m = np.zeros((2, 9, config.vocab_size)), config.vector_size
    for row, place in np.argwhere(SEGMENTS > 0):
        # A sequence stands in a row without gaps, so that so many of its words stand before this one.
        words = IDS[row, place - min(POSITIONS[row, place], config.order - 2) : place + 1][::-1]
        x = np.zeros((config.order - 1) * m)
        x[: len(words) * m] = flat["words/embedding"][words].ravel()
        y = flat["output_bias"].copy()
        if config.direct_connections:
            y += flat["direct/embedding"] @ x
        if config.hidden_size:
            a = np.tanh(flat["hidden/bias"] + x @ flat["hidden/kernel"])
            y += flat["output/embedding"] @ a
        scores[row, place] = y

        error = np.exp(y - y.max()) / np.exp(y - y.max()).sum()
        error[NEXT[row, place]] -= 1
        error *= WEIGHTS[row, place]
        gradient["output_bias"] += error
        of_x = np.zeros_like(x)
        if config.direct_connections:
            gradient["direct/embedding"] += np.outer(error, x)
            of_x += error @ flat["direct/embedding"]
        if config.hidden_size:
            gradient["output/embedding"] += np.outer(error, a)
            of_hidden = (error @ flat["output/embedding"]) * (1 - a**2)
            gradient["hidden/bias"] += of_hidden
            gradient["hidden/kernel"] += np.outer(x, of_hidden)
            of_x += flat["hidden/kernel"] @ of_hidden
        np.add.at(gradient["words/embedding"], words, of_x[: len(words) * m].reshape(-1, m))
    return scores, gradient


@every_switch
def test_scores_and_gradients_are_those_of_the_equations(config: NnlmConfig) -> None:
    module, params = Nnlm(config), random_params(Nnlm(config))
    assert ("hidden" in params, "direct" in params) == (config.hidden_size > 0, config.direct_connections)

    @jax.jit
    def found(params: dict) -> tuple[jax.Array, dict]:
        def loss(params: dict) -> tuple[jax.Array, jax.Array]:
            output = module.apply({"params": params}, IDS, positions=POSITIONS, segment_ids=SEGMENTS)
            return output.scores.weighted_cross_entropy(NEXT, jnp.float32(WEIGHTS))[0], output.logits

        gradient, logits = jax.grad(loss, has_aux=True)(params)
        return logits, gradient

    scores, gradient = oracle(config, params)
    logits, of_params = found(params)
    np.testing.assert_allclose(logits * (SEGMENTS > 0)[..., None], scores, rtol=1e-5, atol=1e-5)
    for name, value in flax.traverse_util.flatten_dict(of_params, sep="/").items():
        np.testing.assert_allclose(value, gradient[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_only_the_words_before_reach_a_score_and_padding_none() -> None:
    """The gradient of a score by another word's vector is not zero iff the word is one of the n-1 of its sequence."""
    module, params = Nnlm(SMALL), random_params(Nnlm(SMALL))
    segments, positions = SEGMENTS[:1], POSITIONS[:1]
    ids = np.arange(9)[None]  # each word once

    @jax.jit
    @jax.jacrev
    def jacobian(table: jax.Array) -> jax.Array:
        changed = params | {"words": {"embedding": table}}
        inputs = {"positions": positions, "segment_ids": segments}
        return module.apply({"params": changed}, ids, **inputs).logits[0].sum(-1)

    reach = np.abs(jacobian(params["words"]["embedding"])[:, :9]).max(-1) > 0
    distance = np.arange(9)[:, None] - np.arange(9)
    expected = (segments == segments.T) & (segments.T > 0) & (distance >= 0) & (distance < SMALL.order - 1)
    np.testing.assert_array_equal(reach, expected)


def test_a_mask_is_padding_and_a_row_of_one_sequence_needs_no_places() -> None:
    module, params = Nnlm(SMALL), random_params(Nnlm(SMALL))
    mask = np.arange(9) < np.array([[9], [4]])
    masked = outputs(module, params, {"input_ids": np.where(mask, IDS, 3), "attention_mask": mask.astype(np.int32)})
    packed = {"positions": mask * np.arange(9), "segment_ids": mask.astype(np.int32)}
    same = outputs(module, params, {"input_ids": IDS, **packed})
    for row, words in enumerate((9, 4)):
        np.testing.assert_allclose(masked.logits[row, :words], same.logits[row, :words], atol=1e-6)
    alone = outputs(module, params, {"input_ids": IDS})
    np.testing.assert_allclose(masked.logits[0], alone.logits[0], atol=1e-6)


@pytest.mark.parametrize("config", [NnlmConfig.brown(), NnlmConfig.ap_news(), *SWITCHES.values()])
def test_parameters_are_as_many_as_the_paper_counts(config: NnlmConfig) -> None:
    """|V| (1 + n m + h) + h (1 + (n-1) m) with direct connections (section 2), |V| (n-1) m fewer without them."""
    v, m, h, n = config.vocab_size, config.vector_size, config.hidden_size, config.order
    expected = v * (1 + n * m + h) + h * (1 + (n - 1) * m)
    found = count(Nnlm(config))
    assert found == expected - (not config.direct_connections) * v * (n - 1) * m
    assert {16_383: 2_158_273, 17_964: 11_904_264}.get(v, found) == found


def test_first_weights_are_normal_and_biases_zero() -> None:
    module = Nnlm(dataclasses.replace(NnlmConfig.brown(vocab_size=500), direct_connections=True))
    drawn = nn.meta.unbox(jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))["params"]
    for name, value in flax.traverse_util.flatten_dict(drawn, sep="/").items():
        if name.endswith("bias"):
            assert not value.any(), name
        else:
            assert abs(value.std() / 0.1 - 1) < 0.02 and abs(value.mean()) < 0.005, name


def test_the_update_is_the_papers() -> None:
    """A step adds rate / (1 + r t) times the gradient of the log-likelihood less decay times weights, not biases."""
    run = experiment.load("experiments/nnlm_tiny.py")
    shapes = boxed_shapes(Nnlm(SWITCHES["direct connections"]))
    settings = dataclasses.replace(run.optimizer, weight_decay=0.25)
    params, gradients = (random_params(Nnlm(SWITCHES["direct connections"]), seed) for seed in (0, 1))
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


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"order": 1}, "--model.order of at least 2, a word and one before it, found 1"),
        ({"hidden_size": 0}, "Expected a hidden layer or direct connections, found neither"),
        ({"vector_size": 0}, "--model.vector_size of at least 1, found 0"),
    ],
)
def test_a_model_that_cannot_be_is_named(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NnlmConfig(**sizes)


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


def test_learns_from_a_word_that_is_not_the_last_one(run: Path) -> None:
    """Whoever sees two words knows which five may follow, log 5 = 1.61 nats; the last one alone tells nothing."""
    found = metrics.read(run / "metrics.jsonl")[-1]
    assert found["eval/unigram_entropy"] > 3.1 and found["eval/loss"] < 2.0


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


def test_bfloat16_computes_close_by_with_float32_parameters() -> None:
    params = random_params(Nnlm(SMALL))
    half = outputs(Nnlm(SMALL, Execution(dtype=jnp.bfloat16)), params, {"input_ids": IDS})
    assert half.last_hidden_state.dtype == jnp.bfloat16 and half.logits.dtype == jnp.float32
    np.testing.assert_allclose(half.logits, outputs(Nnlm(SMALL), params, {"input_ids": IDS}).logits, atol=0.02)


@every_switch
def test_train_flops_are_those_of_the_products(config: NnlmConfig) -> None:
    module, ids = config.module(Purpose.PRETRAINING, Execution()), np.zeros((3, 13), np.int32)
    found = step_flops(module, lambda outputs: outputs.scores.logits(), input_ids=ids)
    assert config.train_flops(3, 13, 13) == found
