"""How texts are written, without JAX: the settings of a checkpoint, of a task and of `plmjax generate`.

A field that is None, or an empty tuple, is left open: `Decoding.over` fills it from settings that count less. The
command line comes before the task or the checkpoint, and that before the defaults of the program.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from plmjax.errors import UserError, quoted

BEAMS = ("length_penalty", "length_normalization", "early_stopping")
"""Options of a beam search alone."""
DRAWN = ("temperature", "top_k", "top_p")
"""Options of what is drawn alone."""
GREATEST = ("max_new_tokens", "max_length")
LEAST = ("min_new_tokens", "min_length")
NO_TOKEN = -1
"""In place of a token that is forced: none is."""
NO_WORDS = "none"
"""In place of sequences that are banned: none is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """What every text keeps to, however its tokens are chosen."""

    max_new_tokens: int | None = None
    """Tokens of a text at most, the one that ends it included, its prompt not."""
    min_new_tokens: int | None = None
    """Tokens before which no text ends."""
    no_repeat_ngram_size: int | None = None
    """Write no sequence of so many tokens twice; 0 allows all."""
    repetition_penalty: float | None = None
    """Divide the score of every token that is in the text or its prompt already by this number, or multiply it where
    it is negative; 1 changes nothing."""
    bad_words_ids: tuple[str, ...] = ()
    """Sequences of token ids that are never written, each with commas, such as 58100 12,7; none allows all."""
    forced_bos_token_id: int | None = None
    """Id of the token that every text begins with, where one token stands before it; -1 forces none."""
    forced_eos_token_id: int | None = None
    """Id of the token that a text of the greatest length ends with; -1 forces none."""
    renormalize_logits: bool | None = None
    """Whether the probabilities of the tokens that may come add up to 1 again, which the score of a beam counts."""
    eos_token_id: tuple[int, ...] = ()
    """Ids of the tokens that end a text, in place of the tokenizer's own."""

    def check_rules(self, group: str = "") -> None:
        """Raises UserError for a number out of its range. group: what stands before the names, such as "objective."."""
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
        """The sequences of `bad_words_ids`.

        Raises:
            UserError: one is not of ids.
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
    """Lengths that count what stands before a text as well."""

    max_length: int | None = None
    """Tokens of a text and its prompt at most; of a text of a source, those of the decoder with its first one."""
    min_length: int | None = None
    """Tokens of both before which no text ends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding(Rules):
    """How the tokens of a text are chosen, and what it keeps to.

    There is a beam search with `beams` of at least 2. Otherwise the likeliest token is taken each time if `beams` is 1
    or the temperature 0, and a token is drawn if not.
    """

    temperature: float | None = None
    """Of the distribution that tokens are drawn from: 1 is the model's own; 0 takes the likeliest token each time."""
    top_k: int | None = None
    """Draw from so many likeliest tokens alone; 0 draws from all."""
    top_p: float | None = None
    """Draw from the fewest likeliest tokens that have this probability together."""
    beams: int | None = None
    """Draw nothing, but search the likeliest text with so many beams; 1 takes the likeliest token each time."""
    length_penalty: float | None = None
    """Power of the length that a beam's score is divided by: larger prefers longer texts."""
    length_normalization: Literal["tokens", "gnmt"] | None = None
    """That length: tokens, the number of tokens n, or gnmt, (5 + n) / 6."""
    early_stopping: Literal["full", "likely", "never"] | None = None
    """When a beam search ends: as soon as it has as many texts as beams (full), when no better one is likely, or when
    none is possible (never)."""

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn."""
        return self.beams is None and self.temperature != 0

    def given(self) -> dict[str, Any]:
        """The settings that are not left open."""
        values = {field.name: getattr(self, field.name, None) for field in dataclasses.fields(Generation)}
        return {name: value for name, value in values.items() if value is not None and value != ()}

    def over(self, other: "Decoding | None") -> Self:
        """These settings, with those of `other` in place of what they leave open.

        Left out are settings of `other` that would have no effect: those of another way to choose tokens, and lengths
        that are counted in another way.
        """
        mine, kept = set(self.given()), {} if other is None else other.given()
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
        """Raises UserError for a setting that would have no effect beside the others."""
        beams = self.beams or 0
        idle = DRAWN if beams else BEAMS + (DRAWN[1:] if self.temperature == 0 else ())
        idle += BEAMS if beams == 1 else ()
        for name in idle:
            if getattr(self, name) is not None:
                raise UserError(
                    f"Expected no --{group}{name} with {self._chosen(group)}, found {getattr(self, name)}; leave one "
                    f"out."
                )

    def _chosen(self, group: str = "") -> str:
        """Which of the ways to choose tokens, for messages."""
        if self.beams is None:
            draws = f"--{group}temperature 0, which draws nothing" if self.temperature == 0 else ""
            return draws or f"no --{group}beams"
        return f"--{group}beams {self.beams}, which draws nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation(WholeLengths, Decoding):
    """How the texts of a checkpoint are written where no command line says it: `generation` of its experiment."""


GREEDY = Decoding(temperature=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Generation):
    """How texts are written; what is left open is as the checkpoint or its task says."""

    sequences: int = 1
    """Texts of every prompt."""
    seed: int | None = None
    """Of all that is drawn, 0 without it: the same seed gives the same text."""
    batch_size: int = 8
    """Prompts computed at once."""

    def check(self) -> None:
        """Raises UserError for an option that would have no effect beside the others."""
        self.check_effects()
        if self.draws:
            return
        if self.seed is not None:
            raise UserError(f"Expected no --seed with {self._chosen()}, found {self.seed}; leave one out.")
        if (self.beams or 1) == 1 and self.sequences != 1:
            raise UserError(
                f"Expected --sequences 1 with {self._chosen()} and always writes the same text, found "
                f"{self.sequences}; leave one out."
            )


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings as one line: "beams 4, length_penalty 2"."""

    def word(value: Any) -> str:
        if isinstance(value, tuple):
            return " ".join(map(word, value))
        return f"{value:g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {word(value)}" for name, value in settings.items())


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices of this machine along each axis of the mesh."""

    data: int = 1
    """That share the rows."""
    fsdp: int = 1
    """That share the rows and the parameters."""
    tensor: int = 1
    """That share heads, feed-forward and vocabulary."""
