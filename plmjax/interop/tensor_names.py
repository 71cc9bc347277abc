"""The names of the tensors of a transformers checkpoint, whichever version and class wrote it, as today's."""

from collections.abc import Callable, Mapping

import numpy as np

from plmjax.errors import UserError
from plmjax.interop.adapter import Architecture
from plmjax.interop.tensors import Tensors


def canonical(
    tensors: Tensors,
    today: Callable[[str], str | None],
    prefix: str,
    ties: Mapping[str, str],
    architecture: Architecture,
) -> Tensors:
    """The tensors under today's names; every copy of `ties` is left out once it is seen to equal what it is tied to.

    today: name in the file -> name in a model with a head; None for a buffer, which is left out.
    prefix: the part of a model with a head that is the model without one, where the names lack it.
    ties: copy -> what it is tied to. Where the architecture ties nothing a copy may differ: it is of another's head.

    Raises UserError where two tensors have one name today, or a copy differs.
    """
    names: dict[str, str] = {}
    for old in tensors.shapes:
        new = today(old)
        if new is None:
            continue
        if new in names:
            raise UserError(f"Expected one tensor {new} in {tensors.origin}, found {names[new]} and {old}; remove one.")
        names[new] = old
    names = without_copies(tensors, names, ties, architecture.tied)
    removed = f"{prefix}." if architecture.within else ""
    return tensors.renamed({new.removeprefix(removed): old for new, old in names.items()})


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
