"""BART's pretraining task: each noise alone, all of it against the released procedure, and what is asked for."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives import noise
from plmjax.objectives.choosing import strict_draws
from plmjax.objectives.denoising import Denoising

CLS, PAD, SEP, STOP, SIZE = 0, 1, 2, 4, 400
MASK = SIZE - 1
SPECIAL = {"cls": CLS, "pad": PAD, "sep": SEP, "unknown": 3, "mask": MASK}
VOCABULARY = Vocabulary(
    SIZE, **SPECIAL, special=(*SPECIAL.values(),), continuation=np.arange(SIZE) % 3 == 0, full_stop=STOP
)


def rows(lengths: list[int], room: int = 48, stops: float = 0.1, seed: int = 0) -> dict[str, np.ndarray]:
    """<s> text </s>, of different words but for full stops and a separator in the middle of every other row."""
    random, place = np.random.default_rng(seed), np.arange(room)
    lengths = np.array(lengths)[:, None]
    ids = np.stack([random.permutation(np.arange(5, MASK))[:room] for _ in lengths])
    ids = np.where(random.random(ids.shape) < stops, STOP, ids)
    ids[1::2, room // 2] = SEP
    ids = np.where(place == 0, CLS, np.where(place == lengths - 1, SEP, np.where(place < lengths, ids, PAD)))
    numbers = np.arange(len(lengths), dtype=np.int32)
    return {"input_ids": ids.astype(np.int32), "segment_ids": (place < lengths).astype(np.int32), "row_ids": numbers}


def corrupt(objective: Denoising, batch: dict, seed: int = 0) -> tuple[dict, list[tuple[list[int], list[int]]]]:
    """The corrupted batch, and the text and the source of every row."""
    make = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY))
    found = jax.device_get(make(batch, jax.random.key(seed)))
    texts, sources = (
        [ids[segments > 0].tolist() for ids, segments in zip(one["input_ids"], one["segment_ids"], strict=True)]
        for one in (batch, found)
    )
    for text, source in zip(texts, sources, strict=True):
        assert source[:1] == text[:1] and source[-1:] == text[-1:]
    return found, list(zip(texts, sources, strict=True))


def test_token_deletion():
    objective = Denoising(mask=0.3, permute=0.0, unit="token", replacement="none")
    _, found = corrupt(objective, rows([48] * 20 + [9]))
    for text, source in found:
        tokens = sum(token not in VOCABULARY.special for token in text)
        assert len(text) - len(source) == math.ceil(np.float32(0.3) * np.float32(tokens))
        rest = iter(text)
        assert all(token in rest for token in source)
        assert source.count(SEP) == text.count(SEP)


ALL = Denoising(mask=0.35, insert=0.1, rotate=0.5, permute=0.8, mean_length=1.5, random_fraction=0.4)
ROOM = 48
BATCH = rows([ROOM] * 28 + [30, 7, 3, 2, 0])


@pytest.mark.parametrize(
    "replacement", ["one", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("each", "none"))]
)
def test_all_of_it_is_the_released_procedure(replacement):
    """With the draws of the step: sentences, then spans, what spans of no word insert, further tokens, the turn.

    The decoder is asked for the clean row after the end token.
    """
    objective = dataclasses.replace(ALL, replacement=replacement)
    corrupted, found = corrupt(objective, BATCH, seed=5)
    draws = jax.device_get(jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(5), len(found))))
    turned = inserts = 0
    for row, (text, source) in enumerate(found[:-1]):
        expected, count, turn = noisy(jax.tree.map(lambda draw, row=row: draw[row], draws), text, replacement)
        assert source == expected
        turned, inserts = turned + turn, inserts + count
    assert 0 < turned < len(found) and inserts > 5
    assert found[-1] == ([], [])
    ids, real = BATCH["input_ids"], BATCH["segment_ids"] > 0
    np.testing.assert_array_equal(corrupted["next_ids"], np.where(real, ids, PAD))
    np.testing.assert_array_equal(corrupted["next_weights"], real)
    shown = np.concatenate([np.full((len(ids), 1), SEP), ids[:, :-1]], axis=1)
    np.testing.assert_array_equal(corrupted["decoder_input_ids"], np.where(real, shown, PAD))
    np.testing.assert_array_equal(objective.targets(corrupted)[1], real & ~np.isin(ids, VOCABULARY.special))


def drawn(key: jax.Array) -> dict[str, jax.Array]:
    """The numbers that the objective draws for a row, in the order in which it draws them."""
    permuting, masking, inserting, rotating = jax.random.split(key, 4)
    of_lengths, of_words, of_kinds, of_tokens, of_inserted = jax.random.split(masking, 5)
    turned, place = jax.random.split(rotating)
    shares = np.log(noise.poisson_probabilities(ALL.mean_length)).astype(np.float32)
    count = math.ceil((2 * math.ceil(ALL.mask * ROOM) + 64) / ALL.mean_length)
    longest = ALL.lengths(ROOM)[0]

    def new(key: jax.Array, room: int) -> tuple[jax.Array, jax.Array]:
        of_places, of_tokens = jax.random.split(key)
        return strict_draws(of_places, room), tokens(of_tokens, room)

    def tokens(key: jax.Array, room: int) -> jax.Array:
        return 1 + jax.random.randint(key, (room,), 0, SIZE - 1)  # any but <s>

    return {
        "order": jnp.stack([strict_draws(one, ROOM) for one in jax.random.split(permuting)]),
        "lengths": jax.random.categorical(of_lengths, shares, shape=(count,)),
        "words": strict_draws(of_words, ROOM),
        "kinds": jax.random.uniform(of_kinds, (count,)) < ALL.random_fraction,
        "tokens": tokens(of_tokens, ROOM),
        "empty": new(of_inserted, ROOM),
        "inserted": new(inserting, longest),
        "turned": jax.random.uniform(turned) < ALL.rotate,
        "offset": jax.vmap(lambda length: jax.random.randint(place, (), 1, length))(jnp.arange(2, longest + 1)),
    }


def noisy(draws: dict, text: list[int], replacement: str) -> tuple[list[int], int, bool]:
    """The source of a row; how many spans had no word; whether it was turned."""
    ends = np.asarray(noise.sentence_ends(np.array(text) == STOP, len(text))).sum()
    moved = math.ceil(ALL.permute * ends)
    chosen = np.argsort(draws["order"][0][:ends])[:moved].tolist()
    source = permuted(text, STOP, chosen, np.argsort(draws["order"][1][:moved]).tolist())

    inside = [token not in VOCABULARY.special for token in source]
    starts = [
        here and not (VOCABULARY.continuation[token] and before)
        for token, here, before in zip(source, inside, [False, *inside], strict=False)
    ]
    budget = math.ceil(np.float32(ALL.mask) * np.float32(sum(starts)))
    lengths = covering(draws["lengths"].tolist(), budget)
    filled, empty = [length for length in lengths if length], lengths.count(0)
    indices = np.flatnonzero(starts)[np.argsort(draws["words"][: sum(starts)])][: len(filled)]
    kinds = draws["kinds"][: len(filled)]
    spans = {"indices": indices, "lengths": filled, "random": kinds, "tokens": draws["tokens"]}
    source = hidden(source, starts, inside, **spans, replacement=replacement)
    source = with_noise(source, min(empty, ROOM - len(source)), *draws["empty"])

    source = with_noise(source, math.ceil(ALL.insert * len(source)), *draws["inserted"])
    if draws["turned"]:
        source = rotated(source, int(draws["offset"][max(len(source), 2) - 2]))
    return source, empty, bool(draws["turned"])


def with_noise(source: list[int], count: int, order: np.ndarray, tokens: np.ndarray) -> list[int]:
    random = math.ceil(ALL.random_fraction * count)
    return inserted(source, order, tokens[:random].tolist() + [MASK] * (count - random))


def test_lengths_of_spans_are_those_of_a_poisson_distribution():
    for mean in (0.5, 3.0, 3.5, 16.0):
        shares = noise.poisson_probabilities(mean)
        assert shares.sum() == pytest.approx(1) and shares @ np.arange(len(shares)) == pytest.approx(mean, rel=1e-5)
        assert shares[0] == pytest.approx(math.exp(-mean), rel=1e-5)
        assert shares[2] / shares[1] == pytest.approx(mean / 2)
    assert len(noise.poisson_probabilities(3.5)) == 19


# --------------------------- the procedure of fairseq 0.12.2's data/denoising_dataset.py on a row, given its numbers


def permuted(source: list[int], full_stop: int, chosen: list[int], among: list[int]) -> list[int]:
    """Sentences of a row; the sentence that stands at chosen[i] gives way to the one at chosen[among[i]]."""
    ends, before = [], False
    for place, token in enumerate(source[:-1]):
        stop = place > 0 and (token == full_stop or place == len(source) - 2)
        if stop and not before:
            ends.append(place + 1)
        before = stop
    sentences = [source[begin:end] for begin, end in zip([1, *ends], ends, strict=False)]
    order = list(range(len(sentences)))
    for place, other in zip(chosen, among, strict=True):
        order[place] = chosen[other]
    text = [token for number in order for token in sentences[number]]
    return source[:1] + text + source[1 + len(text) :]


def covering(lengths: Sequence[int], budget: int) -> list[int]:
    """The first lengths that add up to the budget, the last of them shortened."""
    taken = []
    for length in lengths:
        if sum(taken) < budget:
            taken.append(min(length, budget - sum(taken)))
    return taken


def hidden(source, starts, inside, *, indices, lengths, random, tokens, replacement: str) -> list[int]:
    """Spans grow token by token, all at once, until their words are through or their sequence ends."""
    source, kept = list(source), [True] * len(source)
    growing = list(zip(indices, lengths, random, strict=True))
    first = True
    while growing:
        for place, _, strange in growing:
            if replacement == "each" or (replacement == "one" and first):
                source[place] = tokens[place] if strange else MASK
            else:
                kept[place] = False
        first, further = False, []
        for place, left, strange in growing:
            left -= 255 if not inside[place + 1] else int(starts[place + 1])
            if left > 0:
                further.append((place + 1, left, strange))
        growing = further
    return [token for token, one in zip(source, kept, strict=True) if one]


def inserted(source: list[int], order: np.ndarray, new: list[int]) -> list[int]:
    """The row with new tokens at the places, between its ends, where `order` is lowest."""
    length = len(source) + len(new)
    places = (1 + np.argsort(order[1 : length - 1])[: len(new)]).tolist()
    rest = iter(source)
    return [new[places.index(place)] if place in places else next(rest) for place in range(length)]


def rotated(source: list[int], offset: int) -> list[int]:
    """The row whose text begins at the offset."""
    return source[:1] + source[offset:-1] + source[1:offset] + source[-1:]
