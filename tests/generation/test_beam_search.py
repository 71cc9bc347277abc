"""When a beam search ends, on a chain of tokens so small that all texts can be told."""

import itertools

import jax
import numpy as np
import pytest

from plmjax.generation.beam_search import BeamSearch
from plmjax.generation.constraints import Constraints
from plmjax.generation.search import Lengths, SearchResult
from plmjax.generation.token_buffer import TokenBuffer

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
"""Token -> the chances of the next one."""


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
    lengths = Lengths(np.array([0], np.int32), np.array([4], np.int32))
    prompt = np.array([[5]], np.int32)
    beams = search.init(TokenBuffer.after(prompt, np.ones_like(prompt), 5), jax.random.split(jax.random.key(0), 1))
    scores = np.log(np.array([[0.3, 0.3, 0.3, 0.05, 0.04, 0.01]] * 2, np.float32))
    for _ in range(3):
        beams, _ = search.advance(beams, scores, Constraints(6, ends), lengths)
        assert not np.isin(beams.buffer.last, ends).any()


def test_only_the_best_candidates_may_end_a_text() -> None:
    """As many as there are beams: the third of all candidates ends, and is not kept."""
    search, lengths = BeamSearch(2), Lengths(np.zeros(1, np.int32), np.full(1, LONGEST, np.int32))
    prompt = np.full((1, 1), 4, np.int32)
    for ends, held in ((0.15, 0), (0.35, 1)):
        beams = search.init(
            TokenBuffer.after(prompt, np.ones_like(prompt), 1 + LONGEST), jax.random.split(jax.random.key(0), 1)
        )
        chances = np.array([[ends, 0.4, 0.3, 0.1, 0.05]] * 2, np.float32)
        beams, _ = search.advance(beams, np.log(chances), Constraints(5, (END,)), lengths)
        assert int(beams.texts.held.sum()) == held
