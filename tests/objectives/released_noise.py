"""The procedure of fairseq 0.12.2's data/denoising_dataset.py on one row, in loops, given its random numbers."""

from collections.abc import Sequence

import numpy as np


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


def hidden(
    source: Sequence[int],
    starts: Sequence[bool],
    inside: Sequence[bool],
    *,
    indices: Sequence[int],
    lengths: Sequence[int],
    random: Sequence[bool],
    tokens: Sequence[int],
    mask: int,
    replacement: str,
) -> list[int]:
    """Spans grow token by token, all at once, until their words are through or their sequence ends."""
    source, kept = list(source), [True] * len(source)
    growing = list(zip(indices, lengths, random, strict=True))
    first = True
    while growing:
        for place, _, strange in growing:
            if replacement == "each" or (replacement == "one" and first):
                source[place] = tokens[place] if strange else mask
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
