"""The current names of the tensors in a transformers checkpoint, for every version and class that writes them."""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from plmjax.errors import UserError
from plmjax.interop.adapter import Architecture
from plmjax.interop.tensors import Tensors

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
"""Parts of names that torch.compile, FSDP, activation checkpointing and Lightning's Fabric add, wherever they wrap."""
PARALLEL = "module."
"""Prefix of every name in a model that DataParallel, DDP or DeepSpeed wraps."""


def unwrap(tensors: Tensors) -> Tensors:
    """Remove the prefixes of wrapper modules from the names of tensors.

    Raises:
        UserError: two tensors would have the same name.
    """
    names: dict[str, str] = {}
    for old in tensors.shapes:
        new = ".".join(part for part in old.split(".") if part not in WRAPPERS)
        if new in names:
            raise UserError(f"Expected one tensor {new} in {tensors.origin}, found {names[new]} and {old}; remove one.")
        names[new] = old
    while names and all(name.startswith(PARALLEL) for name in names):
        names = {name.removeprefix(PARALLEL): old for name, old in names.items()}
    return tensors.rename(names)


@dataclasses.dataclass(frozen=True)
class Names:
    """The names of a system's tensors (`plmjax.interop.adapter.TensorNames`).

    prefix: the prefix of the names of the headless part in a model with a head.
    parts: the first names in that part. A model without a head has them without the prefix.
    heads: tensors of a head, or prefixes of their names.
    ties: copy -> the tensor that it repeats. If an architecture does not tie them, a copy may differ: it belongs to
        another architecture's head.
    buffers: pattern of the names of buffers, which are left out.
    endings: ending of an older name -> its current ending.
    """

    prefix: str
    parts: tuple[str, ...]
    heads: tuple[str, ...]
    ties: Mapping[str, str]
    buffers: str
    endings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def canonical(self, tensors: Tensors, architecture: Architecture) -> Tensors:
        """Rename the tensors to the current names, without buffers and without copies that equal their tied tensors.

        Raises:
            UserError: two tensors have the same current name, a copy differs, or all names have a foreign prefix.
        """
        tensors = unwrap(tensors)
        self._check_prefix(tensors)
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
        return tensors.rename({new.removeprefix(removed): old for new, old in names.items()})

    def today(self, old: str) -> str | None:
        """Return the current name of a tensor in a model with a head; None for a buffer."""
        for ending, new in self.endings.items():
            old = f"{old.removesuffix(ending)}{new}" if old.endswith(ending) else old
        name = f"{self.prefix}.{old}" if old.startswith(tuple(f"{part}." for part in self.parts)) else old
        return None if re.fullmatch(self.buffers, name) else name

    def _check_prefix(self, tensors: Tensors) -> None:
        """Raise UserError if all names of the headless part have a foreign prefix. It names the prefix."""
        known = tuple(f"{part}." for part in (self.prefix, *self.parts))
        foreign = {
            name[: found.start(1)]
            for name in tensors.shapes
            for found in [re.search(rf"\.({'|'.join(map(re.escape, known))})", name)]
            if found and not name.startswith((*known, *(f"{head}." for head in self.heads)))
        }
        if len(foreign) == 1 and not any(name.startswith(known) for name in tensors.shapes):
            raise UserError(
                f"Expected names of tensors that begin with {' or '.join(known)} in {tensors.origin}, found the prefix "
                f"{foreign.pop()!r} before them; save the tensors without it."
            )

    def optional(self, name: str) -> bool:
        """Return true if a tensor belongs to a head."""
        return any(name == head or name.startswith(f"{head}.") for head in self.heads)


def without_copies(tensors: Tensors, names: dict[str, str], ties: Mapping[str, str], tied: bool) -> dict[str, str]:
    """Return `names` (current name -> name in the file) without the tensors that repeat another tensor.

    ties: copy -> the original that it repeats. If the original is absent, the copy gets its name.

    Raises:
        UserError: `tied` is true, and a copy differs from its original.
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
