"""The progress of a preparation: bytes read and tokens made."""

import contextlib
import sys
import time
from typing import Self


class Progress:
    """Ignores progress, for processes that do not show it."""

    def advance(self, count: int) -> None:
        """Add `count` to the number of bytes read."""

    def add_tokens(self, count: int) -> None:
        """Add `count` to the number of tokens made."""


class Bar(Progress):
    """Shows bytes read and tokens made so far: a progress bar on a terminal, a line every ten seconds in a log."""

    def __init__(self, total: int, shown: bool):
        self.tokens = 0
        self._done, self._total = 0, total
        self._shown = shown
        self._start = self._last = time.monotonic()
        self._stack = contextlib.ExitStack()
        self._rich = None

    def __enter__(self) -> Self:
        if self._shown and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("prepare"),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TextColumn("{task.fields[tokens]:,} tokens"),
                progress.TimeRemainingColumn(),
            )
            self._rich = self._stack.enter_context(progress.Progress(*columns, console=Console(stderr=True)))
            self._task = self._rich.add_task("prepare", total=self._total or None, tokens=0)
        return self

    def __exit__(self, *error) -> None:
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, tokens=self.tokens)
        self._stack.close()

    def advance(self, count: int) -> None:
        self._done += count
        self._show()

    def add_tokens(self, count: int) -> None:
        self.tokens += count
        self._show()

    def _show(self) -> None:
        if self._rich is not None:
            self._rich.update(self._task, completed=self._done, tokens=self.tokens)
        elif self._shown and (now := time.monotonic()) - self._last >= 10:
            self._last = now
            share = f" of {self._total / 1e6:,.1f}" if self._total else ""
            rate = self.tokens / (now - self._start)
            print(
                f"prepare    {self._done / 1e6:,.1f}{share} MB  {self.tokens:,} tokens  {rate:,.0f} tokens/s",
                flush=True,
            )
