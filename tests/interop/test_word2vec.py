"""Files of word vectors: as word2vec, GloVe, gensim and spaCy have them, and damaged, cut or made by hand."""

import gzip
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import libraries, word2vec

FORMS = pytest.mark.parametrize("form", ["text", "binary", "glove"])
WORDS = ["</s>", "the", "naïve", "New_York", "5"]
VECTORS = np.array([[0.1, -2.5], [1e-9, 3.0], [-0.0, 1 / 3], [7.0, 1e20], [32.0, 10.0]], np.float32)
"""The last two float32 begin and hold bytes that are spaces and newlines."""


def saved_by_word2vec_c(binary):
    """The file as word2vec.c writes it: fprintf(fo, "%lld %lld\\n"), then "%s ", then fwrite or "%lf ", then "\\n"."""
    out = b"%d %d\n" % VECTORS.shape
    for word, vector in zip(WORDS, VECTORS, strict=True):
        out += word.encode() + b" "
        out += struct.pack("<2f", *vector) if binary else b"".join(b"%lf " % number for number in vector.tolist())
        out += b"\n"
    return out


def assert_holds(path, form, words, vectors):
    library, evidence = libraries.recognise(path)
    assert library == "word2vec" and evidence == f"words with vectors of {vectors.shape[1]} numbers, {form} form"
    with libraries.open_tensors(path) as tensors:
        assert list(tensors.words) == words
        assert dict(tensors.shapes) == {"vectors": vectors.shape} and dict(tensors.dtypes) == {"vectors": "float32"}
        np.testing.assert_array_equal(tensors.read("vectors"), vectors)


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("form", ["text", "binary"])
def test_what_the_word2vec_program_writes_is_read(tmp_path, form, zipped):
    contents = saved_by_word2vec_c(form == "binary")
    path = tmp_path / "GoogleNews"
    path.write_bytes(gzip.compress(contents) if zipped else contents)
    expected = VECTORS if form == "binary" else np.array([[float(b"%lf" % x) for x in row] for row in VECTORS.tolist()])
    assert_holds(path, form, WORDS, expected.astype(np.float32))
    if form == "binary":  # as GoogleNews-vectors-negative300.bin, without newlines between the rows
        path.write_bytes(
            b"5 2\n" + b"".join(w.encode() + b" " + v.tobytes() for w, v in zip(WORDS, VECTORS, strict=True))
        )
        assert_holds(path, form, WORDS, VECTORS)


def test_what_glove_publishes_is_read(tmp_path):
    """glove.840B.300d has words with spaces in them, and words that Unicode's idea of a line would cut.

    word2vec cuts a word within a letter.
    """
    path = tmp_path / "glove.txt"
    path.write_bytes(", 0.5 -1 2.25\n. . . 1 2 3\nat name@domain.com 4 5 6\na\u2028b\u00a0c 7 8 9e-1\n".encode())
    words = [",", ". . .", "at name@domain.com", "a\u2028b\u00a0c"]
    assert_holds(path, "glove", words, np.array([[0.5, -1, 2.25], [1, 2, 3], [4, 5, 6], [7, 8, 0.9]], np.float32))
    path.write_bytes(b"2 2\nna\xc3 1 2\nb 3 4\n")
    assert_holds(path, "text", ["na\\xc3", "b"], np.array([[1, 2], [3, 4]], np.float32))


@FORMS
def test_what_is_written_reads_back_bit_for_bit(tmp_path, form):
    """Behind a byte order mark too, and in a binary file longer than what is read at once."""
    path = tmp_path / "vectors"
    word2vec.write(path, WORDS, VECTORS, form)
    assert_holds(path, form, WORDS, VECTORS)
    content = path.read_bytes()
    with libraries.open_tensors(path) as tensors:
        assert tensors.read("vectors").tobytes() == VECTORS.tobytes()
    for marked in (b"\xef\xbb\xbf" + content, gzip.compress(b"\xef\xbb\xbf" + content)):
        path.write_bytes(marked)
        assert word2vec.read(path).words == WORDS
        np.testing.assert_array_equal(word2vec.read(path).read(word2vec.VECTORS), VECTORS)
    if form == "binary":
        assert content == saved_by_word2vec_c(True)
        many, wide = [f"w{number}" for number in range(300)], np.arange(4_200_000, dtype=np.float32).reshape(300, -1)
        word2vec.write(path, many, wide, form)
        assert_holds(path, form, many, wide)


@FORMS
def test_gensim_reads_what_is_written_and_its_files_are_read(tmp_path, form):
    gensim = pytest.importorskip("gensim.models", reason="needs gensim, which the extra `test` installs")
    kept = {"binary": form == "binary", "no_header": form == "glove"}
    word2vec.write(tmp_path / "ours", WORDS, VECTORS, form)
    found = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), **kept)
    assert found.index_to_key == WORDS and found.vectors.tobytes() == VECTORS.tobytes()
    found.save_word2vec_format(str(tmp_path / "theirs"), binary=form == "binary", write_header=form != "glove")
    assert_holds(tmp_path / "theirs", form, WORDS, VECTORS)


@pytest.mark.parametrize(("form", "name"), [("text", "vectors.txt"), ("text", "vectors.txt.gz"), ("glove", "vectors")])
def test_spacy_reads_what_is_written(tmp_path, form, name):
    spacy = pytest.importorskip("spacy", reason="needs spaCy, which no extra installs: pip install spacy")
    word2vec.write(tmp_path / "written", WORDS, VECTORS, form)
    contents = (tmp_path / "written").read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(contents) if name.endswith(".gz") else contents)
    command = [sys.executable, "-m", "spacy", "init", "vectors", "en", str(tmp_path / name), str(tmp_path / "spacy")]
    subprocess.run(command, check=True, capture_output=True)
    found = spacy.load(tmp_path / "spacy").vocab
    assert found.vectors.shape == VECTORS.shape and len(found.vectors.key2row) == len(WORDS)
    assert np.stack([found[word].vector for word in WORDS]).tobytes() == VECTORS.tobytes()


def test_what_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(UserError, match="at least one character, found an empty one"):
        word2vec.write(tmp_path / "vectors", ["a", ""], VECTORS[:2])
    for word in ("a b", "a\nb"):
        with pytest.raises(UserError, match="Expected words without spaces or newlines"):
            word2vec.write(tmp_path / "vectors", [word], VECTORS[:1])
    with pytest.raises(UserError, match="choose text"):
        word2vec.write(tmp_path / "vectors", ["a"], VECTORS[:1, :1], "glove")
    with pytest.raises(UserError, match="no byte order mark before the first word"):
        word2vec.write(tmp_path / "vectors", ["\ufeffking"], VECTORS[:1], "glove")
    assert not list(tmp_path.iterdir())


DAMAGED = [
    (saved_by_word2vec_c(True)[:-3], "Expected 5 words in .*, found 4; fetch it again"),
    (saved_by_word2vec_c(True) + b"more", "Expected 5 words in .*, found more after them"),
    (b"3 4\na 1 2\nb 1 2\nc 1 2\n", r"Expected a word and 4 numbers in row 1 of .*, found 'a 1 2\\n'"),
    (b"3 1\na 1 2\nb 1 2\nc 1 2\n", "Expected a word and 1 numbers in row 1"),
    (b"2 2\nking 1 2\nman 1 2\nqueen 1 2\n", "Expected 2 words in .*, found 3"),
    (b"a 1 2\nb 1 2\nc 1 x\n", "Expected a word and 2 numbers in row 3"),
    (gzip.compress(saved_by_word2vec_c(True), mtime=0)[:-12], "Expected to read all of .*, found it damaged"),
    (b"3 2\nking 1 2\nqueen 1_0.5 2\nman 1 2\n", "row 2 of .*, found 'queen 1_0.5"),
    (b"king 1 2\n 1 2\nman 1 2\n", "Expected a word and 2 numbers in row 2"),  # an empty word
    (saved_by_word2vec_c(True).replace(b"the ", b" "), r"Expected a word in row 2 of .*, found an empty one"),
    (b"9" * 5000 + b" 2\nking 1 2\n", "found something else"),
    *(
        (b"2 2\nking 1 2\ncaf\xc3\xa9 1 0.75\n"[:-cut], "2 numbers and a newline in row 2 of .*, found 'café 1 0")
        for cut in (1, 2, 3)
    ),  # 0.75, 0.7 and 0. are numbers
    (b"king 1 2\ncaf\xc3\xa9 1 0.75", "2 numbers and a newline in row 2 of .*, found 'café 1 0.75'"),
]


def test_damaged_word_vectors_are_one_sentence(tmp_path):
    for contents, sentence in DAMAGED:
        (tmp_path / "vectors").write_bytes(contents)
        with pytest.raises(UserError, match=sentence):
            word2vec.read(tmp_path / "vectors")


@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_row_without_an_end_does_not_fill_the_memory(form: str, tmp_path: Path) -> None:
    """A word of 100 MB in a file of a hundredth: no more is unpacked than the longest row has."""
    path = tmp_path / "vectors.txt"
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
