"""JSON files of examples, such as SQuAD's."""

import json
from typing import Any

from plmjax.errors import UserError
from plmjax.files import json_text
from plmjax.finetuning.files.text_files import suffix, whole_text


def parse(path: str) -> tuple[Any, str]:
    """Return the content of a .json file, and its text, which is searched for line numbers.

    Raises:
        UserError: a file with another suffix, or damaged JSON.
    """
    if suffix(path) != ".json":
        raise UserError(f"Expected a .json file of questions as SQuAD's (or one with .gz), found {path}; convert it.")
    text = whole_text(path)
    try:
        return json_text.parse(text), text
    except json.JSONDecodeError as error:
        raise UserError(f"Expected JSON in line {error.lineno} of {path}, found {error.msg}; fix it.") from None
    except ValueError as error:
        raise UserError(f"Expected JSON in {path}, found: {json_text.reason(error)}; fix it.") from None
