"""T5's span corruption: the published procedure written out, how long rows are, and what holds for every key."""

import collections
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.data.layouts import Chunks, PairedStreams
from plmjax.errors import UserError
from plmjax.models.t5 import T5Config
from plmjax.objectives.denoising import Denoising
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption, composition
from plmjax.training import program as programs
from tests.objectives.text_to_text.rows import END, FIRST, TEXT, corrupt, padding, pairs, rows
from tests.third_party import experiments


def transcribed(text: list[int], visible: list[int], hidden: list[int]) -> tuple[list[int], list[int]]:
    """The published procedure on one text, given the two compositions: spans in turn, a sentinel for each."""
    source, target, place = [], [], 0
    for number, (shown, asked) in enumerate(zip(visible, hidden, strict=True)):
        sentinel = FIRST - number
        source += [*text[place : place + shown], sentinel]
        target += [sentinel, *text[place + shown : place + shown + asked]]
        place += shown + asked
    assert place == len(text)
    return [*source, END], [*target, END]


def spans_of(pair) -> tuple[list[int], list[int]]:
    """The lengths of visible and hidden spans that a source and a target tell."""
    split = [
        [len(list(group)) for text, group in itertools.groupby(ids, lambda token: token in TEXT) if text]
        for ids in (pair.source, pair.target)
    ]
    return split[0], split[1]


FURTHER = [pytest.param(*one, marks=pytest.mark.nightly) for one in ((0.5, 3.0, 50), (0.15, 10.0, 60))]
"""Other rates and lengths of spans, which change counts alone."""


@pytest.mark.parametrize(("rate", "mean", "length"), [(0.15, 3.0, 73), *FURTHER])
def test_rows_are_those_of_the_published_procedure(rate, mean, length):
    objective = SpanCorruption(rate=rate, mean_length=mean)
    batch = rows([length] * 40, length)
    corrupted = corrupt(objective, batch)
    hidden, spans = objective.counts(length)
    assert hidden == round(length * rate) and spans == round(hidden / mean)
    cuts = [spans_of(pair) for pair in pairs(batch, corrupted)]
    assert any(of_visible != of_hidden for of_visible, of_hidden in cuts)  # each by a key of its own
    for pair, (of_visible, of_hidden) in zip(pairs(batch, corrupted), cuts, strict=True):
        assert len(of_visible) == len(of_hidden) == spans and sum(of_hidden) == hidden
        assert (pair.source, pair.target) == transcribed(pair.text, of_visible, of_hidden)
    assert padding(corrupted) == (0, 0) and set(PairedStreams().batch(1, 8)) <= set(corrupted)


@pytest.mark.parametrize(
    ("rate", "mean", "tokens", "targets"),
    [(0.15, 3, 568, 114), (0.15, 2, 552, 126), (0.15, 5, 581, 105), (0.15, 10, 591, 99), (0.5, 3, 766, 512)],
)
def test_the_length_of_rows_is_the_published_one(rate, mean, tokens, targets):
    objective = SpanCorruption(rate=rate, mean_length=mean)
    assert objective.row_length(512) == tokens
    assert objective.lengths(tokens) == (512, targets)


def test_a_row_that_is_not_full_is_cut_by_its_own_length():
    """The last row of held-out text; a row that only fills a batch asks for nothing."""
    objective, lengths = SpanCorruption(), [40, 39, 7, 3, 2, 1, 0]
    batch = rows(lengths, 40)
    corrupted = corrupt(objective, batch)
    *found, one, none = pairs(batch, corrupted)
    for length, pair in zip(lengths[:-2], found, strict=True):
        assert (len(pair.source), len(pair.target)) == objective.lengths(length)
        assert (pair.source, pair.target) == transcribed(pair.text, *spans_of(pair))
    assert (one.source, one.target) == ([*one.text, END], [FIRST, END])
    assert none.source == none.target == [] and corrupted["next_weights"][-1].sum() == 0
    nothing = {name: corrupted[name][-1:] for name in ("text_weights", "next_weights")}
    assert min(map(float, objective.weights(nothing).values())) > 0


def test_all_compositions_are_alike_likely():
    """There are 10 compositions of 6 items in 3 parts; a key cuts alike, another key otherwise."""
    draw = jax.jit(jax.vmap(lambda key: composition(key, jnp.int32(6), jnp.int32(3), room=9, most=4)))
    found = np.asarray(draw(jax.random.split(jax.random.key(0), 8000)))
    counts = collections.Counter(map(tuple, found.tolist()))
    every = {(a, b, 6 - a - b, 0) for a in range(1, 5) for b in range(1, 6 - a)}
    assert set(counts) == every and len(every) == 10
    np.testing.assert_allclose([counts[cut] / 8000 for cut in every], 0.1, atol=0.015)
    batch = rows([60] * 3, 60)
    first, again, other = (corrupt(SpanCorruption(), batch, seed)["input_ids"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and (first[0] != first[1]).any()


@pytest.mark.parametrize(
    ("rate", "mean", "visible"), [(0.9, 1.0, 2), pytest.param(0.7, 1.5, 6, marks=pytest.mark.nightly)]
)
def test_there_are_no_more_spans_than_visible_tokens(rate, mean, visible):
    """A visible token stands before every hidden span, so a high rate makes fewer and longer ones."""
    objective, length = SpanCorruption(rate=rate, mean_length=mean), 20
    hidden, spans = objective.counts(length)
    assert (hidden, spans) == (length - visible, visible) and round(hidden / mean) > spans
    batch = rows([length] * 8, length)
    for pair in pairs(batch, corrupt(objective, batch)):
        of_visible, of_hidden = spans_of(pair)
        assert of_visible == [1] * visible and len(of_hidden) == visible and sum(of_hidden) == hidden
        assert (pair.source, pair.target) == transcribed(pair.text, of_visible, of_hidden)


@pytest.mark.parametrize("rate", [0.15, 0.5, 0.99])
def test_every_span_has_a_token_and_a_visible_one_before_it(rate):
    for mean, tokens in itertools.product((1.0, 3.0), range(2, 40)):
        hidden, spans = SpanCorruption(rate=rate, mean_length=mean).counts(tokens)
        assert 1 <= spans <= min(hidden, tokens - hidden)


def test_counts_are_rounded_as_the_mask_is():
    """In float32: 190 x 0.15 is 28.5 in float64, which rounds to 28."""
    assert SpanCorruption().counts(190)[0] == int(np.round(np.float32(190) * np.float32(0.15))) == 29
    assert round(190 * 0.15) == 28


def test_train_flops_are_those_of_both_streams():
    config = T5Config()
    assert SpanCorruption().train_flops(config, Chunks().batch(4, 568)) == config.train_flops(4, 512, 114)


def test_a_model_needs_positions_for_what_is_made_of_a_row():
    """Rows of 568 tokens fit a model of 512 positions; inserted tokens need more than the row has."""
    run = experiments.changed(experiments.transformer(), model={"max_position_embeddings": 512})
    programs.check_length(dataclasses.replace(run, objective=SpanCorruption()), 568)
    with pytest.raises(UserError, match="found a sequence length of 569, of which rows of 513 are made; shorten"):
        programs.check_length(dataclasses.replace(run, objective=SpanCorruption()), 569)
    with pytest.raises(UserError, match="found a sequence length of 512, of which rows of 564 are made"):
        programs.check_length(dataclasses.replace(run, objective=Denoising(insert=0.1)), 512)


def test_the_tokens_of_the_text_are_reported_and_all_targets_are_trained() -> None:
    """Three of five targets of two rows are of the text; a row that fills the batch has none."""
    objective = SpanCorruption()
    batch = {
        "text_weights": np.float32([[0, 1, 1], [0, 1, 0], [0, 0, 0]]),
        "next_weights": np.float32([[1, 1, 1], [1, 1, 0], [0, 0, 0]]),
        "next_ids": np.arange(9).reshape(3, 3),
    }
    weights = objective.weights(batch)
    assert (float(weights["text"]), float(weights["target"])) == (3, 5)
    assert objective.coefficients() == {"text": 0.0, "target": 1.0} and objective.target_term(batch) == "text"
    nats = np.float32([[1, 2, 4], [8, 16, 32], [64, 64, 64]])
    assert float(objective.extra_terms(batch, nats)["text"]) == 2 + 4 + 16
    ids, asked = objective.targets(batch)
    np.testing.assert_array_equal(ids, batch["next_ids"])
    np.testing.assert_array_equal(asked, batch["text_weights"])
