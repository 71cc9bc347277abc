"""Perplexity of held-out text: a language model beside n-grams that are counted in the same training text.

    python benchmarks/ngrams.py runs/nnlm_tiny

The n-grams have the tokens, the training text and the held-out text of the run. They are smoothed by the method that
Chen and Goodman (1999) found best: interpolated Kneser-Ney smoothing with three discounts. A mixture gives one half to
the model and one half to the n-grams, as in Bengio et al. (2003, section 4).
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from plmjax.data import store
from plmjax.data.layouts.joined_text import JoinedText
from plmjax.inference.language_model import LanguageModel
from plmjax.training.checkpoints import checkpoints

LONGEST = 5
"""Number of tokens of the longest n-gram."""


@dataclasses.dataclass(frozen=True)
class Order:
    """The n-grams of one length k, each a row in the order of its key: context * V + token.

    keys: int64 [G].
    discounted: float64 [G], the discounted probability after its context.
    totals: float64 [C], the counts of a context.
    left: float64 [C], the probability that is left for the shorter n-gram.
    """

    keys: np.ndarray
    discounted: np.ndarray
    totals: np.ndarray
    left: np.ndarray


class NGrams:
    """Modified Kneser-Ney: the probability of a token after the n-1 tokens before it, from the counts of a text.

    text: int [N]. size: tokens of the vocabulary, V. order: the longest n-gram, n.

    Raises:
        ValueError: the text is so small that no n-gram of some length occurs once, twice, three or four times.
    """

    def __init__(self, text: np.ndarray, size: int, order: int):
        self._size, self._orders = size, []
        keys: list[np.ndarray] = []  # keys of the n-grams of every length
        ends: list[np.ndarray] = []  # row of the n-gram that ends at each token, or -1
        context = np.zeros(len(text), np.int64)
        for before in range(order):
            unique, rows = np.unique((context * size + text)[before:], return_inverse=True)
            keys.append(unique)
            ends.append(np.concatenate([np.full(before, -1), rows]))
            context = np.concatenate([[-1], ends[-1][:-1]])
        for before in range(order):
            stands = ends[before][before:]
            # Counted once for each different token before it, so for each n-gram that is one token longer.
            if before + 1 < order:
                _, places = np.unique(ends[before + 1][before + 1 :], return_index=True)
                stands = stands[1:][places]
            counts = np.bincount(stands, minlength=len(keys[before]))
            self._orders.append(_smoothed(keys[before], counts, size, len(keys[before - 1]) if before else 1))

    def nats(self, text: np.ndarray) -> np.ndarray:
        """Return -log p of every token of a text, given the tokens before it in that text, float64 [N]."""
        probability = np.full(len(text), 1 / self._size)
        context = np.zeros(len(text), np.int64)  # rows of the context, or -1 if the text had none
        for order in self._orders:
            known = context >= 0
            key = context * self._size + text
            row = np.minimum(np.searchsorted(order.keys, key), len(order.keys) - 1)
            there = known & (order.keys[row] == key)
            own = np.where(there, order.discounted[row], 0)
            follows = known & (order.totals[context] > 0)
            probability = np.where(follows, own + order.left[context] * probability, probability)
            context = np.concatenate([[-1], np.where(there, row, -1)[:-1]])
        return -np.log(probability)


def _smoothed(keys: np.ndarray, counts: np.ndarray, size: int, contexts: int) -> Order:
    """Return the n-grams of one length, with discounts and shares computed from the counts.

    Source: Chen and Goodman 1999, section 3.

    counts: int [G], the number of occurrences of an n-gram of the longest order, or for a shorter one the number of
    different tokens before it.
    """
    some = [int(np.sum(counts == number)) for number in range(1, 5)]
    if not all(some):
        raise ValueError(f"Expected n-grams that stand once to four times in the text, found {some}; give more text.")
    ratio = some[0] / (some[0] + 2 * some[1])
    discounts = np.array([0.0, *(k - (k + 1) * ratio * some[k] / some[k - 1] for k in (1, 2, 3))])
    taken = discounts[np.minimum(counts, 3)]
    context = keys // size
    totals = np.bincount(context, counts, contexts)
    with np.errstate(invalid="ignore"):  # a context that only ends the text is never used
        left = np.bincount(context, taken, contexts) / totals
        discounted = (counts - taken) / totals[context]
    return Order(keys, discounted, totals, left)


def joined(dataset: store.Dataset, split: str, between: int) -> np.ndarray:
    """Return all tokens of a split, int32 [N], with the token `between` after each document."""
    text = JoinedText(dataset.split(split), between)
    out = np.zeros((1, text.size), np.int32)
    text.copy(np.array([0]), np.array([text.size]), out)
    return out[0]


def model_nats(model: LanguageModel, text: np.ndarray, overlap: int) -> np.ndarray:
    """Return -log p of every token of a text but the first, from a language model.

    Its rows repeat `overlap` tokens.
    """
    stride, found = model.window - overlap, []
    rows = [text[start : start + model.window + 1] for start in range(0, max(len(text) - 1 - overlap, 1), stride)]
    for number, scores in enumerate(model.score(rows)):
        found.append(scores.nats[overlap if number else 0 :])
    return np.concatenate(found).astype(np.float64)


def table(text: np.ndarray, held_out: np.ndarray, size: int, *, name: str, own: np.ndarray) -> list[str]:
    """Return the lines of a table: n-grams of every length, the model, and their mixtures."""
    lines = ["| model | perplexity | mixed with the model |", "|---|---|---|"]
    for order in range(2, LONGEST + 1):
        nats = NGrams(text, size, order).nats(held_out)[1:]
        mixed = -np.log((np.exp(-nats) + np.exp(-own)) / 2)
        lines.append(f"| interpolated {order}-gram | {np.exp(nats.mean()):,.1f} | {np.exp(mixed.mean()):,.1f} |")
    return [*lines, f"| {name} | {np.exp(own.mean()):,.1f} | |"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run directory of a language model, with its dataset")
    options = parser.parse_args()
    run = checkpoints.load_parameters(options.run)[1].experiment
    model = LanguageModel(options.run)
    dataset = store.open_dataset(run.data.path or f"{options.run}/dataset")
    text, held_out = (joined(dataset, split, model.begin) for split in ("train", "validation"))
    own = model_nats(model, held_out, run.data.layout.overlap)
    assert len(own) == len(held_out) - 1
    size = model.tokenizer.vocabulary.size
    print(f"{len(text):,} tokens to count in, {len(own):,} to predict, vocabulary {size:,}\n")
    print("\n".join(table(text, held_out, size, name=Path(options.run).name, own=own)))


if __name__ == "__main__":
    main()
