"""Tokens in, tokens out: prompts in batches of a few widths, over the devices of a mesh.

The prompt of a decoder is what its text goes on from; that of an encoder-decoder is its source, which the encoder
reads. Prompts of like lengths are batched, filled up on the left, sources on the right, and every text has a random key
of its own, so that the text of a prompt does not depend on the other prompts.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.data.packing import padded_width
from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.generation import loop, weights
from plmjax.generation.constraints import Constraints
from plmjax.generation.decoder import decoder_of
from plmjax.generation.sampling import Greedy
from plmjax.generation.search import Found, Lengths, Strategy
from plmjax.layers.execution import Execution
from plmjax.layers.model_config import ModelConfig
from plmjax.parallel import mesh as meshes
from plmjax.training import start
from plmjax.vocabulary import Vocabulary

ONE_DEVICE = Mesh(data=1, fsdp=1, tensor=1)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How texts are written.

    strategy: Greedy(), Sampling(...) or BeamSearch(...).
    max_new_tokens: tokens that are written of a text at most, the one that ends it included.
    min_new_tokens: tokens before which no text ends.
    no_repeat_ngram_size: see `Constraints`.
    seed: of everything drawn.
    batch_size: prompts that are written after at once.

    Raises:
        UserError: a number out of its range.
    """

    strategy: Strategy = Greedy()
    max_new_tokens: int = 64
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    seed: int = 0
    batch_size: int = 8

    def __post_init__(self) -> None:
        """Checks the numbers."""
        for name, least in (("max_new_tokens", 1), ("min_new_tokens", 0), ("no_repeat_ngram_size", 0)):
            if getattr(self, name) < least:
                raise UserError(f"Expected --{name} of at least {least}, found {getattr(self, name)}; change it.")
        if self.min_new_tokens > self.max_new_tokens:
            raise UserError(
                f"Expected --min_new_tokens of at most --max_new_tokens, {self.max_new_tokens}, found "
                f"{self.min_new_tokens}; change one."
            )
        if self.batch_size < 1:
            raise UserError(f"Expected a --batch_size of at least 1, found {self.batch_size}; change it.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"Expected a --seed from 0 to {2**32 - 1}, found {self.seed}; change it.")


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Tokens that were written after a prompt; the other fields as those of `Found`."""

    tokens: list[int]
    stopped: bool
    log_probability: float
    score: float


class Writer:
    """A model, ready to write. Programs are compiled at the first use of a width and a strategy."""

    def __init__(
        self,
        config: ModelConfig,
        params: Any,
        vocabulary: Vocabulary,
        execution: Execution | None = None,
        mesh: Mesh = ONE_DEVICE,
        source: str | Path = "the parameters",
    ) -> None:
        """Places the parameters.

        Args:
            config: of a model that writes text.
            params: its parameters, those of a head beside it included.
            vocabulary: of the tokenizer: texts end with its `document_end`.
            execution: how the model is computed; in float32 without it.
            mesh: devices to divide the rows (data, fsdp) and the heads and the vocabulary (tensor) over; 0 takes all.
            source: where the parameters are from, for messages.

        Raises:
            UserError: a model that writes no text, parameters of another model, or more devices than there are.
        """
        here = jax.local_devices()
        asked = math.prod((mesh.data, mesh.fsdp, mesh.tensor))
        self._mesh = meshes.make(mesh, here[: asked or len(here)])
        self._shards = meshes.batch_shards(self._mesh)
        # Straight code lets every layer read its own parameters (weights.py); elsewhere the loop compiles faster.
        execution = execution or Execution(unroll=config.depth if here[0].platform == "cpu" else 1)
        self.longest = config.longest
        self._config, self._vocabulary = config, vocabulary
        module, self._decoder = config.for_generation(execution), decoder_of(config, execution)
        names = ("input_ids", "decoder_input_ids") if self.reads_sources else ("input_ids",)
        token = {name: jnp.zeros((1, 1), jnp.int32) for name in names}
        start.check_parameters(module, params, token, source, "it holds no model that writes text")
        boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), **token)["params"])
        self._params = weights.placed({name: params[name] for name in boxed}, boxed, execution, self._mesh)

    @property
    def reads_sources(self) -> bool:
        """Whether prompts are what an encoder reads, rather than the beginning of the text."""
        return self._config.decoder_start_token_id is not None

    def __call__(self, prompts: Sequence[list[int]], settings: Settings) -> list[list[Tokens]]:
        """The texts of each prompt, in the order of the prompts.

        Raises:
            UserError: a prompt that is too long, or empty.
        """
        self.check(prompts, settings)
        texts: list[list[Tokens]] = [[] for _ in prompts]
        for chosen, width in self._batches(prompts, settings.batch_size):
            progress = self._begin(prompts, chosen, width, settings)
            progress, _ = self._proceed(progress, settings, settings.max_new_tokens)
            found = jax.device_get(loop.found(settings.strategy, progress.search))
            for place, prompt in enumerate(dict.fromkeys(chosen)):
                texts[prompt] = _texts(found, place, self._before(width))
        return texts

    def stream(self, prompt: list[int], settings: Settings) -> Iterator[tuple[Tokens, bool]]:
        """One text after every token, and whether it has ended.

        Raises:
            UserError: as `__call__`; a strategy of several texts.
        """
        if settings.strategy.rows != 1:
            raise UserError(
                f"Expected a strategy of one text to show while it is written, found {settings.strategy}; take Greedy "
                f"or Sampling with one sequence."
            )
        self.check([prompt], settings)
        width = padded_width(len(prompt), self.longest)
        progress, ended, count = self._begin([prompt], [0] * self._shards, width, settings), False, 1
        while True:
            progress, ended = self._proceed(progress, settings, count)
            found = jax.device_get(loop.found(settings.strategy, progress.search))
            yield _texts(found, 0, self._before(width))[0], ended
            if ended:
                return
            count += 1

    def check(self, prompts: Sequence[list[int]], settings: Settings) -> None:
        """Raises UserError for a prompt that is empty or too long."""
        new = settings.max_new_tokens
        if self.longest is not None and self.reads_sources and new + 1 > self.longest:
            raise UserError(
                f"Expected --max_new_tokens of at most {self.longest - 1}, since the decoder has {self.longest} "
                f"positions, found {new}; lower it."
            )
        for prompt in prompts:
            if not prompt:
                raise UserError("Expected a prompt of at least one token, found an empty one; give some text.")
            if self.longest is None:
                continue
            if self.reads_sources and len(prompt) > self.longest:
                raise UserError(
                    f"Expected a prompt of at most the encoder's {self.longest} positions, found {len(prompt)} tokens; "
                    f"shorten it."
                )
            if not self.reads_sources and len(prompt) + new > self.longest:
                raise UserError(
                    f"Expected a prompt and --max_new_tokens of at most the model's {self.longest} positions together, "
                    f"found {len(prompt)} and {new} tokens; shorten one."
                )

    def _batches(self, prompts: Sequence[list[int]], batch_size: int) -> Iterator[tuple[list[int], int]]:
        """(which prompts, the width of the longest); each has as many, in the last one prompt again and again.

        By length, the shortest first: every other batch is full, and a width is compiled for a batch that needs it, not
        for a prompt.
        """
        count = -(-min(batch_size, len(prompts)) // self._shards) * self._shards
        order = sorted(range(len(prompts)), key=lambda prompt: len(prompts[prompt]))
        for first in range(0, len(order), count):
            chosen = order[first : first + count]
            yield chosen + chosen[-1:] * (count - len(chosen)), padded_width(len(prompts[chosen[-1]]), self.longest)

    def _begin(self, prompts: Sequence[list[int]], chosen: list[int], width: int, settings: Settings) -> loop.Progress:
        """Reads the chosen prompts."""
        tokens = np.full((len(chosen), width), max(self._vocabulary.pad, 0), np.int32)
        mask, source = np.zeros_like(tokens), None
        for place, number in enumerate(chosen):
            count = len(prompts[number])
            filled = slice(count) if self.reads_sources else slice(width - count, None)
            tokens[place, filled] = prompts[number]
            mask[place, filled] = 1
        if self.reads_sources:
            source = {"input_ids": tokens, "attention_mask": mask}
            tokens = np.full((len(chosen), 1), self._config.decoder_start_token_id, np.int32)
            mask = np.ones_like(tokens)
        key = jax.random.key(settings.seed)
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.array(chosen))
        room = tokens.shape[1] + padded_width(settings.max_new_tokens, None)
        compiled, lengths = self._compiled(settings), _lengths(settings)
        return loop.begin(*compiled, self._params, tokens, mask, source, keys, lengths, room=room)

    def _before(self, width: int) -> int:
        """Places of a row before what is written, for prompts of this width."""
        return 1 if self.reads_sources else width

    def _proceed(self, progress: loop.Progress, settings: Settings, until: int) -> tuple[loop.Progress, bool]:
        """Writes until there are so many tokens; and whether every text has ended."""
        count = jnp.asarray(until, jnp.int32)
        progress, ended = loop.proceed(*self._compiled(settings), self._params, progress, _lengths(settings), count)
        return progress, bool(ended)

    def _compiled(self, settings: Settings) -> tuple[Any, ...]:
        """What the programs are compiled for."""
        end = self._vocabulary.document_end
        stop = (end,) if end >= 0 else ()
        first = self._config.forced_bos_token_id
        constraints = Constraints(self._vocabulary.size, stop, settings.no_repeat_ngram_size, first)
        return self._decoder, settings.strategy, constraints, self._mesh


def _lengths(settings: Settings) -> Lengths:
    return Lengths(jnp.asarray(settings.min_new_tokens, jnp.int32), jnp.asarray(settings.max_new_tokens, jnp.int32))


def _texts(found: Found, place: int, before: int) -> list[Tokens]:
    """What was found for the prompt at a place of its batch, behind so many places of its rows."""
    return [
        Tokens(
            tokens=found.tokens[place, number, before : before + count].tolist(),
            stopped=bool(found.stopped[place, number]),
            log_probability=float(found.log_probabilities[place, number]),
            score=float(found.scores[place, number]),
        )
        for number, count in enumerate(found.counts[place].tolist())
    ]
