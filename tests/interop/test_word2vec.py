"""Files of word vectors that were damaged, cut or made by hand: read as they are meant, or refused by their row."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import word2vec

WORDS = ["king", "queen", "café"]
VECTORS = np.array([[0.5, -1.25], [2.0, 3.5], [1.0, 0.75]], np.float32)
FORMS = pytest.mark.parametrize("form", ["text", "binary", "glove"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file of a test is."""
    return tmp_path / "vectors.txt"


@FORMS
def test_damaged_gzip_is_one_sentence(form: word2vec.Form, path: Path) -> None:
    """Whatever its bits say; each third one is a different error of zlib, gzip or of the contents."""
    word2vec.write(path, WORDS * 50, np.tile(VECTORS, (50, 1)), form)
    packed = gzip.compress(path.read_bytes(), mtime=0)
    for place in range(10, len(packed), 3):
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0xFF]) + packed[place + 1 :])
        word2vec.evidence(path)
        with pytest.raises(UserError, match=r"in .*vectors\.txt|all of .*vectors\.txt"):
            word2vec.read(path)


@pytest.mark.parametrize("form", ["text", "glove"])
def test_a_last_row_without_its_newline_is_refused(form: word2vec.Form, path: Path) -> None:
    word2vec.write(path, WORDS, VECTORS, form)
    content = path.read_bytes()
    for cut in (1, 2, 3):  # 0.75, 0.7 and 0. are numbers
        path.write_bytes(content[:-cut])
        with pytest.raises(
            UserError, match=r"a word and 2 numbers and a newline in row 3 of .*, found 'café 0\.|café 1"
        ):
            word2vec.read(path)


@FORMS
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
def test_a_byte_order_mark_is_no_part_of_a_word(form: word2vec.Form, packed: bool, path: Path) -> None:
    word2vec.write(path, WORDS, VECTORS, form)
    content = b"\xef\xbb\xbf" + path.read_bytes()
    path.write_bytes(gzip.compress(content) if packed else content)
    found = word2vec.read(path)
    assert found.words == WORDS
    np.testing.assert_array_equal(found.read(word2vec.VECTORS), VECTORS)


def test_a_word_that_would_be_taken_for_a_mark_is_not_written_first(path: Path) -> None:
    words = ["\ufeffking", *WORDS[1:]]
    for form in ("text", "binary"):
        word2vec.write(path, words, VECTORS, form)
        assert word2vec.read(path).words == words
    word2vec.write(path, words[::-1], VECTORS, "glove")
    assert word2vec.read(path).words == words[::-1]
    with pytest.raises(UserError, match="no byte order mark before the first word"):
        word2vec.write(path, words, VECTORS, "glove")


@pytest.mark.parametrize("number", ["1_0", "1_0.5", "1e1_0"])
def test_a_number_with_underscores_is_none(number: str, path: Path) -> None:
    path.write_text(f"3 2\nking 1 2\nqueen {number} 2\nman 1 2\n")
    with pytest.raises(UserError, match=rf"row 2 of .*, found 'queen {number}"):
        word2vec.read(path)
    path.write_text(f"king 1 2\nman 1 2\nqueen {number} 2\n")
    with pytest.raises(UserError, match=rf"row 3 of .*, found 'queen {number}"):
        word2vec.read(path)


@pytest.mark.parametrize(
    "content",
    [b"king 1 2\n 1 2\nman 1 2\n", b"king 1 2\n  1 2\nman 1 2\n", b"3 2\nking 1 2\n 1 2\nman 1 2\n"],
    ids=["glove", "glove, of spaces", "text"],
)
def test_an_empty_word_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match="Expected a word and 2 numbers in row 2"):
        word2vec.read(path)


def test_an_empty_word_in_bytes_is_refused(path: Path) -> None:
    word2vec.write(path, WORDS, VECTORS, "binary")
    path.write_bytes(path.read_bytes().replace(b"queen ", b" "))
    with pytest.raises(UserError, match=r"Expected a word in row 2 of .*, found an empty one"):
        word2vec.read(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"king", b"3 2", b"king 1\n", b"a text of words\nand a line"])
def test_text_of_few_lines_is_no_file_of_vectors(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    assert not word2vec.evidence(path)


def test_sizes_of_many_digits_are_no_sizes(path: Path) -> None:
    path.write_bytes(b"9" * 5000 + b" 2\nking 1 2\n")
    assert not word2vec.evidence(path)
    with pytest.raises(UserError, match="found something else"):
        word2vec.read(path)


@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_row_without_an_end_does_not_fill_the_memory(form: str, path: Path) -> None:
    """A word of 100 MB in a file of a hundredth: no more is unpacked than the longest row has."""
    row = b"king 1 2\n" if form == "text" else b"king " + VECTORS[0].tobytes()
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"3 2\n" + row)
        for _ in range(100):
            file.write(b"x" * 1_000_000)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"in row 2 of|found 1; fetch it again"):
        word2vec.read(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 60_000_000
