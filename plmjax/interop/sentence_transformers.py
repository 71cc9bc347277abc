"""Export of an encoder as a folder of sentence-transformers: `plmjax export RUN FOLDER --to sentence-transformers`.

The folder has the encoder in the form of transformers, its pooling and the layers after it. sentence-transformers
writes it and opens it again. Its vectors of a few texts must equal those of plmjax.
"""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError, check_choice
from plmjax.experiment import Experiment
from plmjax.files import locks, storage
from plmjax.interop import huggingface, run_directories, sentence_folders, sentence_vectors
from plmjax.layers.text_vectors import Normalize, TextVectors
from plmjax.training.checkpoints import checkpoints

EXTRA = "pip install 'plmjax[sentences]'"


def export_sentence_transformer(
    checkpoint: str | Path, directory: str | Path, pooling: str | None = None, *, normalize: bool = False
) -> str:
    """Write the encoder of a checkpoint as a folder of sentence-transformers. Return a line of text on the checks.

    Args:
        checkpoint: run directory or checkpoint.
        pooling: "mean" over the tokens, or "cls": the hidden state of [CLS], or of the last token if the model
            represents a row by it. It replaces the pooling, the layers and the size of the run's recipe. None takes the
            recipe, or the mean if the run has none.
        normalize: if True, the vectors of the folder have length 1.

    Raises:
        UserError: sentence-transformers is not installed, the model has no encoder that both libraries know or no such
            pooling, the folder has other files, or the vectors differ.
    """
    if pooling is not None:
        check_choice("--pooling", pooling, ("mean", "cls"))
    _check_installed()
    params, description = checkpoints.load_parameters(checkpoint)
    run, own = description.experiment, params.get(TextVectors.name, {})
    architecture = _encoder(run, checkpoint)
    vectors = _recipe(run, pooling, normalize=normalize)
    own = {number: {name: np.asarray(one) for name, one in layer.items()} for number, layer in own.items()}
    own = own if vectors.layers else {}
    output = storage.path(directory)
    with locks.lock(output), tempfile.TemporaryDirectory() as scratch, storage.output(output) as folder:
        run_directories.claim(output, architecture, description.step)
        run_directories.export_checkpoint(checkpoint, scratch, architecture)
        cut = dataclasses.replace(vectors, longest=vectors.truncation_length(run.model.longest))
        dimension = sentence_folders.write(Path(scratch), folder, cut, own)
        module, encoder = huggingface.load(scratch)
        tokenizer = description.load_tokenizer()
        difference = sentence_vectors.compare(module, encoder, tokenizer, vectors=vectors, own=own, folder=folder)
    return (
        f"exported   {architecture} of step {description.step} to {directory} for sentence-transformers; {vectors}, "
        f"{dimension} numbers; its vectors differ from the run's by {difference:.1e} relative at most"
    )


def _recipe(run: Experiment, pooling: str | None, *, normalize: bool) -> TextVectors:
    """Return the recipe of a run, with another pooling or normalized vectors if requested."""
    vectors = run.text_vectors or TextVectors()
    if pooling is not None:
        mode = "lasttoken" if pooling == "cls" and run.model.template.position(2) else pooling
        vectors = dataclasses.replace(vectors, pooling=(mode,), layers=(), size=None)
    if normalize and vectors.size is not None:
        raise UserError(
            f"Expected no --normalize for a recipe that keeps the first {vectors.size} features, which "
            "sentence-transformers cuts off last, so that no vector has a length of 1; leave it out."
        )
    if normalize and vectors.layers[-1:] != (Normalize(),):
        vectors = dataclasses.replace(vectors, layers=(*vectors.layers, Normalize()))
    return vectors


def _check_installed() -> None:
    if missing := sentence_vectors.not_installed():
        raise UserError(
            f"Expected {' and '.join(missing)} to be installed for --to sentence-transformers, found nothing of that "
            f"name; {EXTRA}."
        )


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
