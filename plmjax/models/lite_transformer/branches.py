"""The two branches of a Lite Transformer's layer, and the cache of its decoder.

Half of the features go through attention, which relates distant tokens, the others through a convolution, which relates
neighbors (Wu et al. 2020, arXiv 2004.11886, section 4; mit-han-lab/lite-transformer fairseq/modules/multibranch.py).
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import FRACTION, FROM_1, UserError, check_choice, check_ranges
from plmjax.layers.attention.cache import KeyValueCache, with_past
from plmjax.layers.convolutions import CONVOLUTIONS, LightweightConvolution
from plmjax.layers.rows import DecoderRows
from plmjax.models.transformer import attention_of


@dataclasses.dataclass(frozen=True)
class BranchesConfig(ModelConfig):
    """Settings of the convolutions, and the initializers, of every Lite Transformer."""

    convolution: str = "dynamic"
    """Convolution: dynamic (weights from each token, gated inputs) or lightweight (weights are parameters)."""
    convolution_heads: int = 4
    """Number of heads of the convolution, whose features share their weights."""
    convolution_dropout: float = 0.1
    """Dropout rate of the weights of a convolution (DropConnect)."""

    scale_embedding: ClassVar[bool] = True
    """Words are multiplied by sqrt(D) before positions are added."""

    def check_branches(self, heads: dict[str, int], depths: dict[str, int]) -> None:
        """Check the settings of the two branches.

        Args:
            heads: dict from a field that is a number of heads to the number of features that it must divide.
            depths: dict from a field of kernel sizes to its number of layers.

        Raises:
            UserError: sizes that do not fit each other, or an unknown convolution.
        """
        check_ranges("model", self, **dict.fromkeys(heads, FROM_1), convolution_dropout=FRACTION)
        check_choice("convolution", self.convolution, CONVOLUTIONS)
        if self.width % 2:
            raise UserError(f"Expected features for two branches, found {self.width}; make --model.d_model even.")
        for name, size in heads.items():
            if size % getattr(self, name):
                raise UserError(
                    f"Expected {size} features that divide by the heads, found {getattr(self, name)} heads; change "
                    f"--model.d_model or --model.{name}."
                )
        for name, depth in depths.items():
            sizes = getattr(self, name)
            if len(sizes) != depth or min(sizes) < 1:
                raise UserError(
                    f"Expected {depth} sizes from 1, one for each layer, found {sizes}; change --model.{name}."
                )

    @property
    def initializer(self) -> Initializer:
        """Initializer of kernels [inputs outputs]."""
        return nn.initializers.xavier_uniform()

    @property
    def token_initializer(self) -> Initializer:
        """Initializer of the word table."""
        return nn.initializers.normal(self.width**-0.5)

    @property
    def heads_initializer(self) -> Initializer:
        """Initializer of the kernels [D N H] of queries, keys and values.

        The released code initializes the three as one wide matrix. So their variance is half of Glorot's.
        """
        return nn.initializers.variance_scaling(0.5, "fan_avg", "uniform", in_axis=0, out_axis=(1, 2))

    @property
    def output_projection_initializer(self) -> Initializer:
        """Initializer of the kernel [N H D] after attention."""
        return nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=(0, 1), out_axis=2)

    def branches_products(self, tokens: int, kernel_size: int) -> int:
        """Return the multiplications of the matrix products of both branches of a layer for a row of T tokens.

        With M = D / 2, attention takes 4 M^2 + 2 T M per token. A lightweight convolution takes 2 M^2, a dynamic
        convolution 3 M^2 + M H K for H heads and K positions. The sums over the K positions are no matrix products and
        are not counted.
        """
        half = self.width // 2
        scores = half**2 + half * self.convolution_heads * kernel_size if self.convolution == "dynamic" else 0
        return tokens * (6 * half**2 + 2 * tokens * half + scores)


def convolution_of(config: BranchesConfig, kernel_size: int, execution: Execution) -> LightweightConvolution:
    """Return the convolution of a layer, for half of the features."""
    sizes = config.width // 2, config.convolution_heads, kernel_size
    return CONVOLUTIONS[config.convolution](*sizes, config.convolution_dropout, config.initializer, execution)


def equal_kernels(kernel_sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield the kernel size, the first layer and the number of layers of each run of layers with equal kernels."""
    first = 0
    for size, layers in itertools.groupby(kernel_sizes):
        count = len(list(layers))
        yield size, first, count
        first += count


@flax.struct.dataclass
class LongShortCache(KeyValueCache):
    """Keys and values of every layer, and the last inputs of its convolution.

    inputs: [L B P D/2], the inputs of the last P tokens, where P + 1 is the largest kernel size; 0 before the text.
    """

    inputs: jax.Array

    def take_rows(self, indices: jax.Array) -> "LongShortCache":
        return super().take_rows(indices).replace(inputs=jnp.take(self.inputs, indices, axis=1))


def long_short_cache(config: Any, batch: int, capacity: int, execution: Execution) -> LongShortCache:
    """Return an empty cache of keys and values, and of inputs of the convolutions."""
    depth, half, heads = config.decoder_layers, config.width // 2, config.decoder_attention_heads
    empty = KeyValueCache.empty(depth, batch, capacity, heads=heads, size=half // heads, dtype=execution.dtype)
    inputs = jnp.zeros((depth, batch, max(config.decoder_kernel_sizes) - 1, half), execution.dtype)
    fields = {field.name: getattr(empty, field.name) for field in dataclasses.fields(empty)}
    return LongShortCache(**fields, inputs=nn.with_logical_constraint(inputs, ("layers", "batch", None, "mlp")))


def with_past_inputs(
    new: jax.Array, cache: LongShortCache | None, layer: jax.Array, kernel_size: int
) -> tuple[jax.Array, LongShortCache | None]:
    """Prepend the last K - 1 inputs of a convolution to the inputs of T new tokens, and update the cache.

    Args:
        new: inputs of the new tokens, [B T C].
        cache: the previous inputs; None: they are 0.
        layer: the index of the layer, int scalar.
        kernel_size: K.

    Returns:
        all inputs, [B K-1+T C], and the updated cache.
    """
    if cache is None:
        return jnp.pad(new, ((0, 0), (kernel_size - 1, 0), (0, 0))), None
    kept = cache.inputs.shape[2]
    both = jnp.concatenate([cache.inputs[layer], new.astype(cache.inputs.dtype)], axis=1)
    cache = cache.replace(inputs=cache.inputs.at[layer].set(both[:, both.shape[1] - kept :]))
    return both[:, kept - (kernel_size - 1) :].astype(new.dtype), cache


class CausalBranches(nn.Module):
    """The base of a decoder's layers: the two branches, which see no later token.

    config: a config with `decoder_attention_heads`.
    kernel_size: number of tokens that the convolution reads, K: the token itself and those before it.
    """

    config: Any
    kernel_size: int
    execution: Execution

    def create_branches(self) -> None:
        """Create the attention and the convolution; `setup` calls it."""
        config, execution = self.config, self.execution
        self.attention = attention_of(config, config.width // 2, config.decoder_attention_heads, execution)
        self.convolution = convolution_of(config, self.kernel_size, execution)

    def branches(
        self, y: jax.Array, rows: DecoderRows, cache: LongShortCache | None, layer: jax.Array, *, deterministic: bool
    ) -> tuple[jax.Array, LongShortCache | None]:
        """Map [B T D] to the outputs of both branches, [B T D], and to the updated cache."""
        attend = functools.partial(self.attention.attend, deterministic=deterministic)
        convolution = functools.partial(self.convolution, deterministic=deterministic)

        distant, near = jnp.split(y, 2, axis=-1)
        key_values, cache = with_past(self.attention.key_values(distant), cache, layer)
        inputs = self.convolution.inputs(near, rows.mask)
        window, cache = with_past_inputs(inputs, cache, layer, self.kernel_size)
        distant = attend(distant, key_values, rows.mask_terms)
        near = convolution(inputs, window, rows.segment_ids, self.kernel_size - 1)
        return jnp.concatenate([distant, near], axis=-1), cache
