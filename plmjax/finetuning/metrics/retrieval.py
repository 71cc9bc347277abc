"""Search of passages by vectors, and metrics of the rankings, as trec_eval and BEIR compute them.

A passage without a judgement does not answer the query. A query without any judgement is left out; the metrics of a
query are 0 if its judgements are all 0. Of passages with equal similarity, the passage with the larger id, as text,
comes first (trec_eval, `comp_sim_docno`).
"""

import math
import re
import urllib.parse
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError

QUERIES, PASSAGES = 1024, 8192
"""Numbers of queries and of passages that are compared at once."""
Ranking = list[tuple[str, float]]
"""(id of a passage, its similarity to the query), the most similar first."""


def search(
    queries: np.ndarray,
    passages: np.ndarray,
    *,
    query_ids: Sequence[str],
    passage_ids: Sequence[str],
    count: int,
    block: int = PASSAGES,
) -> list[Ranking]:
    """Return the `count` passages with the largest dot product for each query, or all if there are fewer.

    A passage with the id of the query is left out: in some corpora a query is a passage too (BEIR,
    `ignore_identical_ids`).

    queries: float32 [Q D]. passages: float32 [P D]. block: number of passages that are compared at once; memory grows
    with it, and not with P.

    Raises:
        UserError: a vector has a number that is not finite.
    """
    if not (np.isfinite(queries).all() and np.isfinite(passages).all()):
        raise UserError("Expected finite vectors of queries and passages, found others; the run may have diverged.")
    order = np.array(sorted(range(len(passage_ids)), key=passage_ids.__getitem__, reverse=True))
    most, block = min(count + 1, len(order)), min(block, len(order))
    rankings = []
    for first in range(0, len(queries), QUERIES):
        some = queries[first : first + QUERIES]
        scores, places = np.full((len(some), most), -np.inf, np.float32), np.zeros((len(some), most), np.int32)
        for start in range(0, len(order), block):
            chosen = passages[order[start : start + block]]
            padded = np.pad(chosen, ((0, block - len(chosen)), (0, 0)))
            scores, places = _keep_best(some, padded, (scores, places), start=start, size=len(chosen))
        for query, own, found in zip(query_ids[first:], np.asarray(scores), np.asarray(places), strict=False):
            named = [(passage_ids[order[place]], float(score)) for score, place in zip(own, found, strict=True)]
            rankings.append([(name, score) for name, score in named if name != query][:count])
    return rankings


@jax.jit
def _keep_best(
    queries: jax.Array, block: jax.Array, before: tuple[jax.Array, jax.Array], *, start: int, size: int
) -> tuple[jax.Array, jax.Array]:
    """Return the best scores and the places of their passages, [Q K], among those of `before` and of a block.

    start: place of the first passage of the block. size: number of passages of the block that are not padding.
    """
    scores, places = before
    new = jnp.einsum("qd,pd->qp", queries, block, precision=jax.lax.Precision.HIGHEST)
    within = jnp.arange(len(block))
    new = jnp.where(within < size, new, -jnp.inf)
    # Of equal scores top_k takes the first, which belongs to the earlier place.
    scores = jnp.concatenate([scores, new], axis=1)
    places = jnp.concatenate([places, jnp.broadcast_to(start + within, new.shape)], axis=1)
    best, chosen = jax.lax.top_k(scores, places.shape[1] - len(block))
    return best, jnp.take_along_axis(places, chosen, axis=1)


def trec_run(query_ids: Sequence[str], rankings: Sequence[Ranking]) -> str:
    """Return the rankings in the TREC format, which trec_eval reads: query, Q0, passage, rank, similarity, name.

    White space in an id, which divides the columns, is percent-encoded.
    """
    return "".join(
        f"{_column(query)} Q0 {_column(name)} {rank} {score:.9g} plmjax\n"
        for query, ranking in zip(query_ids, rankings, strict=True)
        for rank, (name, score) in enumerate(ranking, start=1)
    )


def _column(name: str) -> str:
    return re.sub(r"\s", lambda space: urllib.parse.quote(space[0]), name)


def score_rankings(
    rankings: Sequence[Ranking],
    judgements: Sequence[Mapping[str, int]],
    *,
    ndcg_at: Sequence[int],
    mrr_at: Sequence[int],
    recall_at: Sequence[int],
) -> dict[str, float]:
    """Return the means over the queries of ndcg@K, mrr@K and recall@K, each for its own numbers K of passages.

    judgements: id of a passage -> score, for each query.
    """
    wanted = (("ndcg", _ndcg, ndcg_at), ("mrr", _reciprocal_rank, mrr_at), ("recall", _recall, recall_at))
    queries = [([name for name, _ in found], judged) for found, judged in zip(rankings, judgements, strict=True)]
    return {
        f"{name}@{limit}": float(np.mean([metric(found, judged, limit) for found, judged in queries]))
        for name, metric, limits in wanted
        for limit in limits
    }


def _ndcg(found: Sequence[str], judged: Mapping[str, int], limit: int) -> float:
    """Return the discounted gain as a fraction of the largest possible one.

    A passage at rank r, from 1, gains its score / log2(r + 1); scores below 0 gain nothing.
    """
    ideal = sorted((max(score, 0) for score in judged.values()), reverse=True)
    most = _discounted(ideal[:limit])
    return _discounted([max(judged.get(name, 0), 0) for name in found[:limit]]) / most if most else 0.0


def _discounted(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def _reciprocal_rank(found: Sequence[str], judged: Mapping[str, int], limit: int) -> float:
    """Return 1 / the rank of the first passage that answers the query; 0 if none of the first `limit` does."""
    ranks = (rank for rank, name in enumerate(found[:limit], start=1) if judged.get(name, 0) > 0)
    return 1 / next(ranks, math.inf)


def _recall(found: Sequence[str], judged: Mapping[str, int], limit: int) -> float:
    """Return the fraction of the relevant passages that are among the first `limit`; 0 if none is relevant."""
    right = {name for name, score in judged.items() if score > 0}
    return len(right.intersection(found[:limit])) / len(right) if right else 0.0
