"""The tokens that may come next, against transformers and by definition, and when a beam search ends."""

import itertools
import math

import jax
import numpy as np
import pytest

from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.constraints import Constraints, forbid_repeated_ngrams, top_k, top_p
from plmjax.generation.sampling import Sampling
from plmjax.generation.search import Lengths, SearchResult
from plmjax.generation.token_buffer import TokenBuffer
from tests.optional import torch, transformers

SCORES = np.random.default_rng(0).normal(0, 2, (5, 23)).astype(np.float32)


def test_the_best_and_the_nucleus_are_those_of_transformers() -> None:
    for count in (1, 4, 40):
        expected = transformers.TopKLogitsWarper(count)(None, torch.tensor(SCORES)).numpy()
        np.testing.assert_array_equal(top_k(SCORES, count), expected)
    for mass in (0.01, 0.5, 0.9):
        expected = transformers.TopPLogitsWarper(mass)(None, torch.tensor(SCORES)).numpy()
        np.testing.assert_array_equal(top_p(SCORES, mass), expected)
    # Four tokens have a probability of a quarter each, which floating point holds exactly.
    scores = np.full((1, 7), -np.inf, np.float32)
    scores[0, [1, 3, 4, 6]] = 2.0
    for mass, kept in ((0.25, [1]), (0.5, [1, 3]), (0.75, [1, 3, 4]), (0.76, [1, 3, 4, 6])):
        assert np.flatnonzero(np.isfinite(top_p(scores, mass)[0])).tolist() == kept


@pytest.mark.parametrize("size", [1, 2, 3, 12])  # the last one longer than a row
def test_no_ngram_comes_twice(size: int) -> None:
    rows = [[3, 4, 3, 4, 5, 3, 4], [4, 3], [1, 1, 1, 1, 1]]
    prompt, mask = np.zeros((3, 7), np.int32), np.zeros((3, 7), np.int32)
    for place, row in enumerate(rows):
        prompt[place, 7 - len(row) :], mask[place, 7 - len(row) :] = row, 1
    found = np.asarray(forbid_repeated_ngrams(np.zeros((3, 8), np.float32), TokenBuffer.after(prompt, mask, 12), size))
    for row, scores in zip(rows, found, strict=True):
        ngrams = {tuple(row[place : place + size]) for place in range(len(row) - size + 1)}
        end = row[len(row) - size + 1 :] if size > 1 else []
        banned = [token for token in range(8) if (*end, token) in ngrams]
        assert np.flatnonzero(np.isinf(scores)).tolist() == banned


ROWS = np.array([[3, 4, 3, 4, 3, 9], [4, 3, 5, 5, 9, 4], [1, 1, 1, 1, 1, 1], [0, 7, 7, 2, 3, 4], [9, 9, 3, 4, 5, 4]])
PROCESSORS = {
    "repetition_penalty": ({"repetition_penalty": 1.5}, {"RepetitionPenalty": (1.5,)}),
    "repetition_reward": ({"repetition_penalty": 0.5}, {"RepetitionPenalty": (0.5,)}),
    "ngrams": ({"no_repeat_ngram_size": 2}, {"NoRepeatNGram": (2,)}),
    "bad_words": (
        {"bad_words": ((8,), (3, 9), (4, 7), (5, 9, 4, 1), (9, 3, 4, 5, 4, 11), (0,) * 9, (1,) * 12)},
        {"NoBadWords": ([[8], [3, 9], [4, 7], [5, 9, 4, 1], [9, 3, 4, 5, 4, 11], [0] * 9, [1] * 12],)},
    ),
    "forced_first": ({"first": 5}, {"ForcedBOSToken": (5,)}),
    "forced_last": ({"last": 5}, {"ForcedEOSToken": (9, 5)}),
    "early_end": ({"stop": (2,)}, {"MinLength": (8, 2)}),
    "renormalize": ({"stop": (2,), "renormalize": True}, {"MinLength": (8, 2), "LogitNormalization": ()}),
}
"""Case -> what a `Constraints` is given, and the classes of transformers with their arguments."""


@pytest.mark.parametrize("length", [1, 2, 6])
@pytest.mark.parametrize("case", PROCESSORS)
def test_scores_are_those_of_transformers(case: str, length: int) -> None:
    """After a prompt of `length` - 1 tokens and one more; a text has 8 to 9 tokens, its prompt included."""
    constraints, processors = PROCESSORS[case]
    rows = ROWS[:, -length:]
    buffer = TokenBuffer.after(rows[:, : length - 1] if length > 1 else rows, np.ones((5, max(length - 1, 1))), 9)
    buffer = buffer.with_tokens(rows[:, -1].astype(np.int32)) if length > 1 else buffer
    before = max(length - 1, 1)
    expected = torch.tensor(SCORES)
    for name, arguments in processors.items():
        name = name if name == "LogitNormalization" else f"{name}LogitsProcessor"
        expected = getattr(transformers, name)(*arguments)(torch.tensor(rows), expected)
    found = Constraints(23, **constraints)(SCORES, buffer, np.full(5, 8 - before), np.full(5, 9 - before))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-6)


def test_every_row_has_lengths_of_its_own_and_what_fills_it_up_is_no_repeat() -> None:
    prompt, mask = np.array([[0, 0, 3], [4, 4, 3]], np.int32), np.array([[0, 0, 1], [1, 1, 1]], np.int32)
    buffer = TokenBuffer.after(prompt, mask, 9).with_tokens(np.array([6, 6], np.int32))
    scores = np.ones((2, 8), np.float32)
    found = Constraints(8, last=2)(scores, buffer, np.array([0, 0]), np.array([2, 3]))
    assert np.isfinite(found).sum(axis=1).tolist() == [1, 8] and found[0, 2] == 0
    found = Constraints(8, stop=(2,))(scores, buffer, np.array([1, 2]), np.array([9, 9]))
    assert np.isfinite(found).sum(axis=1).tolist() == [8, 7]
    found = Constraints(6)(scores, buffer, np.array([0, 0]), np.array([9, 9]))  # a table with two rows more
    assert np.isfinite(found).sum(axis=1).tolist() == [6, 6]
    found = Constraints(8, first=5)(scores, TokenBuffer.after(prompt, mask, 9), np.array([0, 0]), np.array([9, 9]))
    assert np.isfinite(found).sum(axis=1).tolist() == [1, 8]
    found = Constraints(8, repetition_penalty=2.0)(scores, buffer, np.array([0, 0]), np.array([9, 9]))
    assert [np.flatnonzero(row < 1).tolist() for row in np.asarray(found)] == [[3, 6], [3, 4, 6]]
    found = Constraints(8, bad_words=((0, 3, 6, 1), (4, 3, 6, 2), (3, 6, 4)))(
        scores, buffer, np.array([0, 0]), np.array([9, 9])
    )
    assert [np.flatnonzero(np.isinf(row)).tolist() for row in np.asarray(found)] == [[4], [2, 4]]


def test_one_token_to_draw_from_is_the_likeliest() -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    chosen = Sampling(top_k=1).choose(SCORES, keys, np.int32(0))
    np.testing.assert_array_equal(chosen, SCORES.argmax(axis=1))
    draw, rows = jax.jit(Sampling(temperature=0.5).choose), SCORES[:1].repeat(5, 0)
    shares = np.bincount(np.concatenate([np.asarray(draw(rows, keys, np.int32(n))) for n in range(400)]), minlength=23)
    expected = np.exp(2 * SCORES[0]) / np.exp(2 * SCORES[0]).sum()
    np.testing.assert_allclose(shares / 2000, expected, atol=4 * np.sqrt(0.25 / 2000))


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.9}], ids=str)
def test_the_smallest_temperatures_draw_the_likeliest_token(options: dict[str, float]) -> None:
    """Scores divided by them are infinite, or 0 divided by 0: every text then ended at once."""
    keys = jax.random.split(jax.random.key(0), 5)
    for temperature in (1e-6, 1e-38, math.ulp(0.0)):
        for scores in (SCORES, -SCORES, np.where(SCORES > 1, -np.inf, SCORES)):
            found = Sampling(temperature=temperature, **options).choose(scores, keys, np.int32(0))
            np.testing.assert_array_equal(found, scores.argmax(axis=-1))


def test_temperature_comes_first_then_the_best_then_the_nucleus() -> None:
    """The tokens that are ever drawn are those that transformers keeps in this order."""
    kept, row = torch.tensor(SCORES[:1]), SCORES[:1].repeat(64, 0)
    for warper, value in (("Temperature", 3.0), ("TopK", 4), ("TopP", 0.6)):
        kept = getattr(transformers, f"{warper}LogitsWarper")(value)(None, kept)
    draw = Sampling(temperature=3.0, top_k=4, top_p=0.6).choose
    drawn = jax.jit(lambda keys: draw(row, keys, np.int32(0)))(jax.random.split(jax.random.key(0), 64))
    assert set(np.asarray(drawn).tolist()) == set(np.flatnonzero(np.isfinite(kept[0])).tolist())


END, LONGEST = 0, 12
CHANCES = np.array(
    [
        [0.96, 0.01, 0.01, 0.01, 0.01],  # after the end, where nobody reads on
        [0.06, 0.01, 0.02, 0.90, 0.01],
        [0.90, 0.02, 0.03, 0.04, 0.01],
        [0.95, 0.02, 0.01, 0.01, 0.01],
        [0.30, 0.60, 0.08, 0.01, 0.01],  # after the prompt
    ],
    np.float32,
)
"""Token -> the chances of the next one, on a chain so small that all texts can be told."""


def score(text: tuple[int, ...], penalty: float, normalization: str = "tokens") -> float:
    nats = sum(np.log(CHANCES[before, after]) for before, after in itertools.pairwise((4, *text)))
    length = {"tokens": len(text), "gnmt": (5 + len(text)) / 6}[normalization]
    return float(nats) / length**penalty


def searched(search: BeamSearch, least: list[int]) -> tuple[SearchResult, list[list[tuple[int, ...]]]]:
    """Return what is found after as many equal prompts as `least` has minimum lengths, and the texts of each prompt."""
    prompts = np.full((len(least), 1), 4, np.int32)
    lengths = Lengths(np.array(least, np.int32), np.full(len(least), LONGEST, np.int32))
    keys = jax.random.split(jax.random.key(0), len(least))
    beams = search.init(TokenBuffer.after(prompts, np.ones_like(prompts), 1 + LONGEST), keys)
    advance = jax.jit(lambda beams, scores: search.advance(beams, scores, Constraints(5, (END,)), lengths)[0])
    while not search.is_finished(beams, lengths):
        beams = advance(beams, np.log(CHANCES[np.asarray(beams.buffer.last)]))
    found = search.result(beams)
    texts = [
        [tuple(row[1 : 1 + count].tolist()) for row, count in zip(rows, counts, strict=True)]
        for rows, counts in zip(np.asarray(found.tokens), np.asarray(found.counts), strict=True)
    ]
    return found, texts


@pytest.mark.parametrize(("penalty", "normalization"), [(-1.0, "tokens"), (0.0, "tokens"), (-2.0, "gnmt")])
def test_a_search_that_never_stops_early_finds_the_best_texts(penalty: float, normalization: str) -> None:
    """With a negative penalty a beam only loses as it grows: the least it can lose is what it has lost now."""
    search = BeamSearch(2, penalty, early_stopping="never", sequences=2, length_normalization=normalization)
    found, (texts,) = searched(search, [0])
    every = [(*text, END) for length in range(4) for text in itertools.product(range(1, 5), repeat=length)]
    assert texts == sorted(every, key=lambda text: -score(text, penalty, normalization))[:2]
    np.testing.assert_allclose(found.scores[0], [score(text, penalty, normalization) for text in texts], rtol=1e-5)


def test_a_prompt_with_as_many_texts_as_beams_is_done_while_others_go_on() -> None:
    """The better text 1, 3, END would come a step later."""
    _, (first, second) = searched(BeamSearch(2, early_stopping="full", sequences=2), [0, 3])
    assert first == [(END,), (2, END)] and (1, 3, END) not in second
    assert all(len(text) > 3 for text in second)


def test_beams_go_on_where_the_likeliest_tokens_are_all_ends() -> None:
    """Every beam may end with any of three tokens, and each is likelier than what goes on."""
    ends, search = (0, 1, 2), BeamSearch(2, early_stopping="never")
    lengths, prompt = Lengths(np.array([0], np.int32), np.array([4], np.int32)), np.array([[5]], np.int32)
    beams = search.init(TokenBuffer.after(prompt, np.ones_like(prompt), 5), jax.random.split(jax.random.key(0), 1))
    scores = np.log(np.array([[0.3, 0.3, 0.3, 0.05, 0.04, 0.01]] * 2, np.float32))
    advance = jax.jit(lambda beams: search.advance(beams, scores, Constraints(6, ends), lengths)[0])
    for _ in range(3):
        beams = advance(beams)
        assert not np.isin(beams.buffer.last, ends).any()


def test_only_the_best_candidates_may_end_a_text() -> None:
    """As many as there are beams: the third of all candidates ends, and is not kept."""
    search, lengths = BeamSearch(2), Lengths(np.zeros(1, np.int32), np.full(1, LONGEST, np.int32))
    prompt = TokenBuffer.after(np.full((1, 1), 4, np.int32), np.ones((1, 1), np.int32), 1 + LONGEST)
    beams = search.init(prompt, jax.random.split(jax.random.key(0), 1))
    advance = jax.jit(lambda scores: search.advance(beams, scores, Constraints(5, (END,)), lengths)[0])
    for ends, held in ((0.15, 0), (0.35, 1)):
        chances = np.array([[ends, 0.4, 0.3, 0.1, 0.05]] * 2, np.float32)
        assert int(advance(np.log(chances)).texts.held.sum()) == held
