"""Generation from token ids to token ids: batches of prompts with a few different widths, over the devices of a mesh.

A decoder without an encoder continues its prompt. The prompt of an encoder-decoder is its source, which the encoder
reads. Prompts of similar lengths form a batch. Prompts are padded on the left, sources on the right. Every text has its
own random key. So the text of a prompt does not depend on the other prompts.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.parameters import abstract_parameters, check_parameters
from plmjax.contracts.system import Kind, Purpose
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.packing import padded_width
from plmjax.errors import UserError
from plmjax.experiment import Mesh
from plmjax.generation import loop, weights
from plmjax.generation.constraints import Constraints
from plmjax.generation.decoder import decoder_of
from plmjax.generation.options import NO_TOKEN, Decoding, Rules, WholeLengths
from plmjax.generation.sampling import Greedy
from plmjax.generation.search import Lengths, SearchResult, Strategy
from plmjax.generation.strategies import strategy_of
from plmjax.parallel import hosts
from plmjax.parallel import mesh as meshes

ONE_DEVICE = Mesh(data=1, fsdp=1, tensor=1)
NEW_TOKENS = 64
"""Default maximum number of tokens of a text."""


@dataclasses.dataclass(frozen=True)
class Settings(WholeLengths, Rules):
    """Settings of text generation.

    strategy: Greedy(), Sampling(...) or BeamSearch(...).
    seed: the random seed.
    batch_size: number of prompts in a batch.

    Further fields are those of `Rules` and `WholeLengths`. Without a maximum length, a text has at most `NEW_TOKENS`
    tokens.

    Raises:
        UserError: a number is out of its range.
    """

    strategy: Strategy = Greedy()
    seed: int = 0
    batch_size: int = 8

    def __post_init__(self) -> None:
        self.check_rules()
        if self.batch_size < 1:
            raise UserError(f"Expected a --batch_size of at least 1, found {self.batch_size}; change it.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"Expected a --seed from 0 to {2**32 - 1}, found {self.seed}; change it.")

    def lengths(self, before: int) -> tuple[int, int]:
        """Return (min_new_tokens, max_new_tokens) of a text after `before` tokens.

        `min_new_tokens` and `max_new_tokens` have priority over `min_length` and `max_length`, as in transformers. If
        `min_length` requires more tokens than the maximum, the minimum is the maximum, as in transformers.

        Raises:
            UserError: `max_length` is not above `before`, or `min_new_tokens` is more than the maximum.
        """
        max_new, min_new = self.max_new_tokens, self.min_new_tokens
        if max_new is None:
            max_new = NEW_TOKENS if self.max_length is None else self.max_length - before
        if max_new < 1:
            raise UserError(
                f"Expected --max_length above the {before} tokens of the prompt, found {self.max_length}; raise it, or "
                f"give --max_new_tokens."
            )
        if min_new is None:
            return min(max((self.min_length or 0) - before, 0), max_new), max_new
        if min_new > max_new:
            raise UserError(
                f"Expected --min_new_tokens of at most the {max_new} tokens that a text may have, found {min_new}; "
                f"lower it, or raise --max_new_tokens."
            )
        return min_new, max_new

    def constraints(self, vocabulary: Vocabulary, size: int) -> Constraints:
        """Return the constraints on the tokens of a text. size: rows of the model's embedding table.

        Raises:
            UserError: an id is not below `size`.
        """
        end = vocabulary.document_end
        stop = self.eos_token_id or ((end,) if end >= 0 else ())
        first, last = (
            None if token in (None, NO_TOKEN) else token
            for token in (self.forced_bos_token_id, self.forced_eos_token_id)
        )
        # A token that ends texts can be banned only inside a longer sequence, as in transformers.
        words = tuple(word for word in self.bad_words() if not (len(word) == 1 and word[0] in stop))
        for token in (*stop, *itertools.chain.from_iterable(words), *(one for one in (first, last) if one is not None)):
            if token >= size:
                raise UserError(
                    f"Expected ids of tokens below the model's {size} in eos_token_id, bad_words_ids, "
                    f"forced_bos_token_id and forced_eos_token_id, found {token}; correct it."
                )
        return Constraints(
            tokens=vocabulary.size,
            stop=stop,
            no_repeat_ngram_size=self.no_repeat_ngram_size or 0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            bad_words=words,
            first=first,
            last=last,
            renormalize=bool(self.renormalize_logits),
        )


def settings_of(decoding: Decoding, *, sequences: int = 1, seed: int | None = None, batch_size: int = 8) -> Settings:
    """Return the settings of a generator for these decoding options.

    Raises:
        UserError: a number is out of its range.
    """
    decoding.check_rules()
    strategy = strategy_of(decoding, sequences)
    names = {field.name for base in (Rules, WholeLengths) for field in dataclasses.fields(base)}
    rules = {name: value for name, value in decoding.explicit().items() if name in names}
    return Settings(strategy, seed=seed or 0, batch_size=batch_size, **rules)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Tokens generated after a prompt. The other fields are as in `SearchResult`."""

    tokens: list[int]
    stopped: bool
    log_probability: float
    score: float


class _Batch(NamedTuple):
    """Unfinished texts, and their lengths."""

    progress: loop.Progress
    lengths: Lengths


class BatchGenerator:
    """A model that is ready to generate. Programs are compiled at the first use of a width and a strategy."""

    def __init__(
        self,
        config: ModelConfig,
        params: Any,
        vocabulary: Vocabulary,
        *,
        execution: Execution | None = None,
        mesh: Mesh = ONE_DEVICE,
        source: str | Path = "the parameters",
        reads_prefix: bool = False,
    ) -> None:
        """Place the parameters on the devices.

        Args:
            config: the config of a model that generates text.
            params: the parameters of the model, including those of an additional head.
            vocabulary: the tokenizer's vocabulary: texts end with its `document_end`.
            execution: settings of the computation; float32 by default.
            mesh: devices over which the rows (data, fsdp) and the heads, feed-forward and vocabulary (tensor) are
                sharded; 0 takes all.
            source: the origin of the parameters, for messages.
            reads_prefix: true if the tokens of a decoder's prompt attend to all of it (`ReadsPrefix`).

        Raises:
            UserError: the model generates no text, the parameters belong to another model, or there are too few
                devices.
        """
        here = jax.local_devices()
        asked = math.prod((mesh.data, mesh.fsdp, mesh.tensor))
        self._mesh = meshes.make(mesh, here[: asked or len(here)])
        self._shards = meshes.batch_shards(self._mesh)
        # On a CPU, unrolled layers read parameters without a copy (weights.py); elsewhere a loop compiles faster.
        execution = execution or Execution(unroll=config.depth if here[0].platform == "cpu" else 1)
        self.longest, self.longest_text = config.longest, config.longest_target
        self._config, self._vocabulary = config, vocabulary
        module, self._decoder = config.module(Purpose.CAUSAL_LM, execution), decoder_of(config, execution, reads_prefix)
        names = ("input_ids", "decoder_input_ids") if self.reads_sources else ("input_ids",)
        token = {name: jnp.zeros((1, 1), jnp.int32) for name in names}
        check_parameters(module, params, token, origin=source, hint="it holds no model that writes text")
        boxed = abstract_parameters(module, token)
        self._params = weights.place_parameters({name: params[name] for name in boxed}, boxed, execution, self._mesh)

    @property
    def reads_sources(self) -> bool:
        """Return true if prompts are the input of an encoder, false if they are the beginning of the text."""
        return self._config.system.kind is Kind.ENCODER_DECODER

    def __call__(self, prompts: Sequence[list[int]], settings: Settings) -> list[list[Tokens]]:
        """Return the texts of each prompt, in the order of the prompts.

        Raises:
            UserError: a prompt is too long, or empty.
        """
        self.check(prompts, settings)
        texts: list[list[Tokens]] = [[] for _ in prompts]
        for chosen, width in self._batches(prompts, settings.batch_size):
            hosts.still_here()
            batch, _ = self._decode(self._prefill(prompts, chosen, width, settings), settings)
            found = jax.device_get(loop.search_result(settings.strategy, batch.progress.search))
            for place, prompt in enumerate(dict.fromkeys(chosen)):
                texts[prompt] = _texts(found, place, self._before(width))
        return texts

    def stream(self, prompt: list[int], settings: Settings) -> Iterator[tuple[Tokens, bool]]:
        """Yield (the text so far, true if it has ended) after every token.

        Raises:
            UserError: an error of `__call__`, or the strategy generates several texts.
        """
        if settings.strategy.rows != 1:
            raise UserError(
                f"Expected a strategy of one text to show while it is written, found {settings.strategy}; take Greedy "
                f"or Sampling with one sequence."
            )
        self.check([prompt], settings)
        width = padded_width(len(prompt), self.longest)
        batch, ended, count = self._prefill([prompt], [0] * self._shards, width, settings), False, 1
        while True:
            batch, ended = self._decode(batch, settings, count)
            found = jax.device_get(loop.search_result(settings.strategy, batch.progress.search))
            yield _texts(found, 0, self._before(width))[0], ended
            if ended:
                return
            count += 1

    def check(self, prompts: Sequence[list[int]], settings: Settings, places: Sequence[str] = ()) -> None:
        """Raise UserError for a prompt that is empty or too long.

        places: the position of each prompt, for messages.
        """
        settings.constraints(self._vocabulary, self._config.vocab_size)
        for prompt, place in zip(prompts, places or [""] * len(prompts), strict=True):
            at = f" in {place}" if place else ""
            if not prompt:
                raise UserError(f"Expected a prompt of at least one token{at}, found an empty one; give some text.")
            _, new = settings.lengths(self._before(len(prompt)))
            if self.longest is None:
                continue
            if self.reads_sources and new + 1 > self.longest_text:
                raise UserError(
                    f"Expected --max_new_tokens of at most {self.longest_text - 1}, since the decoder has "
                    f"{self.longest_text} positions, found {new}; lower it."
                )
            if self.reads_sources and len(prompt) > self.longest:
                raise UserError(
                    f"Expected a prompt of at most the encoder's {self.longest} positions{at}, found {len(prompt)} "
                    f"tokens; shorten it."
                )
            if not self.reads_sources and len(prompt) + new > self.longest:
                raise UserError(
                    f"Expected a prompt and --max_new_tokens of at most the model's {self.longest} positions together"
                    f"{at}, found {len(prompt)} and {new} tokens; shorten one."
                )

    def _batches(self, prompts: Sequence[list[int]], batch_size: int) -> Iterator[tuple[list[int], int]]:
        """Yield batches: (indices of the prompts, padded width).

        Prompts are sorted by length, the shortest first, so that batches have few different widths to compile. The last
        batch repeats one prompt until it is full.
        """
        count = -(-min(batch_size, len(prompts)) // self._shards) * self._shards
        order = sorted(range(len(prompts)), key=lambda prompt: len(prompts[prompt]))
        for first in range(0, len(order), count):
            chosen = order[first : first + count]
            yield chosen + chosen[-1:] * (count - len(chosen)), padded_width(len(prompts[chosen[-1]]), self.longest)

    def _prefill(self, prompts: Sequence[list[int]], chosen: list[int], width: int, settings: Settings) -> _Batch:
        """Read the chosen prompts, and generate the first token of each text."""
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
        bounds = [settings.lengths(self._before(len(prompts[number]))) for number in chosen]
        lengths = Lengths(*(jnp.array(side, jnp.int32) for side in zip(*bounds, strict=True)))
        capacity = tokens.shape[1] + padded_width(max(new for _, new in bounds), None)
        compiled = self._compiled(settings)
        progress = loop.prefill(
            *compiled,
            params=self._params,
            prompt=tokens,
            prompt_mask=mask,
            source=source,
            keys=keys,
            lengths=lengths,
            capacity=capacity,
        )
        return _Batch(progress, lengths)

    def _before(self, width: int) -> int:
        """Return the number of positions of a row before the generated tokens, for prompts of this width."""
        return 1 if self.reads_sources else width

    def _decode(self, batch: _Batch, settings: Settings, until: int | None = None) -> tuple[_Batch, bool]:
        """Decode until texts have `until` tokens, or to the end. Also return whether all texts have ended."""
        count = jnp.max(batch.lengths.max_new_tokens) if until is None else jnp.asarray(until, jnp.int32)
        compiled = self._compiled(settings)
        progress, ended = loop.decode(
            *compiled, params=self._params, progress=batch.progress, lengths=batch.lengths, until=count
        )
        return _Batch(progress, batch.lengths), bool(ended)

    def _compiled(self, settings: Settings) -> tuple[Any, ...]:
        """Return the static arguments of the compiled programs."""
        constraints = settings.constraints(self._vocabulary, self._config.vocab_size)
        return self._decoder, settings.strategy, constraints, self._mesh


def _texts(found: SearchResult, place: int, before: int) -> list[Tokens]:
    """Return the texts of one prompt.

    place: its index in the batch. before: positions of its rows before the text.
    """
    return [
        Tokens(
            tokens=found.tokens[place, number, before : before + count].tolist(),
            stopped=bool(found.stopped[place, number]),
            log_probability=float(found.log_probabilities[place, number]),
            score=float(found.scores[place, number]),
        )
        for number, count in enumerate(found.counts[place].tolist())
    ]
