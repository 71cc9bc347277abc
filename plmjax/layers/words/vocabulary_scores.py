"""The scores that a language model gives to every token of its vocabulary, and their cross-entropy.

The scores of 50,257 tokens for one row of 1,024 positions take 196 MiB in float32, and their gradient takes the same.
So the cross-entropy is computed for a few positions at a time: their scores, the softmax and the gradients are computed
and dropped before the next positions. No array has the scores of all positions.
"""

import functools
import math

import chex
import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from plmjax.contracts.scores import TokenScores
from plmjax.layers.partitioning import shard_counts
from plmjax.layers.product import float32_product

CHUNK = 2**26
"""Maximum number of scores that a device holds at a time, 256 MiB of float32: 1,335 positions of 50,257 tokens.

Every chunk reads the table twice and adds to its gradient, in float32. On the newest TPUs this would take longer than
the matrix products of a chunk with fewer positions. A chunk has at least one position of each row, even if a device
then holds more scores.
"""
FAST_CHUNK = 2**27
"""`CHUNK` of the devices in `FAST`, 512 MiB of float32.

With it, the planned step of GPT-2 small takes 3 % less time on v5e:8x8, and no less on v3:8x8
(benchmarks/vocabulary.py).
"""
FAST = ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e")
"""Values of `device_kind` whose matrix products are fast compared with their memory."""


@flax.struct.dataclass
class VocabularyScores(TokenScores):
    """The full softmax: logits are hidden . table + bias. They are computed only on request.

    hidden: [B T D], in the dtype of the products.
    table: float32 [V D], the output layer: often the word table itself. Its logical axes are ("vocab", "embed").
    bias: float32 [V], or None.
    """

    hidden: jax.Array
    table: jax.Array
    bias: jax.Array | None = None

    def logits(self) -> jax.Array:
        """Return the logits, float32 [B T V]."""
        table = self.table.astype(self.hidden.dtype)
        scores = float32_product(functools.partial(jnp.einsum, "BTD,VD->BTV"), self.hidden, table)
        scores = scores if self.bias is None else scores + self.bias
        return nn.with_logical_constraint(scores, ("batch", "length", "vocab"))

    def last_logits(self) -> jax.Array:
        """Return the logits of the last position, float32 [B V]."""
        return self.replace(hidden=self.hidden[:, -1:]).logits()[:, 0]

    @property
    def vocab_size(self) -> int:
        """Vocabulary size, V."""
        return len(self.table)

    def target_logits(self, targets: jax.Array) -> jax.Array:
        """Return the logit of one token at each position, int [B T] -> float32 [B T]."""
        self._check(targets)
        table = self.table[targets].astype(self.hidden.dtype)
        logits = float32_product(functools.partial(jnp.einsum, "BTD,BTD->BT"), self.hidden, table)
        return logits if self.bias is None else logits + self.bias[targets]

    def token_logits(self, tokens: jax.Array) -> jax.Array:
        """Return the logits of a few tokens at all positions, int [S] -> float32 [B T S]."""
        table = self.table[tokens].astype(self.hidden.dtype)
        logits = float32_product(functools.partial(jnp.einsum, "BTD,SD->BTS"), self.hidden, table)
        return logits if self.bias is None else logits + self.bias[tokens]

    def cross_entropy(self, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the cross-entropy and the hits for targets, int [B T].

        The cross-entropy is -log softmax(logits)[targets], float32 [B T]. A hit is true if no token scores higher than
        the target, bool [B T].

        The backward pass computes the scores again. For a loss with known weights use `weighted_cross_entropy`. Only
        first-order reverse-mode differentiation is defined; JAX raises an error for forward mode.
        """
        self._check(targets)
        return _cross_entropy(self, targets)

    def weighted_cross_entropy(self, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return sum(weights x nats), float32 scalar, and the hits; targets and weights are [B T].

        The nats and the hits are the two results of `cross_entropy`. When this is differentiated, the gradients are
        computed in the forward pass, while the scores exist. This takes three matrix products; `cross_entropy` takes a
        fourth, because its backward pass computes the scores again. The gradient of the table depends on the weights of
        all positions, so they must be known in the forward pass. The result may be multiplied by a number afterwards.
        """
        loss, _, correct = self.smoothed_cross_entropy(targets, weights, smoothing=0.0, z_loss=0.0)
        return loss, correct

    def smoothed_cross_entropy(
        self, targets: jax.Array, weights: jax.Array, *, smoothing: float, z_loss: float
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return sum(weights x (smoothed nats + z_loss log(Z)^2)), float32 scalar, plain nats and hits.

        Everything else is as in `weighted_cross_entropy`. Smoothed nats are the cross-entropy with 1 - smoothing for
        the target and smoothing / (V - 1) for every other token. log(Z) is logsumexp of a position's scores. The plain
        nats, float32 [B T], are for reports: no gradient passes through them.
        """
        self._check(targets)
        chex.assert_equal_shape([targets, weights])
        loss, nats, correct = _weighted_cross_entropy(smoothing, z_loss, self, targets, weights)
        return loss, jax.lax.stop_gradient(nats), correct

    def _check(self, targets: jax.Array) -> None:
        chex.assert_shape(self.hidden, (*targets.shape, self.table.shape[1]))
        chex.assert_type(targets, int)


def _chunk() -> int:
    """Return `FAST_CHUNK` or `CHUNK`, by the devices of the traced program; `CHUNK` without a mesh."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return FAST_CHUNK if device is not None and device.device_kind in FAST else CHUNK


def _in_chunks(
    scores: VocabularyScores,
    targets: jax.Array,
    weights: jax.Array | None,
    *,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array, VocabularyScores | None]:
    """Compute the cross-entropy and its gradients in chunks of positions.

    Return losses and nats [B T], which differ by smoothing and z_loss; hits [B T]; and the gradients of sum(weights x
    losses). Without weights the gradients are None.

    The shards of the batch are an axis G. Each shard sums the gradient of its own rows over the chunks, and these sums
    are added once, after the last chunk. With one sum for all shards the compiler would exchange gradients in every
    chunk. The table is gathered before the first chunk for the same reason.
    """
    rows, length, features = scores.hidden.shape
    vocabulary, dtype = len(scores.table), scores.hidden.dtype
    other_probability = smoothing / max(vocabulary - 1, 1)  # a token other than the target
    devices, parts = shard_counts((rows, vocabulary), ("batch", "vocab"))
    scores_per_position = rows // devices * vocabulary // parts
    chunks = min(length, math.ceil(length * scores_per_position / _chunk()))
    table = nn.with_logical_constraint(scores.table.astype(dtype), ("vocab", None))

    def split(x: jax.Array) -> jax.Array:  # [B T ...] -> [chunks G B/G T/chunks ...], padded with 0
        x = jnp.pad(x, [(0, 0), (0, -length % chunks)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(devices, rows // devices, chunks, -1, *x.shape[2:]), 2, 0)

    def join(x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x, 0, 2)
        return x.reshape(rows, -1, *x.shape[4:])[:, :length]

    def chunk(total: tuple | None, inputs: tuple) -> tuple[tuple | None, tuple]:
        """Add one chunk to the sums of the gradients, table [G V D] and bias [G V].

        The inputs are a chunk of hidden, targets and weights.
        """
        hidden, targets, weights = inputs
        logits = jnp.einsum("GBTD,VD->GBTV", hidden, table, preferred_element_type=jnp.float32)
        logits = logits if scores.bias is None else logits + scores.bias
        logits = nn.with_logical_constraint(logits, ("batch", None, "length", "vocab"))
        normalizer = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        loss = nats = normalizer - chosen
        if smoothing:
            loss += smoothing * chosen - other_probability * (jnp.sum(logits, axis=-1) - chosen)
        if z_loss:
            loss += z_loss * normalizer**2
        found = loss, nats, chosen >= jnp.max(logits, axis=-1)
        if total is None:
            return None, (*found, None)
        is_target = jnp.arange(vocabulary) == targets[..., None]
        expected = jnp.where(is_target, 1 - smoothing, other_probability) if smoothing else is_target
        probability = jnp.exp(logits - normalizer[..., None])
        if z_loss:
            probability *= 1 + 2 * z_loss * normalizer[..., None]
        error = weights[..., None] * (probability - expected)
        rounded = error.astype(dtype)  # as `float32_product` does
        hidden_gradient = jnp.einsum("GBTV,VD->GBTD", rounded, table)
        table_gradient, bias_gradient = total
        table_gradient += jnp.einsum("GBTV,GBTD->GVD", rounded, hidden, preferred_element_type=jnp.float32)
        bias_gradient = None if bias_gradient is None else bias_gradient + jnp.sum(error, axis=(1, 2))
        return (table_gradient, bias_gradient), (*found, hidden_gradient)

    total = None
    if weights is not None:
        table_gradient = nn.with_logical_constraint(
            jnp.zeros((devices, vocabulary, features)), ("batch", "vocab", None)
        )
        bias_gradient = nn.with_logical_constraint(jnp.zeros((devices, vocabulary)), ("batch", "vocab"))
        total = table_gradient, None if scores.bias is None else bias_gradient
    total, found = jax.lax.scan(chunk, total, jax.tree.map(split, (scores.hidden, targets, weights)))
    *results, hidden_gradient = jax.tree.map(join, found)
    if total is None:
        return *results, None
    table_gradient, bias_gradient = total
    # Devices exchange a matrix's gradient in the dtype of the products; `jnp.sum` would convert it to float32 first.
    table_gradient = jax.lax.reduce_sum(table_gradient.astype(dtype), (0,))
    table_gradient = nn.with_logical_constraint(table_gradient, ("vocab", "embed"))
    bias_gradient = None if bias_gradient is None else jnp.sum(bias_gradient, axis=0)
    gradient = VocabularyScores(hidden_gradient, table_gradient, bias_gradient)
    # Summed before the layers' backward pass. Otherwise float32 sums [G V D] would stay in memory during that pass.
    return *results, jax.lax.optimization_barrier(gradient)


@jax.custom_vjp
def _cross_entropy(scores: VocabularyScores, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    _, nats, correct, _ = _in_chunks(scores, targets, None)
    return nats, correct


def _cross_entropy_forward(scores: VocabularyScores, targets: jax.Array) -> tuple[tuple, tuple]:
    return _cross_entropy(scores, targets), (scores, targets)


def _cross_entropy_backward(kept: tuple, cotangents: tuple) -> tuple[VocabularyScores, None]:
    scores, targets = kept
    *_, gradient = _in_chunks(scores, targets, cotangents[0])
    return jax.tree.map(lambda g, x: g.astype(x.dtype), gradient, scores), None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _weighted_cross_entropy(
    smoothing: float, z_loss: float, scores: VocabularyScores, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    losses, nats, correct, _ = _in_chunks(scores, targets, None, smoothing=smoothing, z_loss=z_loss)
    return jnp.sum(weights * losses), nats, correct


def _weighted_forward(
    smoothing: float, z_loss: float, scores: VocabularyScores, targets: jax.Array, weights: jax.Array
) -> tuple[tuple, tuple]:
    losses, nats, correct, gradient = _in_chunks(scores, targets, weights, smoothing=smoothing, z_loss=z_loss)
    return (jnp.sum(weights * losses), nats, correct), (scores, gradient, losses)


def _weighted_backward(
    smoothing: float, z_loss: float, kept: tuple, cotangents: tuple
) -> tuple[VocabularyScores, None, jax.Array]:
    scores, gradient, losses = kept
    factor = cotangents[0]
    return jax.tree.map(lambda g, x: (factor * g).astype(x.dtype), gradient, scores), None, factor * losses


_weighted_cross_entropy.defvjp(_weighted_forward, _weighted_backward)
