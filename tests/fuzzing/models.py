"""Readers of tokenizers, checkpoints of other libraries, and word vectors, each with a sample."""

import functools
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.data import tokenizers
from plmjax.interop import awd_lstm, elmo, huggingface, labels, libraries, torch_files, word2vec
from plmjax.interop import word_vectors as vectors
from plmjax.interop.conversion import parameter_shapes
from plmjax.models.awd_lstm import AwdLstmConfig, AwdLstmForCausalLM
from plmjax.models.bert import BertForSequenceClassification
from plmjax.models.elmo import ElmoConfig, ElmoModel
from tests.families import FAMILIES, IN_TRANSFORMERS
from tests.fuzzing.fuzzer import Reader

Fixtures = Callable[[str], Any]
TEXT = (
    "A quick brown fox jumps over the lazy dog. It was the best of times, it was the worst of times.\n"
    "The Fox is 35 years old, and naïve; 日本 e-mail (3.5).\n"
) * 4
WORDS = ["king", "queen", "man", "woman", "the", "café", "日本"]
TABLE = np.linspace(-1.5, 2.5, len(WORDS) * 3, dtype=np.float32).reshape(-1, 3)

# ------------------------------------------------------------------------------------------------------ tokenizers


def _tokenizer(folder: Path, given: Fixtures, *, kind: str, size: int, names: tuple[str, ...]) -> None:
    """A folder with these forms of a tokenizer alone."""
    tokenizers.train(kind, size, [TEXT], folder)
    for file in folder.iterdir():
        if file.name not in names:
            file.unlink()
    assert {file.name for file in folder.iterdir()} == set(names)


def _encode(folder: Path) -> None:
    tokenizer = tokenizers.load(folder)
    ids = tokenizer.encode("The fox of 35 naïve 日本 e-mails.")
    tokenizer.tokens(ids), tokenizer.decode(ids), tokenizer.encode_words([["The", "fox"]])
    tokenizer.encode_spans(["The fox"])


TOKENIZERS = [
    Reader(
        f"tokenizer, {kind} of {names[0]}", functools.partial(_tokenizer, kind=kind, size=size, names=names), _encode
    )
    for kind, size, names in (
        ("wordpiece", 90, ("vocab.txt", "tokenizer_config.json")),
        ("byte-bpe", 290, ("vocab.json", "merges.txt", "tokenizer_config.json")),
        ("bpe", 90, ("vocab.json", "merges.txt", "tokenizer_config.json")),
        ("t5-unigram", 180, ("spiece.model", "tokenizer_config.json")),
        ("sentencepiece-unigram", 70, ("spiece.model", "tokenizer_config.json")),
        ("sentencepiece-bpe", 90, ("spiece.model", "tokenizer_config.json")),
        ("wordpiece", 90, ("tokenizer.json", "tokenizer_config.json")),
        ("byte-bpe", 290, ("tokenizer.json", "tokenizer_config.json")),
        ("word", 40, ("tokenizer.json", "tokenizer_config.json")),
        ("t5-unigram", 180, ("tokenizer.json", "tokenizer_config.json")),
    )
]

# ------------------------------------------------------------------------------------------------------ checkpoints


def params_of(module: Any, inputs: Any) -> Any:
    """Random parameters of a module."""
    draws = np.random.default_rng(0)
    shapes = parameter_shapes(module, inputs)
    leaves = {name: draws.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def _transformers(module: Any, folder: Path, given: Fixtures) -> None:
    adapter = huggingface.adapter_of(module)
    huggingface.save(module, params_of(module, adapter.inputs(module)), folder, labels=("no", "yes", "more", "less"))


def _with_torch(module: Any, folder: Path, given: Fixtures) -> None:
    pytest.importorskip("torch", reason="writes and reads the sample")
    _transformers(module, folder, given)
    with libraries.open_tensors(folder) as tensors:
        state = {name: tensors.read(name) for name in tensors.shapes}
    (folder / "model.safetensors").unlink()
    torch_files.write(state, folder / "pytorch_model.bin")


def _in_shards(module: Any, folder: Path, given: Fixtures) -> None:
    _transformers(module, folder, given)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    with libraries.open_tensors(folder / "a.safetensors") as tensors:
        names = ", ".join(f'"{name}": "a.safetensors"' for name in tensors.shapes)
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{{names}}}}}\n')


def _load(folder: Path) -> None:
    huggingface.load(folder)
    labels.names(huggingface.read_settings(folder))


def _open_all(path: Path) -> None:
    """Every tensor that a file or folder holds."""
    with libraries.open_tensors(path) as tensors:
        for name in tensors.shapes:
            tensors.read(name)


def _only(folder: Path) -> Path:
    """The one thing in a folder; a name in its place, where it is gone."""
    return next(iter(sorted(folder.iterdir())), folder / "nothing")


def _google(folder: Path, given: Fixtures) -> None:
    pytest.importorskip("tensorflow", reason="writes and reads the sample")
    from tests.interop.odd_bert import published

    published(folder)


def _elmo(folder: Path, given: Fixtures) -> None:
    pytest.importorskip("h5py", reason="writes and reads the sample")
    config = ElmoConfig.tiny(vocab_size=10, filter_widths=(1, 2), filter_counts=(3, 4), n_highway=1, n_layers=1)
    module = ElmoModel(config)
    elmo.save(module, params_of(module, elmo.example(config)), folder)


def _hdf5(folder: Path, given: Fixtures) -> None:
    h5py = pytest.importorskip("h5py", reason="writes and reads the sample")
    with h5py.File(folder / "a.hdf5", "w") as file:
        file["one/table"] = TABLE
        file.create_dataset("packed", data=np.arange(600.0).reshape(20, 30), chunks=(10, 10), compression="gzip")


def _fastai(folder: Path, given: Fixtures) -> None:
    pytest.importorskip("torch", reason="writes and reads the sample")
    module = AwdLstmForCausalLM(AwdLstmConfig.tiny(vocab_size=40), Execution())
    awd_lstm.save(module, params_of(module, awd_lstm.EXAMPLE), folder)


def _torch(folder: Path, given: Fixtures) -> None:
    pytest.importorskip("torch", reason="writes and reads the sample")
    torch_files.write({"table": TABLE, "bias": TABLE[0]}, folder / "a.pt")


def _old_torch(folder: Path, given: Fixtures) -> None:
    torch = pytest.importorskip("torch", reason="writes and reads the sample")
    torch.save({"table": torch.tensor(TABLE)}, folder / "a.pt", _use_new_zipfile_serialization=False)


def _safetensors(folder: Path, given: Fixtures) -> None:
    import safetensors.numpy

    tensors = {"table": TABLE, "half": TABLE.astype(np.float16), "numbers": np.arange(5)}
    safetensors.numpy.save_file(tensors, folder / "a.safetensors")


CHECKPOINTS = [
    *(
        Reader(f"transformers, {name}", functools.partial(_transformers, family.heads[0].module), _load)
        for name, family in IN_TRANSFORMERS.items()
    ),
    Reader(
        "transformers, a classifier",
        functools.partial(
            _transformers, BertForSequenceClassification(FAMILIES["bert"].heads[0].module.config, num_labels=4)
        ),
        _load,
    ),
    Reader("transformers, torch", functools.partial(_with_torch, FAMILIES["bert"].heads[0].module), _load),
    Reader("transformers, shards", functools.partial(_in_shards, FAMILIES["gpt2"].heads[0].module), _load),
    Reader("google-research/bert", _google, lambda folder: libraries.load(folder)),
    Reader("elmo", _elmo, elmo.load),
    Reader("fastai", _fastai, lambda folder: awd_lstm.load(folder / awd_lstm.FILE)),
    Reader("tensors of safetensors", _safetensors, lambda folder: _open_all(_only(folder))),
    Reader("tensors of hdf5", _hdf5, lambda folder: _open_all(_only(folder))),
    Reader("tensors of torch", _torch, lambda folder: _open_all(_only(folder))),
    Reader("tensors of torch before 1.6", _old_torch, lambda folder: _open_all(_only(folder))),
    Reader("tensors of tensorflow", _google, _open_all),
]

# ----------------------------------------------------------------------------------------------------- word vectors


def _vectors(form: word2vec.Form, packed: bool, folder: Path, given: Fixtures) -> None:
    file = folder / "vectors.txt"
    word2vec.write(file, WORDS, TABLE, form)
    if packed:
        (folder / "vectors.txt.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()


def _nearest(folder: Path) -> None:
    found = vectors.read(_only(folder))
    assert all(found.words) and np.isfinite(found.vectors).all()
    found.without_case().nearest(found.words[:1])


VECTORS = [
    Reader(f"word vectors, {form}{', gzipped' if packed else ''}", functools.partial(_vectors, form, packed), _nearest)
    for form in ("text", "binary", "glove")
    for packed in (False, True)
]
