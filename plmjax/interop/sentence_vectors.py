"""Comparison of the vectors of texts in a folder of sentence-transformers with those of plmjax."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np

from plmjax.errors import UserError
from plmjax.interop import huggingface, sentence_folders
from plmjax.interop.tokenizer_files import SAMPLES
from plmjax.layers.text_vectors import TextVectors, tokens_before

NEEDED = ("torch", "transformers", "sentence_transformers")
LONGEST = 1024
"""Maximum number of tokens of a text that is compared, so that a comparison takes seconds."""


def not_installed() -> list[str]:
    """Return the libraries that a comparison needs and that are not installed."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def texts(longest: int | None) -> tuple[str, ...]:
    """Return the texts to compare. The last one is longer than `longest` tokens, unless that is too long to test."""
    words = " ".join(SAMPLES)
    if longest is None or longest > LONGEST:
        return SAMPLES
    return *SAMPLES, " ".join([words] * (longest // len(words.split()) + 1))


def compare(
    module: nn.Module,
    params: Mapping[str, Any],
    tokenizer: Any,
    *,
    vectors: TextVectors,
    own: Mapping[str, Mapping[str, np.ndarray]],
    folder: Path,
) -> float:
    """Return the largest difference between our vectors of a few texts and those of a folder.

    The difference is relative to max(1, the largest number).

    module, params: the encoder. tokenizer: a plmjax.data.tokenizers.Tokenizer.
    vectors, own: the recipe and its parameters.

    Raises:
        UserError: the difference exceeds `huggingface.TOLERANCE`, or the folder does not open.
    """
    compared = texts(vectors.truncation_length(module.config.longest))
    theirs = sentence_folders.vectors_there(folder, compared)
    ours = vectors_here(module, params, tokenizer, vectors=vectors, own=own, compared=compared)
    difference = np.inf
    if theirs.shape == ours.shape:
        difference = np.abs(theirs - ours).max() / max(1.0, np.abs(theirs).max())
    if not difference <= huggingface.TOLERANCE:
        raise UserError(
            f"Expected the vectors of sentence-transformers for {folder} within {huggingface.TOLERANCE:g}, found a "
            f"difference of {difference:.3g}; do not use this copy, and report the folder."
        )
    return float(difference)


def vectors_here(
    module: nn.Module,
    params: Mapping[str, Any],
    tokenizer: Any,
    *,
    vectors: TextVectors,
    own: Mapping[str, Mapping[str, np.ndarray]],
    compared: Sequence[str],
) -> np.ndarray:
    """Return our vectors of texts, float32 [texts, size], with the default prompt. Arguments as for `compare`."""
    template, longest, prompt = (
        module.config.template,
        vectors.truncation_length(module.config.longest),
        vectors.prompt(),
    )
    prompt_ids, *ids = tokenizer.encode_batch([prompt, *(prompt + text for text in compared)])
    before, pooled = tokens_before(prompt_ids, template), []
    for text in ids:
        row = np.array([template.lay_out([text], tokenizer.vocabulary, longest).tokens], np.int32)
        inputs = {"input_ids": row, "attention_mask": np.ones_like(row)}
        states = huggingface.outputs(module, params, inputs, ("last_hidden_state",))["last_hidden_state"]
        pooled.append(vectors.pool(np.asarray(states)[0], before))
    return vectors.finish(np.stack(pooled), own)
