"""Suppression of transformers' output while this project calls it."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def none_from(transformers: Any) -> Iterator[None]:
    """Suppress the progress bars, notices and printed lines of transformers within the block."""
    logging_there = transformers.utils.logging
    verbosity, bars = logging_there.get_verbosity(), logging_there.is_progress_bar_enabled()
    logging_there.set_verbosity_error()
    logging_there.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # Reformer prints the arguments that it does not use
            yield
    finally:
        logging_there.set_verbosity(verbosity)
        if bars:
            logging_there.enable_progress_bar()
