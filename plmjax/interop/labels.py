"""The labels of a classifier in transformers' config.json: their number and their names."""

from collections.abc import Mapping
from typing import Any

from plmjax.errors import UserError, quoted


def count(found: Mapping[str, Any]) -> int:
    """Return the number of labels in a config.json. Raises UserError if it is not a number from 1 to a million."""
    named = _read_names(found)
    number = len(named) if named else found.get("num_labels", 2)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 10**6:
        raise UserError(f"Expected a number of labels as num_labels of the config, found {quoted(number)}; correct it.")
    return number


def names(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the labels in a config.json, by label id; transformers' default names if it has none.

    Raises UserError if id2label does not name the labels 0, 1, ..., each by a different name.
    """
    return _read_names(found) or tuple(f"LABEL_{label}" for label in range(count(found)))


def _read_names(found: Mapping[str, Any]) -> tuple[str, ...]:
    named = found.get("id2label")
    if not named:
        return ()
    names = [named.get(str(label)) for label in range(len(named))] if isinstance(named, dict) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise UserError(
            'Expected different names of labels in the config, as in "id2label": {"0": "no", "1": "yes"}, found '
            f"{str(named)[:60]}; correct it."
        )
    return tuple(names)
