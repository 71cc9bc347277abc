"""Suppression of transformers' output while this project calls it."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def none_from(transformers: Any) -> Iterator[None]:
    """Suppress the progress bars and notices of transformers within the block."""
    logging_there = transformers.utils.logging
    verbosity, bars = logging_there.get_verbosity(), logging_there.is_progress_bar_enabled()
    logging_there.set_verbosity_error()
    logging_there.disable_progress_bar()
    try:
        yield
    finally:
        logging_there.set_verbosity(verbosity)
        if bars:
            logging_there.enable_progress_bar()
