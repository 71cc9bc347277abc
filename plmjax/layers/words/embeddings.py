"""Tables of learned embeddings.

Deviation: the row of the padding token is trained wherever that token is read. In transformers the tables of BERT,
RoBERTa, ALBERT, ELECTRA, ModernBERT and its decoder, EuroBERT, DistilBERT, MobileBERT, Marian and BART (`padding_idx`
of torch's Embedding) give it no gradient from the lookup, as in fairseq. The released programs of BERT, ALBERT and
ELECTRA give it a gradient, and so does transformers' T5. The padding at the end of a row gives no gradient in either
case, because no token sees it. The difference arises only for a padding token that is read, such as the first token of
Marian's targets, or one that is drawn in place of a masked token.
"""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import Initializer

from plmjax.errors import UserError
from plmjax.layers.product import float32_product

FEW = 1200
"""Maximum number of rows of a small table whose gradient is a matrix product, except on a CPU.

A TPU v5e adds the gradients of tokens to the rows one after the other, in 10 to 20 ns each. With a product it needs
8 ns for 1,024 rows of 768 features.
"""
ROWS = "rows"
"""Collection of variables with rows that were looked up before the model is applied."""


class Embedding(nn.Module):
    """A table `embedding`, float32 [rows D], for the lookup of ids and as an output layer.

    axis: logical name of the rows; None for small tables, which are never sharded along them.
    """

    rows: int
    features: int
    axis: str | None
    embedding_init: Initializer
    dtype: jnp.dtype = jnp.float32

    def setup(self) -> None:
        init = nn.with_logical_partitioning(self.embedding_init, (self.axis, "embed"))
        self.embedding = self.param("embedding", init, (self.rows, self.features))

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Look up ids, int [...] -> [... D].

        If the collection `ROWS` has an `embedding`, float32 [... D], it replaces the lookup. In a compiled program, an
        id outside the table takes the nearest row; the code that makes the batches must check the ids.

        Raises:
            UserError: an id is outside the table; checked only outside of a compiled program.
        """
        if self.has_variable(ROWS, "embedding"):
            rows = self.get_variable(ROWS, "embedding")
            chex.assert_shape(rows, (*ids.shape, self.features))
            return rows.astype(self.dtype)
        check_ids(ids, self.rows, f"the {self.rows} rows of {self.name}")
        if self.axis is None and self.rows <= FEW:
            return _look_up_small(self.dtype, self.embedding, ids)
        return jnp.take(self.embedding, ids, axis=0, mode="clip").astype(self.dtype)

    def attend(self, x: jax.Array) -> jax.Array:
        """Compute the scores of all rows: [... D] -> float32 [... rows].

        Raises:
            ValueError: the collection `ROWS` has rows that replace the table.
        """
        if self.has_variable(ROWS, "embedding"):
            raise ValueError(f"Expected a whole table {self.name} to score with, found rows of it.")
        table = self.embedding.astype(self.dtype)
        return float32_product(functools.partial(jnp.einsum, "...D,VD->...V"), x.astype(self.dtype), table)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _look_up_small(dtype: jnp.dtype, table: jax.Array, ids: jax.Array) -> jax.Array:
    return jnp.take(table, ids, axis=0, mode="clip").astype(dtype)


def _look_up_small_forward(dtype: jnp.dtype, table: jax.Array, ids: jax.Array) -> tuple[jax.Array, tuple]:
    return _look_up_small(dtype, table, ids), (table, ids)


def _look_up_small_backward(dtype: jnp.dtype, kept: tuple, cotangent: jax.Array) -> tuple[jax.Array, None]:
    table, ids = kept
    ids = jnp.clip(ids, 0, len(table) - 1)
    added = functools.partial(_scatter_gradient, table)
    return jax.lax.platform_dependent(
        ids, cotangent, cpu=added, default=functools.partial(_one_hot_gradient, table)
    ), None


_look_up_small.defvjp(_look_up_small_forward, _look_up_small_backward)


def _scatter_gradient(table: jax.Array, ids: jax.Array, cotangent: jax.Array) -> jax.Array:
    """Add the gradients [... D] of the rows at `ids` one by one to a gradient of the table, [rows D]."""
    return jnp.zeros_like(table).at[ids].add(cotangent.astype(table.dtype))


def _one_hot_gradient(table: jax.Array, ids: jax.Array, cotangent: jax.Array) -> jax.Array:
    """Compute the result of `_scatter_gradient` as a product with one-hot ids; the sums are float32 too.

    The constraint makes the shards of the batch sum their products. Without it the compiler exchanges their tokens.
    """
    one_hot = jax.nn.one_hot(ids, len(table), dtype=cotangent.dtype)
    axes = tuple(range(ids.ndim))
    found = jax.lax.dot_general(one_hot, cotangent, ((axes, axes), ((), ())), preferred_element_type=table.dtype)
    return nn.with_logical_constraint(found, (None, "embed"))


def check_ids(ids: jax.Array, rows: int, table: str) -> None:
    """Raise UserError for an id, int [...], outside a table of `rows` rows; `table` is its name in the message.

    While a program is compiled the ids are not known, and nothing is checked.
    """
    if isinstance(ids, jax.core.Tracer):
        return
    found = np.asarray(ids)
    outside = found[(found < 0) | (found >= rows)]
    if outside.size:
        worst = outside.max() if outside.max() >= rows else outside.min()
        raise UserError(
            f"Expected ids from 0 to {rows - 1} for {table}, found {worst}; give ids of the model's own tokenizer, or "
            "a model with a larger table."
        )
