"""Conversion of a file of word vectors to a run directory, which every command that takes a run can read.

The model is static vectors, and the tokenizer is made from the words, which determine its normalizer and its splitter
(`tokenizers.from_words`). A word of a text that is not in the file gets the vector of `<unk>`, GloVe's name for it,
or zeros if the file has no such entry. The other special tokens have zero vectors.
"""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plmjax.data import tokenizers
from plmjax.errors import quoted
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.interop import word2vec
from plmjax.interop.word_vectors import WordVectors, read, words_of
from plmjax.models.baselines.static_vectors import StaticVectorsConfig
from plmjax.training.checkpoints import checkpoints

UNKNOWN = "<unk>"


def is_file_of_vectors(path: str | Path) -> bool:
    """Return whether `import_vectors` can read the file. It is true for a damaged file as well."""
    path = storage.path(path)
    return path.is_file() and bool(word2vec.evidence(path))


def import_vectors(source: str | Path, workdir: str | Path) -> str:
    """Create a run directory, at step 0, from a file of word2vec or GloVe. Return a line of text on its contents.

    Capital letters are kept if at least one word in a hundred of the file has one; else texts are lowercased. If a word
    occurs twice, its first vector is used. The line says how many words no text can contain as a single token.

    Raises:
        UserError: a damaged file, or an existing run at `workdir`.
    """
    vectors = read(source)
    with tempfile.TemporaryDirectory() as folder:
        special = {UNKNOWN, *tokenizers.KINDS["word"].values()}
        words = [word for word in dict.fromkeys(vectors.words) if word not in special]
        tokenizer = tokenizers.from_words(words, folder)
        table = _table(tokenizer, vectors)
        config = StaticVectorsConfig(*table.shape)
        run = Experiment(model=config, objective=SequenceClassification(), data=Sentences())
        params = {"static_vectors": {"words": {"embedding": table}}}
        checkpoints.save_parameters(
            storage.path(workdir), params, run, tokenizer=checkpoints.tokenizer_files(Path(folder))
        )
    lost = _lost(tokenizer, list(words_of(tokenizer).values()))
    note = f"; no text gives {len(lost):,} of the words, such as {quoted(lost[0])}" if lost else ""
    return f"imported   {len(words):,} vectors of {table.shape[1]} numbers from {source} to {workdir}{note}"


def _lost(tokenizer: tokenizers.Tokenizer, words: Sequence[str]) -> list[str]:
    """Return the words that the tokenizer does not encode as a single token."""
    ids, lengths = tokenizer.encode_arrays(words)
    tokens = iter(tokenizer.tokens(ids))
    return [word for word, size in zip(words, lengths, strict=True) if [*itertools.islice(tokens, size)] != [word]]


def _table(tokenizer: tokenizers.Tokenizer, vectors: WordVectors) -> np.ndarray:
    """Return the vectors of all tokens, float32 [V D]."""
    table = np.zeros((tokenizer.vocabulary.size, vectors.vectors.shape[1]), np.float32)
    words = words_of(tokenizer)
    table[list(words)] = vectors.vectors[[vectors.rows[word] for word in words.values()]]
    if UNKNOWN in vectors.rows:
        table[tokenizer.vocabulary.unknown] = vectors.vectors[vectors.rows[UNKNOWN]]
    return table
