"""Two-dimensional projection of word vectors, for a plot."""

from collections.abc import Sequence

import numpy as np

from plmjax.errors import UserError
from plmjax.interop.word_vectors import WordVectors


def plane(vectors: WordVectors, words: Sequence[str]) -> np.ndarray:
    """Return the first two principal components of the words' directions, float64 [words 2].

    Directions are vectors of length 1, so that distances in the plot correspond to cosines.

    Raises:
        UserError: fewer than three words, or a word without a vector.
    """
    from sklearn.decomposition import PCA

    if len(set(words)) < 3:
        raise UserError(f"Expected three words or more for a picture, found {len(set(words))}; name more with --words.")
    directions = vectors.directions[[vectors.row(word) for word in words]]
    return PCA(2, svd_solver="full").fit_transform(directions.astype(np.float64))
