"""Generation of texts from prompts, for `plmjax generate` and for use from Python."""

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
from plmjax.errors import UserError, nearest, quoted
from plmjax.experiment import Experiment, Mesh
from plmjax.generation.batch_generator import ONE_DEVICE, BatchGenerator, Settings, Tokens, settings_of
from plmjax.generation.options import GREEDY, Decoding, Generation, Options
from plmjax.objectives.capabilities import GeneratesText, ReadsPrefix
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints


@dataclasses.dataclass(frozen=True)
class Text:
    """A text generated after a prompt, or from a source.

    prompt: the given prompt.
    text: the decoded text, without the prompt. For a language model it continues the prompt.
    tokens: number of generated tokens, including the stop token.
    stopped: true if the model ended the text; false if it reached the maximum length.
    log_probability: natural logarithm of the text's probability under the model, given the prompt.
    score: the ranking score of the texts of a prompt: log_probability, divided by the length penalty in a beam search.
    unknown_tokens: number of tokens of the prompt that are outside the vocabulary.
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
    """Return a text that is safe to print to a terminal: control characters are escaped."""
    return text.translate(_CONTROLS)


def generate(
    checkpoint: str | Path, prompts: Sequence[str], *, mesh: Mesh = ONE_DEVICE, **options: Any
) -> list[list[Text]]:
    """Return the texts that a checkpoint generates after each prompt.

    Args:
        prompts: beginnings of texts, or sources of a model that reads sources; an empty prompt starts a document.
        options: fields of `plmjax.generation.options.Options`, such as max_new_tokens=20, temperature=0.8, top_p=0.95,
            beams=4, sequences=2 or seed=1. An option that is left out has the value of the task or the checkpoint. By
            default decoding is greedy.

    `Generator` loads a model once for several calls.

    Raises:
        UserError: no checkpoint, a model that does not generate, an unknown option or one out of its range.
    """
    if isinstance(prompts, str):
        raise UserError(f"Expected a list of prompts, found {quoted(prompts)}; give [{quoted(prompts)}].")
    known = [field.name for field in dataclasses.fields(Options)]
    for name in options:
        if name not in known:
            raise UserError(f"Expected an option of generation, found {name}; {nearest(name, known)}")
    generator = Generator.load(checkpoint, mesh)
    return generator(prompts, settings_with(Options(**options), generator.decoding))


def settings_with(options: Options, stored: Decoding) -> Settings:
    """Return the settings of a `Generator` call: the options, completed with the values stored with the model.

    Raises:
        UserError: a number is out of its range, or an option would have no effect.
    """
    options.check_rules()
    merged = options.with_defaults(stored)
    merged.check()
    return settings_of(merged, sequences=options.sequences, seed=options.seed, batch_size=options.batch_size)


def default_decoding(run: Experiment) -> tuple[Decoding, str]:
    """Return the default settings of generation for a run's model, and a name of their origin."""
    if isinstance(run.objective, GeneratesText):
        return run.objective.decoding(), "the task"
    # As in transformers, where such settings come from: greedy decoding by default.
    return Generation() if run.generation is None else run.generation.with_defaults(GREEDY), "the checkpoint"


class Generator:
    """A model that generates text, with its tokenizer.

    Attributes:
        decoding: the default settings: the task's, else the checkpoint's, else greedy.
        settings: the same settings, in the form that a call takes.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Any,
        tokenizer: Any,
        *,
        execution: Execution | None = None,
        mesh: Mesh = ONE_DEVICE,
        source: str | Path = "the parameters",
        run: Experiment | None = None,
        max_unknown: float = MAX_UNKNOWN,
    ) -> None:
        """Initialize a generator. Further arguments are those of `BatchGenerator`.

        tokenizer: a plmjax.data.tokenizers.Tokenizer.
        run: the run that trained the model. Its objective decides how prompts are read; with None they are read as by a
            language model.
        max_unknown: maximum fraction of unknown tokens in a prompt.
        """
        self._tokenizer, self._config, self._run = tokenizer, config, run
        self._count_unknown = functools.partial(UnknownTokens, tokenizer.vocabulary, max_unknown)
        self._count_unknown()  # checks the fraction
        decoding, reads_prefix = Generation(), False
        if run is not None:
            decoding, reads_prefix = default_decoding(run)[0], isinstance(run.objective, ReadsPrefix)
        self.decoding = decoding.with_defaults(GREEDY)
        self.settings = settings_of(self.decoding)
        self._writer = BatchGenerator(
            config,
            params,
            tokenizer.vocabulary,
            execution=execution,
            mesh=mesh,
            source=source,
            reads_prefix=reads_prefix,
        )

    @classmethod
    def load(cls, checkpoint: str | Path, mesh: Mesh = ONE_DEVICE, max_unknown: float = MAX_UNKNOWN) -> Self:
        """Load the model of a run directory or checkpoint.

        Unless the model was fine-tuned to generate text, names of gap tokens in a prompt, such as <mask> or
        <extra_id_0>, are read as these tokens. Names of other special tokens are plain text.

        Raises:
            UserError: there is no checkpoint, or an error of `BatchGenerator`.
        """
        params, description = checkpoints.load_parameters(checkpoint)
        run = description.experiment
        execution = programs.execution(run, jax.default_backend())
        tokenizer = description.load_tokenizer()
        if not isinstance(run.objective, GeneratesText):  # sources of a task are encoded as in training
            tokenizer = tokenizer.with_parsed_special(tokenizer.vocabulary.gaps)
        return cls(
            run.model,
            params,
            tokenizer,
            execution=execution,
            mesh=mesh,
            source=checkpoint,
            run=run,
            max_unknown=max_unknown,
        )

    @property
    def reads_sources(self) -> bool:
        """Return true if prompts are the input of an encoder, false if they are the beginning of the text."""
        return self._writer.reads_sources

    @property
    def continues(self) -> bool:
        """Return true if a text continues its prompt, false if it is a separate text."""
        return not self.reads_sources and not self._has_task

    @property
    def _has_task(self) -> bool:
        return self._run is not None and isinstance(self._run.objective, GeneratesText)

    def __call__(self, prompts: Sequence[str], settings: Settings | None = None) -> list[list[Text]]:
        """Return the texts of each prompt, in the order of the prompts.

        An empty prompt begins a document: generation starts after the token that separates documents. An
        encoder-decoder needs a text to read, and so does a model fine-tuned to generate text. For the latter, prompts
        have the layout of its task's sources.

        Raises:
            UserError: a prompt is too long, is empty without a document separator in the tokenizer, or has too many
                unknown tokens.
        """
        encoded = [self._encode(prompt) for prompt in prompts]
        written = self._writer(encoded, settings or self.settings)
        return [
            [self._text(prompt, ids, tokens) for tokens in texts]
            for prompt, ids, texts in zip(prompts, encoded, written, strict=True)
        ]

    def check(self, prompts: Sequence[str], settings: Settings, places: Sequence[str] = ()) -> None:
        """Raise UserError, as `__call__` does, for the first prompt that cannot be used.

        places: the position of each prompt, such as "line 3 of prompts.txt", for messages.
        """
        places = places or [""] * len(prompts)
        encoded = [self._encode(prompt, place) for prompt, place in zip(prompts, places, strict=True)]
        self._writer.check(encoded, settings, places)

    def count_unknown(self, prompts: Sequence[str]) -> UnknownTokens:
        """Count the unknown tokens of all prompts."""
        count = self._count_unknown()
        for prompt in prompts:
            count.add(self._tokenizer.encode(prompt))
        return count

    def stream(self, prompt: str, settings: Settings, write: Callable[[str], None]) -> Text:
        """Generate one text and pass each piece to `write` as soon as it is generated.

        Raises:
            UserError: an error of `__call__`, or the strategy generates several texts.
        """
        ids, shown = self._encode(prompt), 0
        for tokens, ended in self._writer.stream(ids, settings):
            text = self._text(prompt, ids, tokens)
            # A character may take several tokens. Until the last of them, the text ends in a replacement character.
            whole = text.text if ended else text.text.rstrip("\ufffd")
            write(whole[shown:])
            shown = max(shown, len(whole))
        return text

    def _encode(self, prompt: str, place: str = "") -> list[int]:
        """Return the tokens of a prompt. place: its position, for messages."""
        vocabulary, at = self._tokenizer.vocabulary, f" in {place}" if place else ""
        ids, unknown = self._tokenizer.encode(prompt), self._count_unknown()
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
        lacking = self._count_unknown().add(ids)
        return Text(prompt=prompt, text=whole[_common_prefix_length(head, whole) :], unknown_tokens=lacking, **fields)


def _common_prefix_length(first: str, second: str) -> int:
    """Return the length of the longest common prefix of two texts, in characters."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
