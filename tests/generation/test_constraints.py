"""The tokens that may come next, against transformers and against the definition."""

import math

import jax
import numpy as np
import pytest

from plmjax.generation.constraints import Constraints, forbid_repeated_ngrams, top_k, top_p
from plmjax.generation.sampling import Sampling
from plmjax.generation.token_buffer import TokenBuffer
from tests.optional import torch, transformers

SCORES = np.random.default_rng(0).normal(0, 2, (5, 23)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 4, 40])
def test_the_best(count: int) -> None:
    expected = transformers.TopKLogitsWarper(count)(None, torch.tensor(SCORES)).numpy()
    np.testing.assert_array_equal(top_k(SCORES, count), expected)


@pytest.mark.parametrize("mass", [0.01, 0.5, 0.9])
def test_the_nucleus(mass: float) -> None:
    expected = transformers.TopPLogitsWarper(mass)(None, torch.tensor(SCORES)).numpy()
    np.testing.assert_array_equal(top_p(SCORES, mass), expected)


@pytest.mark.parametrize(("mass", "kept"), [(0.25, [1]), (0.5, [1, 3]), (0.75, [1, 3, 4]), (0.76, [1, 3, 4, 6])])
def test_the_nucleus_ends_where_its_mass_is_reached_exactly(mass: float, kept: list[int]) -> None:
    """Four tokens have a probability of a quarter each, which floating point holds exactly."""
    scores = np.full((1, 7), -np.inf, np.float32)
    scores[0, [1, 3, 4, 6]] = 2.0
    assert np.flatnonzero(np.isfinite(top_p(scores, mass)[0])).tolist() == kept


@pytest.mark.parametrize("size", [1, 2, 3])
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


@pytest.mark.parametrize(("size", "banned"), [(7, [1]), (8, []), (9, []), (12, [])])
def test_an_ngram_longer_than_a_row_never_comes_twice(size: int, banned: list[int]) -> None:
    """A row of 8 places has 7 tokens, all alike."""
    buffer = TokenBuffer.after(np.ones((1, 7), np.int32), np.ones((1, 7)), 8)
    found = np.asarray(forbid_repeated_ngrams(np.zeros((1, 3), np.float32), buffer, size))
    assert np.flatnonzero(np.isinf(found[0])).tolist() == banned


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
    found = Constraints(8, first=5)(scores, TokenBuffer.after(prompt, mask, 9), np.array([0, 0]), np.array([9, 9]))
    assert np.isfinite(found).sum(axis=1).tolist() == [1, 8]
    found = Constraints(8, repetition_penalty=2.0)(scores, buffer, np.array([0, 0]), np.array([9, 9]))
    assert [np.flatnonzero(row < 1).tolist() for row in np.asarray(found)] == [[3, 6], [3, 4, 6]]
    found = Constraints(8, bad_words=((0, 3, 6, 1), (4, 3, 6, 2), (3, 6, 4)))(
        scores, buffer, np.array([0, 0]), np.array([9, 9])
    )
    assert [np.flatnonzero(np.isinf(row)).tolist() for row in np.asarray(found)] == [[4], [2, 4]]


def bounds(least: int, most: int = 8) -> tuple[np.ndarray, np.ndarray]:
    return np.full(5, least), np.full(5, most)


def test_tokens_that_there_are_not_and_an_early_end() -> None:
    buffer = TokenBuffer.after(np.ones((5, 3), np.int32), np.ones((5, 3), np.int32), 8)
    found = np.asarray(Constraints(tokens=20, stop=(2, 6))(SCORES, buffer, *bounds(1)))
    assert set(np.flatnonzero(np.isinf(found[0])).tolist()) == {2, 6, 20, 21, 22}
    found = np.asarray(Constraints(tokens=20, stop=(2, 6))(SCORES, buffer, *bounds(0)))
    assert set(np.flatnonzero(np.isinf(found[0])).tolist()) == {20, 21, 22}


def test_one_token_to_draw_from_is_the_likeliest() -> None:
    keys = jax.random.split(jax.random.key(0), 5)
    chosen = Sampling(top_k=1).choose(SCORES, keys, np.int32(0))
    np.testing.assert_array_equal(chosen, SCORES.argmax(axis=1))
    draw, rows = jax.jit(Sampling(temperature=0.5).choose), SCORES[:1].repeat(5, 0)
    shares = np.bincount(np.concatenate([np.asarray(draw(rows, keys, np.int32(n))) for n in range(400)]), minlength=23)
    expected = np.exp(2 * SCORES[0]) / np.exp(2 * SCORES[0]).sum()
    np.testing.assert_allclose(shares / 2000, expected, atol=4 * np.sqrt(0.25 / 2000))


@pytest.mark.parametrize("temperature", [1e-6, 1e-37, 1e-38, 1e-45, 1e-300, math.ulp(0.0)])
@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.9}], ids=str)
def test_the_smallest_temperatures_draw_the_likeliest_token(temperature: float, options: dict[str, float]) -> None:
    """Scores divided by them are infinite, or 0 divided by 0: every text then ended at once."""
    keys = jax.random.split(jax.random.key(0), 5)
    for scores in (SCORES, -SCORES, SCORES - 9, np.where(SCORES > 1, -np.inf, SCORES)):
        found = Sampling(temperature=temperature, **options).choose(scores, keys, np.int32(0))
        np.testing.assert_array_equal(found, scores.argmax(axis=-1))


@pytest.mark.parametrize(
    "options", [pytest.param({"top_p": 0.6}, marks=pytest.mark.nightly), {"top_k": 4, "top_p": 0.6}], ids=str
)
def test_temperature_comes_first_then_the_best_then_the_nucleus(options: dict[str, float]) -> None:
    """The tokens that are ever drawn are those that transformers keeps in this order."""
    temperature, row = 3.0, SCORES[:1]
    warpers = [transformers.TemperatureLogitsWarper(temperature)]
    warpers += [transformers.TopKLogitsWarper(options["top_k"])] if "top_k" in options else []
    warpers += [transformers.TopPLogitsWarper(options["top_p"])]
    kept = torch.tensor(row)
    for warper in warpers:
        kept = warper(None, kept)
    sampling, keys = Sampling(temperature=temperature, **options), jax.random.split(jax.random.key(0), 1000)
    drawn = jax.jit(lambda keys: sampling.choose(np.repeat(row, 1000, axis=0), keys, np.int32(0)))(keys)
    assert set(np.asarray(drawn).tolist()) == set(np.flatnonzero(np.isfinite(kept[0])).tolist())
