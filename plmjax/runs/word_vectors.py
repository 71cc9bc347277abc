"""Initialization of a model's embedding table from a file of word vectors.

The model and the tokenizer are those of the run. A token that is spelled like a word of the file starts with the vector
of that word. Special tokens and all other tokens keep their random initial values.
"""

from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.interop import word2vec
from plmjax.interop.word_vectors import WordVectors, read, words_of
from plmjax.training import initial_state


def at(path: str | Path) -> WordVectors | None:
    """Return the vectors in a file of word2vec or GloVe; None if the path is not such a file.

    Raises:
        UserError: the file is damaged.
    """
    path = storage.path(path)
    return read(path) if path.is_file() and word2vec.evidence(path) else None


def check(run: Experiment, tokenizer: Any, vectors: WordVectors, batch: dict[str, jax.ShapeDtypeStruct]) -> None:
    """Raise UserError if a model or a tokenizer (plmjax.data.tokenizers.Tokenizer) does not fit the vectors.

    The embedding size must be that of the vectors, and the tokens must be words.

    batch: field -> shape and dtype of a batch.
    """
    name = run.model.system.token_table
    if name is None:
        raise UserError(
            f"Expected a model with token embeddings, to initialize them from {vectors.origin}, found "
            f"{type(run.model).__name__}; use another model."
        )
    if tokenizer.kind != "word":
        raise UserError(
            f"Expected a tokenizer of words, to initialize embeddings from {vectors.origin}, found one of the kind "
            f"{tokenizer.kind}; set --tokenizer.kind word."
        )
    (width,), size = _table(run, batch).shape[1:], vectors.vectors.shape[1]
    if size != width:
        raise UserError(
            f"Expected vectors of size {width}, the embedding size of {name}, found {size} in {vectors.origin}; change "
            f"the model's embedding size or name another file."
        )


def fill(params: Any, name: str, tokenizer: Any, vectors: WordVectors) -> tuple[Any, str]:
    """Return the parameters with the vectors in the table `name`, and a text with the number of words found.

    A word that the file lacks gets the vector of the first word that the tokenizer normalizes to it: "cafe" gets that
        of "café" if accents are dropped.

    params: a tree of jax.Array, whose shardings do not change.
    name: path of the embedding table.
    tokenizer: a plmjax.data.tokenizers.Tokenizer.
    """
    words = words_of(tokenizer)
    known = vectors.rows
    if any(word not in known for word in words.values()):
        spelt = reversed([(tokenizer.normalize(word), row) for row, word in enumerate(vectors.words)])
        known = dict(spelt) | known
    pairs = [(token, known[word]) for token, word in words.items() if word in known]
    tokens, rows = np.array(pairs, np.int32).reshape(-1, 2).T
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    replace = jax.jit(lambda table, rows: table.at[tokens].set(rows), out_shardings=flat[name].sharding)
    flat[name] = replace(flat[name], vectors.vectors[rows])
    note = f"{len(pairs):,} of {len(words):,} words have a vector in {vectors.origin}; the others are random"
    return flax.traverse_util.unflatten_dict(flat, sep="/"), note


def _table(run: Experiment, batch: dict[str, jax.ShapeDtypeStruct]) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of the model's embedding table. Nothing is computed."""
    phase, module = run.resolved_phases[0], run.objective.module(run.model, Execution())
    vocabulary = Vocabulary.placeholder(run.model.vocab_size)
    shapes = jax.eval_shape(
        initial_state.initial_variables(run, phase, module, vocabulary=vocabulary, batch=batch), jax.random.key(0)
    )
    return flax.traverse_util.flatten_dict(nn.meta.unbox(shapes)["params"], sep="/")[run.model.system.token_table]
