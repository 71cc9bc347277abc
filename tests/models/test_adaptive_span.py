"""Properties of Adaptive-Span alone: the part of the memory that is read, and its gradients."""

import dataclasses
import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.mask_terms import MaskTerms
from plmjax.layers.attention.backends import BACKENDS
from plmjax.models.adaptive_span import AdaptiveSpanConfig, AdaptiveSpanForCausalLM, SoftSpan, WithinSpan
from tests.families.memories import SPAN
from tests.optional import torch
from tests.systems.modules import random_params, recorded_draws

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
    part = outputs(dataclasses.replace(SHORT, computed_span=9))
    np.testing.assert_allclose(part.logits, whole.logits, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(part.cache, whole.cache, atol=1e-5)
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


def test_tokens_see_the_persistent_keys_and_those_of_their_document() -> None:
    """Two persistent keys, three tokens of a memory, of which the first is empty, and two of another document."""
    queries, keys = jnp.asarray([[5, 6]]), jnp.asarray([[0, 0, 0, 5, 5, 5, 6]])
    mask_terms = MaskTerms((WithinSpan(queries, keys, 2, 2),), query_offset=5)
    assert (mask_terms.bias(2, 7)[0, 0] == 0).tolist() == [
        [True, True, False, True, True, False, False],
        [True, True, False, False, False, False, False],
    ]


def released(spans: Any, queries: Any, keys: Any, *, values: Any, ramp: int, persistent: int) -> Any:
    """The context by torch as adaptive_span.py has it: softmax, clamped mask, and a sum of 1 again, [T N H]."""
    scores = torch.einsum("tnh,snh->nts", queries, keys)
    back = torch.arange(len(queries))[:, None] + len(keys) - len(queries) - torch.arange(len(keys))
    scores = scores.masked_fill((back < 1) & (torch.arange(len(keys)) >= persistent), -torch.inf)
    mask = ((1 - back + spans[:, None, None]) / ramp + 1).clamp(0, 1)
    mask = torch.where(torch.arange(len(keys)) < persistent, torch.ones(()), mask)
    weights = torch.softmax(scores, -1) * mask
    return torch.einsum("nts,snh->tnh", weights / (weights.sum(-1, keepdim=True) + 1e-8), values)


@pytest.mark.parametrize("persistent", [0, 2])
@pytest.mark.parametrize("backend", ["dense", "blockwise"])
def test_a_span_is_learned_from_both_ends_of_its_mask(backend: str, persistent: int) -> None:
    """Spans of 0, where every head begins, of the whole text, and between, at an end of the mask or not."""
    spans, ramp = np.array([0, 12, 5, 3.3], np.float32), 4
    queries, keys, values = np.random.default_rng(2).normal(size=(3, 16, 4, 5)).astype(np.float32)
    queries, readings = queries[-6:] / 3, np.random.default_rng(3).normal(size=(6, 4, 5)).astype(np.float32)
    given = [torch.tensor(x, requires_grad=True) for x in (spans, queries, keys, values)]
    found = released(*given[:3], values=given[3], ramp=ramp, persistent=persistent)
    (found * torch.tensor(readings)).sum().backward()

    def context(spans: jax.Array, *rows: jax.Array) -> jax.Array:
        documents = jnp.ones((1, 16), jnp.int32)
        mask_terms = MaskTerms((WithinSpan(documents[:, -6:], documents, 16, persistent),), query_offset=10)
        terms = (SoftSpan(spans[None, :, None, None], ramp, persistent),)
        rows = (x[None] for x in rows)
        found = BACKENDS[backend](*rows, mask_terms=mask_terms, terms=terms, rate=0.0, dropout_key=None)
        return jnp.sum(found[0] * readings)

    found = jax.jit(jax.grad(context, argnums=(0, 1, 2, 3)))(spans, queries, keys, values)
    assert abs(float(found[0][0])) > 0.01 < abs(float(found[0][1]))
    for ours, theirs in zip(found, given, strict=True):
        np.testing.assert_allclose(ours, theirs.grad, rtol=1e-4, atol=1e-5)


def test_dropout_falls_on_the_probabilities_and_on_inner_features() -> None:
    config = SPAN.with_dropout(0.25)
    module, rngs = AdaptiveSpanForCausalLM(config), {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.init(rngs, IDS, deterministic=False))
    drawn = {draw.path[-1]: draw for draw in found}
    assert {draw.rate for draw in found} == {0.25}
    assert {draw.shape[-1] for draw in drawn.values() if draw.shape is not None} == {config.d_inner}
    assert any(draw.shape is None for draw in found)
