"""Two dimensions of word vectors, and their picture in the report."""

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.inference.word_vector_plane import plane
from plmjax.interop.word_vectors import WordVectors


def test_words_of_two_kinds_lie_apart_along_the_first_axis():
    """The axes are directions: a vector's length does not count. Points in a plane keep their distances."""
    random = np.random.default_rng(0)
    angles = np.array([0.1, 0.2, 0.3, 2.1, 2.2, 2.3])
    basis, _ = np.linalg.qr(random.normal(size=(7, 2)))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    lengths = random.uniform(0.5, 5, (6, 1))
    vectors = WordVectors("here", list("abcdef"), np.float32(lengths * directions @ basis.T))
    found = plane(vectors, list("fedcba"))[::-1]
    assert found.shape == (6, 2)
    assert len({*np.sign(found[:3, 0])}) == 1 and (np.sign(found[:3, 0]) == -np.sign(found[3:, 0])).all()
    distances = lambda x: np.linalg.norm(x[:, None] - x[None], axis=-1)  # noqa: E731
    np.testing.assert_allclose(distances(found), distances(directions), atol=1e-6)


def test_words_that_make_no_picture_are_named():
    vectors = WordVectors("here", ["a", "b", "c"], np.eye(3, dtype=np.float32))
    with pytest.raises(UserError, match="Expected three words or more for a picture, found 2"):
        plane(vectors, ["a", "b", "a"])
    with pytest.raises(UserError, match=r"Expected words that here has vectors of, found .d"):
        plane(vectors, ["a", "b", "c", "d"])
