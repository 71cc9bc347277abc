"""transformers checkpoints in and out: equal outputs and bits, and one sentence for folders that do not fit."""

import json

import flax.linen as nn
import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig, BertForPreTraining, BertForSequenceClassification
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params, rewrite, set_config
from tests.interop.test_import_export import VOCABULARY
from tests.optional import needs_torch, torch, transformers


def reference(architecture, seed=0, **settings):
    """A transformers model of odd sizes, every parameter drawn at random so that none is at its initial value."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(**(SIZES | {"num_labels": 3} | settings))
    model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_become_float32(tmp_path, dtype):
    reference("BertModel").save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: {name: tensor.astype(dtype) for name, tensor in tensors.items()})
    words = safetensors.numpy.load_file(tmp_path / "model.safetensors")["embeddings.word_embeddings.weight"]
    _, params = huggingface.load(tmp_path)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(params["embeddings"]["word_embeddings"]["embedding"], words.astype(np.float32))


def test_shards_hold_the_same_parameters(tmp_path):
    theirs = reference("BertForPreTraining")
    theirs.save_pretrained(tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    shards = list((tmp_path / "shards").glob("*.safetensors"))
    assert len(shards) > 1
    assert_same_bits(huggingface.load(tmp_path / "shards")[1], huggingface.load(tmp_path / "whole")[1])
    shards[0].unlink()
    with pytest.raises(UserError, match="found no such file"):
        huggingface.load(tmp_path / "shards")


@needs_torch
def test_untied_weights_do_not_matter_without_a_language_model_head(tmp_path):
    """Neither the setting nor, of a larger model that is read without its head, an output layer of its own."""
    reference("BertForSequenceClassification", tie_word_embeddings=False).save_pretrained(tmp_path / "head")
    assert huggingface.read_settings(tmp_path / "head")["tie_word_embeddings"] is False
    assert huggingface.compare(*huggingface.load(tmp_path / "head"), tmp_path / "head") <= 1e-5
    untied = reference("BertForMaskedLM", tie_word_embeddings=False)
    untied.save_pretrained(tmp_path / "untied")
    with pytest.raises(UserError, match=r"decoder\.weight tied to bert\.embeddings\.word_embeddings\.weight"):
        huggingface.load(tmp_path / "untied")
    _, params = huggingface.load(tmp_path / "untied", architecture="BertModel")
    words = untied.bert.embeddings.word_embeddings.weight.detach()
    np.testing.assert_array_equal(params["embeddings"]["word_embeddings"]["embedding"], words)


def test_parameters_of_another_model_are_refused(tmp_path):
    model = BertForPreTraining(BertConfig(**SIZES))
    params = random_params(model)
    with pytest.raises(UserError, match="found classifier/bias, classifier/kernel missing"):
        huggingface.save(model, params, tmp_path, architecture="BertForSequenceClassification")
    wider = BertForPreTraining(BertConfig(**(SIZES | {"vocab_size": 38})))
    with pytest.raises(UserError, match=r"word_embeddings/embedding \[37, 15\] instead of \[38, 15\]"):
        huggingface.save(wider, params, tmp_path)
    with pytest.raises(UserError, match="did you mean 'BertForMaskedLM'"):
        huggingface.save(model, params, tmp_path, architecture="BertForMaskedLm")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_the_earlier_one(tmp_path, monkeypatch):
    model = BertForPreTraining(BertConfig(**SIZES))
    huggingface.save(model, random_params(model), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(UserError, match="No space left on device"):
        huggingface.save(model, random_params(model, seed=1), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


@needs_torch
def test_a_difference_from_transformers_is_found(tmp_path):
    """In any output: the last layer is read by both heads, and the bias of a head by one."""
    model = BertForPreTraining(BertConfig(**SIZES))
    params = random_params(model)
    huggingface.save(model, params, tmp_path)
    layers, heads = params["bert"]["encoder"]["layers"], (params["masked_language_model"], params["next_sentence"])
    for changed in (layers["attention"]["key"]["kernel"][2], *(head["bias"] for head in heads)):
        before = changed.copy()
        changed *= 1.01
        with pytest.raises(UserError, match="found a difference of"):
            huggingface.compare(model, params, tmp_path)
        changed[...] = before
    heads[0]["bias"][1] = np.nan
    with pytest.raises(UserError, match="found a difference of nan"):
        huggingface.compare(model, params, tmp_path)
    huggingface.save(model, params, tmp_path)
    with pytest.raises(UserError, match=r"finite numbers with .*, found others in its"):
        huggingface.compare(model, params, tmp_path)


def test_the_first_token_of_a_decoder_is_that_of_the_model_and_else_that_of_generation(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 5}')
    for own, expected in ({"decoder_start_token_id": 0}, 0), ({"decoder_start_token_id": None}, 5), ({}, 5):
        (tmp_path / "config.json").write_text(json.dumps(own | {"vocab_size": 9}))
        assert huggingface.read_settings(tmp_path) == {"vocab_size": 9, "decoder_start_token_id": expected}
    (tmp_path / "generation_config.json").unlink()
    assert huggingface.read_settings(tmp_path) == {"vocab_size": 9}


def test_scores_that_are_computed_on_access_have_exact_products() -> None:
    """On a GPU they had the default precision, TF32, and no decoder that was trained there could be exported."""
    precisions = []

    class Outputs:
        @property
        def logits(self) -> jax.Array:
            precisions.append(jax.config.jax_default_matmul_precision)
            return jax.numpy.ones(3)

    class Model(nn.Module):
        def __call__(self, input_ids: jax.Array, deterministic: bool) -> Outputs:
            assert deterministic
            return Outputs()

    found = huggingface.outputs(Model(), {}, {"input_ids": np.ones((1, 2), np.int64)}, ("logits",))
    np.testing.assert_array_equal(found["logits"], np.ones(3))
    assert precisions == ["highest"]


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
WORDS = "bert.embeddings.word_embeddings.weight"


def settings(**given):
    return lambda folder: set_config(folder, **given)


def content(name, text, *instead_of):
    """A file of other bytes, in place of some that go."""

    def change(folder):
        for other in instead_of:
            (folder / other).unlink()
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return change


def shards(weight_map):
    return content(INDEX, json.dumps({"weight_map": weight_map}), WEIGHTS)


def words(change):
    return lambda folder: rewrite(folder, lambda tensors: tensors | {WORDS: change(tensors[WORDS])})


ODD = {
    "config with a BOM": (content("config.json", b"\xef\xbb\xbf{}"), "model_type"),
    "config a list": (content("config.json", "[]"), "found a list"),
    "config too deep": (content("config.json", "[" * 100_000), "Expected JSON"),
    "model_type a list": (settings(model_type=["bert"]), "config.json, found ['bert']"),
    "architectures a table": (settings(architectures={"a": 1}), "config.json, found {'a': 1}"),
    "width of text": (settings(hidden_size="768"), "Expected int as the config's hidden_size, found '768'"),
    "positions huge": (settings(max_position_embeddings=10**9), "as the config's max_position_embeddings"),
    "heads none": (settings(num_attention_heads=0), "15 and 0 heads"),
    "layers beyond memory": (settings(num_hidden_layers=10**9), "at most 4,096 as the config's num_hidden_layers"),
    "epsilon negative": (settings(layer_norm_eps=-1.0), "layer_norm_eps above 0"),
    "labels too many": (settings(id2label={}, num_labels=10**12), "Expected a number of labels"),
    "labels alike": (settings(id2label={"0": "a", "1": "a", "2": "b"}), "different names"),
    "labels from one": (settings(id2label={"1": "a", "2": "b", "3": "c"}), "different names"),
    "ends": (settings(eos_token_id=[2, 3]), "int as the config's eos_token_id, found [2, 3]"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "Expected model.safetensors"),
    "weights a NaN": (words(lambda tensor: tensor * np.nan), f"finite float32 numbers in {WORDS}"),
    "weights too large": (words(lambda tensor: tensor * np.float64(1e300)), f"finite float32 numbers in {WORDS}"),
    "weights a scalar": (words(lambda tensor: np.array(1, np.float32)), f"{WORDS} [] instead of [37, 15]"),
    "index of a folder": (shards({WORDS: "."}), "Expected plain file names"),
    "vocabulary empty": (content("vocab.txt", ""), "Expected a token for unknown words in"),
    "vocabulary of Latin-1": (content("vocab.txt", b"[UNK]\n\xe9\n"), "do not read as one"),
    "options a list": (content("tokenizer_config.json", "[]"), "Expected a JSON object in"),
    "options of odd marks": (content("tokenizer_config.json", '{"cls_token": ["a"]}'), "do not read as one"),
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


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_folder_is_one_sentence(odd, whole, fails, tmp_path, monkeypatch):
    """Files that are damaged: tests/fuzzing."""
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
