"""Files of tensors: each is recognised, gives the tensors that its library wrote, or one sentence.

Also of small files that ask for large things, and of files that changed on their way.
"""

import functools
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from plmjax.errors import UserError
from plmjax.interop import awd_lstm, hdf5, huggingface, libraries, tensorflow_checkpoint, torch_files
from plmjax.interop.run_directories import import_checkpoint
from plmjax.models.bert import BertConfig, BertModel
from tests.interop.odd_bert import SIZES, assert_same_bits, published, random_params
from tests.interop.test_import_export import VOCABULARY
from tests.optional import torch

ARRAYS = {
    "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0": np.arange(24, dtype=np.float32).reshape(4, 6),
    "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B": np.linspace(-1, 1, 6),
    "char_embed": np.arange(6, dtype=np.float16).reshape(3, 2),
    "step": np.array(7),
}
"""Named as in the weights of ELMo, of several types and ranks."""


def write_hdf5(path):
    with pytest.importorskip("h5py").File(path, "w") as file:
        for name, array in ARRAYS.items():
            file[name] = array


def write_torch(path, zipped=True):
    state = {name: torch.from_numpy(array) for name, array in ARRAYS.items()}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)


def write_tensorflow(path):
    tf = pytest.importorskip("tensorflow")
    values, slices = [tf.constant(array) for array in ARRAYS.values()], [""] * len(ARRAYS)
    tf.raw_ops.SaveV2(prefix=str(path), tensor_names=list(ARRAYS), shape_and_slices=slices, tensors=values)


WRITERS = {
    "hdf5": write_hdf5,
    "torch": write_torch,
    "torch before 1.6": functools.partial(write_torch, zipped=False),
    "safetensors": functools.partial(safetensors.numpy.save_file, ARRAYS),
    "tensorflow": write_tensorflow,
}


@pytest.mark.parametrize("library", WRITERS)
def test_every_library_gives_its_tensors(tmp_path, library):
    """Whatever the file is called."""
    path = tmp_path / "weights"
    WRITERS[library](path)
    assert libraries.recognise(path)[0] == library.partition(" ")[0]
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
            assert {"global_step", "bert/pooler/dense/bias/adam_m"} < set(tensors.shapes)
            kernel = "bert/encoder/layer_0/intermediate/dense/kernel"
            np.testing.assert_array_equal(tensors.read(kernel), variables[kernel])
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"Expected a TensorFlow checkpoint, found .*bert_model\.ckpt"):
        tensorflow_checkpoint.read(tmp_path)


def test_hdf5_holds_what_is_no_tensor_and_links(tmp_path, caplog, monkeypatch):
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
    (tmp_path / "cut.hdf5").write_bytes((tmp_path / "other.hdf5").read_bytes()[:100])
    for name, sentence in (("none", "Expected tensors in .*none.hdf5, found none"), ("cut", "an HDF5 file, found")):
        with pytest.raises(UserError, match=sentence):
            hdf5.open_tensors(tmp_path / f"{name}.hdf5").__enter__()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"pip install 'plmjax\[hdf5\]'"):
        hdf5.open_tensors(tmp_path / "weights.hdf5").__enter__()


def test_import_says_by_what_it_recognised_a_file_or_a_folder(tmp_path, fails):
    """And lists what it reads where it recognises nothing."""
    for contents in (b"", b"a 1 2\nb 3\n", b"10000000000 70000000\na", b"PK\x03\x04", b"\x1f\x8b\x08"):
        (tmp_path / "file").write_bytes(contents)
        said = fails("import", tmp_path / "file", tmp_path / "run")
        assert all(library.form in said for library in libraries.LIBRARIES.values()) and "found another file" in said
    WRITERS["safetensors"](tmp_path / "tensors")
    said = fails("import", tmp_path / "tensors", tmp_path / "run")
    assert "found a file of safetensors" in said and "by the header of safetensors" in said
    said = fails("import", tmp_path / "nowhere", tmp_path / "run")
    assert "found no file or folder; name its folder, since nothing is downloaded" in said
    assert not (tmp_path / "run").exists()
    (source := tmp_path / "google").mkdir()
    published(source)
    (source / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    said = import_checkpoint(source, tmp_path / "run")
    assert f"from {source} (google-research/bert, by bert_config.json) to {tmp_path / 'run'}" in said
    assert "gives every bit back" in said


MODEL = BertModel(BertConfig(**SIZES))
WORDS = "embeddings.word_embeddings.weight"


@functools.cache
def parameters() -> Any:
    return random_params(MODEL)


@pytest.fixture
def folder(tmp_path):
    """A transformers folder whose weights are yet to be written, and its tensors."""
    huggingface.save(MODEL, parameters(), tmp_path)
    path = tmp_path / "model.safetensors"
    state = {name: torch.from_numpy(tensor) for name, tensor in safetensors.numpy.load_file(path).items()}
    path.unlink()
    return tmp_path, state


def test_a_torch_file_is_read_and_what_is_no_tensor_is_left_out(folder, caplog):
    folder, state = folder
    state = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()} | {"epoch": 3, "rates": [1.0]}
    torch.save(state, folder / "pytorch_model.bin")
    model, params = huggingface.load(folder)
    assert_same_bits(params, parameters())
    assert huggingface.compare(model, params, folder) <= 1e-5
    assert "holds epoch, rates, which are no tensors" in caplog.text


def test_shards_of_torch_files_are_read(folder):
    folder, state = folder
    shards = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(state)}
    for shard in set(shards.values()):
        torch.save({name: state[name] for name in state if shards[name] == shard}, folder / shard)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert_same_bits(huggingface.load(folder)[1], parameters())
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(UserError, match=r"Expected pytorch_model-00002-of-00002\.bin, .* no such file"):
        huggingface.load(folder)
    for named in ([], {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"a": 1}}):
        index.write_text(json.dumps(named))
        with pytest.raises(UserError, match=r"Expected a weight_map|Expected a JSON object"):
            huggingface.load(folder)


def test_a_torch_file_without_plain_parameters_is_one_sentence(folder):
    folder, state = folder
    for changed, sentence in (
        ({"state_dict": state}, "one level down, under 'state_dict'"),
        (list(state.values()), "found a list without names"),
        (dict(enumerate(state.values())), "found a dict without names"),
        ({}, "found no tensor in it"),
        ({"embeddings": print}, "Expected a dictionary of tensors"),  # which would run code
        (state | {WORDS: state[WORDS].to_sparse()}, f"Expected dense tensors .*, found {WORDS}"),
        (state | {WORDS: state[WORDS].to(torch.int8)}, f"found {WORDS} of int8; .*dequantize"),
        (state | {WORDS: state[WORDS].to(torch.float8_e4m3fn)}, f"{WORDS} of float8_e4m3fn"),
    ):
        torch.save(changed, folder / "pytorch_model.bin")
        with pytest.raises(UserError, match=sentence):
            huggingface.load(folder)
    quantized = {name: one.numpy() for name, one in state.items()} | {WORDS: np.ones((37, 15), np.int8)}
    safetensors.numpy.save_file(quantized, folder / "model.safetensors")
    with pytest.raises(UserError, match=f"found {WORDS} of int8; .*dequantize"):
        huggingface.load(folder)


@pytest.fixture
def pth(tmp_path: Path) -> Path:
    """A file of torch.save with one tensor."""
    pytest.importorskip("torch", reason="writes the file")
    path = tmp_path / "model.pth"
    torch_files.write({"0.encoder.weight": np.arange(4096, dtype=np.float32)}, path)
    return path


def test_a_compressed_record_is_not_unpacked(pth: Path) -> None:
    bomb = pth.with_name("bomb.pth")
    with zipfile.ZipFile(pth) as source, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as target:
        for record in source.infolist():
            content = bytes(20_000_000) if record.filename.endswith("data.pkl") else source.read(record)
            target.writestr(record.filename, content)
    assert bomb.stat().st_size < 300_000
    assert torch_files.evidence(bomb) and not awd_lstm.evidence(bomb)  # the first bytes alone are read
    with pytest.raises(UserError, match=r"stored without compression in .*bomb\.pth, found '.*data.pkl' compressed"):
        torch_files.read([bomb], bomb)


def test_a_file_of_torch_that_was_cut_or_changed_is_named(pth: Path) -> None:
    whole = pth.read_bytes()
    pth.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"model\.pth"):
        torch_files.read([pth], pth)
    changed = bytearray(whole)
    changed[whole.find(np.arange(100, 110, dtype=np.float32).tobytes()) + 2] ^= 1
    pth.write_bytes(changed)
    with pytest.raises(UserError, match=r"Expected '.*data/0' in .*model\.pth as torch\.save wrote it, found another"):
        torch_files.read([pth], pth)


@pytest.mark.filterwarnings("ignore")  # that torch will drop the quantized ones
def test_a_tensor_of_torch_that_is_no_array_is_one_sentence(tmp_path: Path) -> None:
    for tensor, sentence in (
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "Expected numbers that numpy has in a of"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "Expected dense tensors in"),
        (torch.ones(1).expand(10**6, 10**6), r"Expected all numbers of a in .*, found fewer, which it"),
    ):
        torch.save({"a": tensor}, tmp_path / "a.pt")
        with pytest.raises(UserError, match=sentence), torch_files.open_tensors(tmp_path / "a.pt") as tensors:
            tensors.read("a")


def test_numbers_of_hdf5_that_were_never_written_are_no_zeros(tmp_path: Path) -> None:
    """HDF5's library takes the checksum off the size of a chunk of no bytes, and reads outside of its memory."""
    h5py = pytest.importorskip("h5py", reason="writes the file")
    data = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    packed = {"chunks": (16, 16), "compression": "gzip"}
    tables = {
        "never": {"shape": (40_000, 40_000)},
        "chunked": {"shape": (40_000, 40_000), "chunks": (1000, 1000)},
        "zeros": packed | {"data": np.zeros((1000, 1000), np.float32), "chunks": (1000, 1000)},
        "checked": packed | {"data": data, "shuffle": True, "fletcher32": True},
    }
    for name, options in tables.items():
        path = tmp_path / f"{name}.hdf5"
        with h5py.File(path, "w") as file:
            table = file.create_dataset("table", dtype="f4", **options)
            size = table.id.get_chunk_info(0).size if name == "checked" else 0
        if size:
            whole = path.read_bytes()
            place = whole.index(size.to_bytes(4, "little") + bytes(4))
            path.write_bytes(whole[:place] + bytes(4) + whole[place + 4 :])
        with pytest.raises(UserError, match=r"all numbers of table in .*, found a file too small to hold them"):
            hdf5.open_tensors(path).__enter__()
    with h5py.File(tmp_path / "whole.hdf5", "w") as file:
        file.create_dataset("table", data=data, **packed)
        file.create_dataset("empty", (0, 3), "f4")
    with hdf5.open_tensors(tmp_path / "whole.hdf5") as tensors:
        np.testing.assert_array_equal(tensors.read("table"), data)
