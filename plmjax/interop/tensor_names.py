"""The names of the tensors of a transformers checkpoint, whichever version and class wrote it, as today's."""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from plmjax.errors import UserError
from plmjax.interop.adapter import Architecture
from plmjax.interop.tensors import Tensors


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of a system's tensors (`plmjax.interop.adapter.TensorNames`).

    prefix: before the names of the part of a model with a head that is the model without one.
    parts: the first names in that part; a model without a head has them without the prefix.
    heads: tensors of a head, or the first parts of their names.
    ties: copy -> the tensor that it repeats. Where an architecture ties nothing a copy may differ: it is of another's
        head.
    buffers: pattern of the names of buffers, which are left out.
    endings: end of an older name -> its end today.
    """

    prefix: str
    parts: tuple[str, ...]
    heads: tuple[str, ...]
    ties: Mapping[str, str]
    buffers: str
    endings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def canonical(self, tensors: Tensors, architecture: Architecture) -> Tensors:
        """The tensors under today's names, without buffers and without copies that equal what they are tied to.

        Raises:
            UserError: two tensors have one name today, or a copy differs.
        """
        names: dict[str, str] = {}
        for old in tensors.shapes:
            new = self.today(old)
            if new is None:
                continue
            if new in names:
                raise UserError(
                    f"Expected one tensor {new} in {tensors.origin}, found {names[new]} and {old}; remove one."
                )
            names[new] = old
        names = without_copies(tensors, names, self.ties, architecture.tied)
        removed = f"{self.prefix}." if architecture.within else ""
        return tensors.renamed({new.removeprefix(removed): old for new, old in names.items()})

    def today(self, old: str) -> str | None:
        """The name of a tensor in a model with a head; None for a buffer."""
        for ending, new in self.endings.items():
            old = f"{old.removesuffix(ending)}{new}" if old.endswith(ending) else old
        name = f"{self.prefix}.{old}" if old.startswith(tuple(f"{part}." for part in self.parts)) else old
        return None if re.fullmatch(self.buffers, name) else name

    def optional(self, name: str) -> bool:
        """Whether a tensor belongs to a head."""
        return any(name == head or name.startswith(f"{head}.") for head in self.heads)


def without_copies(tensors: Tensors, names: dict[str, str], ties: Mapping[str, str], tied: bool) -> dict[str, str]:
    """`names` (today's name -> name in the file) without the tensors that repeat another.

    ties: copy -> what it is tied to, which takes its place where it is absent. Raises UserError where two differ that
    are `tied`.
    """
    kept = dict(names)
    for copy, original in ties.items():
        if copy not in kept:
            continue
        if original not in kept:
            kept[original] = kept.pop(copy)
            continue
        if tied and not np.array_equal(tensors.read(kept[copy]), tensors.read(kept[original])):
            raise UserError(
                f"Expected {copy} tied to {original} in {tensors.origin}, found a difference, which this model cannot "
                "express; tie them and save the model again."
            )
        del kept[copy]
    return kept
