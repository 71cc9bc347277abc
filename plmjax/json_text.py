"""JSON of files that anybody may have written, changed or cut short.

`json.loads` alone lets through what JSON does not have (Infinity), text that no file can hold (half a surrogate pair),
and ends in a RecursionError where brackets are nested deeply. Every reader of JSON in plmjax uses this module.
"""

import json
import re
from pathlib import Path
from typing import Any

from plmjax.errors import UserError, beginning

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant}, which JSON does not have")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse(text: str | bytes) -> Any:
    """The value of a JSON text; a byte order mark before it is left out.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or has a number or a character that cannot be represented; a
            json.JSONDecodeError where the place is known.
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


def read_object(path: Path, what: str, advice: str) -> dict[str, Any]:
    """The JSON object in a file.

    what, advice: for the message: what was expected in the file, and what to do.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise UserError(f"Expected {what} at {path}, found no file; {advice}.")
    try:
        found = parse(path.read_bytes())
    except ValueError as error:
        raise UserError(f"Expected JSON in {path}, {what}, found: {reason(error)}; {advice}.") from None
    if not isinstance(found, dict):
        raise UserError(f"Expected a JSON object in {path}, {what}, found a {type(found).__name__}; {advice}.")
    return found


def reason(error: BaseException) -> str:
    """The text of an error as a part of one sentence: one line, without a stop at its end, a long one shortened."""
    text = " ".join(str(error).split()) or type(error).__name__
    return beginning(text, 200).rstrip(".").replace("; ", ", ")
