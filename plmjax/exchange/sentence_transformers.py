"""Export of an encoder as a folder of sentence-transformers: `plmjax export RUN FOLDER --to sentence-transformers`.

The folder has the encoder in the form of transformers, its pooling, and the normalization of its vectors if it is
requested. sentence-transformers writes it and opens it again. Its vectors of a few texts must be those of our model.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plmjax import storage
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.system import Purpose
from plmjax.contracts.template import Template
from plmjax.errors import UserError, check_choice
from plmjax.exchange import run_directories
from plmjax.experiment import Experiment
from plmjax.interop import huggingface, notices, tokenizer_files
from plmjax.training.checkpoints import checkpoints, start

POOLINGS = ("mean", "cls")
"""The vector of a text: the mean over its row, or the hidden state of [CLS], or of the last token where that position
represents a row."""
EXTRA = "pip install 'plmjax[sentences]'"


def export_sentence_transformer(
    checkpoint: str | Path, directory: str | Path, pooling: str = "mean", *, normalize: bool = False
) -> str:
    """Write the encoder of a checkpoint as a folder of sentence-transformers. Return a line of text on the checks.

    Args:
        checkpoint: run directory or checkpoint.
        pooling: one of `POOLINGS`.
        normalize: if True, the vectors of the folder have length 1.

    Raises:
        UserError: sentence-transformers is not installed, the model has no encoder that both libraries know or no such
            pooling, the folder has other files, or the vectors differ.
    """
    check_choice("--pooling", pooling, POOLINGS)
    _check_installed()
    description = checkpoints.describe(checkpoints.find(checkpoint))
    run = description.experiment
    architecture = _encoder(run, checkpoint)
    output = storage.path(directory)
    run_directories.claim(output, architecture, description.step)
    with tempfile.TemporaryDirectory() as scratch, storage.output(output) as folder:
        run_directories.export_checkpoint(checkpoint, scratch, architecture)
        dimension = _write(Path(scratch), folder, _mode(run.model.template, pooling), normalize=normalize)
        theirs = _vectors_there(folder)
        module, encoder = huggingface.load(scratch)
    ours = _vectors(module, encoder, start.tokenizer_of(description), run.model, pooling, normalize=normalize)
    difference = np.abs(theirs - ours).max() / max(1.0, np.abs(ours).max())
    if not difference <= huggingface.TOLERANCE:
        raise UserError(
            f"Expected the vectors of sentence-transformers for {directory} within {huggingface.TOLERANCE:g}, found a "
            f"difference of {difference:.3g}; do not use this copy, and report the run."
        )
    length = ", of length 1" if normalize else ""
    return (
        f"exported   {architecture} of step {description.step} to {directory} for sentence-transformers; {pooling} "
        f"pooling to {dimension} numbers{length}; its vectors of {len(ours)} texts differ by {difference:.1e} relative "
        "at most"
    )


def _check_installed() -> None:
    missing = [name for name in ("torch", "transformers", "sentence_transformers") if not _installed(name)]
    if missing:
        raise UserError(
            f"Expected {' and '.join(missing)} to be installed for --to sentence-transformers, found nothing of that "
            f"name; {EXTRA}."
        )


def _installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def _encoder(run: Experiment, checkpoint: str | Path) -> str:
    """Return the class of transformers for the encoder of a run."""
    run.model.system.require(Purpose.EMBEDDING, f" in {checkpoint}")
    module = run.model.module(Purpose.EMBEDDING, Execution())
    if run.model.windows or not huggingface.has_form(module):
        raise UserError(
            f"Expected an encoder that transformers has too in {checkpoint}, found {type(run.model).__name__}; take "
            "plmjax embed for its vectors."
        )
    return huggingface.architecture_of(module)


def _mode(template: Template, pooling: str) -> str:
    """Return the name of a pooling in sentence-transformers."""
    return "mean" if pooling == "mean" else "cls" if template.position(2) == 0 else "lasttoken"


def _write(encoder: Path, folder: Path, mode: str, *, normalize: bool) -> int:
    """Write the folder from an encoder in the form of transformers. Return the size of its vectors."""
    import sentence_transformers
    import transformers
    from sentence_transformers.base import modules
    from sentence_transformers.sentence_transformer.modules import Pooling

    with notices.none_from(transformers):
        parts = [modules.Transformer(os.fspath(encoder))]  # truncates texts at the tokenizer's model_max_length
        dimension = parts[0].get_embedding_dimension()
        parts.append(Pooling(dimension, pooling_mode=mode))
        if normalize:
            parts.append(modules.Normalize())
        whole = sentence_transformers.SentenceTransformer(modules=parts, device="cpu")
        whole.save(os.fspath(folder), create_model_card=False)
    return dimension


def _vectors_there(folder: Path) -> np.ndarray:
    """Return what sentence-transformers gives for the sample texts, float32 [texts D]."""
    import sentence_transformers
    import transformers

    with notices.none_from(transformers):
        opened = sentence_transformers.SentenceTransformer(os.fspath(folder), device="cpu", local_files_only=True)
        return opened.encode(list(tokenizer_files.SAMPLES), show_progress_bar=False)


def _vectors(
    module: Any, params: Any, tokenizer: Any, config: ModelConfig, pooling: str, *, normalize: bool
) -> np.ndarray:
    """Return the vectors of the sample texts by our model, float32 [texts D]."""
    template = config.template
    longest = config.longest or max(map(len, tokenizer_files.SAMPLES))
    vectors = []
    for ids in tokenizer.encode_batch(tokenizer_files.SAMPLES):
        row = template.lay_out([ids], tokenizer.vocabulary, longest).tokens
        found = huggingface.outputs(module, params, _row(row), ("last_hidden_state",))
        states = np.asarray(found["last_hidden_state"])[0]
        vectors.append(states.mean(axis=0) if pooling == "mean" else states[template.position(len(row))])
    stacked = np.stack(vectors)
    return stacked / np.linalg.norm(stacked, axis=1, keepdims=True) if normalize else stacked


def _row(tokens: Sequence[int]) -> dict[str, np.ndarray]:
    ids = np.array([tokens], np.int32)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}
