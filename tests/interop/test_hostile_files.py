"""Small files that ask for large things, and files that changed on their way: refused before anything is made."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.errors import UserError
from plmjax.finetuning.tasks.parsing import check_tree
from plmjax.interop import awd_lstm, hdf5, torch_files, transformers_files
from tests.optional import torch


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


def test_a_changed_byte_of_a_tensor_is_named(pth: Path) -> None:
    contents = bytearray(pth.read_bytes())
    place = contents.find(np.arange(100, 110, dtype=np.float32).tobytes())
    contents[place + 2] ^= 1
    pth.write_bytes(contents)
    with pytest.raises(UserError, match=r"Expected '.*data/0' in .*model\.pth as torch\.save wrote it, found another"):
        torch_files.read([pth], pth)


@pytest.mark.parametrize("at", [0.02, 0.5, 0.97, 0.995], ids=lambda at: f"{at:.1%}")
def test_a_file_of_torch_that_was_cut_or_overwritten_is_named(pth: Path, at: float) -> None:
    whole = pth.read_bytes()
    place = int(at * len(whole))
    for damaged in (whole[:place], whole[:place] + bytes(range(200, 240)) + whole[place + 40 :]):
        pth.write_bytes(damaged)
        assert not awd_lstm.evidence(pth) or "0.encoder.weight" in awd_lstm.evidence(pth)
        with pytest.raises(UserError, match=r"model\.pth"):
            torch_files.read([pth], pth)


def test_the_end_of_an_archive_of_several_disks_is_damage(pth: Path) -> None:
    """Python's own test of an archive raises for it."""
    contents = bytearray(pth.read_bytes())
    place = contents.rfind(b"PK\x06\x07")  # the locator of zip64, whose last number counts disks
    contents[place + 16] = 7
    pth.write_bytes(contents)
    assert not torch_files.evidence(pth)
    with pytest.raises(
        UserError, match=r"Expected a file of torch\.save, found .*model\.pth damaged \(zipfiles that span"
    ):
        torch_files.read([pth], pth)


OTHER_TENSORS = {
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "Expected numbers that numpy"),
    "conjugate": (lambda: torch.conj(torch.ones(3, dtype=torch.complex64)), "Expected numbers that numpy has in a of"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "Expected dense tensors in"),
    "repeated": (lambda: torch.ones(1).expand(10**6, 10**6), r"Expected all numbers of a in .*, found fewer, which it"),
}
"""Name -> a tensor of torch, and the beginning of the sentence on it."""


@pytest.mark.filterwarnings("ignore")  # that torch will drop the quantized ones
@pytest.mark.parametrize("name", OTHER_TENSORS)
def test_a_tensor_of_torch_that_is_no_array_is_one_sentence(name: str, tmp_path: Path) -> None:
    make, sentence = OTHER_TENSORS[name]
    torch.save({"a": make()}, tmp_path / "a.pt")
    with pytest.raises(UserError, match=sentence), torch_files.open_tensors(tmp_path / "a.pt") as tensors:
        tensors.read("a")


def test_a_chunk_without_bytes_ends_no_process(tmp_path: Path) -> None:
    """HDF5's library takes the checksum off its size, and reads outside of its memory."""
    h5py = pytest.importorskip("h5py", reason="writes the file")
    path = tmp_path / "weights.hdf5"
    data = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    with h5py.File(path, "w") as file:
        table = file.create_dataset(
            "table", data=data, chunks=(16, 16), shuffle=True, compression="gzip", fletcher32=True
        )
        sizes = [table.id.get_chunk_info(chunk).size for chunk in range(16)]
    whole = path.read_bytes()
    for size in sizes[:3]:
        place = whole.index(size.to_bytes(4, "little") + bytes(4))
        path.write_bytes(whole[:place] + bytes(4) + whole[place + 4 :])
        with pytest.raises(UserError, match=r"all numbers of table in .*, found a file too small to hold them"):
            hdf5.open_tensors(path).__enter__()


def test_numbers_that_were_never_written_are_no_zeros(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="writes the file")
    settings = {
        "never": {},
        "chunked": {"chunks": (1000, 1000)},
        "zeros": {"chunks": (1000, 1000), "compression": "gzip", "data": np.zeros((1000, 1000), np.float32)},
    }
    for name, options in settings.items():
        path = tmp_path / f"{name}.hdf5"
        shape = options["data"].shape if "data" in options else (40_000, 40_000)
        with h5py.File(path, "w") as file:
            file.create_dataset("table", shape, "f4", **options)
        with pytest.raises(UserError, match=r"all numbers of table in .*, found a file too small to hold them"):
            hdf5.open_tensors(path).__enter__()
    with h5py.File(tmp_path / "whole.hdf5", "w") as file:
        data = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
        file.create_dataset("table", data=data, chunks=(16, 16), compression="gzip")
        file.create_dataset("empty", (0, 3), "f4")
        file.create_dataset("plain", data=data)
    with hdf5.open_tensors(tmp_path / "whole.hdf5") as tensors:
        np.testing.assert_array_equal(tensors.read("table"), data)
        np.testing.assert_array_equal(tensors.read("plain"), data)


@pytest.mark.parametrize("place", ["vocabulary", "added token", "vocab.json"])
def test_an_id_that_no_file_of_this_size_has_is_refused(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    tokenizers.train("byte-bpe", 300, ["some text to learn from"], folder)
    file = folder / ("vocab.json" if place == "vocab.json" else "tokenizer.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    if place == "added token":
        found["added_tokens"][-1]["id"] = 4_000_000_000
    else:
        (found if place == "vocab.json" else found["model"]["vocab"])["a"] = 4_000_000_000
    file.write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(UserError, match=rf"Expected ids from 0 on, .* in .*{file.name}, found 4000000000 for '"):
        tokenizers.load(folder if place != "vocab.json" else file)


@pytest.mark.parametrize("count", [10**9, -1, "many"])
def test_sentinels_are_counted_before_they_are_made(count: object, tmp_path: Path) -> None:
    text = ["a text of several words to learn pieces from, and another one of other words"] * 3
    tokenizers.train("t5-unigram", 160, text, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    options = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"extra_ids": count}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    with pytest.raises(
        UserError, match=rf"Expected extra_ids from 0 to 16,384, found {count!r}; correct it \(in {tmp_path}/tok"
    ):
        tokenizers.load(tmp_path)


def test_a_pattern_that_the_library_cannot_use_is_one_sentence(tmp_path: Path) -> None:
    tokenizers.train("word", 30, ["some text to learn from"], tmp_path)
    found = json.loads((tmp_path / "tokenizer.json").read_text())
    for pattern, text in (("(", ""), ("(?:(?:a|aa)+)+b", "a" * 60)):
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        (tmp_path / "tokenizer.json").write_text(json.dumps(found | {"pre_tokenizer": split}))
        with pytest.raises(UserError, match=r"found files that do not read as one|found that it cannot encode one of"):
            tokenizers.load(tmp_path).encode(text)


def test_merges_of_words_need_their_unknown_token(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b</w>": 1, "ab</w>": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    with pytest.raises(UserError, match=r"Expected a token for unknown words in .*json, \[UNK\] or <unk>, found"):
        tokenizers.load(tmp_path)


def test_a_long_chain_of_heads_is_checked_at_once() -> None:
    words = 60_000
    chain, places = [*range(2, words + 1), 0], [f"line {number}" for number in range(words)]
    check_tree(chain, places)
    check_tree([0, *range(1, words)], places)
    with pytest.raises(UserError, match="found a second one in line 3;"):
        check_tree([0, 1, 1, 0], places[:4])
    with pytest.raises(UserError, match="circle in line 0;"):
        check_tree([*range(2, words + 1), 1], places)


def test_a_library_does_not_repeat_a_whole_file_in_its_message(tmp_path: Path) -> None:
    """Its errors quote what they could not read, here 200 kB and a megabyte."""
    header = json.dumps("x" * 200_000).encode()
    weights = tmp_path / "a.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    tokenizers.train("byte-bpe", 300, ["some text to learn from"], tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    with (tmp_path / "tokenizer" / "merges.txt").open("a") as file:
        file.write(f"a {'x' * 1_000_000}\n")
    for read, place in ((transformers_files.open_safetensors, weights), (tokenizers.load, tmp_path / "tokenizer")):
        with pytest.raises(UserError) as raised:
            read(place).__enter__()
        assert str(place) in str(raised.value) and "characters)" in str(raised.value) and len(str(raised.value)) < 1000
