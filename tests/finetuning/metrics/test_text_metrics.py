"""Judges of texts against the libraries that people quote, and against values worked out by hand."""

import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from plmjax.finetuning.metrics.text_metrics import BleuAndChrf, ExactMatch, Rouge, Scorer

CHINESE = ["我喜欢你的狗。", "他们昨天没有来这里。"]
WRITTEN = ["我喜欢他的狗。", "他们昨天都来这里。"]


def test_bleu_of_chinese_counts_characters() -> None:
    judge = BleuAndChrf(tokenize="zh")
    found = judge.scores(CHINESE, WRITTEN)
    assert found == {
        "bleu": sacrebleu.corpus_bleu(WRITTEN, [CHINESE], tokenize="zh").score,
        "chrf": sacrebleu.corpus_chrf(WRITTEN, [CHINESE]).score,
    }
    assert found["bleu"] > 20 > BleuAndChrf().scores(CHINESE, WRITTEN)["bleu"]  # a sentence is one word there
    assert (
        "tok:zh" in judge.signatures()["bleu_signature"] and "tok:13a" in BleuAndChrf().signatures()["bleu_signature"]
    )


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
