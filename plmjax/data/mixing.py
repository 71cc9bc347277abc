"""The fractions of a mixture's sources, and the source of every row.

A fraction is set by a weight, or by the size of the source (Raffel et al., JMLR 2020, section 3.5.2). At most K of the
e_m examples or tokens of source m count. Its fraction is

    r_m = min(e_m, K)^(1 / T) / sum over n of min(e_n, K)^(1 / T)

A temperature T of 1 is examples-proportional mixing. A higher T samples small sources more often, up to equal mixing
for an infinite T.

The sources of rows follow a pattern that repeats after `Period.length` rows. It is a proportionate schedule (Baruah et
al., "Proportionate progress", Algorithmica 1996): row j of a source with k of the M rows of a period lies between the
rows floor(j M / k) and ceil((j + 1) M / k) - 1 of the period. So among the first n rows each source has less than one
row more or less than n k / M, for every n. Taking the earliest deadline first gives such a schedule. The place of any
row among the rows of its source is found in O(1).
"""

import dataclasses
import functools
import heapq
import math
import re
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from plmjax.errors import FROM_0, UserError, check_ranges, nearest, quoted

LONGEST_PERIOD = 1 << 16
"""Maximum number of rows of a pattern. Fractions that need more are rounded to multiples of 1/65,536."""
_NAME = re.compile(r"\w[\w.-]*")


class Portion(NamedTuple):
    """The amount of a source that a run has read.

    fraction: fraction of the run's rows or examples that came from it. epochs: number of passes over the source.
    """

    fraction: float
    epochs: float


def proportions(sizes: Sequence[int], limit: float = math.inf, temperature: float = 1.0) -> np.ndarray:
    """Return unnormalized fractions of sources of these sizes, float64 [sources].

    limit: K. temperature: T, from 1 to infinity.
    """
    return np.minimum(sizes, limit).astype(np.float64) ** (1 / temperature)


def rates(sizes: Sequence[int], limit: float = math.inf, temperature: float = 1.0) -> np.ndarray:
    """Return the fractions of sources of these sizes, float64 [sources]. Their sum is 1."""
    found = proportions(sizes, limit, temperature)
    return found / found.sum()


def check_temperature(option: str, temperature: float) -> None:
    """Raise UserError for a temperature below 1. option: name of its setting, for the message."""
    if not temperature >= 1:
        raise UserError(f"Expected {option} of at least 1, found {temperature}; change it.")


def weights(
    option: str, given: Sequence[str], names: Collection[str], needed: Collection[str] | None = None
) -> dict[str, Fraction]:
    """Return a dict from source to weight, for settings NAME=WEIGHT.

    option: name of the setting, for messages. names: all sources. needed: sources that need a weight; None for
        all.

    Raises:
        UserError: a weight is not a number above 0, or a name is unknown, lacks a weight or has two.
    """
    found: dict[str, Fraction] = {}
    for one in given:
        name, _, number = one.partition("=")
        if name not in names:
            raise UserError(f"Expected {option} of the mixture's sources, found {quoted(one)}; {nearest(name, names)}")
        if name in found:
            raise UserError(f"Expected one weight of {name} in {option}, found two; leave one out.")
        try:
            found[name] = Fraction(number)
        except (ValueError, ZeroDivisionError):
            raise UserError(
                f"Expected {option} of the form NAME=WEIGHT, found {quoted(one)}; write for example {name}=2."
            ) from None
        if found[name] <= 0:
            raise UserError(
                f"Expected {option} above 0, found {quoted(one)}; change it, or leave {name} out of the mixture."
            )
    for name in names if needed is None else needed:
        if name not in found:
            raise UserError(f"Expected {option} of every source, found none of {name}; add {name}=WEIGHT.")
    return found


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Several prepared datasets whose rows are mixed, in place of one dataset."""

    sources: tuple[str, ...] = ()
    """Prepared datasets of one tokenizer, each as NAME=FOLDER, such as wikipedia=runs/wikipedia/dataset; empty for one
    dataset (`data.path`, or the dataset prepared from the text).
    """
    weights: tuple[str, ...] = ()
    """Weights of the sources' rows, each as NAME=WEIGHT; empty takes the temperature."""
    temperature: float = 1.0
    """T of the fractions min(tokens, limit)^(1/T): 1 mixes in proportion to the tokens, inf equally."""
    limit: int = 0
    """Maximum number of tokens of a source that count for its fraction; 0 counts all."""

    def __post_init__(self) -> None:
        check_ranges("data.mixture", self, limit=FROM_0)
        check_temperature("--data.mixture.temperature", self.temperature)
        paths = self.paths
        if not paths and (self.weights or self.temperature != 1 or self.limit):
            raise UserError(
                "Expected --data.mixture.sources with the other settings of a mixture, found none; name some."
            )
        if self.weights:
            if self.temperature != 1 or self.limit:
                raise UserError(
                    "Expected either --data.mixture.weights or --data.mixture.temperature and --data.mixture.limit, "
                    "found both; leave one out."
                )
            weights("--data.mixture.weights", self.weights, paths)

    @property
    def paths(self) -> dict[str, str]:
        """The folder of each source, by name.

        Raises:
            UserError: a source has no name or no folder, or two have the same name.
        """
        found: dict[str, str] = {}
        for source in self.sources:
            name, _, path = source.partition("=")
            if not _NAME.fullmatch(name) or not path or name in found:
                raise UserError(
                    f"Expected --data.mixture.sources of the form NAME=FOLDER, every name once, found "
                    f"{quoted(source)}; write for example wikipedia=runs/wikipedia/dataset."
                )
            found[name] = path
        return found

    def rows(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Return the number of rows of each source in a period (`Period`).

        tokens: number of training tokens of each source.

        Raises:
            UserError: a source has no text, or its fraction is below half a row of the longest period.
        """
        for name, size in tokens.items():
            if not size:
                raise UserError(f"Expected text in the source {name}, found none; leave it out of the mixture.")
        if self.weights:
            return round_to_period(weights("--data.mixture.weights", self.weights, tokens))
        found = proportions(tuple(tokens.values()), self.limit or math.inf, self.temperature)
        return round_to_period(dict(zip(tokens, map(Fraction, found.tolist()), strict=True)))


def round_to_period(fractions: Mapping[str, Fraction]) -> dict[str, int]:
    """Return integers in the proportion of `fractions`, with a sum of at most LONGEST_PERIOD.

    They are exact if possible. Otherwise their sum is LONGEST_PERIOD, and the largest remainders are rounded up.

    Raises:
        UserError: a number would be 0.
    """
    unit = math.lcm(*(fraction.denominator for fraction in fractions.values()))
    numbers = {name: int(fraction * unit) for name, fraction in fractions.items()}
    divisor, total = math.gcd(*numbers.values()), sum(numbers.values())
    if total // divisor <= LONGEST_PERIOD:
        return {name: number // divisor for name, number in numbers.items()}
    found = {name: LONGEST_PERIOD * number // total for name, number in numbers.items()}
    remainders = {name: LONGEST_PERIOD * number % total for name, number in numbers.items()}
    largest = sorted(remainders, key=lambda name: -remainders[name])
    for name in largest[: LONGEST_PERIOD - sum(found.values())]:
        found[name] += 1
    for name, number in found.items():
        if not number:
            raise UserError(
                f"Expected a share of at least 1 in {LONGEST_PERIOD:,} rows for every source, found "
                f"{float(fractions[name] / sum(fractions.values())):.2g} for {name}; raise it, or leave the source out "
                f"of the mixture."
            )
    return found


class Period:
    """The repeating pattern of sources of the rows of a mixture.

    counts: number of rows of each source in a period.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = np.array(counts, np.int64)
        self.length = int(self._counts.sum())
        self._pattern, self._earlier = _pattern(tuple(counts))

    def __call__(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (source, number of earlier rows of that source) for row numbers from 0, int64 each."""
        periods, places = np.divmod(np.asarray(numbers, np.int64), self.length)
        sources = self._pattern[places]
        return sources, periods * self._counts[sources] + self._earlier[places]

    def counts_after(self, rows: int) -> np.ndarray:
        """Return the number of rows of each source among the first `rows`, int64 [sources]."""
        periods, rest = divmod(rows, self.length)
        return periods * self._counts + np.bincount(self._pattern[:rest], minlength=len(self._counts))


@functools.lru_cache(8)
def _pattern(counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return (source of each row of a period, number of earlier rows of that source), int64 each."""
    length = sum(counts)
    releases: list[list[tuple[int, int]]] = [[] for _ in range(length)]
    for source, count in enumerate(counts):
        for row in range(count):
            releases[row * length // count].append((-(-(row + 1) * length // count), source))
    ready: list[tuple[int, int]] = []
    pattern = np.empty(length, np.int64)
    for place, released in enumerate(releases):
        for one in released:
            heapq.heappush(ready, one)
        pattern[place] = heapq.heappop(ready)[1]
    earlier = np.empty_like(pattern)
    for source, count in enumerate(counts):
        earlier[pattern == source] = np.arange(count)
    return pattern, earlier
