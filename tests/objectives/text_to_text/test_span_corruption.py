"""T5's span corruption: the published procedure written out, how long rows are, and what holds for every key.

And the tasks that T5's paper compares with it: what each makes of a text.
"""

import collections
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import PairedStreams
from plmjax.objectives.text_to_text.independent_noise import DroppedTokens, MaskedText, ReplacedSpans
from plmjax.objectives.text_to_text.prefix_language_model import TextToTextPrefixLanguageModel
from plmjax.objectives.text_to_text.span_corruption import SpanCorruption, composition
from plmjax.objectives.text_to_text.text_to_text import TextToText
from plmjax.objectives.text_to_text.whole_text import Deshuffling, TextToTextLanguageModel

SIZE, END = 200, 1
VOCABULARY = Vocabulary(
    SIZE, pad=0, end=END, unknown=2, special=(0, 1, 2), sentinels=tuple(range(SIZE - 1, SIZE - 41, -1))
)
FIRST = VOCABULARY.sentinels[0]
TEXT = range(3, SIZE - 40)


def rows(lengths: list[int], tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of different tokens as `Chunks` gives them, the first `lengths` of each real."""
    random = np.random.default_rng(seed)
    text = np.stack([random.permutation(TEXT)[:tokens] for _ in lengths]).astype(np.int32)
    real = (np.arange(tokens) < np.array(lengths)[:, None]).astype(np.int32)
    numbers = np.arange(len(lengths), dtype=np.int32)
    return {"input_ids": text * real, "segment_ids": real, "positions": np.arange(tokens) * real, "row_ids": numbers}


def corrupt(objective: TextToText, batch: dict, seed: int = 0, vocabulary: Vocabulary = VOCABULARY) -> dict:
    corrupted = jax.jit(lambda batch, key: objective.corrupt(batch, key, vocabulary))(batch, jax.random.key(seed))
    return jax.tree.map(np.asarray, corrupted)


@dataclasses.dataclass(frozen=True)
class Pair:
    """The two sides of a row, without padding."""

    text: list[int]
    source: list[int]
    target: list[int]


def pairs(batch: dict, corrupted: dict) -> list[Pair]:
    """Every row of one segment; checks what holds for all tasks of such rows."""
    found = []
    sides = zip(batch["input_ids"], batch["segment_ids"], corrupted["input_ids"], corrupted["next_ids"], strict=True)
    for row, (text, real, source, target) in enumerate(sides):
        lengths = []
        for prefix, ids in (("", source), ("decoder_", corrupted["decoder_input_ids"][row])):
            segments, positions = corrupted[f"{prefix}segment_ids"][row], corrupted[f"{prefix}positions"][row]
            lengths.append(int(segments.sum()))
            inside = np.arange(len(ids)) < lengths[-1]
            np.testing.assert_array_equal(segments, inside)
            np.testing.assert_array_equal(positions, np.arange(len(ids)) * inside)
            assert (ids[~inside] == VOCABULARY.pad).all()
        np.testing.assert_array_equal(corrupted["next_weights"][row], corrupted["decoder_segment_ids"][row] > 0)
        pair = Pair(
            *(ids[:length].tolist() for ids, length in zip((text, source, target), (real.sum(), *lengths), strict=True))
        )
        shown = corrupted["decoder_input_ids"][row][: lengths[1]].tolist()
        if pair.text:
            assert shown == [VOCABULARY.pad, *pair.target[:-1]]
            assert pair.source[-1] == pair.target[-1] == END
        of_text = [token in TEXT for token in pair.target]
        assert corrupted["text_weights"][row][: lengths[1]].tolist() == of_text
        found.append(pair)
    return found


def padding(corrupted: dict, rows: int | None = None) -> tuple[float, float]:
    """Share of padding of the sources and of the targets of the first rows."""
    return tuple(float((corrupted[name][:rows] == 0).mean()) for name in ("segment_ids", "decoder_segment_ids"))


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


@pytest.mark.parametrize(
    ("rate", "mean", "length"), [(0.15, 3.0, 73), pytest.param(0.5, 3.0, 50, marks=pytest.mark.nightly)]
)
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
    [(0.15, 3, 568, 114), (0.15, 10, 591, 99), (0.5, 3, 766, 512)],
)
def test_the_length_of_rows_is_the_published_one(rate, mean, tokens, targets):
    """Counts are rounded in float32, as the mask is; a visible token stands before every hidden span."""
    assert SpanCorruption().counts(190)[0] == 29  # 28.5 in float64, which rounds to 28
    assert SpanCorruption(rate=0.9, mean_length=1.0).counts(20) == (18, 2)
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
    """There are 10 compositions of 6 items in 3 parts."""
    draw = jax.jit(jax.vmap(lambda key: composition(key, jnp.int32(6), jnp.int32(3), room=9, most=4)))
    found = np.asarray(draw(jax.random.split(jax.random.key(0), 8000)))
    counts = collections.Counter(map(tuple, found.tolist()))
    every = {(a, b, 6 - a - b, 0) for a in range(1, 5) for b in range(1, 6 - a)}
    assert set(counts) == every and len(every) == 10
    np.testing.assert_allclose([counts[cut] / 8000 for cut in every], 0.1, atol=0.015)


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


LENGTHS = [60] * 200 + [17, 1]
BATCH = rows(LENGTHS, 60)


def share(found, expected: float, draws: int) -> None:
    """A frequency, within five standard errors."""
    assert abs(found - expected) < 5 * (expected * (1 - expected) / draws) ** 0.5


def test_masked_text_is_asked_for_whole():
    corrupted = corrupt(MaskedText(rate=0.3, random_fraction=0.2), BATCH)
    changed = masked = strange = 0
    for pair in pairs(BATCH, corrupted):
        assert pair.target == [*pair.text, END] and len(pair.source) == len(pair.target)
        new = [after for before, after in zip(pair.text, pair.source, strict=False) if before != after]
        changed, masked = changed + len(new), masked + new.count(FIRST)
        strange += sum(token < 3 or token >= SIZE for token in new)
    tokens = sum(LENGTHS)
    share(changed / tokens, 0.3 * (1 - 0.2 / (SIZE - 3)), tokens)
    share(masked / changed, 0.8, changed)
    assert not strange and padding(corrupted, 200) == (0, 0)


def test_replaced_spans_are_runs_of_tokens_chosen_independently():
    """The source tells which were chosen, for the tokens of a row differ; the target follows from them."""
    corrupted, chosen = corrupt(ReplacedSpans(rate=0.25), BATCH), []
    for pair in pairs(BATCH, corrupted):
        hidden = ~np.isin(pair.text, pair.source)
        chosen.append(hidden)
        sides = []
        for left_out in (hidden, ~hidden):
            runs = itertools.groupby(zip(pair.text, left_out, strict=True), lambda one: one[1])
            sentinels, side = itertools.count(FIRST, -1), []
            for gone, run in runs:
                side += [next(sentinels)] if gone else [token for token, _ in run]
            sides.append([*side, END])
        assert (pair.source, pair.target) == tuple(sides)
    full = np.stack(chosen[:200])
    share(full.mean(), 0.25, full.size)
    share((full[:, 1:] & full[:, :-1]).mean(), 0.25**2, full.size / 2)  # neighbours say nothing of each other
    found = padding(corrupted, 200)
    runs = 59 * 0.25 * 0.75  # that begin behind the first token, of either kind
    expected = 60 * 0.75 + 0.25 + runs + 1, 60 * 0.25 + 0.75 + runs + 1
    np.testing.assert_allclose(found, 1 - np.array(expected) / 61, atol=0.01)


def test_dropped_tokens_are_asked_for_without_a_mark_and_a_language_model_is_given_nothing():
    """Deviation named in the module: the end token stands where the released source is empty."""
    corrupted = corrupt(DroppedTokens(rate=0.25), BATCH)
    for pair in pairs(BATCH, corrupted):
        chosen, text = np.isin(pair.text, pair.target), np.array(pair.text)
        assert (pair.source, pair.target) == ([*text[~chosen], END], [*text[chosen], END])
    np.testing.assert_allclose(padding(corrupted, 200), (0.25, 0.75), atol=0.03)
    corrupted = corrupt(TextToTextLanguageModel(), BATCH)
    for pair in pairs(BATCH, corrupted):
        assert (pair.source, pair.target) == ([END], [*pair.text, END])
    assert padding(corrupted, 200) == (0, 0)


def test_deshuffling_gives_the_tokens_in_any_order():
    batch = rows([4] * 2400 + [2, 1], 4)
    corrupted, orders = corrupt(Deshuffling(), batch), {}
    for pair in pairs(batch, corrupted):
        assert pair.target == [*pair.text, END]
        order = tuple(pair.text.index(token) for token in pair.source[:-1])
        orders[order] = orders.get(order, 0) + 1
    assert set(itertools.permutations(range(4))) <= set(orders) and len(orders) <= 24 + 2 + 1
    for order in itertools.permutations(range(4)):
        share(orders[order] / 2400, 1 / 24, 2400)


def test_two_prefixes_and_their_rests_fill_a_row():
    half, full = 6, 2000
    batch = rows([12] * full + [9, 7, 6, 3, 1, 0], 12)
    corrupted = corrupt(TextToTextPrefixLanguageModel(), batch)
    cuts = []
    for row, text in enumerate(batch["input_ids"]):
        length = int(batch["segment_ids"][row].sum())
        for number in (1, 2):
            part = text[:length][half * (number - 1) : half * number].tolist()
            sides = []
            for prefix, name in (("", "input_ids"), ("decoder_", "next_ids"), ("decoder_", "decoder_input_ids")):
                own = corrupted[f"{prefix}segment_ids"][row] == number
                positions = corrupted[f"{prefix}positions"][row][own]
                assert positions.tolist() == list(range(len(positions)))
                sides.append(corrupted[name][row][own].tolist())
            if not part:
                assert sides == [[], [], []]
                continue
            source, target, shown = sides
            assert source[:-1] + target[:-1] == part and source[-1] == target[-1] == END and len(target) > 1
            assert shown == [VOCABULARY.pad, *target[:-1]]
            cuts.append(len(source) - 1)
    cuts = np.array(cuts[: 2 * full]).reshape(full, 2)
    assert (cuts.sum(axis=1) == half).all()
    for cut in range(1, half):
        share((cuts[:, 0] == cut).mean(), 1 / (half - 1), full)
    assert padding(corrupted, full) == (0, 0)
    assert corrupted["text_weights"][:full].sum() == full * half
