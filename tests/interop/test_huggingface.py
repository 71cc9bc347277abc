"""transformers checkpoints in and out: equal outputs, equal bits, old names, and one sentence for what does not fit."""

import json
import types

import flax.linen as nn
import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.interop import generated_texts, huggingface
from plmjax.models.bert import BertConfig, BertForPreTraining, BertForSequenceClassification, BertModel
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params, rewrite
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
    execution = Execution(unroll=2)
    assert huggingface.load(tmp_path / "whole", execution=execution)[0].execution == execution
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


@needs_torch
def test_what_is_no_number_is_a_difference(tmp_path):
    model = BertForSequenceClassification(BertConfig(**SIZES), num_labels=3)
    params = random_params(model)
    huggingface.save(model, params, tmp_path)
    params["classifier"]["bias"][1] = np.nan
    with pytest.raises(UserError, match="found a difference of nan"):
        huggingface.compare(model, params, tmp_path)
    huggingface.save(model, params, tmp_path)
    with pytest.raises(UserError, match=r"finite numbers with .*, found others in its logits"):
        huggingface.compare(model, params, tmp_path)


def test_the_first_token_of_a_decoder_is_that_of_the_model_and_else_that_of_generation(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 5}')
    for own, expected in ({"decoder_start_token_id": 0}, 0), ({"decoder_start_token_id": None}, 5), ({}, 5):
        (tmp_path / "config.json").write_text(json.dumps(own | {"vocab_size": 9}))
        assert huggingface.read_settings(tmp_path) == {"vocab_size": 9, "decoder_start_token_id": expected}
    (tmp_path / "generation_config.json").unlink()
    assert huggingface.read_settings(tmp_path) == {"vocab_size": 9}


def test_settings_of_generation_do_not_stay_from_an_earlier_model(tmp_path):
    model = BertModel(BertConfig(**SIZES))
    params = random_params(model)
    huggingface.save(model, params, tmp_path, generation={"max_length": 7})
    assert huggingface.read_generation(tmp_path) == {"max_length": 7}
    huggingface.save(model, params, tmp_path)
    assert not (tmp_path / "generation_config.json").exists()


def test_a_token_that_is_not_the_likeliest_is_found():
    """Unless both have the same score but for rounding."""
    tokenizer = types.SimpleNamespace(tokens=lambda ids: [f"<{number}>" for number in ids])
    scores = np.array([[0.0, 3.0, 1.0], [2.0, 2.0 + 1e-5, 0.0]], np.float32)
    generated_texts._check_likeliest([1, 0], scores, tokenizer, "here")
    with pytest.raises(UserError, match=r"found '<0>' as token 2 of a text where ours is '<1>'"):
        generated_texts._check_likeliest([1, 0], scores + np.float32([[0, 0, 0], [0, 0.1, 0]]), tokenizer, "here")


def test_a_tokenizer_comes_with_the_model(tmp_path):
    from transformers import AutoTokenizer

    (tmp_path / "tokenizer").mkdir()
    model = BertForPreTraining(BertConfig(**SIZES))
    with pytest.raises(UserError, match=r"Expected tokenizer\.json, vocab\.txt, .*, found none"):
        huggingface.save(model, random_params(model), tmp_path / "out", tokenizer=tmp_path / "tokenizer")
    assert not (tmp_path / "out").exists()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n")
    huggingface.save(model, random_params(model), tmp_path / "out", tokenizer=tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("hello")["input_ids"] == [2, 5, 3]


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
