"""Windows of a text, and the answers that follow from the start and end scores of their tokens.

As google-research/bert run_squad.py: the best starts and ends of each window are paired, and the pairs of all windows
of a question are ranked together. A token counts only in the window where it has most context on both sides.

Deviation: the best starts are chosen among the tokens that count in the window, the best ends among the tokens of its
text; the script chooses both among all tokens of the row and then removes impossible pairs, so fewer may remain.
"""

import dataclasses

import chex
import numpy as np


@dataclasses.dataclass(frozen=True)
class Window:
    """A window of a question's text: tokens first .. first + length - 1, at position `begin` of the sequence.

    nowhere: the position of the sequence that means "no answer".
    """

    question: int
    first: int
    length: int
    begin: int
    nowhere: int = 0

    def place(self, tokens: tuple[int, int] | None) -> tuple[int, int]:
        """Return the positions of text tokens (first, last) in the sequence; `nowhere` twice if one is outside."""
        if tokens is None or tokens[0] < self.first or tokens[1] >= self.first + self.length:
            return self.nowhere, self.nowhere
        return tokens[0] - self.first + self.begin, tokens[1] - self.first + self.begin


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer: its text, as in the context, and the sum of its start and end scores."""

    text: str
    score: float


def window_starts(length: int, room: int, stride: int) -> range:
    """Return the first tokens of the windows of `room` tokens that cover a text of `length` tokens."""
    return range(0, max(length - room, 0) + stride, stride) if length > room else range(1)


def answer_tokens(answer: tuple[int, str], spans: np.ndarray) -> tuple[int, int] | None:
    """Return the first and the last token of an answer, or None if the tokenizer drops all of its characters.

    Args:
        answer: (its first character, its text).
        spans: int [N 2], characters of each token.
    """
    start, text = answer
    inside = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < start + len(text)) & (spans[:, 1] > spans[:, 0]))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def candidates(
    windows: list[Window], scores: list[np.ndarray], context: str, *, spans: np.ndarray, best: int, longest: int
) -> tuple[list[Candidate], float]:
    """Return the best answers of a question, best first, and the score of "no answer".

    Args:
        scores: float32 [tokens 2] of each window's sequence, the scores of a start and of an end at each token.
        best: number of starts and ends of a window, and of answers, to consider.
        longest: largest number of tokens of an answer.
    """
    chex.assert_shape(spans, (None, 2))
    chex.assert_shape(scores, (None, 2))
    best_window = _best_context(windows, len(spans))
    found: list[tuple[float, int, int]] = []
    for number, (window, score) in enumerate(zip(windows, scores, strict=True)):
        own = score[window.begin : window.begin + window.length]
        begins = np.where(best_window[window.first : window.first + window.length] == number, own[:, 0], -np.inf)
        starts, ends = np.argsort(-begins, kind="stable")[:best], np.argsort(-own[:, 1], kind="stable")[:best]
        start, end = (grid.ravel() for grid in np.meshgrid(starts, ends, indexing="ij"))
        fits = (end >= start) & (end - start < longest) & np.isfinite(begins[start])
        start, end = start[fits], end[fits]
        totals = begins[start] + own[end, 1]
        found += zip(totals.tolist(), (start + window.first).tolist(), (end + window.first).tolist(), strict=True)
    null = min(float(score[window.nowhere].sum()) for window, score in zip(windows, scores, strict=True))
    return _texts(found, context, spans, best), null


def _texts(found: list[tuple[float, int, int]], context: str, spans: np.ndarray, best: int) -> list[Candidate]:
    """Return the texts of (score, first token, last token), each once, best first, at most `best` of them."""
    chosen: dict[str, float] = {}
    for total, start, end in sorted(found, key=lambda one: (-one[0], one[1], one[2])):
        text = context[spans[start, 0] : spans[end, 1]].strip()
        if text:
            chosen.setdefault(text, total)
        if len(chosen) == best:
            break
    return [Candidate(text, total) for text, total in chosen.items()]


def rank_searched(
    windows: list[Window], found: list[np.ndarray], context: str, *, spans: np.ndarray, best: int, longest: int
) -> list[Candidate]:
    """Return the best answers of a question, best first, from a search over starts and ends (XLNet's run_squad.py).

    Args:
        found: float32 [4 n] of each window's sequence: log probabilities of starts, starts, log probabilities of ends
            given the start, and ends; positions count from the first token of the sequence.
        best: as in `candidates`.
        longest: as in `candidates`.
    """
    chex.assert_shape(spans, (None, 2))
    best_window = _best_context(windows, len(spans))
    pairs: list[tuple[float, int, int]] = []
    for number, (window, each) in enumerate(zip(windows, found, strict=True)):
        chex.assert_shape(each, (4, None))
        totals = each[0] + each[2]
        starts, ends = (each[side].astype(np.int64) - window.begin for side in (1, 3))
        fits = (starts >= 0) & (ends >= starts) & (ends < window.length) & (ends - starts < longest)
        starts, ends, totals = starts[fits] + window.first, ends[fits] + window.first, totals[fits]
        here = best_window[starts] == number
        pairs += zip(totals[here].tolist(), starts[here].tolist(), ends[here].tolist(), strict=True)
    return _texts(pairs, context, spans, best)


def with_probabilities(found: list[Candidate]) -> list[dict[str, float | str]]:
    """Return the candidates, best first, with the softmax of their scores."""
    found = sorted(found, key=lambda candidate: -candidate.score)
    scores = np.array([candidate.score for candidate in found] or [0.0])
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    return [
        {"text": one.text, "probability": float(probability), "score": one.score}
        for one, probability in zip(found, probabilities, strict=False)
    ]


def best_threshold(odds: np.ndarray, f1: np.ndarray, impossible: np.ndarray) -> tuple[float, float]:
    """Return (F1 in percent, threshold) for the no-answer threshold with the best F1.

    odds: [N], the no-answer odds. f1: [N], F1 of the best answer. impossible: bool [N], true if there is no answer.

    Deviation: SQuAD 2.0's script also divides questions of equal odds, which no threshold can do, and returns 0 as the
    threshold at which no question is answered.
    """
    chex.assert_rank([odds, f1, impossible], 1)
    chex.assert_equal_shape([odds, f1, impossible])
    rank = np.argsort(odds, kind="stable")
    # Below the smallest odds no question is answered. A rising threshold answers one after another, equal ones
    # together.
    gains = (f1 - impossible)[rank]
    totals = impossible.sum() + np.concatenate([[0.0], np.cumsum(gains)])
    parts = np.concatenate([[True], np.diff(odds[rank]) > 0, [True]])
    best = int(np.argmax(np.where(parts, totals, -np.inf)))
    threshold = float(odds[rank[best - 1]]) if best else float(odds.min() - 1)
    return 100 * float(totals[best]) / len(odds), threshold


def _best_context(windows: list[Window], tokens: int) -> np.ndarray:
    """Return for each token the window with most context on the token's shorter side, int [tokens]; ties: the first."""
    context = np.full((len(windows), tokens), -np.inf)
    for number, window in enumerate(windows):
        before = np.arange(window.length)
        place = slice(window.first, window.first + window.length)
        context[number, place] = np.minimum(before, before[::-1]) + 0.01 * window.length
    return context.argmax(axis=0)
