"""Files of tensors: what transformers opens is read, what holds no plain parameters is one sentence."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from plmjax.errors import UserError
from plmjax.interop import huggingface, transformers_files
from plmjax.models.bert import BertConfig, BertModel
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params
from tests.optional import torch

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


def assert_reads(folder):
    model, params = huggingface.load(folder)
    assert_same_bits(params, parameters())
    assert huggingface.compare(model, params, folder) <= 1e-5


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_either_form_of_a_torch_file_is_read(folder, zipped):
    folder, state = folder
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_reads(folder)


def test_parameters_are_tensors_and_what_is_none_is_left_out(folder, caplog):
    folder, state = folder
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    torch.save(parameters | {"epoch": 3, "rates": [1.0]}, folder / "pytorch_model.bin")
    assert_reads(folder)
    assert "holds epoch, rates, which are no tensors" in caplog.text


def test_shards_of_torch_files_are_read(folder):
    folder, state = folder
    shards = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(state)}
    for shard in set(shards.values()):
        torch.save({name: state[name] for name in state if shards[name] == shard}, folder / shard)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert_reads(folder)
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(UserError, match=r"Expected pytorch_model-00002-of-00002\.bin, .* no such file"):
        huggingface.load(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: {"model": state, "optimizer": {}}, "one level down, under 'model'"),
        (lambda state: {"state_dict": state}, "one level down, under 'state_dict'"),
        (lambda state: list(state.values()), "found a list without names"),
        (lambda state: dict(enumerate(state.values())), "found a dict without names"),
        (lambda state: {}, "found no tensor in it"),
        (lambda state: {"embeddings": print}, "Expected a dictionary of tensors"),  # which would run code
        (lambda state: state[WORDS], "found a Tensor without names"),
        (lambda state: state | {WORDS: state[WORDS].to_sparse()}, f"Expected dense tensors .*, found {WORDS}"),
        (lambda state: state | {WORDS: state[WORDS].to(torch.int8)}, f"found {WORDS} of int8; .*dequantize"),
        (lambda state: state | {WORDS: state[WORDS] > 0}, f"found {WORDS} of bool"),
        (lambda state: state | {WORDS: state[WORDS].to(torch.float8_e4m3fn)}, f"{WORDS} of float8_e4m3fn"),
        (lambda state: state | {WORDS: state[WORDS].to(torch.complex64)}, f"{WORDS} of complex64"),
    ],
)
def test_a_torch_file_without_plain_parameters_is_one_sentence(folder, change, sentence):
    folder, state = folder
    torch.save(change(state), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=sentence):
        huggingface.load(folder)


@pytest.mark.parametrize(("dtype", "name"), [("int8", "int8"), ("uint8", "uint8"), ("float8_e5m2", "F8_E5M2")])
def test_quantized_safetensors_are_one_sentence(folder, dtype, name):
    """Their numbers stand for parameters by scales that are kept elsewhere."""
    import safetensors.torch

    folder, state = folder
    numbers = state[WORDS].to(getattr(torch, dtype))
    safetensors.torch.save_file(state | {WORDS: numbers}, folder / "model.safetensors")
    with pytest.raises(UserError, match=f"found {WORDS} of {name}; .*dequantize"):
        huggingface.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_an_index_that_names_no_files_is_one_sentence(folder, name):
    folder, _ = folder
    for index in (
        {},
        [],
        {"weight_map": []},
        {"weight_map": {}},
        {"weight_map": {"a": 1}},
        {"weight_map": {"a": None}},
    ):
        (folder / f"{name}.index.json").write_text(json.dumps(index))
        with pytest.raises(UserError, match=r"Expected a weight_map|Expected a JSON object"):
            huggingface.load(folder)


@pytest.mark.parametrize(
    ("header", "rest", "known"),
    [
        (28, b"{" + bytes(19), True),
        (29, b"{" + bytes(19), False),
        (20, b"[" + bytes(19), False),
        (5, b"[{" + bytes(9), False),
        (1, b"", False),
    ],
)
def test_a_header_of_safetensors_is_json_that_is_no_longer_than_its_file(
    header: int, rest: bytes, known: bool, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(header.to_bytes(8, "little") + rest)
    assert bool(transformers_files.safetensors_evidence(tmp_path / "file")) is known
    assert transformers_files.safetensors_evidence(tmp_path) == ""
