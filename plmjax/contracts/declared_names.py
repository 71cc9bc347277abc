"""Names of activations and text formats that users' files declare, for use in settings.

A run that uses such a name records the file that declares it, as it does for a user's class
(plmjax/experiment/class_files.py).
"""

from collections.abc import Collection, MutableMapping
from typing import TypeVar

from plmjax.errors import UserError, quoted

T = TypeVar("T")
DECLARED: set[str] = set()
"""All names that users' files have declared in this process."""


def declare_name(table: MutableMapping[str, T], name: str, value: T, *, kind: str, taken: Collection[str] = ()) -> T:
    """Add a name of a user's file to a table, and return its value. A user's file may declare a name again.

    kind: kind of the values, for the message. taken: names of plmjax that the table does not have.

    Raises:
        UserError: plmjax itself has this name.
    """
    if name in taken or (name in table and name not in DECLARED):
        raise UserError(f"Expected a new name for {kind}, found {quoted(name)}, which plmjax has; choose another.")
    table[name] = value
    DECLARED.add(name)
    return value
