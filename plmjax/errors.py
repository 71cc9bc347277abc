"""The one exception a user is meant to read: one sentence, no traceback, exit code 2."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right. Its text says what was expected, what was found and what to do."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the known name closest to `name`; the list of known names when none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}."
