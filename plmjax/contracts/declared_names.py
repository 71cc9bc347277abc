"""Names that files of users declare: activations and formats of text, which settings name by a word.

A run that uses one records the file that declares it, as for a class (plmjax/experiment/class_files.py).
"""

from collections.abc import Collection, MutableMapping
from typing import TypeVar

from plmjax.errors import UserError, quoted

T = TypeVar("T")
DECLARED: set[str] = set()
"""All names that files of users have declared in this process."""


def declare_name(table: MutableMapping[str, T], name: str, value: T, *, kind: str, taken: Collection[str] = ()) -> T:
    """Add a name of a user's file to a table, and return its value. The same file may declare it again.

    kind: what the table has, for the message. taken: further names of plmjax.

    Raises:
        UserError: plmjax itself has this name.
    """
    if name in taken or (name in table and name not in DECLARED):
        raise UserError(f"Expected a new name for {kind}, found {quoted(name)}, which plmjax has; choose another.")
    table[name] = value
    DECLARED.add(name)
    return value
