"""Block movement pruning (Lagunas et al., EMNLP 2021, arXiv 2109.04838; huggingface/nn_pruning) removes structures.

Each block of the attention matrices and each inner feature of the feed-forward networks has a score, like each weight
in movement pruning. At the end, heads and features without weights are removed, so that the step is faster on every
device.

Deviation: a feature has one score, for its column of the first matrix and its row of the second; nn_pruning scores
both, and removes features that either score prunes.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plmjax.compression.compression import Params
from plmjax.compression.pruning.masks import top_fraction
from plmjax.compression.pruning.pruned import Arrays, MovementPruning, straight_through
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import FROM_0, UserError, check_ranges
from plmjax.models.compressed.configs import check_prunable, divides_heads
from plmjax.models.compressed.removal import remove_zeros
from plmjax.objectives.objective import Objective

_INNER, _OUTER = "feed_forward/intermediate/kernel", "feed_forward/output/kernel"


@dataclasses.dataclass(frozen=True)
class BlockMovementPruning(MovementPruning):
    """Movement pruning of blocks of attention and of features of the feed-forward networks.

    Raises:
        UserError: the size of a block is negative.
    """

    name: ClassVar[str] = "block_movement"

    attention_block: int = 0
    """Number of rows and of columns of a block of the attention matrices; 0 takes whole heads. Published: 32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges("compression", self, attention_block=FROM_0)

    def check(self, model: ModelConfig, objective: Objective) -> None:
        """Raise UserError for a model whose layers must be equal, or a block size that does not divide its heads."""
        check_prunable(model)
        block = self.attention_block
        if block and not divides_heads(model, block):
            raise UserError(
                f"Expected --compression.attention_block to divide the features of a head, found {block}; change it, "
                f"or set 0 for whole heads."
            )

    def scores(self, path: str, kernel: nn.LogicallyPartitioned) -> nn.LogicallyPartitioned | None:
        """Return a score of 0 for each block; matrices that share scores have them under the path of the first."""
        layers, *shape = kernel.value.shape
        if path.endswith(_OUTER) or (not self.attention_block and not path.endswith((_INNER, "query/kernel"))):
            return None
        if path.endswith(_INNER):
            shape = [1, shape[1]]
        elif self.attention_block:
            heads = 0 if path.endswith("output/kernel") else 1
            shape = [size if axis == heads else size // self.attention_block for axis, size in enumerate(shape)]
        else:
            shape = [1, shape[1], 1]
        names = (kernel.names[0], *([None] * len(shape)))
        return nn.LogicallyPartitioned(jnp.zeros((layers, *shape), kernel.value.dtype), names)

    def masks(self, kernels: Arrays, scores: Arrays, stacks: Mapping[str, bool], *, step: Any, steps: int) -> Arrays:
        fraction = self.kept_fraction(step, steps)
        kept = {
            path: straight_through(top_fraction(score, fraction, stacked=True), score) for path, score in scores.items()
        }

        def mask(path: str, kernel: jax.Array) -> jax.Array:
            if path.endswith(_OUTER):
                return jnp.swapaxes(kept[path.removesuffix(_OUTER) + _INNER], 1, 2)
            if path in kept:
                return _expand(kept[path], kernel.shape)
            query = kept[path.rpartition("/attention/")[0] + "/attention/query/kernel"]  # [L 1 N 1]
            return jnp.swapaxes(query, 1, 2) if path.endswith("output/kernel") else query

        return {path: mask(path, kernel) for path, kernel in kernels.items()}

    def finish(self, params: Params, model: ModelConfig) -> tuple[Params, ModelConfig]:
        """Return the parameters and the config without the heads and the features that have no weights."""
        return remove_zeros(*super().finish(params, model))


def _expand(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Repeat the entries of blocks along each axis up to a shape, except for axes of size 1."""
    for axis, size in enumerate(shape):
        if blocks.shape[axis] not in (1, size):
            blocks = jnp.repeat(blocks, size // blocks.shape[axis], axis=axis)
    return blocks
