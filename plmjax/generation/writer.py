"""Tokens in, tokens out: prompts in batches of a few widths, over the devices of a mesh.

Prompts are batched by width, filled up on the left, and every text has a random key of its own, so that the text of a
prompt does not depend on the other prompts.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.generation import loop, weights
from plmjax.generation.constraints import Constraints
from plmjax.generation.decoder import CausalDecoder
from plmjax.generation.sampling import Greedy
from plmjax.generation.search import Found, Lengths, Strategy
from plmjax.inference.rows import check_parameters, padded_width
from plmjax.layers.execution import Execution
from plmjax.layers.model_config import ModelConfig
from plmjax.parallel import mesh as meshes
from plmjax.vocabulary import Vocabulary

ONE_DEVICE = Mesh(data=1, fsdp=1, tensor=1)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How texts are written.

    strategy: Greedy(), Sampling(...) or BeamSearch(...).
    max_new_tokens: tokens of a text after its prompt at most, the one that ends it included.
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
        self._decoder, self._vocabulary = CausalDecoder(config, execution), vocabulary
        module, token = config.for_generation(execution), {"input_ids": jnp.zeros((1, 1), jnp.int32)}
        check_parameters(module, params, token, source, "it holds no model that writes text")
        boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), **token)["params"])
        self._params = weights.placed({name: params[name] for name in boxed}, boxed, execution, self._mesh)

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
                texts[prompt] = _texts(found, place, width)
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
            yield _texts(jax.device_get(loop.found(settings.strategy, progress.search)), 0, width)[0], ended
            if ended:
                return
            count += 1

    def check(self, prompts: Sequence[list[int]], settings: Settings) -> None:
        """Raises UserError for a prompt that is empty or too long."""
        for prompt in prompts:
            if not prompt:
                raise UserError("Expected a prompt of at least one token, found an empty one; give some text.")
            if self.longest is not None and len(prompt) + settings.max_new_tokens > self.longest:
                raise UserError(
                    f"Expected a prompt and --max_new_tokens of at most the model's {self.longest} positions together, "
                    f"found {len(prompt)} and {settings.max_new_tokens} tokens; shorten one."
                )

    def _batches(self, prompts: Sequence[list[int]], batch_size: int) -> Iterator[tuple[list[int], int]]:
        """(which prompts, their width); every batch has as many, the last repeated where there are too few."""
        count = -(-min(batch_size, len(prompts)) // self._shards) * self._shards
        widths = [padded_width(len(prompt), self.longest) for prompt in prompts]
        for width in sorted(set(widths)):
            members = [prompt for prompt, own in enumerate(widths) if own == width]
            for first in range(0, len(members), count):
                chosen = members[first : first + count]
                yield chosen + chosen[-1:] * (count - len(chosen)), width

    def _begin(self, prompts: Sequence[list[int]], chosen: list[int], width: int, settings: Settings) -> loop.Progress:
        """Reads the chosen prompts."""
        tokens = np.full((len(chosen), width), max(self._vocabulary.pad, 0), np.int32)
        mask = np.zeros((len(chosen), width), np.int32)
        for place, number in enumerate(chosen):
            tokens[place, width - len(prompts[number]) :] = prompts[number]
            mask[place, width - len(prompts[number]) :] = 1
        key = jax.random.key(settings.seed)
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(jnp.array(chosen))
        room = width + padded_width(settings.max_new_tokens, None)
        compiled, lengths = self._compiled(settings), _lengths(settings)
        return loop.begin(*compiled, self._params, tokens, mask, None, keys, lengths, room=room)

    def _proceed(self, progress: loop.Progress, settings: Settings, until: int) -> tuple[loop.Progress, bool]:
        """Writes until there are so many tokens; and whether every text has ended."""
        count = jnp.asarray(until, jnp.int32)
        progress, ended = loop.proceed(*self._compiled(settings), self._params, progress, _lengths(settings), count)
        return progress, bool(ended)

    def _compiled(self, settings: Settings) -> tuple[Any, ...]:
        """What the programs are compiled for."""
        end = self._vocabulary.document_end
        stop = (end,) if end >= 0 else ()
        constraints = Constraints(self._vocabulary.size, stop, settings.no_repeat_ngram_size)
        return self._decoder, settings.strategy, constraints, self._mesh


def _lengths(settings: Settings) -> Lengths:
    return Lengths(jnp.asarray(settings.min_new_tokens, jnp.int32), jnp.asarray(settings.max_new_tokens, jnp.int32))


def _texts(found: Found, place: int, width: int) -> list[Tokens]:
    """What was found for the prompt at a place of its batch."""
    return [
        Tokens(
            tokens=found.tokens[place, number, width : width + count].tolist(),
            stopped=bool(found.stopped[place, number]),
            log_probability=float(found.log_probabilities[place, number]),
            score=float(found.scores[place, number]),
        )
        for number, count in enumerate(found.counts[place].tolist())
    ]
