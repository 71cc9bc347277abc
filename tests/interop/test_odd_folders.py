"""Folders as downloads and scripts leave them: `plmjax import` ends in one sentence and makes no run directory."""

import json
import os

import numpy as np
import pytest

from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig, BertForSequenceClassification
from tests.interop.odd_bert import SIZES, random_params, rewrite, set_config
from tests.interop.test_import_export import VOCABULARY
from tests.optional import needs_torch

WEIGHTS, INDEX, TORCH = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
WORDS = "bert.embeddings.word_embeddings.weight"


def settings(**given):
    return lambda folder: set_config(folder, **given)


def content(name, text, *instead_of):
    """A file of other bytes, in place of some that go."""

    def change(folder):
        for other in (name, *instead_of):
            (folder / other).unlink(missing_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def shards(weight_map):
    return content(INDEX, json.dumps({"weight_map": weight_map}), WEIGHTS)


def words(change):
    return lambda folder: rewrite(folder, lambda tensors: tensors | {WORDS: change(tensors[WORDS])})


def folder_named(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return change


def loop_named(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        os.symlink(name, folder / name)

    return change


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


ODD = {
    "config with a BOM": (content("config.json", b"\xef\xbb\xbf{}"), "model_type"),
    "config of UTF-16": (content("config.json", "{}".encode("utf-16")), "Expected JSON"),
    "config empty": (content("config.json", ""), "Expected JSON"),
    "config a list": (content("config.json", "[]"), "found a list"),
    "config too deep": (content("config.json", "[" * 100_000), "Expected JSON"),
    "config a folder": (folder_named("config.json"), "found a folder without them"),
    "config a loop": (loop_named("config.json"), "found a folder without them"),
    "model_type a list": (settings(model_type=["bert"]), "config.json, found ['bert']"),
    "architecture a number": (settings(architectures=5), "config.json, found 5"),
    "architectures a table": (settings(architectures={"a": 1}), "config.json, found {'a': 1}"),
    "architectures nested": (settings(architectures=[["BertModel"]]), "config.json, found ['BertModel']"),
    "width of text": (settings(hidden_size="768"), "Expected int as the config's hidden_size, found '768'"),
    "width negative": (settings(hidden_size=-15), "hidden_size of at least 1, found -15"),
    "positions huge": (settings(max_position_embeddings=10**9), "as the config's max_position_embeddings"),
    "epsilon of text": (settings(layer_norm_eps="small"), "float as the config's layer_norm_eps, found 'small'"),
    "heads none": (settings(num_attention_heads=0), "15 and 0 heads"),
    "layers beyond number": (settings(num_hidden_layers=2**70), "finite number below 2**31"),
    "layers beyond memory": (settings(num_hidden_layers=10**9), "at most 4,096 as the config's num_hidden_layers"),
    "vocabulary huge": (settings(vocab_size=2 * 10**9), "as the config's vocab_size, for tensors of"),
    "epsilon no number": (settings(layer_norm_eps=float("nan")), "NaN, which JSON does not have"),
    "epsilon negative": (settings(layer_norm_eps=-1.0), "layer_norm_eps above 0"),
    "deviation negative": (settings(initializer_range=-1.0), "initializer_range of at least 0"),
    "labels a number": (settings(id2label=3), "different names"),
    "labels too many": (settings(id2label={}, num_labels=10**12), "Expected a number of labels"),
    "weights empty": (content(WEIGHTS, ""), "Expected a safetensors file"),
    "weights a pointer": (content(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"), "Expected a safetensors"),
    "weights cut": (cut(WEIGHTS, -1), "Expected a safetensors file"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "Expected model.safetensors"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "found a folder without them"),
    "weights a folder": (folder_named(WEIGHTS), "found neither"),
    "weights a loop": (loop_named(WEIGHTS), "found neither"),
    "weights a NaN": (words(lambda tensor: tensor * np.nan), f"finite float32 numbers in {WORDS}"),
    "weights too large": (words(lambda tensor: tensor * np.float64(1e300)), f"finite float32 numbers in {WORDS}"),
    "weights a scalar": (words(lambda tensor: np.array(1, np.float32)), f"{WORDS} [] instead of [37, 15]"),
    "index of a folder": (shards({WORDS: "."}), "Expected plain file names"),
    "index of an odd name": (shards({WORDS: "a\0b"}), "Expected plain file names"),
    "torch file empty": (content(TORCH, "", WEIGHTS), "Expected a dictionary of tensors"),
    "torch file a pointer": (content(TORCH, "version https://git-lfs", WEIGHTS), "Expected a dictionary of tensors"),
    "vocabulary empty": (content("vocab.txt", ""), "Expected a token for unknown words in"),
    "vocabulary of Latin-1": (content("vocab.txt", b"[UNK]\n\xe9\n"), "do not read as one"),
    "vocabulary a folder": (folder_named("vocab.txt"), "found none of them"),
    "options a list": (content("tokenizer_config.json", "[]"), "Expected a JSON object in"),
    "options cut": (content("tokenizer_config.json", '{"do_'), "Expected JSON in"),
    "options of odd marks": (content("tokenizer_config.json", '{"cls_token": ["a"]}'), "do not read as one"),
    "options of odd tokens": (content("tokenizer_config.json", '{"added_tokens_decoder": [1]}'), "do not read as one"),
    "tokenizer empty": (content("tokenizer.json", "{}"), "do not read as one"),
    "pieces damaged": (content("spiece.model", b"\x99junk", "vocab.txt"), "do not read as one"),
    "merges damaged": (content("merges.txt", "a b c\n", "vocab.txt"), "found merges.txt"),
    "google's options": (content("bert_config.json", '{"hidden_act": ["gelu"]}'), "Expected one checkpoint"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of a folder that imports, its tokenizer as a published vocabulary alone."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    model = BertForSequenceClassification(BertConfig(**SIZES), num_labels=3)
    huggingface.save(model, random_params(model), folder / "out", tokenizer=folder)
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir() if path.name != "tokenizer.json"}


@pytest.mark.parametrize(
    "odd", [pytest.param(odd, marks=needs_torch) if odd.startswith("torch") else odd for odd in ODD]
)
def test_an_odd_folder_is_one_sentence(odd, whole, fails, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "transformers_installed", lambda: False)
    folder = tmp_path / "source"
    folder.mkdir()
    for name, contents in whole.items():
        (folder / name).write_bytes(contents)
    change, sentence = ODD[odd]
    change(folder)
    said = fails("import", folder, tmp_path / "run")
    assert sentence in said and str(folder) in said and "--model." not in said
    assert not (tmp_path / "run").exists()
