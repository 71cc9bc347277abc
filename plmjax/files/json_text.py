"""Safe reading of JSON files, which may be untrusted, changed or truncated.

`json.loads` accepts values that JSON does not have (Infinity) and text that no file can store (half of a surrogate
pair), and raises RecursionError for deeply nested brackets. All readers of JSON in plmjax use this module.
"""

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Any

from plmjax.errors import UserError, beginning, quoted
from plmjax.files import storage

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant}, which JSON does not have")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text; a byte order mark before it is ignored.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has a number or a character that cannot be
            represented. If the position is known, it is a json.JSONDecodeError.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        found = _DECODER.decode(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("brackets that are nested too deeply") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(found, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair, which is no character") from None
    return found


def finite(value: Any) -> Any:
    """Return plain data with None in place of every number that is not finite, because JSON has no such numbers."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_object(path: Path, what: str, advice: str, shape: Any = object) -> dict[str, Any]:
    """Return the JSON object in a file.

    what, advice: expected contents of the file, and advice to the user, for the message.
    shape: shape of the object, as for `check`.

    Raises:
        UserError: there is no such file, or it does not contain a JSON object of this shape.
    """
    if not path.is_file():
        raise UserError(f"Expected {what} at {path}, found no file; {advice}.")
    try:
        found = parse(storage.contents(path))
    except ValueError as error:
        raise UserError(f"Expected JSON in {path}, {what}, found: {reason(error)}; {advice}.") from None
    if not isinstance(found, dict):
        raise UserError(f"Expected a JSON object in {path}, {what}, found a {type(found).__name__}; {advice}.")
    try:
        check(found, shape)
    except ValueError as error:
        raise UserError(f"Expected {what} in {path}, found another file ({reason(error)}); {advice}.") from None
    return found


COUNT = range(2**62)
"""Shape of a non-negative integer, for `check`."""


def check(found: Any, shape: Any, name: str = "it") -> None:
    """Compare a JSON value with its expected shape.

    Args:
        shape: str, bool, int or float (which includes integers); `object` for any value; a range of integers; a tuple
            of alternative shapes; `[shape]`, a list; `{str: shape}`, an object with any names; `{"name": shape}`, an
            object that has at least these names.
        name: name of the value, for the message.

    Raises:
        ValueError: the value has another shape.
    """
    if isinstance(shape, tuple):
        for one in shape[:-1]:
            with contextlib.suppress(ValueError):
                return check(found, one, name)
        return check(found, shape[-1], name)
    if isinstance(shape, dict):
        if not isinstance(found, dict):
            raise ValueError(f"{name} is no object but {quoted(found)}")
        if str in shape:
            shape = dict.fromkeys(found, shape[str])
        for key, one in shape.items():
            if key not in found:
                raise ValueError(f"{name} has no {key}")
            check(found[key], one, f"{key} of {name}" if name != "it" else key)
    elif isinstance(shape, list):
        if not isinstance(found, list):
            raise ValueError(f"{name} is no list but {quoted(found)}")
        for one in found:
            check(one, shape[0], f"a part of {name}")
    elif isinstance(shape, range):
        if type(found) is not int or found not in shape:
            raise ValueError(f"{name} is no number from {shape.start} to {shape.stop - 1} but {quoted(found)}")
    elif shape is not object and type(found) not in ((int, float) if shape is float else (shape,)):
        raise ValueError(f"{name} is {quoted(found)}")
    return None


def reason(error: BaseException) -> str:
    """Return the text of an error as part of a sentence: on one line, without a final period, and not too long."""
    detail = f"no {error}" if isinstance(error, KeyError) else str(error)
    text = " ".join(detail.split()) or type(error).__name__
    return beginning(text, 200).rstrip(".").replace("; ", ", ")
