"""The options of `plmjax generate`, without JAX: what was given, and what of it fits together."""

import dataclasses
from typing import Literal

from plmjax.errors import UserError

BEAMS = ("length_penalty", "length_normalization", "early_stopping")
"""Options of a beam search alone."""
DRAWN = ("temperature", "top_k", "top_p", "seed")
"""Options of what is drawn alone."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How texts are written."""

    max_new_tokens: int = 64
    """Tokens of a text after its prompt at most."""
    min_new_tokens: int = 0
    """Tokens before which no text ends."""
    temperature: float | None = None
    """Of the distribution that tokens are drawn from: 1, which is also without it, is the model's own; 0 takes the
    likeliest token each time."""
    top_k: int | None = None
    """Draw from so many likeliest tokens alone."""
    top_p: float | None = None
    """Draw from the fewest likeliest tokens that have this probability together."""
    sequences: int = 1
    """Texts of every prompt."""
    beams: int | None = None
    """Draw nothing, but search the likeliest text with so many beams."""
    length_penalty: float | None = None
    """Power of the length that a beam's score is divided by, 1 without it: larger prefers longer texts."""
    length_normalization: Literal["tokens", "gnmt"] | None = None
    """That length: the number of tokens n, as without it, or (5 + n) / 6."""
    early_stopping: Literal["full", "likely", "never"] | None = None
    """When a beam search ends: as soon as it has as many texts as beams (full), when no better one is likely (without
    it), or when none is possible (never)."""
    no_repeat_ngram_size: int = 0
    """Write no sequence of so many tokens twice; 0 allows all."""
    seed: int | None = None
    """Of all that is drawn, 0 without it: the same seed gives the same text."""
    batch_size: int = 8
    """Prompts computed at once."""

    def check(self) -> None:
        """Raises UserError for an option that would have no effect beside the others."""
        greedy = self.temperature == 0
        idle = DRAWN if self.beams is not None else BEAMS + (DRAWN[1:] if greedy else ())
        why = "--beams, which draws nothing" if self.beams is not None else "no --beams"
        for name in idle:
            if getattr(self, name) is not None:
                why = "--temperature 0, which draws nothing" if greedy and name in DRAWN else why
                raise UserError(f"Expected no --{name} with {why}, found {getattr(self, name)}; leave one out.")
        if greedy and self.beams is None and self.sequences != 1:
            raise UserError(
                f"Expected --sequences 1 with --temperature 0, which always writes the same text, found "
                f"{self.sequences}; leave one out."
            )


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices of this machine along each axis of the mesh."""

    data: int = 1
    """That share the rows."""
    fsdp: int = 1
    """That share the rows and the parameters."""
    tensor: int = 1
    """That share heads, feed-forward and vocabulary."""
