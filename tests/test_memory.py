"""A memory beside a window that is read again for each token."""

import dataclasses
import importlib

import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models.transformer_xl import TransformerXlConfig
from tests.paths import ROOT

LENGTH = 4
"""Tokens of a row that is read with a memory."""


@pytest.mark.nightly
def test_a_memory_gives_what_all_tokens_that_reach_a_token_give(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    memory = importlib.import_module("memory")
    monkeypatch.setattr(memory, "LENGTH", LENGTH)
    config = TransformerXlConfig.tiny(vocab_size=11, d_embed=8, d_model=8, n_layer=2, n_head=2, d_head=4, d_inner=16)
    config = dataclasses.replace(config, mem_len=6, clamp_len=5, same_length=True, init_std=0.5)
    init = config.module(Purpose.WRITING, Execution()).init
    params = jax.jit(init)(jax.random.key(0), np.zeros((1, 2), np.int32))["params"]
    tokens = np.random.default_rng(0).integers(0, 11, 8 * LENGTH + 1).astype(np.int32)
    reach, rates = config.n_layer * (config.mem_len - 1) + 1, []
    read = memory.remembering(config, params, tokens, 2 * LENGTH, rates)
    found = memory.recomputing(config, params, tokens, 2 * LENGTH, reach, rates)
    np.testing.assert_allclose(read, found, rtol=1e-5, atol=1e-5)
    fewer = memory.recomputing(config, params, tokens, 2 * LENGTH, reach - 1)
    assert np.abs(read - fewer).max() > 1e-3
    assert len(rates) == 2 and all(rate > 0 for pair in rates for rate in pair)
