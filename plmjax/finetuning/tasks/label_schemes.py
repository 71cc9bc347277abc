"""Schemes of labels for entities of several words (Ramshaw and Marcus 1995), and the labels that may follow each label.

    IOB1    I-PER I-PER B-PER O      B- separates an entity from one of the same kind right before it
    IOB2    B-PER I-PER B-PER O      B- starts every entity
    IOBES   B-PER E-PER S-PER O      E- ends an entity of several words, S- is an entity of one word
    BILOU   B-PER L-PER U-PER O      the same with L- for E- and U- for S-

The rules hold for files that are read and for the transitions that a conditional random field allows. Entities of all
schemes are counted as seqeval counts them without a scheme, which is the way of conlleval.
"""

from collections.abc import Sequence

from plmjax.errors import UserError, quoted
from plmjax.layers.crf import Possible

OUTSIDE = "O"
SCHEMES = ("", "IOB1", "IOB2", "IOBES", "BILOU")
"""Names of the schemes. The empty one is for labels of single words: any label can follow any other."""
MARKS = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}
"""Mark of a word of an entity -> the mark of IOBES with the same meaning."""


def check_scheme(scheme: str) -> None:
    """Raise UserError for a scheme that is not in `SCHEMES`."""
    if scheme not in SCHEMES:
        raise UserError(
            f"Expected a known --data.scheme, found {quoted(scheme)}; known: {', '.join(SCHEMES[1:])} (BIO is IOB2, "
            f"BIOES is IOBES)."
        )


def check_label(label: str, scheme: str, where: str) -> None:
    """Raise UserError for a label that the scheme does not have."""
    mark, dash, kind = label.partition("-")
    marks = tuple(scheme.rstrip("12"))
    if scheme and (mark not in marks or (mark != OUTSIDE) != bool(dash and kind)):
        raise UserError(
            f"Expected O or one of {', '.join(f'{m}-KIND' for m in marks if m != OUTSIDE)} in {where}, "
            f"found {quoted(label)}; fix it or set --data.scheme."
        )


def can_follow(before: str, label: str, scheme: str) -> bool:
    """Return whether `label` can follow `before`. The start and the end of a sentence count as "O"."""
    if not scheme:
        return True
    (mark_before, _, kind_before), (mark, _, kind) = before.partition("-"), label.partition("-")
    inside = mark_before != OUTSIDE and kind_before == kind
    return not {
        "IOB1": mark == "B" and not inside,  # B- only separates two entities of one kind.
        "IOB2": mark == "I" and not inside,
        "IOBES": (mark in "IE") != (mark_before in "BI") or (mark in "IE" and not inside),
        "BILOU": (mark in "IL") != (mark_before in "BI") or (mark in "IL" and not inside),
    }[scheme]


def in_iobes(label: str) -> str | None:
    """Return a label with the mark of IOBES, such as E-PER for L-PER; None if it marks no entity."""
    mark, dash, kind = label.partition("-")
    if label == OUTSIDE:
        return label
    return f"{MARKS[mark]}{dash}{kind}" if mark in MARKS and bool(dash) == bool(kind) else None


def check_entities(labels: Sequence[str]) -> None:
    """Raise UserError for a label without a mark of an entity. seqeval would read ORG as O, and BUS as B-US."""
    for label in labels:
        if in_iobes(label) is None:
            raise UserError(
                f"Expected O or a label with a mark ({', '.join(MARKS)}), such as B-PER, for --objective.entities "
                f"True, found {quoted(label)}; convert the labels, or set --objective.entities False for the "
                f"accuracy of single words."
            )


def scheme_of(labels: Sequence[str]) -> str | None:
    """Return the scheme of a model's labels: "" if none clearly fits, None if the labels mark no entities."""
    if OUTSIDE not in labels or len(labels) < 2 or None in map(in_iobes, labels):
        return None
    marks = {label.partition("-")[0] for label in labels}
    fits = [scheme for scheme in ("IOB2", "IOBES", "BILOU") if "B" in marks and marks <= set(scheme.rstrip("12"))]
    return fits[0] if fits and all("-" in label for label in labels if label != OUTSIDE) else ""


def check_labels(labels: Sequence[str], scheme: str, lines: Sequence[int], path: str) -> None:
    """Raise UserError for the first label of a sentence that cannot follow the label before it.

    lines: line of each label in the file `path`.
    """
    if not scheme:
        return
    before = OUTSIDE
    for label, line in zip(labels, lines, strict=True):
        check_label(label, scheme, f"line {line} of {path}")
        if not can_follow(before, label, scheme):
            raise UserError(
                f"Expected {scheme} labels in {path}, found {quoted(label)} after {quoted(before)} in line {line}, "
                f"which is not allowed; fix it or set --data.scheme."
            )
        before = label
    if not can_follow(before, OUTSIDE, scheme):
        raise UserError(
            f"Expected {scheme} labels in {path}, found {quoted(before)} at a sentence's end in line {lines[-1]}, "
            f"which is not allowed; fix it or set --data.scheme."
        )


def possible(labels: Sequence[str], scheme: str) -> Possible:
    """Return the labels and transitions that a scheme allows.

    Raises:
        UserError: a label that the scheme does not have.
    """
    for label in labels:
        check_label(label, scheme, "--objective.labels")
    return Possible(
        tuple(can_follow(OUTSIDE, label, scheme) for label in labels),
        tuple(tuple(can_follow(before, label, scheme) for label in labels) for before in labels),
        tuple(can_follow(label, OUTSIDE, scheme) for label in labels),
    )
