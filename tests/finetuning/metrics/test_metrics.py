"""Metrics of GLUE, SQuAD, CMRC and searches, and judges of texts, against formulas, libraries and cases by hand."""

import math

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from plmjax.finetuning.metrics import classification, question_answering, retrieval
from plmjax.finetuning.metrics.text_metrics import BleuAndChrf, ExactMatch, Rouge, Scorer


def test_two_and_three_labels():
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    hit, missed, false, passed = 3, 1, 1, 3
    root = math.sqrt((hit + false) * (hit + missed) * (passed + false) * (passed + missed))
    expected = {"accuracy": 6 / 8, "f1": 2 * hit / (2 * hit + missed + false)}
    expected["matthews"] = (hit * passed - false * missed) / root
    assert classification.scores(labels, np.array([1, 1, 0, 0, 0, 1, 0, 1]), 2) == pytest.approx(expected)
    never = classification.scores(np.zeros(4, int), np.zeros(4, int), 2)
    assert (never["f1"], never["accuracy"]) == (0.0, 1.0)  # F1 is that of label 1
    three = classification.scores(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2]), 3)
    assert three["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_numbers():
    targets, found = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 17.0])
    values = classification.regression(targets, found)
    covariance = np.mean((targets - targets.mean()) * (found - found.mean()))
    assert values["pearson"] == pytest.approx(covariance / targets.std() / found.std())
    assert values["spearman"] == pytest.approx(1.0)  # the same order
    assert values["mean_squared_error"] == pytest.approx((0 + 4 + 36 + 169) / 4)
    assert math.isnan(classification.regression(targets, np.ones(4))["pearson"])


SQUAD = {
    ("Denver Broncos", "the Denver  Broncos!"): (1, 1),
    ("Denver Broncos", "Broncos Broncos"): (0, 1 / 2),  # a word counts as often as both have it
    ("Denver Broncos", ""): (0, 0),
    ("a b c", "b c d"): (0, 4 / 5),  # a is an article
    ("3.5", "35"): (1, 1),
    ("U.S.", "us"): (1, 1),
    ("and", "an d"): (0, 0),
}


@pytest.mark.parametrize(("answer", "prediction"), SQUAD)
def test_squad_compares_words(answer, prediction):
    assert question_answering.squad([answer], prediction) == pytest.approx(SQUAD[answer, prediction])
    assert question_answering.squad(["nothing shared", answer, "other"], prediction) == question_answering.squad(
        [answer], prediction
    )


def test_squad_without_an_answer():
    assert question_answering.squad([], "") == (1, 1) and question_answering.squad([], "some") == (0, 0)
    assert question_answering.squad([], "the") == (1, 1)  # nothing is left of it
    # As SQuAD 2.0's script, which leaves out answers of which nothing is left unless there is no other.
    assert question_answering.squad(["the", "dog"], "") == (0, 0) and question_answering.squad(["the"], "") == (1, 1)


def test_squad_is_symmetric_and_blind_to_case_punctuation_articles_and_order():
    draws = np.random.default_rng(0)
    words = np.array(["x", "y", "z", "the", "an", "A", "w!", ",", "Y"])
    for _ in range(200):
        first, second = (" ".join(draws.choice(words, draws.integers(1, 6))) for _ in range(2))
        exact, f1 = question_answering.squad([first], second)
        assert (exact, f1) == question_answering.squad([second], first)
        assert question_answering.squad([first.upper()], f"The {second}.") == (exact, f1)
        assert question_answering.squad([" ".join(reversed(first.split()))], second)[1] == f1
        assert 0 <= exact <= f1 <= 1


CMRC = {
    ("光荣和ω-force", "光荣和ω-force"): (1, 1),
    ("光荣和ω-force", "《光荣》和ωFORCE。"): (1, 1),  # case and the script's marks
    ("村雨城", "任天堂游戏谜之村雨城"): (0, 6 / 13),
    ("村雨城", "村城"): (0, 2 / 5),  # the longest run, not all that is shared
    ("2010年", "2010年5月"): (0, 4 / 6),
    ("3.5", "35"): (0, 0),  # a point is none of its marks
    ("城", ""): (0, 0),
    ("1……2", "12"): (0, 0),  # Deviation of the script from what it means: … stays
}


@pytest.mark.parametrize(("answer", "prediction"), CMRC)
def test_cmrc_compares_runs_of_characters(answer, prediction):
    assert question_answering.cmrc([answer], prediction) == pytest.approx(CMRC[answer, prediction])
    assert question_answering.cmrc(["无", answer], prediction) == question_answering.cmrc([answer], prediction)


def test_deviation_cmrc_words_in_latin_letters_are_parted_at_spaces():
    """NLTK's tokenizer would part `won't` and `(b)` too."""
    assert question_answering.cmrc(["won't do"], "won't go") == (0, 1 / 2)
    assert question_answering.cmrc([], "") == (1, 1) and question_answering.cmrc([], "城") == (0, 0)


CHINESE = ["我喜欢你的狗。", "他们昨天没有来这里。"]
WRITTEN = ["我喜欢他的狗。", "他们昨天都来这里。"]


def test_bleu_of_chinese_counts_characters() -> None:
    judge = BleuAndChrf(tokenize="zh")
    found, bleu = judge.scores(CHINESE, WRITTEN), sacrebleu.corpus_bleu(WRITTEN, [CHINESE], tokenize="zh").score
    assert found == {"bleu": bleu, "chrf": sacrebleu.corpus_chrf(WRITTEN, [CHINESE]).score}
    assert found["bleu"] > 20 > BleuAndChrf().scores(CHINESE, WRITTEN)["bleu"]  # a sentence is one word there
    assert "tok:zh" in judge.signatures()["bleu_signature"]


def test_rouge_counts_words_pairs_and_the_longest_common_part() -> None:
    """The mean over texts of F1, worked out by hand."""
    found = Rouge().scores(["a dog runs fast today", "two men"], ["a dog runs slowly today", "men"])
    # The first: 4 of 5 words, 2 of 4 pairs, "a dog runs today". The second: 1 of 1 word and 1 of 2, no pair.
    one, two, longest = (4 / 5 + 2 / 3) / 2, (2 / 4 + 0) / 2, (4 / 5 + 2 / 3) / 2
    expected = {"rouge1": 100 * one, "rouge2": 100 * two, "rougeL": 100 * longest, "rougeLsum": 100 * longest}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("between", [" ", "\n"])
def test_rouge_of_summaries_is_that_of_the_library_for_a_sentence_a_line(between: str) -> None:
    """The sentences of a text of one line are found, as T5's and BART's evaluations find them."""
    sides = [
        (["The dog ran home.", "It was Mr. Brown's dog."], ["It was the dog of Brown.", "The dog ran fast."]),
        (["Two men sat."], ["They ate.", "Two men sat down."]),
    ]
    scorer = RougeScorer(["rougeLsum"], use_stemmer=True)
    expected = [scorer.score("\n".join(a), "\n".join(b))["rougeLsum"].fmeasure for a, b in sides]
    found = Rouge().scores(*zip(*((between.join(a), between.join(b)) for a, b in sides), strict=True))
    assert found["rougeLsum"] == pytest.approx(100 * sum(expected) / 2)
    assert found["rougeLsum"] > found["rougeL"] + 10


def test_labels_match_whole_or_not_at_all() -> None:
    references, texts = ["yes", "yes", "no", "no", "no"], ["yes", "no", "no", "no no", "no"]
    found = ExactMatch().scores(references, texts)
    # yes: 1 of 1 predicted, 1 of 2 found, F1 2/3. no: 2 of 3 predicted, 2 of 3 found; "no no" is no label.
    assert found == pytest.approx({"exact": 60.0, "macro_f1": 100 * (2 / 3 + 2 / 3) / 2})
    assert ExactMatch().signatures() == {}


@pytest.mark.parametrize("judge", [BleuAndChrf(), Rouge(), ExactMatch()])
def test_judges_name_their_metrics(judge: Scorer) -> None:
    found = judge.scores(["a dog runs fast today", "two men"], ["a dog runs fast today", "two men"])
    assert set(found) == set(judge.names) and found == pytest.approx(dict.fromkeys(found, 100.0))
    assert set(judge.signatures()) <= {f"{name}_signature" for name in judge.names}


# Ties, ids, judgements of all kinds and 30 drawn collections gave exactly the numbers of pytrec_eval 0.5.11 (package
# pytrec-eval-terrier, which no extra installs).
LIMITS = {"ndcg_at": (1, 3), "mrr_at": (1, 3), "recall_at": (2, 3)}


def scored(found: str, judged: dict[str, int]) -> dict[str, float]:
    """The metrics of one query, whose passages are named by letters."""
    return retrieval.score_rankings([[(name, 0.0) for name in found]], [judged], **LIMITS)


def test_metrics_of_searches_are_their_formulas() -> None:
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
