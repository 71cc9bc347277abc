"""Perplexity of held-out text: rows with a sliding window, bits per byte and character, and word perplexity."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from plmjax.data.layouts import Chunks, ContiguousStreams
from plmjax.data.unknown_tokens import UnknownTokens
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.objectives.capabilities import LanguageModel, Remembers, ScoresNextToken
from plmjax.training.metrics import perplexity as exponential

PIECE = 1 << 20
"""Number of tokens of a dataset that are read at once."""


def language_model(run: Experiment) -> ScoresNextToken:
    """Return the next-token objective for the module of a run.

    Raises:
        UserError: the model is not a language model.
    """
    if not isinstance(run.objective, LanguageModel):
        raise UserError(
            f"Expected a language model, which predicts each token from those before it, found a run of "
            f"{type(run.objective).__name__}; name the checkpoint of a decoder."
        )
    return run.objective.language_model_task()


def with_memory(run: Experiment, tokens: int) -> Experiment:
    """Return the run with evaluations that use a memory of `tokens` tokens.

    Raises:
        UserError: the evaluations of the run have no memory, or the number is negative.
    """
    if not isinstance(run.objective, Remembers):
        raise UserError(
            f"Expected a run whose evaluations remember tokens, such as Transformer-XL's, for --memory, found a run of "
            f"{type(run.objective).__name__}; leave it out."
        )
    if tokens < 0:
        raise UserError(f"Expected a --memory of at least 0 tokens, found {tokens}; change it.")
    return dataclasses.replace(run, objective=run.objective.with_memory(tokens))


def row_length(run: Experiment, window: int | None) -> int:
    """Return the number of tokens per row: the window, or the row length of the run's last evaluation.

    Raises:
        UserError: the window is below 1, or exceeds the model's positions.
    """
    if window is None:
        return run.resolved_phases[-1].evaluation.sequence_length
    longest = run.model.longest
    if window < 1 or (longest is not None and window > longest):
        limit = f"from 1 to the model's {longest} positions" if longest is not None else "of at least 1"
        raise UserError(f"Expected a --window {limit}, found {window}; change it.")
    return window


def with_sliding_window(run: Experiment, window: int | None = None, stride: int | None = None) -> Experiment:
    """Return the run as a language model on rows with a sliding window. Every token but the first is scored once.

    A row has `window` tokens, and the predictions after its last `stride` tokens are scored. So each scored token is
    conditioned on more than window - stride tokens, or, at the beginning of the text, on all tokens before it.

    window: by default the row length of the run's last evaluation.
    stride: by default the stride of the run's own rows. If these rows do not overlap, it is the window, and the result
        equals that of the run's own evaluation.

    Raises:
        UserError: the model is not a language model, a window or a stride is out of range, or a stride is given for a
            model that carries its state from row to row.
    """
    task, length, phase = language_model(run), row_length(run, window), run.resolved_phases[-1]
    layout = run.data.layout if isinstance(run.data.layout, Chunks) else Chunks()
    if stride is not None:
        if isinstance(layout, ContiguousStreams):
            raise UserError(
                "Expected no --stride for a model that carries its state from row to row, so that each token is given "
                f"all before it, found {stride}; leave it out."
            )
        if not 1 <= stride <= length:
            raise UserError(f"Expected a --stride from 1 to the window of {length} tokens, found {stride}; change it.")
        layout = dataclasses.replace(layout, overlap=length - stride)
    return dataclasses.replace(
        run,
        objective=task,
        data=dataclasses.replace(run.data, layout=layout, sequence_length=length),
        training=dataclasses.replace(
            run.training,
            batch_size=phase.batch_size,
            accumulation=phase.accumulation,
            evaluation_sequence_length=0,
        ),
        phases=(),
    )


def check_length(dataset: Any, path: Path) -> None:
    """Raise UserError if raw text has fewer than two tokens.

    dataset: the prepared text, a plmjax.data.store.Dataset with all of it held out.
    """
    tokens = dataset.split("validation").token_count
    if tokens < 2:
        raise UserError(f"Expected a text of at least two tokens in {path}, found {tokens}; give a longer one.")


def check_memory(dataset: Any, memory: int) -> None:
    """Raise UserError if held-out text (a plmjax.data.store.Dataset) has fewer tokens than a memory."""
    tokens = dataset.split("validation").token_count
    if memory > tokens:
        raise UserError(
            f"Expected a --memory of at most the {tokens} tokens of the text, found {memory}; lower it, or give a "
            "longer text."
        )


def by_size(nats: float, size: Any) -> dict[str, float]:
    """Return the bits per byte, the bits per character and the word perplexity of a text with this sum of nats.

    size: a plmjax.data.text_size.TextSize.
    """
    bits = nats / math.log(2)
    return {
        "bits_per_byte": bits / size.bytes,
        "bits_per_character": bits / size.characters,
        "word_perplexity": exponential(nats / size.words),
    }


def lowercases(tokenizer: Any) -> bool:
    """Return whether a plmjax.data.tokenizers.Tokenizer lowercases text: then bits do not measure capital letters."""
    return tokenizer.normalize("A").lower() == tokenizer.normalize("A")


def unknown_tokens(tokenizer: Any, dataset: Any) -> UnknownTokens:
    """Count the unknown tokens in all held-out streams of a plmjax.data.store.Dataset."""
    unknown = UnknownTokens(tokenizer.vocabulary)
    for stream in dataset.streams:
        split = dataset.split("validation", stream)
        for first in range(0, split.token_count, PIECE):
            unknown.add(split.tokens(first, min(first + PIECE, split.token_count)))
    return unknown
