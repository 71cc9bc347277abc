"""The units of a preparation: parts of the input that are converted one by one, anywhere and in any order."""

from typing import NamedTuple

from plmjax.data import formats

UNIT_BYTES = 1 << 25
"""Number of bytes of a unit, if the input has at most `MOST` such units."""
MOST = 4096
"""Approximate maximum number of units. A larger input has larger units."""


class Unit(NamedTuple):
    """Consecutive ranges of the input. index: its position in the order of reading."""

    index: int
    ranges: tuple[formats.Range, ...]

    @property
    def bytes(self) -> int:
        """Number of bytes on the disk."""
        return sum(part.bytes for part in self.ranges)


def units(source: formats.Input, total: int, unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Divide an input into units, which depend only on the input and `unit_bytes`.

    total: bytes of the input.
    """
    size = max(unit_bytes, total // MOST)
    groups: list[list[formats.Range]] = []
    full = 0
    for part in source.ranges(size):
        # Ranges without a known size, such as those of TFDS, have about the requested size.
        if not groups or full >= size or not part.bytes:
            groups.append([])
            full = 0
        groups[-1].append(part)
        full += part.bytes
    return [Unit(index, tuple(group)) for index, group in enumerate(groups)]
