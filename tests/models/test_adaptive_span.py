"""Properties of Adaptive-Span alone: the part of the memory that is read, its gradients, and refused sizes."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.models.adaptive_span import AdaptiveSpanConfig, AdaptiveSpanForCausalLM
from tests.families.memories import SPAN
from tests.products import step_flops
from tests.systems.modules import random_params

IDS = np.random.default_rng(0).integers(0, SPAN.vocab_size, (2, 12))
SHORT = dataclasses.replace(SPAN, ramp=5)


@functools.cache
def parameters() -> Any:
    params = random_params(AdaptiveSpanForCausalLM(SHORT))
    params["adaptive_span"]["layers"]["span_shares"] = np.full((2, 3), 4 / SPAN.attn_span, np.float32)
    return params  # 4 tokens, ramp 5


def outputs(config: AdaptiveSpanConfig):
    """Return those of the second half of each row, after the first half."""
    module = AdaptiveSpanForCausalLM(config)

    @jax.jit
    def read(params):
        memory = module.apply({"params": params}, IDS[:, :6], cache=config.memory(2)).cache
        return module.apply({"params": params}, IDS[:, 6:], cache=memory)

    return read(parameters())


def test_what_is_masked_need_not_be_read() -> None:
    """No head looks back more than 9 tokens: fewer read tokens change nothing but a share of them that is too small."""
    whole = outputs(SHORT)
    for span in (23, 12, 9):
        part = outputs(dataclasses.replace(SHORT, computed_span=span))
        np.testing.assert_allclose(part.logits, whole.logits, rtol=1e-5, atol=1e-5)
        jax.tree.map(lambda one, all_: np.testing.assert_allclose(one, all_, atol=1e-5), part.cache, whole.cache)
    cut = outputs(dataclasses.replace(SHORT, computed_span=5))
    assert np.abs(cut.logits - whole.logits).max() > 1e-3


def test_no_gradient_passes_into_the_memory() -> None:
    module, memory = AdaptiveSpanForCausalLM(SPAN), SPAN.memory(2)
    hidden = jax.random.normal(jax.random.key(0), memory.hidden.shape)

    @jax.jit
    def score(hidden: jax.Array) -> jax.Array:
        read = module.apply({"params": parameters()}, IDS, cache=memory.replace(hidden=hidden))
        return jnp.sum(jnp.sin(read.last_hidden_state))

    assert not np.any(jax.jit(jax.grad(score))(hidden))
    assert float(score(hidden)) != float(score(memory.hidden))


@pytest.mark.parametrize("changes", [{}, {"computed_span": 7}, {"persistent_size": 5}], ids=str)
def test_flops_are_those_of_the_products(changes: dict) -> None:
    config = dataclasses.replace(SPAN, **changes)
    tokens = {"input_ids": jnp.zeros((2, 11), jnp.int32)}
    found = step_flops(AdaptiveSpanForCausalLM(config), lambda outputs: outputs.logits, **tokens)
    assert found == config.train_flops(2, 11, 11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_head": 4}, r"divide by the heads, found 18 and 4 heads; change --model.d_model or --model.n_head"),
        ({"computed_span": 24}, r"--model.computed_span from 1 to 23, found 24; "),
        ({"computed_span": 0}, r"--model.computed_span from 1 to 23, found 0; "),
        ({"initial_share": 1.5}, r"--model.initial_share from 0 to 1, found 1.5; change it"),
        ({"ramp": 0}, r"--model.ramp"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(SPAN, **changes)
