"""The units of a preparation: parts of the input that are converted one by one, anywhere and in any order."""

from typing import NamedTuple

from plmjax.data import formats

UNIT_BYTES = 1 << 25
"""Number of bytes of a unit, where the input does not have more than `MOST`."""
MOST = 4096
"""Number of units above which they become larger."""


class Unit(NamedTuple):
    """Consecutive ranges of the input. index: its position in the order of reading."""

    index: int
    ranges: tuple[formats.Range, ...]

    @property
    def bytes(self) -> int:
        """Number of bytes on the disk."""
        return sum(part.bytes for part in self.ranges)


def units(source: formats.Input, total: int, unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Divide an input into units, as a function of the input alone.

    total: bytes of the input.
    """
    size = max(unit_bytes, total // MOST)
    groups: list[list[formats.Range]] = []
    full = 0
    for part in source.ranges(size):
        # Ranges without a known size, such as those of TFDS, have about the size that was asked for.
        if not groups or full >= size or not part.bytes:
            groups.append([])
            full = 0
        groups[-1].append(part)
        full += part.bytes
    return [Unit(index, tuple(group)) for index, group in enumerate(groups)]
