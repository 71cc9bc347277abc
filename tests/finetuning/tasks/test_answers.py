"""Windows and answers against the rules of run_squad.py and SQuAD 2.0's script, written down again plainly."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from plmjax.finetuning.tasks import answers
from plmjax.finetuning.tasks.answer_search import AnswerSearch
from plmjax.finetuning.tasks.answers import Candidate, Window
from plmjax.finetuning.tasks.questions import QuestionExamples
from tests.finetuning.parity import Numbers


def plain_windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(start, length) of the spans of a document, as run_squad.py's loop makes them."""
    spans, start = [], 0
    while start < length:
        size = min(length - start, room)
        spans.append((start, size))
        if start + size == length:
            break
        start += min(size, stride)
    return spans


def test_windows_begin_where_the_script_has_them():
    for length, room in itertools.product(range(1, 40), range(1, 12)):
        for stride in range(1, room + 1):
            starts = answers.window_starts(length, room, stride)
            assert [(start, min(room, length - start)) for start in starts] == plain_windows(length, room, stride)


def plain_best_context(spans: list[tuple[int, int]], place: int) -> int:
    """The span with the highest score for a token, as _check_is_max_context finds it."""
    best_score, best = None, None
    for number, (start, length) in enumerate(spans):
        if not start <= place <= start + length - 1:
            continue
        score = min(place - start, start + length - 1 - place) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best = score, number
    return best


def windows_of(length: int, room: int, stride: int, begin: int = 4) -> list[Window]:
    return [Window(0, start, size, begin) for start, size in plain_windows(length, room, stride)]


def text(length: int) -> tuple[str, np.ndarray]:
    """A text of as many words, among them equal ones, and where they stand."""
    words = " ".join(str(word) for word in np.random.default_rng(length).integers(10, 10 + length // 2 + 1, length))
    return words, Numbers().encode_spans([words])[0][1]


def plain_candidates(windows, scores, words, *, spans, best, longest):
    """All pairs of all windows, best first, each text once."""
    found = []
    known = [(window.first, window.length) for window in windows]
    for number, (window, score) in enumerate(zip(windows, scores, strict=True)):
        tokens = range(window.first, window.first + window.length)
        at = {token: window.begin + token - window.first for token in tokens}
        starts = [token for token in tokens if plain_best_context(known, token) == number]
        starts = sorted(starts, key=lambda token: -score[at[token], 0])[:best]
        ends = sorted(tokens, key=lambda token: -score[at[token], 1])[:best]
        found += [
            (float(score[at[start], 0]) + float(score[at[end], 1]), words[spans[start][0] : spans[end][1]])
            for start in starts
            for end in ends
            if start <= end < start + longest
        ]
    ranked: dict[str, float] = {}
    for total, answer in sorted(found, key=lambda pair: -pair[0]):
        ranked.setdefault(answer, total)
    return list(ranked.items())[:best]


@pytest.mark.parametrize("best", [1, 3, 10_000])
@pytest.mark.parametrize(
    ("length", "room", "stride", "longest"), [(9, 20, 5, 4), (31, 12, 5, 6), (31, 12, 12, 40), (500, 250, 120, 4)]
)
def test_the_best_answers_are_those_of_a_search_of_all_pairs(best, length, room, stride, longest):
    windows, (words, spans) = windows_of(length, room, stride), text(length)
    random = np.random.default_rng(best)
    scores = [random.normal(size=(4 + window.length + 1, 2)).astype(np.float32) for window in windows]
    found, null = answers.candidates(windows, scores, words, spans=spans, best=best, longest=longest)
    expected = plain_candidates(windows, scores, words, spans=spans, best=best, longest=longest)
    assert [one.text for one in found] == [answer for answer, _ in expected]
    np.testing.assert_allclose([one.score for one in found], [total for _, total in expected], rtol=1e-6)
    assert null == pytest.approx(min(float(score[0, 0] + score[0, 1]) for score in scores))


def test_deviation_tokens_of_the_question_take_no_place_among_the_best():
    """run_squad.py's best start here is a token of the question, so that with one start it finds no answer."""
    words, spans = text(5)
    scores = np.zeros((4 + 5 + 1, 2), np.float32)
    scores[2] = 9.0
    scores[6] = 1.0
    found, _ = answers.candidates(windows_of(5, 9, 4), [scores], words, spans=spans, best=1, longest=30)
    assert found == [Candidate(words.split()[2], 2.0)]


def test_tokens_of_an_answer():
    spans = np.array([[0, 3], [3, 8], [8, 8], [9, 12], [12, 13]])
    assert answers.answer_tokens((0, "abc"), spans) == (0, 0)
    assert answers.answer_tokens((4, "efgh"), spans) == (1, 1)  # inside a token: the whole of it
    assert answers.answer_tokens((2, "cdefgh jk"), spans) == (0, 3)
    assert answers.answer_tokens((8, "i"), spans) is None  # a character that no token stands for


def total(odds, f1, impossible, threshold: float) -> float:
    """F1 in percent where "no answer" is given above the threshold."""
    return 100 * float(np.mean(np.where(odds > threshold, impossible.astype(float), f1)))


@pytest.mark.parametrize("seed", range(6))
def test_the_best_threshold_is_that_of_a_search_of_all(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 30))
    odds = random.normal(size=count) if seed % 2 else random.integers(-2, 3, count).astype(float)  # with equal ones
    impossible = random.random(count) < 0.4
    # An empty answer is right where there is none, and then 1 already.
    f1 = np.where(impossible, random.random(count) < 0.2, random.choice([0.0, 0.4, 1.0], count)).astype(float)
    found, threshold = answers.best_threshold(odds, f1, impossible)
    everywhere = [total(odds, f1, impossible, cut) for cut in [odds.min() - 1, *odds]]
    assert found == pytest.approx(max(everywhere))
    assert total(odds, f1, impossible, threshold) == pytest.approx(found)


def test_deviation_a_threshold_does_not_part_equal_odds():
    """SQuAD 2.0's script would count the first of the two questions as answered and the second as not: 100."""
    odds, f1, impossible = np.zeros(2), np.array([1.0, 0.0]), np.array([False, True])
    assert answers.best_threshold(odds, f1, impossible)[0] == 50.0


@pytest.mark.parametrize(("threshold", "said"), [(-1.5, ""), (-1.0, "bc"), (0.0, "bc")])
def test_the_window_that_is_surest_of_an_answer_decides_whether_there_is_one(threshold: float, said: str) -> None:
    spans, context = np.array([[place, place + 1] for place in range(9)]), "abcdefghi"
    windows = [Window(0, 0, 6, begin=0, nowhere=8), Window(0, 3, 6, begin=0, nowhere=8)]
    outputs = [
        np.array([[-0.25, -0.5], [1, 0], [-0.5, -2.0], [2, 3], [0.5, 0.5]], np.float32),
        np.array([[-1.0, -3.0], [4, 5], [-1.0, -3.0], [5, 5], [-1.0, -1.0]], np.float32),
    ]
    objective = AnswerSearch(impossible=True, null_threshold=threshold, best=2, answer_length=2)
    best, null = objective.candidates(windows, outputs, context, spans)
    assert best == [Candidate("bc", -0.75), Candidate("hi", -2.0)] and null == -1.0
    examples = QuestionExamples("", [3], [context], [0], ["a"], ["q"], [[]])
    encoded = SimpleNamespace(windows=windows, spans=[spans])
    (record,) = objective.records(examples, encoded, outputs)
    assert record["prediction"] == said and record["null_odds"] == -1.0
    assert [one["text"] for one in record["nbest"]] == ["bc", "hi"]  # no log probability of a span is that of none
