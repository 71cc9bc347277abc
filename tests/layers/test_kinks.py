"""The derivatives at kinks are those of torch; TensorFlow has the same, but for the equal numbers of a maximum."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.compression.distillation.losses import cosine_distance
from plmjax.layers import kinks
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.int8 import fake_quantize
from plmjax.layers.recurrent.lstm import LstmState, recurrence
from plmjax.layers.words.character_filters import max_pooled_convolution
from plmjax.models.cove.biattentive_classification import SelfAttentivePooling
from tests.optional import torch

KERNEL = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
LIMIT = 2.0
TIED = [[1.0, 3.0, 3.0], [0.0, 0.0, 0.0], [-1.0, -1.0, -2.0]]


def cell(gates: jax.Array) -> jax.Array:
    """The cell after one step whose gates are all open, so that it is the sum of the cell before and of the input."""
    state = LstmState(jnp.asarray([[1.0, 3.0, 0.5, -1.0, -3.0]]), jnp.zeros((1, 5)))
    opened = jnp.stack([jnp.full(5, 40.0), jnp.full(5, 40.0), gates, jnp.full(5, 40.0)])[None, None]
    return recurrence(opened, jnp.zeros((5, 4, 5)), state, cell_clip=LIMIT)[1].cell[0]


def projected(kernel: jax.Array) -> jax.Array:
    """The outputs at most 2 of a layer whose hidden state is 1."""
    gates = jnp.full((1, 1, 4, 1), 40.0)
    state = LstmState(jnp.full((1, 1), 40.0), jnp.zeros((1, 5)))
    settings = {"projection_kernel": kernel[None], "projection_clip": LIMIT}
    return recurrence(gates, jnp.zeros((5, 4, 1)), state, **settings)[0][0, 0]


def pooled(y: jax.Array) -> jax.Array:
    """The maxima and minima of the first two tokens of a text, without those of its third place."""
    module = SelfAttentivePooling(jax.nn.initializers.zeros, jnp.float32)
    found = module.apply(
        {"params": {"Projection_0": {"kernel": jnp.zeros((3, 1))}}}, y[None], jnp.asarray([[1, 1, 0]]) > 0
    )
    return jnp.concatenate([found[:, :3], found[:, 6:9]], axis=-1)


def torch_pooled(y: Any) -> Any:
    return torch.cat([y[:2].max(dim=0)[0], y[:2].min(dim=0)[0]])


def torch_filters(x: Any) -> Any:
    kernel = torch.tensor(KERNEL).permute(2, 1, 0)
    return torch.nn.functional.conv1d(x.T[None], kernel).max(dim=-1)[0]


class Unchanged:
    """nlp-architect's FakeLinearQuantizationWithSTE: the gradient passes all roundings."""

    def __call__(self, x: Any) -> Any:
        rounded = (x.detach() * 63.5).round().clamp(-127, 127) / 63.5
        return x + (rounded - x.detach())


ROWS: dict[str, tuple[Callable, Callable, Any]] = {
    "clamp": (lambda x: kinks.clamp(x, 0, 1), lambda x: x.clamp(0, 1), [-0.5, 0.0, 0.25, 1.0, 1.5]),
    "the largest along rows": (lambda x: kinks.largest(x, axis=1), lambda x: x.max(dim=1)[0], TIED),
    "the largest along columns": (lambda x: kinks.largest(x, axis=0), lambda x: x.max(dim=0)[0], TIED),
    "relu": (ACTIVATIONS["relu"], lambda x: torch.nn.functional.relu(x), [-1.0, 0.0, 1.0]),
    "relu of modules": (jax.nn.relu, lambda x: torch.nn.functional.relu(x), [-1.0, 0.0, 1.0]),
    "abs": (kinks.absolute, lambda x: x.abs(), [-1.0, 0.0, 1.0]),
    "cosine to itself and to zeros": (
        lambda x: cosine_distance(x, jnp.ones_like(x)),
        lambda x: 1 - (torch.nn.functional.normalize(x, dim=-1) * 2**-0.5).sum(-1),
        [[0.0, 0.0], [1.0, 1.0], [1.0, 2.0]],
    ),
    "the limit of an LSTM's cell": (
        cell,
        lambda x: (torch.tensor([1.0, 3.0, 0.5, -1.0, -3.0]) + torch.tanh(x)).clamp(-LIMIT, LIMIT),
        [40.0, 0.3, 0.3, -40.0, 0.3],
    ),
    "the limit of an LSTM's output": (projected, lambda x: x.clamp(-LIMIT, LIMIT), [1.0, 2.0, 3.0, -2.0, -3.0]),
    "filters of characters that repeat": (
        lambda x: max_pooled_convolution(x[None, np.array([0, 1, 1, 1, 1])], jnp.asarray(KERNEL), jnp.zeros(4)),
        lambda x: torch_filters(x[[0, 1, 1, 1, 1]]),
        [[0.5, 1.0, -1.0], [0.25, -2.0, 1.0]],
    ),
    "pooling of CoVe's classifier": (pooled, torch_pooled, [[0.5, 0.1, 0.2], [0.5, 0.1, -0.2], [0.5, 0.9, -0.9]]),
    "rounding to int8": (lambda x: fake_quantize(x, jnp.asarray(63.5)), Unchanged(), [-3.0, -2.0, 0.0, 0.3, 2.0]),
}


@pytest.mark.parametrize("name", ROWS)
def test_gradients_at_kinks_are_those_of_the_reference(name: str) -> None:
    ours, reference, values = ROWS[name]
    other = torch.tensor(values, requires_grad=True)
    expected = reference(other)
    weights = 1 + np.arange(expected.numel(), dtype=np.float32).reshape(expected.shape)
    (expected * torch.tensor(weights)).sum().backward()

    @jax.jit
    def both_ways(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found, pull = jax.vjp(ours, x)
        return found, pull(jnp.asarray(weights.reshape(found.shape)))[0]

    found, gradient = both_ways(jnp.asarray(values))
    np.testing.assert_allclose(found.reshape(expected.shape), expected.detach(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(gradient, other.grad, rtol=1e-5, atol=1e-6)
