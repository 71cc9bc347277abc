"""Searches and their metrics, beside numbers worked out by hand and a search of everything at once.

Ties, ids, judgements of all kinds and 30 drawn collections gave exactly the numbers of pytrec_eval 0.5.11 (the package
pytrec-eval-terrier, which no extra installs).
"""

import math

import numpy as np
import pytest

from plmjax.finetuning.metrics import retrieval

LIMITS = {"ndcg_at": (1, 3), "mrr_at": (1, 3), "recall_at": (2, 3)}


def scored(found: str, judged: dict[str, int]) -> dict[str, float]:
    """The metrics of one query, whose passages are named by letters."""
    return retrieval.score_rankings([[(name, 0.0) for name in found]], [judged], **LIMITS)


def test_metrics_are_their_formulas() -> None:
    """c is not judged, d does not answer the query, and e is not found."""
    metrics = scored("dacb", {"a": 1, "b": 3, "d": 0, "e": -1, "f": 2})
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    expected = {"ndcg@1": 0, "ndcg@3": 1 / math.log2(3) / ideal, "mrr@1": 0, "mrr@3": 1 / 2}
    assert metrics == pytest.approx(expected | {"recall@2": 1 / 3, "recall@3": 1 / 3})
    assert set(scored("ab", {"a": 0, "c": -1}).values()) == {0.0}
    rankings = [[("a", 1.0)], [("b", 1.0)]]  # a mean is over all queries
    found = retrieval.score_rankings(rankings, [{"a": 1}, {"a": 1}], ndcg_at=(10,), mrr_at=(), recall_at=())
    assert found == {"ndcg@10": 0.5}


def test_a_search_in_blocks_is_that_of_everything_at_once() -> None:
    """Small whole numbers have many equal products, of which the larger name comes first, as in trec_eval."""
    draws = np.random.default_rng(0)
    queries, passages = (draws.integers(-2, 3, (size, 4)).astype(np.float32) for size in (9, 50))
    names = [f"{letter}{number}" for number, letter in enumerate(draws.choice(["", "Z", "d"], 50))]
    asked = [names[7], *(f"q{number}" for number in range(8))]
    found = retrieval.search(queries, passages, query_ids=asked, passage_ids=names, count=12, block=7)
    for query, name, ranking in zip(queries, asked, found, strict=True):
        every = [
            (other, float(query @ passage)) for other, passage in zip(names, passages, strict=True) if other != name
        ]
        every.sort(key=lambda one: (one[1], one[0]), reverse=True)
        assert ranking == every[:12]
    whole = retrieval.search(queries, passages, query_ids=asked, passage_ids=names, count=90)
    assert [len(ranking) for ranking in whole] == [49, *[50] * 8]
    assert [ranking[:12] for ranking in whole] == found


def test_what_was_found_is_written_for_trec_eval() -> None:
    assert retrieval.trec_run(["q"], [[("b", 0.5), ("a", 1 / 3)]]) == (
        "q Q0 b 1 0.5 plmjax\nq Q0 a 2 0.333333333 plmjax\n"
    )
