"""The metrics of GLUE, SQuAD and CMRC 2018, and of texts that a model wrote, over the predictions of a whole file.

GLUE: Wang et al., arXiv 1804.07461. SQuAD: Rajpurkar et al., arXiv 1606.05250 and 1806.03822 (its evaluation scripts).
CMRC 2018: Cui et al., arXiv 1810.07366 (cmrc2018_evaluate.py).
"""

import importlib.metadata
import re
import string
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import chex
import numpy as np

CHINESE_MARKS = set("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
"""What CMRC's script leaves out; it means … too, but compares single characters with two of them."""


def classification(labels: np.ndarray, predictions: np.ndarray, classes: int) -> dict[str, float]:
    """accuracy, Matthews correlation and F1 of int [N] labels and predictions, 0..classes-1.

    With two labels `f1` is that of label 1, as GLUE's of MRPC and QQP; with more, `macro_f1` is the mean over
    the labels that occur.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    chex.assert_rank([labels, predictions], 1)
    chex.assert_equal_shape([labels, predictions])

    binary = classes == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one label only
        return {
            "accuracy": float(accuracy_score(labels, predictions)),
            "f1" if binary else "macro_f1": float(
                f1_score(labels, predictions, average="binary" if binary else "macro", zero_division=0)
            ),
            "matthews": float(matthews_corrcoef(labels, predictions)),
        }


def label_sets(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """F1 of all labels together (micro) and its mean over the labels (macro), and exact matches, of bool [N labels].

    A label that neither occurs nor is predicted has an F1 of 0.
    """
    from sklearn.metrics import f1_score

    chex.assert_rank([labels, predictions], 2)
    chex.assert_equal_shape([labels, predictions])
    return {
        "micro_f1": float(f1_score(labels, predictions, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(labels, predictions, average="macro", zero_division=0)),
        "accuracy": float(np.mean(np.all(labels == predictions, axis=-1))),
    }


def regression(targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Pearson and Spearman correlation and mean squared error of float [N]; a constant's correlation is NaN."""
    from scipy.stats import pearsonr, spearmanr

    chex.assert_rank([targets, predictions], 1)
    chex.assert_equal_shape([targets, predictions])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant or nearly constant input
        return {
            "pearson": float(pearsonr(targets, predictions).statistic),
            "spearman": float(spearmanr(targets, predictions).statistic),
            "mean_squared_error": float(np.mean(np.square(targets - predictions))),
        }


def squad(answers: Sequence[str], prediction: str) -> tuple[float, float]:
    """(exact match, F1) of a prediction against the best of the answers; none, or "", means that there is no answer.

    Words are compared without case, punctuation and articles, answers of nothing else are left out; F1 is over the
    words of both.
    """
    words = _english_words(prediction)
    best = [0.0, 0.0]
    for gold in [gold for answer in answers if (gold := _english_words(answer))] or [[]]:
        common = sum((Counter(gold) & Counter(words)).values())
        f1 = 2 * common / (len(gold) + len(words)) if gold and words else float(gold == words)
        best = [max(best[0], float(gold == words)), max(best[1], f1)]
    return best[0], best[1]


def cmrc(answers: Sequence[str], prediction: str) -> tuple[float, float]:
    """(exact match, F1) of a prediction against the best of the answers in Chinese; none means that there is no answer.

    Both are compared without case and Chinese punctuation. F1 is over the longest run of characters (and of words in
    Latin letters) that both share.

    Deviation: the script splits what is not Chinese with NLTK's tokenizer; here it is split at spaces.
    """
    found, best = _without_marks(prediction), [0.0, 0.0]
    words = _chinese_words(found)
    for answer in map(_without_marks, answers or [""]):
        gold = _chinese_words(answer)
        shared = _longest_common_run(gold, words)
        f1 = 2 * shared / (len(gold) + len(words)) if gold or words else 1.0
        best = [max(best[0], float(answer == found)), max(best[1], f1)]
    return best[0], best[1]


BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none")
"""sacrebleu's ways to separate words that need nothing but sacrebleu."""


def translation(references: Sequence[str], texts: Sequence[str], tokenize: str = "13a") -> dict[str, float]:
    """BLEU (Papineni et al. 2002) and chrF (Popovic 2015) of all texts together, as sacrebleu computes them.

    Both are from 0 to 100. How they are computed is in `translation_signatures`; all but `tokenize`, how BLEU separates
    words, is sacrebleu's default.
    """
    return {
        name: float(metric.corpus_score(list(texts), [list(references)]).score)
        for name, metric in _translation_metrics(tokenize).items()
    }


def translation_signatures(tokenize: str = "13a") -> dict[str, str]:
    """sacrebleu's signatures of those metrics, for one reference a text."""
    found = {}
    for name, metric in _translation_metrics(tokenize).items():
        metric.corpus_score(["a"], [["a"]])  # a signature names the number of references, which a score tells
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


def _translation_metrics(tokenize: str) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF

    return {"bleu": BLEU(tokenize=tokenize), "chrf": CHRF()}


ROUGE = ("rouge1", "rouge2", "rougeL")


def summarization(references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): the mean over the texts of the F1 of stemmed words, from 0 to 100.

    As rouge-score computes them.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(ROUGE, use_stemmer=True)
    found = [scorer.score(reference, text) for reference, text in zip(references, texts, strict=True)]
    return {name: 100 * float(np.mean([scores[name].fmeasure for scores in found])) for name in ROUGE}


def summarization_signatures() -> dict[str, str]:
    """How those are computed, in words."""
    signature = f"rouge-score {importlib.metadata.version('rouge-score')}, mean F1 of stemmed words"
    return {f"{name}_signature": signature for name in ROUGE}


def labels_in_words(references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """exact, the share of texts that are their reference, and macro_f1, the mean F1 of the references' labels.

    Both are from 0 to 100. A text that is none of the labels is a miss of its reference, and no false alarm of another.
    """
    from sklearn.metrics import f1_score

    labels = sorted(set(references))
    return {
        "exact": 100 * float(np.mean([text == reference for reference, text in zip(references, texts, strict=True)])),
        "macro_f1": 100
        * float(f1_score(list(references), list(texts), labels=labels, average="macro", zero_division=0)),
    }


def _english_words(text: str) -> list[str]:
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _without_marks(text: str) -> str:
    return "".join(character for character in text.lower().strip() if character not in CHINESE_MARKS)


def _chinese_words(text: str) -> list[str]:
    return re.findall(r"[\u4e00-\u9fa5]|[^\u4e00-\u9fa5\s]+", text)


def _longest_common_run(first: list[str], second: list[str]) -> int:
    lengths, longest = [0] * (len(second) + 1), 0
    for word in first:
        lengths = [0] + [lengths[place] + 1 if word == other else 0 for place, other in enumerate(second)]
        longest = max(longest, *lengths)
    return longest
