"""A run directory of a file of word vectors, which every command that takes a run then reads.

The model is that of static vectors, the tokenizer is made of the words: a text is split into words and punctuation
marks, and a word that the file does not have gets the vector of `<unk>`, as GloVe names it, or zeros where the file has
none. The other special tokens have zeros.
"""

import tempfile
from pathlib import Path

import numpy as np

from plmjax import storage
from plmjax.data import tokenizers
from plmjax.data.tokenizers.engines import cased
from plmjax.experiment import Experiment
from plmjax.finetuning.tasks.sentences import Sentences, SequenceClassification
from plmjax.interop import word2vec
from plmjax.models.baselines.static_vectors import StaticVectorsConfig
from plmjax.training.checkpoints import checkpoints
from plmjax.word_vectors.vectors import WordVectors, read, words_of

UNKNOWN = "<unk>"


def is_file_of_vectors(path: str | Path) -> bool:
    """Whether `import_vectors` reads it; a damaged one too."""
    path = storage.path(path)
    return path.is_file() and bool(word2vec.evidence(path))


def import_vectors(source: str | Path, workdir: str | Path) -> str:
    """Makes a run directory, step 0, of a file of word2vec or GloVe; says what it holds.

    Capital letters are kept where one word in a hundred of the file has one, and else lowered. Of a word that stands
    there twice the first vector counts.

    Raises:
        UserError: a damaged file, or a run that is there already.
    """
    vectors = read(source)
    with tempfile.TemporaryDirectory() as folder:
        special = {UNKNOWN, *tokenizers.KINDS["word"].values()}
        words = [word for word in dict.fromkeys(vectors.words) if word not in special]
        tokenizer = tokenizers.of_words(words, folder, lowercase=not cased(words))
        table = _table(tokenizer, vectors)
        config = StaticVectorsConfig(*table.shape)
        run = Experiment(model=config, objective=SequenceClassification(), data=Sentences())
        params = {"static_vectors": {"words": {"embedding": table}}}
        checkpoints.save_parameters(storage.path(workdir), params, run, checkpoints.tokenizer_files(Path(folder)))
    return f"imported   {len(words):,} vectors of {table.shape[1]} numbers from {source} to {workdir}"


def _table(tokenizer: tokenizers.Tokenizer, vectors: WordVectors) -> np.ndarray:
    """The vectors of all tokens, float32 [V D]."""
    table = np.zeros((tokenizer.vocabulary.size, vectors.vectors.shape[1]), np.float32)
    words = words_of(tokenizer)
    table[list(words)] = vectors.vectors[[vectors.rows[word] for word in words.values()]]
    if UNKNOWN in vectors.rows:
        table[tokenizer.vocabulary.unknown] = vectors.vectors[vectors.rows[UNKNOWN]]
    return table
