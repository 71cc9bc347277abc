"""Today's names of the tensors in a transformers checkpoint, for every version and class that writes them."""

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

    prefix: the prefix of the names of the headless part in a model with a head.
    parts: the first names in that part. A model without a head has them without the prefix.
    heads: tensors of a head, or the first parts of their names.
    ties: copy -> the tensor that it repeats. If an architecture does not tie them, a copy may differ: it belongs to
        another architecture's head.
    buffers: pattern of the names of buffers, which are left out.
    endings: ending of an older name -> its ending today.
    """

    prefix: str
    parts: tuple[str, ...]
    heads: tuple[str, ...]
    ties: Mapping[str, str]
    buffers: str
    endings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def canonical(self, tensors: Tensors, architecture: Architecture) -> Tensors:
        """Rename the tensors to today's names. Buffers are left out, and so are copies that equal their tied tensors.

        Raises:
            UserError: two tensors have the same name today, or a copy differs.
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
        """Return the name of a tensor in a model with a head; None for a buffer."""
        for ending, new in self.endings.items():
            old = f"{old.removesuffix(ending)}{new}" if old.endswith(ending) else old
        name = f"{self.prefix}.{old}" if old.startswith(tuple(f"{part}." for part in self.parts)) else old
        return None if re.fullmatch(self.buffers, name) else name

    def optional(self, name: str) -> bool:
        """Return true if a tensor belongs to a head."""
        return any(name == head or name.startswith(f"{head}.") for head in self.heads)


def without_copies(tensors: Tensors, names: dict[str, str], ties: Mapping[str, str], tied: bool) -> dict[str, str]:
    """Return `names` (today's name -> name in the file) without the tensors that repeat another tensor.

    ties: copy -> the tensor that it repeats. The copy takes the place of that tensor if it is absent. Raises UserError
    if two `tied` tensors differ.
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
