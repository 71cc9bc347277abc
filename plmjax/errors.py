"""The one exception a user is meant to read, one sentence and no traceback; and the exit codes of every command."""

import difflib
import math
from collections.abc import Iterable

DONE = 0
CRASHED = 1
"""Exit code of what has a traceback."""
MISTAKE = 2
"""Exit code of a `UserError`: started again the same command would fail again."""
HOST_LOST = 69
"""Another host is gone (EX_UNAVAILABLE of sysexits.h): run the same command on all of them again."""
SAVED = 75
"""Stopped as it was asked to, after saving (EX_TEMPFAIL): run the same command again."""


class UserError(Exception):
    """Something the user can put right. Its text says what was expected, what was found and what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the known name closest to `name`; the list of known names when none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}."


def quoted(text: str, longest: int = 60) -> str:
    """`text` in quotes for a message, on one line; of what is longer its beginning and how long it is."""
    if len(text) <= longest:
        return repr(text)
    return f"{text[:longest]!r}... ({len(text):,} characters)"


def check_ranges(group: str, settings: object, **ranges: tuple[float, float]) -> None:
    """Raises UserError for the first field of `settings` outside its range, [least, bound): the bound is too large."""
    for name, (least, bound) in ranges.items():
        value = getattr(settings, name)
        if not least <= value < bound:
            limits = f"of at least {least:g}" if bound == math.inf else f"from {least:g} to below {bound:g}"
            raise UserError(f"Expected --{group}.{name} {limits}, found {value}; change it.")
