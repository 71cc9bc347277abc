"""GRU layers against torch's, and how states pass from part to part."""

from __future__ import annotations

from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.layers.recurrent.gru import Gru, recurrence
from plmjax.layers.recurrent.scan_over_time import restarts
from tests.optional import torch

BATCH, LENGTH, INPUTS, HIDDEN = 4, 5, 3, 6
LENGTHS = [5, 2, 4, 1]
INIT = nn.initializers.normal(0.5)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(BATCH, LENGTH, INPUTS)).astype(np.float32)
VISIBLE = np.arange(LENGTH) < np.array(LENGTHS)[:, None]


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def read(layer: torch.nn.GRU, of: Any) -> dict[str, Any]:
    """Both directions' parameters from torch's tensors, or from their gradients."""

    def direction(suffix: str) -> dict[str, Any]:
        w, u, b, c = (
            of(getattr(layer, f"{name}_l0{suffix}")).numpy().T.reshape(-1, 3, HIDDEN)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        return {"input": {"kernel": w, "bias": b[0]}, "recurrent_kernel": u, "candidate_bias": c[0, 2]}

    return {"forward": direction(""), "backward": direction("_reverse")}


def test_equals_torch_in_both_directions_on_padded_rows() -> None:
    """Outputs, last states, and the gradients of inputs, first states and all parameters; torch packs the rows."""
    layer = torch.nn.GRU(INPUTS, HIDDEN, bidirectional=True, batch_first=True)
    for suffix in ("", "_reverse"):  # a gate that is no candidate has one bias here
        getattr(layer, f"bias_hh_l0{suffix}").data[: 2 * HIDDEN] = 0
    x, first = torch.tensor(X, requires_grad=True), torch.tensor(drawn(2, BATCH, HIDDEN), requires_grad=True)
    rows = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    packed, last = layer(rows, first)
    y = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=LENGTH)[0]
    weights = drawn(BATCH, LENGTH, 2 * HIDDEN), drawn(2, BATCH, HIDDEN)
    ((torch.tensor(weights[0]) * y).sum() + (torch.tensor(weights[1]) * last).sum()).backward()

    def loss(params: Any, x: jax.Array, first: jax.Array) -> tuple[jax.Array, Any]:
        parts = [
            Gru(HIDDEN, INIT, reverse=reverse).apply({"params": params[name]}, x, first[int(reverse)], visible=VISIBLE)
            for name, reverse in (("forward", False), ("backward", True))
        ]
        outputs, states = zip(*parts, strict=True)
        found = jnp.concatenate(outputs, axis=-1), jnp.stack(states)
        return sum(jnp.sum(w * part) for w, part in zip(weights, found, strict=True)), found

    inputs = read(layer, torch.detach), X, first.detach().numpy()
    gradients, found = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)
    chex.assert_trees_all_close(found, (y.detach().numpy(), last.detach().numpy()), rtol=1e-5, atol=1e-5)
    wanted = read(layer, lambda tensor: tensor.grad), x.grad.numpy(), first.grad.numpy()
    chex.assert_trees_all_close(gradients, wanted, rtol=1e-4, atol=1e-5)


def test_a_direction_starts_anew_at_its_own_end_of_a_document() -> None:
    """A document ends at the last token that is read; padding that is marked as a start changes no state."""
    starts = jnp.array([[True, False, True, False, True]])
    assert restarts(starts, False) is starts and restarts(None, True) is None
    assert restarts(starts, True).tolist() == [[False, True, False, True, False]]
    random = np.random.default_rng(2)
    gates, kernel, bias, first = (
        np.float32(random.normal(size=size)) for size in ((1, 5, 3, 2), (2, 3, 2), (2,), (1, 2))
    )
    read = lambda part, state, **masks: recurrence(gates[:, part], kernel, bias, state, **masks)  # noqa: E731
    y, last = read(slice(0, 5), first, starts=jnp.array([[False, False, True, False, False]]))
    before, after = read(slice(0, 2), first)[0], read(slice(2, 5), jnp.zeros((1, 2)))
    np.testing.assert_allclose(y, jnp.concatenate([before, after[0]], axis=1), atol=1e-6)
    np.testing.assert_allclose(last, after[1], atol=1e-6)
    masks = {"starts": jnp.array([[False, False, True]]), "visible": jnp.array([[True, True, False]])}
    kept, state = read(slice(0, 3), first, **masks)
    np.testing.assert_allclose(state, before[:, 1], atol=1e-6)
    assert not kept[:, 2].any()
