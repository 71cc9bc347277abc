"""Words and their vectors, with nearest neighbors and analogies (3CosAdd).

vectors = read("vectors.txt")
print(vectors.nearest(["king", "woman"], minus=["man"]))
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chex
import flax.traverse_util
import numpy as np

from plmjax.errors import UserError, listed, quoted
from plmjax.files import storage
from plmjax.interop import word2vec
from plmjax.training.checkpoints import checkpoints

ZERO = 1e-6
"""Length of a sum of directions, divided by their number, below which float32 cannot tell it from zero."""
_LARGEST = 1e15
"""Upper bound of the numbers of a vector. A sum of squares of larger ones might exceed the range of float32."""
_SCORES = 1 << 24
"""Maximum number of word scores in memory at once."""


class WordVectors:
    """Words and their vectors.

    origin: name of the file, for messages.
    words: V words, most frequent first if the file is sorted. If a word occurs twice, its first vector is used.
    vectors: float32 [V D].
    """

    def __init__(self, origin: str, words: Sequence[str], vectors: np.ndarray):
        chex.assert_shape(vectors, (len(words), None))
        chex.assert_type(vectors, np.float32)
        self.origin, self.words, self.vectors = origin, list(words), vectors

    @functools.cached_property
    def rows(self) -> dict[str, int]:
        """Word -> its row."""
        return {word: row for row, word in reversed(list(enumerate(self.words)))}

    @functools.cached_property
    def directions(self) -> np.ndarray:
        """Vectors divided by their lengths, float32 [V D]. A zero vector stays zero."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return self.vectors / np.where(lengths > 0, lengths, 1)

    def without_case(self) -> "WordVectors":
        """Return vectors of lowercase words.

        Words that differ only in case become one, with the vector of the first.
        """
        first: dict[str, int] = {}
        for row, word in enumerate(self.words):
            first.setdefault(word.lower(), row)
        return WordVectors(self.origin, list(first), self.vectors[list(first.values())])

    def nearest(self, words: Sequence[str], minus: Sequence[str] = (), top: int = 10) -> list[tuple[str, float]]:
        """Return the `top` words with the largest cosine to a sum of directions, and these cosines, best first.

        The sum adds the directions of `words` and subtracts the directions of `minus`. None of these words is in the
        result. For the analogy a : b = c : ?, the sum is b + c - a, `nearest([b, c], [a])`: 3CosAdd (Mikolov et al.,
        NAACL 2013; Levy and Goldberg, CoNLL 2014, section 3).

        Raises:
            UserError: no word, a word without a vector, directions that sum to zero, or `top` below 1.
        """
        if not words:
            raise UserError("Expected a word to find the neighbors of, found none; name one.")
        if top < 1:
            raise UserError(f"Expected --top of at least 1, found {top}; change it.")
        added, removed = ([self.row(word) for word in side] for side in (words, minus))
        direction = self.directions[added].sum(axis=0) - self.directions[removed].sum(axis=0)
        length = float(np.linalg.norm(direction))
        if length < ZERO * (len(added) + len(removed)):
            raise UserError(
                f"Expected words whose vectors do not sum to zero in {self.origin}, found "
                f"{listed([*words, *(f'minus {word}' for word in minus)])}; name other words."
            )
        cosines = self.directions @ direction / length
        left_out = {*words, *minus}
        found = []
        for row in np.argsort(-cosines, kind="stable"):
            if len(found) == top:
                break
            if self.words[row] not in left_out:
                found.append((self.words[row], float(cosines[row])))
        return found

    def nearest_rows(self, directions: np.ndarray, left_out: np.ndarray) -> np.ndarray:
        """Return the rows of the words with the largest cosine, int64 [N].

        directions: float32 [N D], of any norm. left_out: int [N K], rows that are excluded.
        """
        chosen, step = [], max(1, _SCORES // len(self.words))
        for begin in range(0, len(directions), step):
            cosines = directions[begin : begin + step] @ self.directions.T
            np.put_along_axis(cosines, left_out[begin : begin + step], -np.inf, axis=1)
            chosen.append(cosines.argmax(axis=1))
        return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)

    def row(self, word: str) -> int:
        """Return the row of a word's vector. Raise UserError if it has none."""
        if word not in self.rows:
            raise UserError(
                f"Expected words that {self.origin} has vectors of, found {quoted(word)}; write it as that file does."
            )
        return self.rows[word]


def read(path: str | Path) -> WordVectors:
    """Return the word vectors of a file or of a run.

    A file is in any form of word2vec or GloVe (plmjax.interop.word2vec). For a run directory or checkpoint they are the
    model's token embeddings (`System.vectors`), without special tokens.

    Raises:
        UserError: no such file, another file, a damaged one, numbers that are not finite or above 1e15, or a model
            without an embedding table.
    """
    path = storage.path(path)
    if path.is_dir():
        return _from_checkpoint(path)
    if not path.is_file():
        raise UserError(
            f"Expected a file of word vectors or a run, found nothing at {quoted(str(path), 300)}; name one."
        )
    with word2vec.open_tensors(path) as tensors:
        vectors = tensors.read(word2vec.VECTORS)
    finite = (np.abs(vectors) < _LARGEST).all(axis=1)  # a comparison with nan is false
    if not finite.all():
        word = tensors.words[int(np.argmin(finite))]
        raise UserError(
            f"Expected finite numbers below {_LARGEST:g} in {path}, found others in the vector of {quoted(word)}; "
            f"fetch it again."
        )
    return WordVectors(str(path), tensors.words, vectors)


def export(source: str | Path, output: str | Path, form: word2vec.Form) -> str:
    """Write the vectors of a file, run or checkpoint to a file. Return a line of text on the export.

    Raises:
        UserError: an error of `read`, a word that files of this form cannot hold, or another file at `output`.
    """
    path = storage.path(output)
    storage.check_file(path, "the vectors", lambda beginning: bool(word2vec.evidence(path)))
    vectors = read(source)
    word2vec.write(path, vectors.words, vectors.vectors, form)
    count, size = vectors.vectors.shape
    return f"exported   {count:,} vectors of {size} numbers to {output} ({form})"


def _from_checkpoint(path: Path) -> WordVectors:
    params, description = checkpoints.load_parameters(path)
    system = description.experiment.model.system
    if system.vectors is None:
        system.refuse("has a vector for each word", f" in {path}", "compare texts by --task retrieval")
    table = system.vectors(flax.traverse_util.flatten_dict(params, sep="/"))
    words = words_of(description.load_tokenizer())
    return WordVectors(str(path), list(words.values()), np.asarray(table, np.float32)[list(words)])


def words_of(tokenizer: Any) -> dict[int, str]:
    """Return a dict from id to token, for all tokens of a plmjax.data.tokenizers.Tokenizer that are not special."""
    special = set(tokenizer.vocabulary.special)
    ids = [token for token in range(tokenizer.vocabulary.size) if token not in special]
    return dict(zip(ids, tokenizer.tokens(ids), strict=True))
