"""Settings of text generation, without JAX: of a checkpoint, of a task and of `plmjax generate`.

A field that is None or an empty tuple is unset. `Decoding.with_defaults` fills it from settings of lower priority. The
command line has priority over the task or the checkpoint, and these over the defaults of the program.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from plmjax.errors import UserError, quoted

BEAMS = ("length_penalty", "length_normalization", "early_stopping")
"""Options that apply to beam search only."""
DRAWN = ("temperature", "top_k", "top_p")
"""Options that apply to sampling only."""
GREATEST = ("max_new_tokens", "max_length")
LEAST = ("min_new_tokens", "min_length")
NO_TOKEN = -1
"""The value that forces no token."""
NO_WORDS = "none"
"""The value that bans no sequence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules that every text must follow, for any strategy."""

    max_new_tokens: int | None = None
    """Maximum number of tokens of a text, including its end token but not its prompt."""
    min_new_tokens: int | None = None
    """Minimum number of tokens before a text may end; None for none."""
    no_repeat_ngram_size: int | None = None
    """Forbid repeated sequences of this many tokens; 0 and None allow all."""
    repetition_penalty: float | None = None
    """Divide the score of every token that the text or its prompt already has by this number. Negative scores are
    multiplied. 1 and None change nothing.
    """
    bad_words_ids: tuple[str, ...] = ()
    """Sequences of token ids that are never generated, as ids with commas, such as 58100 12,7; none allows all."""
    forced_bos_token_id: int | None = None
    """Id of the first token of every text, if one token precedes it; -1 and None force none."""
    forced_eos_token_id: int | None = None
    """Id of the last token of a text of maximum length; -1 and None force none."""
    renormalize_logits: bool | None = None
    """If true, normalize the probabilities of the allowed tokens to a sum of 1 again, for the scores of beams.
    None does not.
    """
    eos_token_id: tuple[int, ...] = ()
    """Ids of the tokens that end a text, instead of the tokenizer's own."""

    def check_rules(self, group: str = "") -> None:
        """Check the numbers.

        group: prefix of the names, such as "objective.".

        Raises:
            UserError: a number is out of its range.
        """
        least = {"max_new_tokens": 1, "min_new_tokens": 0, "max_length": 1, "min_length": 0, "beams": 1}
        least |= {"no_repeat_ngram_size": 0, "forced_bos_token_id": NO_TOKEN, "forced_eos_token_id": NO_TOKEN}
        for name, bound in least.items():
            value = getattr(self, name, None)
            if value is not None and value < bound:
                raise UserError(f"Expected --{group}{name} of at least {bound}, found {value}; change it.")
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < math.inf:
            raise UserError(
                f"Expected a --{group}repetition_penalty above 0, found {self.repetition_penalty:g}; change it."
            )
        if self.eos_token_id and min(self.eos_token_id) < 0:
            raise UserError(
                f"Expected ids of tokens for --{group}eos_token_id, found {min(self.eos_token_id)}; change it."
            )
        self.bad_words(group)
        for greatest, smallest in zip(GREATEST, LEAST, strict=True):
            most, fewest = getattr(self, greatest, None), getattr(self, smallest, None)
            if most is not None and fewest is not None and fewest > most:
                raise UserError(
                    f"Expected --{group}{smallest} of at most --{group}{greatest}, {most}, found {fewest}; change one."
                )

    def bad_words(self, group: str = "") -> tuple[tuple[int, ...], ...]:
        """Return the sequences of `bad_words_ids`.

        Raises:
            UserError: a sequence has something other than ids.
        """
        if self.bad_words_ids == (NO_WORDS,):
            return ()
        found = []
        for word in self.bad_words_ids:
            parts = word.split(",")
            if not all(part.isascii() and part.isdigit() for part in parts):
                raise UserError(
                    f"Expected ids of tokens with commas, such as 12,7, for --{group}bad_words_ids, found "
                    f"{quoted(word)}; change it."
                )
            found.append(tuple(map(int, parts)))
        return tuple(found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeLengths:
    """Lengths that include the prompt."""

    max_length: int | None = None
    """Maximum number of tokens of a text and its prompt; for a text from a source, of all decoder tokens."""
    min_length: int | None = None
    """Minimum number of these tokens before a text may end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding(Rules):
    """The settings that choose the tokens of a text, and its rules.

    With `beams` of at least 2, beam search is used. With `beams` of 1, or with a temperature of 0 and no `beams`,
    decoding is greedy. In all other cases tokens are sampled.
    """

    temperature: float | None = None
    """Temperature of the distribution for sampling: 1 and None keep the model's own; 0 takes the likeliest token each
    time.
    """
    top_k: int | None = None
    """Sample from this many likeliest tokens only; 0 and None sample from all."""
    top_p: float | None = None
    """Sample from the fewest likeliest tokens whose total probability reaches this number; None samples from all."""
    beams: int | None = None
    """Search the likeliest text with this many beams instead of sampling; None samples, 1 takes the likeliest token
    each time.
    """
    length_penalty: float | None = None
    """Exponent of the length that divides a beam's score: a larger one prefers longer texts; None is 1."""
    length_normalization: Literal["tokens", "gnmt"] | None = None
    """The length for length_penalty: tokens, the number of tokens n, or gnmt, (5 + n) / 6; None takes tokens."""
    early_stopping: Literal["full", "likely", "never"] | None = None
    """End a beam search as soon as it has as many texts as beams (full), when no better one is likely (likely), or when
    none is possible (never). None means likely.
    """

    @property
    def draws(self) -> bool:
        """Return true if tokens are sampled."""
        return self.beams is None and self.temperature != 0

    def explicit(self) -> dict[str, Any]:
        """Return the settings that are set."""
        values = {field.name: getattr(self, field.name, None) for field in dataclasses.fields(Generation)}
        return {name: value for name, value in values.items() if value is not None and value != ()}

    def with_defaults(self, other: "Decoding | None") -> Self:
        """Return these settings, with unset values taken from `other`.

        Settings of `other` that would have no effect are left out: settings of another strategy, and lengths that are
        counted in another way (with or without the prompt).
        """
        mine, kept = set(self.explicit()), {} if other is None else other.explicit()
        drops: set[str] = set(mine)
        if "beams" in mine:
            drops |= {*DRAWN, *(BEAMS if self.beams == 1 else ())}
        elif mine & {*BEAMS} and "beams" not in kept:
            drops |= {*DRAWN}
        elif mine & {*DRAWN}:
            drops |= {"beams", *BEAMS}
            drops |= {"top_k", "top_p"} if self.temperature == 0 else set()
            drops |= {"temperature"} if kept.get("temperature") == 0 else set()
        for names in (GREATEST, LEAST):
            drops |= {*names} if mine & {*names} else set()
        kept = {name: value for name, value in kept.items() if name not in drops and hasattr(self, name)}
        if self.max_new_tokens is not None and "min_new_tokens" in kept:
            kept["min_new_tokens"] = min(kept["min_new_tokens"], self.max_new_tokens)
        return dataclasses.replace(self, **kept)

    def check_effects(self, group: str = "") -> None:
        """Raise UserError for a setting that has no effect together with the others."""
        beams = self.beams or 0
        idle = DRAWN if beams else BEAMS + (DRAWN[1:] if self.temperature == 0 else ())
        idle += BEAMS if beams == 1 else ()
        for name in idle:
            if getattr(self, name) is not None:
                raise UserError(
                    f"Expected no --{group}{name} with {self._method(group)}, found {getattr(self, name)}; leave one "
                    f"out."
                )

    def _method(self, group: str = "") -> str:
        """Return the options that select the strategy, for messages."""
        if self.beams is None:
            draws = f"--{group}temperature 0, which draws nothing" if self.temperature == 0 else ""
            return draws or f"no --{group}beams"
        return f"--{group}beams {self.beams}, which draws nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation(WholeLengths, Decoding):
    """The settings of generation stored with a checkpoint: `generation` of its experiment.

    They apply if the command line does not set them.
    """


GREEDY = Decoding(temperature=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Generation):
    """Options of text generation. An unset option has the value of the checkpoint or its task."""

    sequences: int = 1
    """Number of texts for each prompt."""
    seed: int | None = None
    """Random seed of sampling, 0 by default: the same seed gives the same text."""
    batch_size: int = 8
    """Number of prompts in a batch."""

    def check(self) -> None:
        """Raise UserError for an option that has no effect together with the others."""
        self.check_effects()
        if self.draws:
            return
        if self.seed is not None:
            raise UserError(f"Expected no --seed with {self._method()}, found {self.seed}; leave one out.")
        if (self.beams or 1) == 1 and self.sequences != 1:
            raise UserError(
                f"Expected --sequences 1 with {self._method()} and always writes the same text, found "
                f"{self.sequences}; leave one out."
            )


def in_words(settings: Mapping[str, Any]) -> str:
    """Return settings as one line: "beams 4, length_penalty 2"."""

    def word(value: Any) -> str:
        if isinstance(value, tuple):
            return " ".join(map(word, value))
        return f"{value:g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {word(value)}" for name, value in settings.items())


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices of this machine along each mesh axis."""

    data: int = 1
    """Number of devices that divide the rows."""
    fsdp: int = 1
    """Number of devices that divide the rows and the parameters."""
    tensor: int = 1
    """Number of devices that divide heads, feed-forward and vocabulary."""
