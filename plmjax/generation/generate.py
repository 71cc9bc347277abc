"""Prompts in, texts out: what `plmjax generate` does, and the same from Python."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import jax

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.data.unknown_tokens import MAX_UNKNOWN, UnknownTokens
from plmjax.errors import UserError
from plmjax.experiment import Experiment, Mesh
from plmjax.generation.options import GREEDY, Decoding, Generation
from plmjax.generation.writer import ONE_DEVICE, Settings, Tokens, Writer, settings_of
from plmjax.objectives.capabilities import ReadsPrefix, WritesTexts
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints, start


@dataclasses.dataclass(frozen=True)
class Text:
    """A text that was written after a prompt, or of a source.

    prompt, text: as they read; what a decoder writes goes on where its prompt ends.
    tokens: how many were written, the one that ended the text included.
    stopped: whether the model ended the text itself.
    log_probability: natural logarithm of the model's probability of what was written, after the prompt.
    score: what the texts of a prompt are ranked by: the same, divided by a beam search's length penalty.
    unknown_tokens: how many tokens of the prompt stand for what the tokenizer lacks.
    """

    prompt: str
    text: str
    tokens: int
    stopped: bool
    log_probability: float
    score: float
    unknown_tokens: int


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """A text for a terminal: control characters, which could move the cursor or change colours, are escaped."""
    return text.translate(_CONTROLS)


def generate(
    checkpoint: str | Path, prompts: Sequence[str], settings: Settings | None = None, mesh: Mesh = ONE_DEVICE
) -> list[list[Text]]:
    """The texts that a checkpoint writes after each prompt; see `Generator`."""
    return Generator.load(checkpoint, mesh)(prompts, settings)


def decoding_of(run: Experiment) -> tuple[Decoding, str]:
    """How the texts of a run's model are written where no option says it, and whose setting that is."""
    if isinstance(run.objective, WritesTexts):
        return run.objective.decoding(), "the task"
    # As transformers, whose models are those that bring settings along: greedily if these leave it open.
    return Generation() if run.generation is None else run.generation.over(GREEDY), "the checkpoint"


class Generator:
    """A model that writes, with its tokenizer.

    settings: how it writes where a call does not say it: as its task or its checkpoint has it, greedily where both
        leave that open.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Any,
        tokenizer: Any,
        execution: Execution | None = None,
        mesh: Mesh = ONE_DEVICE,
        source: str | Path = "the parameters",
        run: Experiment | None = None,
        max_unknown: float = MAX_UNKNOWN,
    ) -> None:
        """As `Writer`, and:

        tokenizer: a plmjax.data.tokenizers.Tokenizer.
        run: that trained the model: its objective says how prompts are read. None: as by a language model.
        max_unknown: largest share of unknown tokens of a prompt.
        """
        self._tokenizer, self._config, self._run = tokenizer, config, run
        self._unknown = functools.partial(UnknownTokens, tokenizer.vocabulary, max_unknown)
        self._unknown()  # checks the share
        decoding, reads_prefix = Generation(), False
        if run is not None:
            decoding, reads_prefix = decoding_of(run)[0], isinstance(run.objective, ReadsPrefix)
        self.settings = settings_of(decoding.over(GREEDY))
        self._writer = Writer(config, params, tokenizer.vocabulary, execution, mesh, source, reads_prefix)

    @classmethod
    def load(cls, checkpoint: str | Path, mesh: Mesh = ONE_DEVICE, max_unknown: float = MAX_UNKNOWN) -> Self:
        """The model of a run directory or checkpoint.

        Raises:
            UserError: no checkpoint, or as `Writer`.
        """
        params, description = checkpoints.load_parameters(checkpoint)
        run = description.experiment
        execution = programs.execution(run, jax.default_backend())
        tokenizer = start.tokenizer_of(description)
        return cls(run.model, params, tokenizer, execution, mesh, checkpoint, run, max_unknown)

    @property
    def reads_sources(self) -> bool:
        """Whether prompts are what an encoder reads, rather than the beginning of the text."""
        return self._writer.reads_sources

    @property
    def continues(self) -> bool:
        """Whether a text goes on from its prompt, rather than being a text of its own that the prompt leads to."""
        return not self.reads_sources and not self._has_task

    @property
    def _has_task(self) -> bool:
        return self._run is not None and isinstance(self._run.objective, WritesTexts)

    def __call__(self, prompts: Sequence[str], settings: Settings | None = None) -> list[list[Text]]:
        """The texts of each prompt, in the order of the prompts.

        An empty prompt begins a document: the text is written after the token that stands between documents. An
        encoder-decoder needs some text to read, and so does a model that was fine-tuned to write. The prompts of the
        latter are laid out as the sources of its task.

        Raises:
            UserError: a prompt that is too long, that is empty where the tokenizer has no such token, or that has too
                many unknown tokens.
        """
        encoded = [self._encode(prompt) for prompt in prompts]
        written = self._writer(encoded, settings or self.settings)
        return [
            [self._text(prompt, ids, tokens) for tokens in texts]
            for prompt, ids, texts in zip(prompts, encoded, written, strict=True)
        ]

    def check(self, prompts: Sequence[str], settings: Settings, places: Sequence[str] = ()) -> None:
        """Raises UserError, as `__call__`, for the first prompt that nothing can be written after.

        places: where each prompt stands, such as "line 3 of prompts.txt", for messages.
        """
        places = places or [""] * len(prompts)
        encoded = [self._encode(prompt, place) for prompt, place in zip(prompts, places, strict=True)]
        self._writer.check(encoded, settings, places)

    def unknown(self, prompts: Sequence[str]) -> UnknownTokens:
        """The count of the unknown tokens of all prompts."""
        count = self._unknown()
        for prompt in prompts:
            count.add(self._tokenizer.encode(prompt))
        return count

    def stream(self, prompt: str, settings: Settings, say: Callable[[str], None]) -> Text:
        """One text, whose pieces `say` gets as soon as they are written.

        Raises:
            UserError: as `__call__`; a strategy of several texts.
        """
        ids, shown = self._encode(prompt), 0
        for tokens, ended in self._writer.stream(ids, settings):
            text = self._text(prompt, ids, tokens)
            # A character may take several tokens; until the last of them a replacement stands for it.
            whole = text.text if ended else text.text.rstrip("\ufffd")
            say(whole[shown:])
            shown = max(shown, len(whole))
        return text

    def _encode(self, prompt: str, place: str = "") -> list[int]:
        """The tokens of a prompt; place: where it stands, for messages."""
        vocabulary, at = self._tokenizer.vocabulary, f" in {place}" if place else ""
        ids, unknown = self._tokenizer.encode(prompt), self._unknown()
        unknown.add(ids)
        unknown.check(place)
        if not ids and not self.continues:
            raise UserError(f"Expected a text to read{at}, found an empty one; give some text.")
        if not ids and vocabulary.document_end < 0:
            raise UserError(
                f"Expected a prompt{at}, found an empty one and a tokenizer without a token between documents to begin "
                "with; give some text."
            )
        if self._has_task:
            (ids,) = self._run.objective.prompts([prompt], self._tokenizer, self._config, self._run.data)
            return ids
        if self.reads_sources:
            self._config.template.check(vocabulary)
            return self._config.template.lay_out((ids,), vocabulary).tokens
        return ids or [vocabulary.document_end]

    def _text(self, prompt: str, ids: list[int], written: Tokens) -> Text:
        before = ids if self.continues else []
        head, whole = self._tokenizer.decode(before), self._tokenizer.decode(before + written.tokens)
        fields = dataclasses.asdict(written) | {"tokens": len(written.tokens)}
        lacking = self._unknown().add(ids)
        return Text(prompt=prompt, text=whole[_shared(head, whole) :], unknown_tokens=lacking, **fields)


def _shared(first: str, second: str) -> int:
    """Characters that two texts begin with alike."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
