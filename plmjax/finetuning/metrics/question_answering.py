"""Metrics of one predicted answer to a question against the right answers.

SQuAD: Rajpurkar et al., arXiv 1606.05250 and 1806.03822 (its evaluation scripts). CMRC 2018: Cui et al., arXiv
1810.07366 (cmrc2018_evaluate.py).
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

CHINESE_MARKS = set("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
"""Punctuation that CMRC's script removes. Its list also has ……, but the script compares single characters."""


def squad(answers: Sequence[str], prediction: str) -> tuple[float, float]:
    """Return (exact match, F1) of a prediction against the best of the answers.

    An empty list of answers, or the prediction "", means that there is no answer. Words are compared without case,
    punctuation and articles. An answer without other words is ignored. F1 is over the words of prediction and answer.
    """
    words = _english_words(prediction)
    best = [0.0, 0.0]
    for gold in [gold for answer in answers if (gold := _english_words(answer))] or [[]]:
        common = sum((Counter(gold) & Counter(words)).values())
        f1 = 2 * common / (len(gold) + len(words)) if gold and words else float(gold == words)
        best = [max(best[0], float(gold == words)), max(best[1], f1)]
    return best[0], best[1]


def cmrc(answers: Sequence[str], prediction: str) -> tuple[float, float]:
    """Return (exact match, F1) of a prediction against the best of the Chinese answers.

    An empty list of answers means that there is no answer. Texts are compared without case and Chinese punctuation. F1
    is over the longest common run of Chinese characters and of words in other scripts.

    Deviation: the script splits text that is not Chinese with NLTK's tokenizer; here it is split at spaces.
    """
    found, best = _without_marks(prediction), [0.0, 0.0]
    words = _chinese_words(found)
    for answer in map(_without_marks, answers or [""]):
        gold = _chinese_words(answer)
        shared = _longest_common_run(gold, words)
        f1 = 2 * shared / (len(gold) + len(words)) if gold or words else 1.0
        best = [max(best[0], float(answer == found)), max(best[1], f1)]
    return best[0], best[1]


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
