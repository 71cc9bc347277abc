"""Layers whose matrices are products of two matrices of a lower rank: W = A B, with A [in R] and B [R out].

A model computes (x A) B, which takes R (in + out) multiplications for each token in place of in x out.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plmjax.contracts.system import ParameterGroup, group_of
from plmjax.layers.projection import Projection

KINDS = (
    "attention/query",
    "attention/key",
    "attention/value",
    "attention/output",
    "feed_forward/intermediate",
    "feed_forward/output",
)
"""The projections of a layer, in the order of `ranks`."""
REDUCE, EXPAND = "reduce", "expand"
"""Names of the projections to R features and from them."""


class LowRankProjection(Projection):
    """y = (x A) B + b.

    rank: R.
    make: function that makes the projections A and B; None for `Projection`.
    """

    rank: int = 1
    make: Callable[..., nn.Module] | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        contracted, make = len(self.axes) - len(self.features), self.make or Projection
        inputs, outputs = self.axes[:contracted], self.axes[contracted:]
        # The initial values of A B are as large as those of one kernel.
        init = nn.initializers.normal(self.rank**-0.5)
        reduce = make((self.rank,), (*inputs, "rank"), init, self.dtype, use_bias=False, name=REDUCE)
        settings = {"logits": self.logits, "use_bias": self.use_bias, "bias_init": self.bias_init}
        expand = make(self.features, ("rank", *outputs), self.kernel_init, self.dtype, name=EXPAND, **settings)
        return expand(reduce(x))


@dataclasses.dataclass(frozen=True)
class LowRank:
    """A factory of the projections of layers (`Execution.projection`).

    ranks: rank of each of `KINDS`; 0 for a dense matrix.
    make: function that makes projections with one matrix, also A and B; None for `Projection`.
    """

    ranks: tuple[int, ...]
    make: Callable[..., nn.Module] | None = None

    def __call__(
        self, features: tuple[int, ...], axes: tuple[str | None, ...], *arguments: Any, name: str, **settings: Any
    ) -> nn.Module:
        """Return the projection `name` of attention if `axes` names the heads, otherwise of a feed-forward network."""
        kind = f"{'attention' if 'heads' in axes else 'feed_forward'}/{name}"
        rank = dict(zip(KINDS, self.ranks, strict=True)).get(kind, 0)
        if not rank:
            return (self.make or Projection)(features, axes, *arguments, name=name, **settings)
        return LowRankProjection(features, axes, *arguments, name=name, rank=rank, make=self.make, **settings)


def layer_products(ranks: Sequence[int], width: int, attended: int, inner: int) -> int:
    """Return the multiplications of a layer's matrices for one token: 4 D N H + 2 D F if all have full rank.

    ranks: rank of each of `KINDS`, 0 for full rank; empty if all have full rank.
    width: D.
    attended: N H.
    inner: F.
    """
    sizes = (*((width, attended),) * 4, (width, inner), (inner, width))
    return sum(rank * (a + b) if rank else a * b for (a, b), rank in zip(sizes, ranks or (0,) * 6, strict=True))


def multiply_pairs(params: Mapping[str, np.ndarray], groups: Sequence[ParameterGroup]) -> dict[str, np.ndarray]:
    """Multiply each pair of kernels to a dense kernel. Return the parameters, a dict from path to array.

    groups: the parameter groups of the model.
    """
    params = dict(params)
    for path in [path for path in params if path.endswith(f"/{REDUCE}/kernel")]:
        projection = path.removesuffix(f"/{REDUCE}/kernel")
        first, second = (np.asarray(params.pop(f"{projection}/{part}/kernel")) for part in (REDUCE, EXPAND))
        place = group_of(path, groups)
        layers = first.shape[:1] if place is not None and place[1] is not None else ()
        inputs, outputs = first.shape[len(layers) : -1], second.shape[len(layers) + 1 :]
        product = first.reshape(*layers, -1, first.shape[-1]) @ second.reshape(*layers, first.shape[-1], -1)
        params[f"{projection}/kernel"] = product.reshape(*layers, *inputs, *outputs)
        if (bias := params.pop(f"{projection}/{EXPAND}/bias", None)) is not None:
            params[f"{projection}/bias"] = bias
    return params
