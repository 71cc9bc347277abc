"""The exceptions that are printed as one sentence without a traceback, and the exit codes of all commands.

The exit code tells a caller what to do next: nothing (DONE), correct the command (MISTAKE), or run the same command
again, now (SAVED) or later (UNAVAILABLE).
"""

import bisect
import contextlib
import difflib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping

DONE = 0
CRASHED = 1
"""An error with a traceback."""
MISTAKE = 2
"""A `UserError`: the same command would fail again."""
UNAVAILABLE = 69
"""An external service did not answer (EX_UNAVAILABLE of sysexits.h): storage, authorization, the network or another
host. The same command may succeed later."""
SAVED = 75
"""The command stopped on request, after saving (EX_TEMPFAIL): run the same command again."""


_LONGEST_NAME = 300
"""Maximum number of characters of a name; longer names are shortened in messages and are not compared."""
_LONGEST_LIST = 1000
"""Maximum number of characters of the list of known names in a message about an unknown name."""
_FEW = 20
"""Maximum number of names that a message lists if a command or a page lists them too."""


class Explained(Exception):
    """An error whose text is one sentence: what was expected, what was found and what to do."""


class UserError(Explained):
    """A mistake that the user can correct. The same command would fail again."""


class Unavailable(Explained):
    """A service or a host outside this process did not answer. The same command may succeed later."""


class NotInstalled(UserError):
    """A library that writes or reads one kind of file is not installed."""


WEATHER = re.compile(r"(UNAVAILABLE|INTERNAL|ABORTED|DEADLINE_EXCEEDED): |Unable to initialize backend ")
"""Beginning of JAX's errors with causes that are often temporary: a lost connection, a device that fails or is busy."""


def nearest(name: str, known: Iterable[str], aliases: Mapping[str, str] | None = None, *, catalogue: str = "") -> str:
    """Return `did you mean 'x'?` for the known name closest to `name`, or the list of known names if none is close.

    Args:
        aliases: dict from another spelling to the known name.
        catalogue: sentence that replaces a list of more than `_FEW` names, such as the command that lists them.
    """
    known, aliases = sorted(known), aliases or {}
    # The time of a comparison grows with both lengths.
    short = {one.removeprefix("--"): one for one in (*aliases, *known) if len(one) <= _LONGEST_NAME}
    asked = name.removeprefix("--") if len(name) <= _LONGEST_NAME else ""
    if close := difflib.get_close_matches(asked, short, n=1, cutoff=0.6):
        found = short[close[0]]
        return f"did you mean {aliases.get(found, found)!r}?"
    return catalogue if catalogue and len(known) > _FEW else f"known: {listed(known, _LONGEST_LIST)}."


@contextlib.contextmanager
def in_file(path: str | os.PathLike, prefix: str = "--model.") -> Iterator[None]:
    """Add the path of a file to the message of an `Explained` error, if the message does not have it yet.

    Args:
        prefix: prefix of options, which is removed from the message because a file has fields in place of options.
    """
    try:
        yield
    except Explained as error:
        text = str(error).replace(prefix, "")
        named = os.fspath(path) in text or os.path.dirname(os.fspath(path)) in text.split()
        raise type(error)(text if named else f"{text.rstrip('.')} (in {os.fspath(path)}).") from error


def beginning(text: str, longest: int = 80) -> str:
    """Return `text`, or its beginning and its length if it is long."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def quoted(found: object, longest: int = 80) -> str:
    """Return a value that a user gave, for a message: text in quotes, on one line, shortened if it is long."""
    if isinstance(found, str):
        return repr(found) if len(found) <= longest else f"{found[:longest]!r}... ({len(found):,} characters)"
    return beginning(repr(found), longest)


def _on_one_line(name: str) -> str:
    """Return a name without characters that end or hide a line, shortened if it is long."""
    name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
    return name if name.isprintable() else repr(name)


def listed(names: Iterable[str], max_characters: int = 4000) -> str:
    """Return names for a message, in at most `max_characters` characters."""
    names = [_on_one_line(name) for name in names]
    ends = list(itertools.accumulate(len(name) + 2 for name in names))
    shown = max(bisect.bisect_right(ends, max_characters), 1)
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}" or "none"


@contextlib.contextmanager
def options_named(names: Mapping[str, str]) -> Iterator[None]:
    """Replace option names in the messages of `Explained` errors by the names in the running command.

    names: dict from the option name in the code of the block to the name in the command, such as {"--format":
        "--data.format"}.
    """
    pattern = "|".join(rf"{re.escape(name)}(?![\w.]*\w)" for name in names)
    try:
        yield
    except Explained as error:
        raise type(error)(re.sub(pattern, lambda found: names[found[0]], str(error))) from None


def check_choice(option: str, found: str, known: Iterable[str]) -> None:
    """Raise UserError if `found`, the value of `option`, is not a known name."""
    if found not in (known := list(known)):
        raise UserError(f"Expected a known {option}, found {quoted(found)}; {nearest(found, known)}")


FROM_0, FROM_1, FRACTION = (0, math.inf), (1, math.inf), (0, 1)
ABOVE_0, PROBABILITY = (math.ulp(0.0), math.inf), (0, math.nextafter(1, 2))
"""Ranges of numbers [least, bound) for `check_ranges`."""


def check_ranges(group: str, settings: object, **ranges: tuple[float, float]) -> None:
    """Raise UserError for the first field of `settings` outside its range [least, bound)."""
    for name, (least, bound) in ranges.items():
        value = getattr(settings, name)
        if not least <= value < bound:
            limits = f"of at least {least:g}" if bound == math.inf else f"below {bound:g}"
            limits = "above 0" if (least, bound) == ABOVE_0 else limits
            if bound < math.inf and least > -math.inf:
                limits = f"from {least:g} to {limits}"
            limits = "from 0 to 1" if (least, bound) == PROBABILITY else limits
            raise UserError(f"Expected --{group}.{name} {limits}, found {value}; change it.")
