"""Files of other libraries: each is recognised, gives the tensors that its library wrote, or one sentence."""

import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import libraries, tensorflow_checkpoint, word2vec
from plmjax.interop.run_directories import import_checkpoint
from tests.interop.odd_bert import published
from tests.optional import torch

ARRAYS = {
    "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0": np.arange(24, dtype=np.float32).reshape(4, 6),
    "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B": np.linspace(-1, 1, 6),
    "char_embed": np.arange(6, dtype=np.float16).reshape(3, 2),
    "step": np.array(7),
}
"""Named as in the weights of ELMo, of several types and ranks."""


def write_hdf5(path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, array in ARRAYS.items():
            file[name] = array


def write_torch(path, zipped=True):
    state = {name: torch.from_numpy(array) for name, array in ARRAYS.items()}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)


def write_safetensors(path):
    import safetensors.numpy

    safetensors.numpy.save_file(ARRAYS, path)


def write_tensorflow(path):
    tf = pytest.importorskip("tensorflow")
    tf.raw_ops.SaveV2(
        prefix=str(path),
        tensor_names=list(ARRAYS),
        shape_and_slices=[""] * len(ARRAYS),
        tensors=[tf.constant(array) for array in ARRAYS.values()],
    )


@pytest.mark.parametrize(
    ("library", "write"),
    [
        ("hdf5", write_hdf5),
        ("torch", write_torch),
        ("torch", lambda path: write_torch(path, zipped=False)),
        ("safetensors", write_safetensors),
        ("tensorflow", write_tensorflow),
    ],
    ids=["hdf5", "torch", "torch before 1.6", "safetensors", "tensorflow"],
)
def test_every_library_gives_its_tensors(tmp_path, library, write):
    """Whatever the file is called."""
    path = tmp_path / "weights"
    write(path)
    assert libraries.recognised(path)[0] == library
    with libraries.opened(path) as tensors:
        assert tensors.origin == str(path) and tensors.words == ()
        assert dict(tensors.shapes) == {name: array.shape for name, array in ARRAYS.items()}
        assert dict(tensors.dtypes) == {name: array.dtype.name for name, array in ARRAYS.items()}
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(tensors.read(name), array)


def test_a_tensorflow_checkpoint_is_named_by_its_prefix_its_index_or_its_folder(tmp_path):
    variables = published(tmp_path)
    (tmp_path / "bert_config.json").unlink()
    for path in (tmp_path, tmp_path / "bert_model.ckpt", tmp_path / "bert_model.ckpt.index"):
        assert libraries.recognised(path) == ("tensorflow", "bert_model.ckpt.index")
        with libraries.opened(path) as tensors:
            assert {"global_step", "bert/pooler/dense/kernel", "bert/pooler/dense/bias/adam_m"} < set(tensors.shapes)
            kernel = variables["bert/encoder/layer_0/intermediate/dense/kernel"]
            np.testing.assert_array_equal(tensors.read("bert/encoder/layer_0/intermediate/dense/kernel"), kernel)
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"Expected a TensorFlow checkpoint, found .*bert_model\.ckpt"):
        tensorflow_checkpoint.read(tmp_path)


def test_hdf5_holds_what_is_no_tensor_and_links(tmp_path, caplog):
    h5py = pytest.importorskip("h5py")
    write_hdf5(tmp_path / "other.hdf5")
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        file["a"], file["notes"], file["empty"] = ARRAYS["char_embed"], "text", h5py.Empty("f")
        file["soft"], file["elsewhere"] = h5py.SoftLink("/a"), h5py.ExternalLink("other.hdf5", "/char_embed")
        file.create_dataset("raw", (4,), "f", external=str(tmp_path / "other.hdf5"))
    with libraries.opened(tmp_path / "weights.hdf5") as tensors:
        assert list(tensors.shapes) == ["a"]
    assert "holds empty, notes, raw, which are no arrays of numbers" in caplog.text
    with h5py.File(tmp_path / "none.hdf5", "w") as file:
        file["notes"] = "text"
    with (
        pytest.raises(UserError, match=r"Expected tensors in .*none\.hdf5, found none"),
        libraries.opened(tmp_path / "none.hdf5"),
    ):
        pass
    damaged = tmp_path / "damaged.hdf5"
    damaged.write_bytes((tmp_path / "other.hdf5").read_bytes()[:100])
    with pytest.raises(UserError, match="Expected an HDF5 file, found"), libraries.opened(damaged):
        pass


def test_hdf5_without_h5py_names_the_extra(tmp_path, monkeypatch):
    write_hdf5(tmp_path / "weights.hdf5")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(UserError, match=r"pip install 'plmjax\[hdf5\]'"), libraries.opened(tmp_path / "weights.hdf5"):
        pass


# ------------------------------------------------------------------------------------------------- word vectors

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


def read_by_distance_c(contents):
    """Vectors as distance.c reads them from a file: fscanf of the sizes, fgetc to the next space, fread of a row."""
    (count, size), at = map(int, contents.split(b"\n", 1)[0].split()), contents.index(b"\n")
    words, rows = [], []
    for _ in range(count):
        word = b""
        while contents[at : at + 1] != b" ":
            word += contents[at : at + 1].strip(b"\n")
            at += 1
        rows.append(struct.unpack(f"<{size}f", contents[at + 1 : at + 1 + 4 * size]))
        words.append(word.decode())
        at += 1 + 4 * size
    return words, np.array(rows, np.float32)


def assert_holds(path, form, words, vectors):
    library, evidence = libraries.recognised(path)
    assert library == "word2vec" and evidence == f"words with vectors of {vectors.shape[1]} numbers, {form} form"
    with libraries.opened(path) as tensors:
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


def test_a_binary_file_longer_than_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(word2vec, "_CHUNK", 7)
    (tmp_path / "vectors").write_bytes(saved_by_word2vec_c(True))
    assert_holds(tmp_path / "vectors", "binary", WORDS, VECTORS)


def test_what_glove_publishes_is_read(tmp_path):
    """glove.840B.300d has words with spaces in them, and words that Unicode's idea of a line would cut."""
    path = tmp_path / "glove.txt"
    path.write_bytes(", 0.5 -1 2.25\n. . . 1 2 3\nat name@domain.com 4 5 6\na\u2028b\u00a0c 7 8 9e-1\n".encode())
    words = [",", ". . .", "at name@domain.com", "a\u2028b\u00a0c"]
    assert_holds(path, "glove", words, np.array([[0.5, -1, 2.25], [1, 2, 3], [4, 5, 6], [7, 8, 0.9]], np.float32))


def test_a_word_that_was_cut_within_a_letter_is_read(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_bytes(b"2 2\nna\xc3 1 2\nb 3 4\n")
    assert_holds(path, "text", ["na\\xc3", "b"], np.array([[1, 2], [3, 4]], np.float32))


@pytest.mark.parametrize("form", ["text", "binary", "glove"])
def test_what_is_written_reads_back_bit_for_bit(tmp_path, form):
    path = tmp_path / "vectors"
    word2vec.write(path, WORDS, VECTORS, form)
    assert_holds(path, form, WORDS, VECTORS)
    with libraries.opened(path) as tensors:
        assert tensors.read("vectors").tobytes() == VECTORS.tobytes()
    if form == "binary":
        assert path.read_bytes() == saved_by_word2vec_c(True)
        words, vectors = read_by_distance_c(path.read_bytes())
        assert words == WORDS and vectors.tobytes() == VECTORS.tobytes()


@pytest.mark.parametrize("form", ["text", "binary", "glove"])
@pytest.mark.parametrize(
    "word", ["\t", "\r", "\x0b", "\x85", "\u00a0", "\u3000", "\ta\t", "7", "-1.5", "nan"], ids=repr
)
def test_a_first_word_of_any_characters_reads_back(tmp_path, form, word):
    """White ones, which are no spaces, and numbers too; the vectors are whole numbers, as those of a header."""
    path, vectors = tmp_path / "vectors", np.array([[12, 34], [5, 6]], np.float32)
    for words in ([word, "b"], ["b", word]):
        word2vec.write(path, words, vectors, form)
        assert_holds(path, form, words, vectors)
    if form != "glove":
        word2vec.write(path, [word], vectors[:1, :1], form)
        assert_holds(path, form, [word], vectors[:1, :1])
    else:  # as others write them
        path.write_text(f"{word} 12 34\nb 5 6\n", encoding="utf-8", newline="")
        assert_holds(path, form, [word, "b"], vectors)


@pytest.mark.parametrize("form", ["text", "binary", "glove"])
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
    with pytest.raises(AssertionError):
        word2vec.write(tmp_path / "vectors", WORDS[1:], VECTORS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (saved_by_word2vec_c(True)[:-3], "Expected 5 words in .*, found 4; fetch it again"),
        (saved_by_word2vec_c(True) + b"more", "Expected 5 words in .*, found more after them"),
        (saved_by_word2vec_c(False).rsplit(b"\n", 2)[0] + b"\n", "Expected 5 words in .*, found 4"),
        (b"3 4\na 1 2\nb 1 2\nc 1 2\n", r"Expected a word and 4 numbers in row 1 of .*, found 'a 1 2\\n'"),
        (b"3 1\na 1 2\nb 1 2\nc 1 2\n", "Expected a word and 1 numbers in row 1"),
        (b"3 2\na 1 2\nb 1\n", r"Expected a word and 2 numbers in row 2 of .*, found 'b 1\\n'"),
        (b"a 1 2\nb 1 2\nc 1 x\n", "Expected a word and 2 numbers in row 3"),
        (gzip.compress(saved_by_word2vec_c(True), mtime=0)[:-12], "Expected to read all of .*, found it damaged"),
    ],
)
def test_damaged_word_vectors_are_one_sentence(tmp_path, contents, sentence):
    (tmp_path / "vectors").write_bytes(contents)
    with pytest.raises(UserError, match=sentence):
        word2vec.read(tmp_path / "vectors")


# ------------------------------------------------------------------------------------------------- plmjax import


@pytest.mark.parametrize(
    "contents", [b"", b"In 1990 the\n", b"a 1 2\nb 3\n", b"10000000000 70000000\na", b"PK\x03\x04", b"\x1f\x8b\x08"]
)
def test_import_lists_what_it_reads_where_it_recognises_nothing(tmp_path, fails, contents):
    (tmp_path / "file").write_bytes(contents)
    said = fails("import", tmp_path / "file", tmp_path / "run")
    for library in libraries.LIBRARIES.values():
        assert library.form in said
    assert "found another file" in said


def test_import_says_by_what_it_recognised_a_file_that_no_model_is_made_from(tmp_path, fails):
    write_safetensors(tmp_path / "tensors")
    said = fails("import", tmp_path / "tensors", tmp_path / "run")
    assert "found a file of safetensors" in said and "by the header of safetensors" in said
    assert "found no file or folder" in fails("import", tmp_path / "nowhere", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_import_says_by_what_it_recognised_a_folder(tmp_path):
    source = tmp_path / "google"
    source.mkdir()
    published(source)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc"]
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    said = import_checkpoint(source, tmp_path / "run")
    assert f"from {source} (google-research/bert, by bert_config.json) to {tmp_path / 'run'}" in said
