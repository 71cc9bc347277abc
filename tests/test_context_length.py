"""The arithmetic of effective lengths, and the losses by length of context."""

import dataclasses
import importlib
import math
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.transformer_xl import TransformerXlConfig
from tests.paths import ROOT


@pytest.fixture
def context_length(monkeypatch) -> ModuleType:
    """benchmarks/context_length.py, with short contexts."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("context_length")
    monkeypatch.setattr(module, "STEP", 2)
    monkeypatch.setattr(module, "CONTEXTS", (2, 4, 6))
    return module


def parameters(config: ModelConfig) -> Any:
    module = config.module(Purpose.WRITING, Execution())
    return jax.jit(module.init)(jax.random.key(0), np.zeros((1, 2), np.int32))["params"]


def test_both_models_take_the_same_budget(context_length) -> None:
    runs = [experiments.load(str(ROOT / "experiments" / f"{name}_tiny.py")) for name in context_length.MODELS]
    for run in runs:
        run = context_length.within(run, 1e13)
        assert 0.98e13 < context_length.flops(run, run.training.steps) <= 1e13
    assert runs[0].tokenizer == runs[1].tokenizer


NATS = np.array(
    [  # two models, each with three contexts and four tokens
        [[4.0, 3.0, 2.0, 1.0], [4.5, 2.0, 2.0, 0.5], [1.0, 2.0, 2.0, 0.5]],
        [[5.0, 2.5, 3.0, 1.5], [3.5, 2.8, 3.0, 1.5], [3.5, 2.8, 3.0, 1.5]],
    ]
)


@pytest.mark.parametrize(
    ("model", "short", "share", "expected"),
    [
        # The baseline of the shortest context is 4, 2.5, 2, 1.
        (0, 0, 1.0, (0.5 + 0.5) / 4),  # the first token got worse, and counts as the baseline
        (1, 0, 1.0, 0.5 / 4),
        (0, 0, 0.5, 0.5 / 2),  # of the tokens with 4 and 2.5
        (1, 0, 0.25, 0.5),
        # That of the second is 3.5, 2, 2, 0.5.
        (0, 1, 1.0, 2.5 / 4),
        (1, 1, 1.0, 0.0),
    ],
)
def test_a_gain_is_relative_to_the_best_model_with_the_shorter_context(
    context_length, model, short, share, expected
) -> None:
    found = context_length.gain(NATS, model, short, short + 1, share)
    assert found == pytest.approx(1 - math.exp(-expected), abs=1e-12)


def test_a_length_is_effective_until_the_gain_is_below_the_threshold(context_length) -> None:
    assert context_length.effective_context(NATS, 0, 1.0) == 2  # the last one: every longer context helped
    assert context_length.effective_context(NATS, 1, 1.0) == 1
    assert context_length.effective_context(NATS, 1, 1.0, threshold=0.5) == 0
    assert context_length.effective_context(NATS, 0, 0.5, threshold=0.3) == 0  # it stops at the first that does not


@pytest.fixture(scope="module")
def transformer_xl() -> tuple[TransformerXlConfig, Any]:
    config = TransformerXlConfig.tiny(vocab_size=11, d_embed=8, d_model=8, n_layer=2, n_head=2, d_head=4, d_inner=16)
    config = dataclasses.replace(config, clamp_len=5, init_std=0.5, dropout=0.0)
    return config, parameters(config)


@pytest.mark.nightly
def test_a_context_is_the_tokens_before_a_token_and_no_others(context_length, transformer_xl) -> None:
    tokens = np.random.default_rng(1).integers(0, 11, 30)
    places = np.array([12, 29])
    found = context_length.by_context(*transformer_xl, tokens, places)
    changed = tokens.copy()
    changed[12 - 5] = (changed[12 - 5] + 1) % 11
    differs = context_length.by_context(*transformer_xl, changed, places) != found
    assert differs.tolist() == [[False, False], [False, False], [True, False]]


@pytest.mark.nightly
def test_a_decoder_reads_no_more_tokens_than_it_has_positions(context_length) -> None:
    config = Gpt2Config.tiny(vocab_size=11, n_embd=8, n_head=2, n_positions=5)
    tokens = np.random.default_rng(2).integers(0, 11, 30)
    params = parameters(config)
    found = context_length.by_context(config, params, tokens, np.array([12, 29]))
    of_positions = context_length.last_nats(
        config.module(Purpose.WRITING, Execution()), params, np.stack([tokens[7:13], tokens[24:30]])
    )
    np.testing.assert_allclose(found[2], of_positions, rtol=1e-5)
    assert (found[0] != found[1]).all() and (found[1] != found[2]).all()


def test_the_picture_is_drawn(context_length, tmp_path) -> None:
    nats = np.linspace(5, 4, 3)[:, None] + np.zeros(4)
    context_length.draw({"GPT-2": nats, "Transformer-XL": nats - 0.1}, tmp_path / "pictures" / "context_length.png")
    assert (tmp_path / "pictures" / "context_length.png").stat().st_size > 10_000
