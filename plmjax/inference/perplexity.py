"""Perplexity of held-out text: rows that slide over it, and what their nats are by byte, character and word."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from plmjax.data.layouts import Blocks, Streams
from plmjax.data.unknown_tokens import UnknownTokens
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.objectives.capabilities import LanguageModel, ScoresNextToken
from plmjax.training import phases
from plmjax.training.metrics import perplexity as exponential

PIECE = 1 << 20
"""Tokens of a dataset that are read at once."""


def language_model(run: Experiment) -> ScoresNextToken:
    """The objective of the next token for the module of a run.

    Raises:
        UserError: the model is no language model.
    """
    if not isinstance(run.objective, LanguageModel):
        raise UserError(
            f"Expected a language model, which tells each token from those before it, found a run of "
            f"{type(run.objective).__name__}; name the checkpoint of a decoder."
        )
    return run.objective.language_model_task()


def row_length(run: Experiment, window: int | None) -> int:
    """The tokens that a row is read with: the window, or those of a row of the run's last evaluation.

    Raises:
        UserError: the model has no positions for the window.
    """
    if window is None:
        return phases.evaluation(run, phases.resolve(run)[-1]).sequence_length
    longest = run.model.longest
    if window < 1 or (longest is not None and window > longest):
        limit = f"from 1 to the model's {longest} positions" if longest is not None else "of at least 1"
        raise UserError(f"Expected a --window {limit}, found {window}; change it.")
    return window


def sliding(run: Experiment, window: int | None = None, stride: int | None = None) -> Experiment:
    """The run as a language model whose rows slide over held-out text; every token but the first is asked for once.

    A row holds `window` tokens and asks for what follows the last `stride` of them, so that each token is given more
    than window - stride tokens, at the beginning of the text as many as there are.

    window: by default that of the run's last evaluation. stride: by default that of the run's own rows; if they do not
    overlap it is the window, and the result that of the run's own evaluation.

    Raises:
        UserError: the model is no language model, or a window or a stride is out of range.
    """
    task, length, phase = language_model(run), row_length(run, window), phases.resolve(run)[-1]
    layout = run.data.layout if isinstance(run.data.layout, Blocks) else Blocks()
    if stride is not None:
        if isinstance(layout, Streams):
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
    """Raises UserError where raw text has no token that another one stands before.

    dataset: what it was prepared into, a plmjax.data.store.Dataset with all of it held out.
    """
    tokens = dataset.split("validation").token_count
    if tokens < 2:
        raise UserError(f"Expected a text of at least two tokens in {path}, found {tokens}; give a longer one.")


def by_size(nats: float, size: Any) -> dict[str, float]:
    """The nats of a text per byte, character and word as it was written.

    size: a plmjax.data.text_size.TextSize.
    """
    bits = nats / math.log(2)
    return {
        "bits_per_byte": bits / size.bytes,
        "bits_per_character": bits / size.characters,
        "word_perplexity": exponential(nats / size.words),
    }


def lowercases(tokenizer: Any) -> bool:
    """Whether the bits of a text leave out its capitals; tokenizer: a plmjax.data.tokenizers.Tokenizer."""
    small = tokenizer.encode("a")
    return small == tokenizer.encode("A") and tokenizer.vocabulary.unknown not in small


def unknown_tokens(tokenizer: Any, dataset: Any) -> UnknownTokens:
    """The count of all texts of the documents that are held out of a plmjax.data.store.Dataset."""
    unknown = UnknownTokens(tokenizer.vocabulary)
    for stream in dataset.streams:
        split = dataset.split("validation", stream)
        for first in range(0, split.token_count, PIECE):
            unknown.add(split.tokens(first, min(first + PIECE, split.token_count)))
    return unknown
