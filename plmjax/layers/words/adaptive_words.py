"""Adaptive input and softmax: fewer features for rarer words.

Sources: Grave et al., arXiv 1609.04309; Baevski and Auli, arXiv 1809.10853.

Tokens are numbered by their frequency, the most frequent first. The cutoffs divide them into clusters. Cluster i has
V_i tokens. Their embeddings have E_i = E / div_val^i features, and a projection maps them to the D features of the
model:

    x = rows_i[token] P_i                       `AdaptiveEmbedding`
    scores_i = (h Q_i^T) rows_i^T + b_i         `AdaptiveSoftmax`; Q_i and rows_i may be tied to the embedding

If `div_val` is 1, all embeddings have one size and share one P; if E is also D, there is neither P nor Q.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer

from plmjax.contracts.parameters import as_bias
from plmjax.contracts.scores import TokenScores
from plmjax.errors import UserError
from plmjax.layers.partitioning import with_all_rows
from plmjax.layers.words.adaptive_scores import AdaptiveScores, Cluster, tail_capacity
from plmjax.layers.words.embeddings import check_ids


@dataclasses.dataclass(frozen=True)
class Clusters:
    """The sizes of the clusters of a vocabulary.

    vocab_size: V.
    cutoffs: the first token of each cluster except the first cluster; empty for one cluster.
    features: D.
    embedding_size: E.
    div_val: factor by which the embeddings of a cluster are smaller than those of the cluster before it.

    Raises:
        UserError: cutoffs that do not ascend within the vocabulary, or a cluster without features.
    """

    vocab_size: int
    cutoffs: tuple[int, ...]
    features: int
    embedding_size: int
    div_val: int = 1

    def __post_init__(self) -> None:
        if any(after <= before for before, after in itertools.pairwise((0, *self.cutoffs, self.vocab_size))):
            raise UserError(
                f"Expected cutoffs that ascend, from 1 to {self.vocab_size - 1} at most, for {self.vocab_size} tokens, "
                f"found {', '.join(map(str, self.cutoffs))}; change --model.cutoffs."
            )
        if self.widths[-1] < 1:
            raise UserError(
                f"Expected an embedding size of {self.div_val ** len(self.cutoffs)} at least, so that the last of "
                f"{len(self.cutoffs) + 1} clusters has a feature, found {self.embedding_size}; change --model.div_val, "
                "--model.cutoffs or the embedding size."
            )

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Pairs (first token, last token + 1), one for each cluster."""
        return tuple(itertools.pairwise((0, *self.cutoffs, self.vocab_size)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of tokens of each cluster."""
        return tuple(end - first for first, end in self.bounds)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of features of each cluster's embeddings, E_i."""
        return tuple(self.embedding_size // self.div_val**number for number in range(len(self.cutoffs) + 1))

    @property
    def projected(self) -> bool:
        """True if embeddings are projected."""
        return self.div_val > 1 or self.embedding_size != self.features

    def multiplications(self, read: int, scored: int) -> float:
        """Return the multiplications of a forward pass with `read` tokens and scores at `scored` positions.

        Tails are scored at their capacity.
        """
        projections = [width * self.features * self.projected for width in self.widths]
        count = read * sum(projections if self.div_val > 1 else projections[:1])
        fractions = [tail_capacity(*bounds, self.vocab_size) for bounds in self.bounds[1:]]
        for fraction, size, width, projection in zip(
            (1, *fractions), self.sizes, self.widths, projections, strict=True
        ):
            count += math.ceil(fraction * scored) * (size * width + projection)
        return count + scored * len(self.cutoffs) * self.embedding_size


class AdaptiveEmbedding(nn.Module):
    """The tables `table_i`, float32 [V_i E_i], and the projections `projection_i`, float32 [E_i D]."""

    clusters: Clusters
    table_init: Initializer
    projection_init: Initializer
    dtype: jnp.dtype = jnp.float32

    def setup(self) -> None:
        table, projection = parameters(self, self.table_init, self.projection_init)
        sizes, widths, features = self.clusters.sizes, self.clusters.widths, self.clusters.features
        self.tables = [
            table(f"table_{i}", (size, width)) for i, (size, width) in enumerate(zip(sizes, widths, strict=True))
        ]
        kept = widths[: len(widths) if self.clusters.div_val > 1 else 1] if self.clusters.projected else ()
        self.projections = [projection(f"projection_{i}", (width, features)) for i, width in enumerate(kept)]

    def projection(self, cluster: int) -> jax.Array | None:
        """Return the projection of a cluster, float32 [E_i D]; None without one."""
        return self.projections[min(cluster, len(self.projections) - 1)] if self.projections else None

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Look up ids, int [B T] -> [B T D], as `Embedding` does.

        Shapes are static, so each cluster is read at every position. Its projection is cheap compared with a layer.
        """
        check_ids(ids, self.clusters.vocab_size, f"the {self.clusters.vocab_size} rows of {self.name}")
        cluster = sum((ids >= cutoff for cutoff in self.clusters.cutoffs), start=jnp.zeros_like(ids))
        found = []
        for number, (first, end) in enumerate(self.clusters.bounds):
            rows = _rows(self.tables[number], jnp.clip(ids - first, 0, end - first - 1))
            found.append(jnp.where((cluster == number)[..., None], rows, 0).astype(self.dtype))
        if len(self.projections) < 2:
            found = [sum(found)]
        kernels = [kernel.astype(self.dtype) for kernel in self.projections]
        return sum(rows @ kernel for rows, kernel in zip(found, kernels, strict=True)) if kernels else found[0]


class AdaptiveSoftmax(nn.Module):
    """The output layer of an adaptive softmax, with a bias for each token.

    tied_tables: true to use the tables of the embedding, false for separate parameters `table_i`.
    tied_projections: true to use the projections of the embedding for all clusters but the first; false for separate
        parameters `projection_i` of all clusters.
    """

    clusters: Clusters
    table_init: Initializer
    projection_init: Initializer
    tied_tables: bool = True
    tied_projections: bool = True

    @nn.compact
    def __call__(self, hidden: jax.Array, words: AdaptiveEmbedding | None = None) -> TokenScores:
        """Return the scores for [B T D]; `words` is the embedding, if parameters are tied."""
        clusters = self.clusters
        table, projection = parameters(self, self.table_init, self.projection_init)
        found = []
        for number, (size, width) in enumerate(zip(clusters.sizes, clusters.widths, strict=True)):
            rows = words.tables[number] if self.tied_tables else table(f"table_{number}", (size, width))
            zeros = as_bias(nn.initializers.zeros, ("vocab",))
            bias, kernel = self.param(f"bias_{number}", zeros, (size,)), None
            if clusters.projected and self.tied_projections and number:
                kernel = words.projection(number)
            elif clusters.projected:
                kernel = projection(f"projection_{number}", (width, clusters.features))
            found.append(Cluster(rows, bias, kernel))
        head, *tails = found
        if not tails:
            return head.scores(hidden)
        entries = self.param(
            "entries",
            nn.with_logical_partitioning(self.table_init, (None, "embed")),
            (len(tails), clusters.embedding_size),
        )
        bias = self.param("entries_bias", as_bias(nn.initializers.zeros, (None,)), (len(tails),))
        head = head.replace(table=jnp.concatenate([head.table, entries]), bias=jnp.concatenate([head.bias, bias]))
        return AdaptiveScores(hidden, head, tuple(tails))


@jax.custom_vjp
def _rows(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Look up rows of a table: [V E], int [B T] -> [B T E].

    If there are fewer tokens than rows, the devices exchange the cotangents, [B T E], in the backward pass, and each
    adds those of all tokens to its gradient. Otherwise they sum the gradients of the table, as they do for the scores.
    """
    return jnp.take(table, ids, axis=0)


def _rows_forward(table: jax.Array, ids: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _rows(table, ids), (ids, table)


def _rows_backward(kept: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, None]:
    ids, table = kept
    if ids.size < len(table):
        ids, cotangent = with_all_rows(ids), with_all_rows(cotangent)
    return jnp.zeros_like(table).at[ids].add(cotangent), None


_rows.defvjp(_rows_forward, _rows_backward)


def parameters(module: nn.Module, init: Initializer, projection_init: Initializer) -> tuple[Callable, Callable]:
    """Return two functions (name, shape) -> parameter: for tables [V_i E_i], and for projections [E_i D]."""
    table = nn.with_logical_partitioning(init, ("vocab", "embed"))
    projection = nn.with_logical_partitioning(projection_init, (None, "embed"))
    return (
        lambda name, shape: module.param(name, table, shape),
        lambda name, shape: module.param(name, projection, shape),
    )
