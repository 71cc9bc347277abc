"""Files of other libraries: each is recognised, gives the tensors that its library wrote, or one sentence."""

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import libraries, tensorflow_checkpoint
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
    assert libraries.recognise(path)[0] == library
    with libraries.open_tensors(path) as tensors:
        assert tensors.origin == str(path) and tensors.words == ()
        assert dict(tensors.shapes) == {name: array.shape for name, array in ARRAYS.items()}
        assert dict(tensors.dtypes) == {name: array.dtype.name for name, array in ARRAYS.items()}
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(tensors.read(name), array)


def test_a_tensorflow_checkpoint_is_named_by_its_prefix_its_index_or_its_folder(tmp_path):
    variables = published(tmp_path)
    (tmp_path / "bert_config.json").unlink()
    for path in (tmp_path, tmp_path / "bert_model.ckpt", tmp_path / "bert_model.ckpt.index"):
        assert libraries.recognise(path) == ("tensorflow", "bert_model.ckpt.index")
        with libraries.open_tensors(path) as tensors:
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
    with libraries.open_tensors(tmp_path / "weights.hdf5") as tensors:
        assert list(tensors.shapes) == ["a"]
    assert "holds empty, notes, raw, which are no arrays of numbers" in caplog.text
    with h5py.File(tmp_path / "none.hdf5", "w") as file:
        file["notes"] = "text"
    with (
        pytest.raises(UserError, match=r"Expected tensors in .*none\.hdf5, found none"),
        libraries.open_tensors(tmp_path / "none.hdf5"),
    ):
        pass
    damaged = tmp_path / "damaged.hdf5"
    damaged.write_bytes((tmp_path / "other.hdf5").read_bytes()[:100])
    with pytest.raises(UserError, match="Expected an HDF5 file, found"), libraries.open_tensors(damaged):
        pass


def test_hdf5_without_h5py_names_the_extra(tmp_path, monkeypatch):
    write_hdf5(tmp_path / "weights.hdf5")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with (
        pytest.raises(UserError, match=r"pip install 'plmjax\[hdf5\]'"),
        libraries.open_tensors(tmp_path / "weights.hdf5"),
    ):
        pass


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
    assert "found no file or folder; name its folder, since nothing is downloaded" in fails(
        "import", tmp_path / "nowhere", tmp_path / "run"
    )
    assert not (tmp_path / "run").exists()


def test_import_says_by_what_it_recognised_a_folder(tmp_path):
    source = tmp_path / "google"
    source.mkdir()
    published(source)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc"]
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    said = import_checkpoint(source, tmp_path / "run")
    assert f"from {source} (google-research/bert, by bert_config.json) to {tmp_path / 'run'}" in said
