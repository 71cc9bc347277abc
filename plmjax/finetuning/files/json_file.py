"""JSON files of examples that are read as a whole, such as SQuAD's."""

import json
from typing import Any

from plmjax.errors import UserError
from plmjax.files import json_text
from plmjax.finetuning.files.text_files import suffix, whole_text


def parsed(path: str) -> tuple[Any, str]:
    """Return (contents of a .json file, its text, in which lines can be found)."""
    if suffix(path) != ".json":
        raise UserError(f"Expected a .json file of questions as SQuAD's (or one with .gz), found {path}; convert it.")
    text = whole_text(path)
    try:
        return json_text.parse(text), text
    except json.JSONDecodeError as error:
        raise UserError(f"Expected JSON in line {error.lineno} of {path}, found {error.msg}; fix it.") from None
    except ValueError as error:
        raise UserError(f"Expected JSON in {path}, found: {json_text.reason(error)}; fix it.") from None
