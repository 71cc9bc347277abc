"""The text-to-text tasks that T5's paper compares with span corruption: what each makes of a text."""

import itertools

import numpy as np

from plmjax.objectives.text_to_text.independent_noise import DroppedTokens, MaskedText, ReplacedSpans
from plmjax.objectives.text_to_text.prefix_language_model import TextToTextPrefixLanguageModel
from plmjax.objectives.text_to_text.whole_text import Deshuffling, TextToTextLanguageModel
from tests.objectives.text_to_text.rows import END, FIRST, SIZE, VOCABULARY, corrupt, padding, pairs, rows

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
    assert not strange and padding({name: value[:200] for name, value in corrupted.items()}) == (0, 0)


def test_without_random_tokens_every_chosen_one_is_the_first_sentinel():
    batch = rows([60] * 3, 60)
    for pair in pairs(batch, corrupt(MaskedText(random_fraction=0.0), batch)):
        assert {after for before, after in zip(pair.text, pair.source, strict=False) if before != after} <= {FIRST}


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
    found = padding({name: value[:200] for name, value in corrupted.items()})
    runs = 59 * 0.25 * 0.75  # that begin behind the first token, of either kind
    expected = 60 * 0.75 + 0.25 + runs + 1, 60 * 0.25 + 0.75 + runs + 1
    np.testing.assert_allclose(found, 1 - np.array(expected) / 61, atol=0.01)


def test_dropped_tokens_are_asked_for_without_a_mark():
    corrupted = corrupt(DroppedTokens(rate=0.25), BATCH)
    for pair in pairs(BATCH, corrupted):
        chosen = np.isin(pair.text, pair.target)
        text = np.array(pair.text)
        assert (pair.source, pair.target) == ([*text[~chosen], END], [*text[chosen], END])
    found = padding({name: value[:200] for name, value in corrupted.items()})
    np.testing.assert_allclose(found, (0.25, 0.75), atol=0.03)


def test_the_language_model_is_given_nothing():
    """Deviation named in the module: the end token stands where the released source is empty."""
    corrupted = corrupt(TextToTextLanguageModel(), BATCH)
    for pair in pairs(BATCH, corrupted):
        assert (pair.source, pair.target) == ([END], [*pair.text, END])
    assert padding({name: value[:200] for name, value in corrupted.items()}) == (0, 0)


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
    assert padding({name: value[:full] for name, value in corrupted.items()}) == (0, 0)
    assert corrupted["text_weights"][:full].sum() == full * half
