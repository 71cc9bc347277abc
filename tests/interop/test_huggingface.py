"""transformers checkpoints in and out: equal outputs, equal bits, old names, and one sentence for what does not fit."""

import json
import types

import flax.linen as nn
import flax.traverse_util
import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from plmjax.contracts.execution import Execution
from plmjax.errors import UserError
from plmjax.interop import bert, encoder, huggingface, written
from plmjax.models.bert import BertConfig, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification, BertModel
from tests.interop.odd_bert import SIZES, assert_nothing_is_lost, assert_same_bits, random_params
from tests.optional import needs_torch, torch, transformers

ARCHITECTURES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
)


def reference(architecture, seed=0, **settings):
    """A transformers model of odd sizes, every parameter drawn at random so that none is at its initial value."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(**(SIZES | {"num_labels": 3} | settings))
    model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


def rewrite(directory, change):
    """Passes the tensors of a folder through `change` and writes what it returns."""
    path = directory / "model.safetensors"
    tensors = {name: tensor.copy() for name, tensor in safetensors.numpy.load_file(path).items()}
    safetensors.numpy.save_file(change(tensors) or tensors, path, metadata={"format": "pt"})


def set_config(directory, **settings):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    ("architecture", "activation"),
    [
        ("BertModel", "gelu"),
        ("BertForPreTraining", "gelu_new"),
        ("BertForMaskedLM", "silu"),
        ("BertForNextSentencePrediction", "relu"),
        ("BertForSequenceClassification", "gelu"),
    ],
)
def test_reads_a_transformers_model_with_equal_outputs(tmp_path, architecture, activation):
    theirs = reference(architecture, hidden_act=activation, layer_norm_eps=1e-3)
    theirs.save_pretrained(tmp_path)
    model, params = huggingface.load(tmp_path, execution=Execution(unroll=2))
    assert type(model).__name__ == architecture and model.config.hidden_act == activation
    assert huggingface.compare(model, params, tmp_path) <= 1e-5

    inputs = encoder.example(model.config)
    expected = theirs(**{name: torch.from_numpy(value) for name, value in inputs.items()}, output_hidden_states=True)
    ours = jax.jit(lambda params: model.apply({"params": params}, **inputs, output_hidden_states=True))(params)
    real = inputs["attention_mask"] > 0
    assert len(ours.hidden_states) == len(expected.hidden_states) == 1 + SIZES["num_hidden_layers"]
    for one, other in zip(ours.hidden_states, expected.hidden_states, strict=True):
        np.testing.assert_allclose(one[real], other.detach().numpy()[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_opens_what_is_written_and_nothing_is_lost(tmp_path, architecture):
    options = {"num_labels": 3} if architecture == "BertForSequenceClassification" else {}
    model = bert.ADAPTER.architectures[architecture].module(BertConfig(**SIZES, hidden_act="gelu_new"), **options)
    theirs = assert_nothing_is_lost(model, tmp_path)
    assert theirs.config.architectures == [architecture] and theirs.config.hidden_act == "gelu_new"


@needs_torch
@pytest.mark.parametrize("architecture", ["BertModel", "BertForMaskedLM"])
def test_a_pretrained_model_is_written_as_a_smaller_architecture(tmp_path, architecture):
    model = BertForPreTraining(BertConfig(**SIZES))
    params = random_params(model)
    huggingface.save(model, params, tmp_path, architecture=architecture)
    assert huggingface.compare(model, params, tmp_path, architecture) <= 1e-5
    smaller, _ = huggingface.load(tmp_path)
    assert type(smaller).__name__ == architecture


def test_heads_that_an_architecture_lacks_are_left_out_and_logged(tmp_path, caplog):
    reference("BertForPreTraining").save_pretrained(tmp_path)
    _, params = huggingface.load(tmp_path, architecture="BertForMaskedLM")
    assert set(params) == {"bert", "masked_language_model"} and "pooler" not in params["bert"]
    assert "cls.seq_relationship.weight" in caplog.text and "bert.pooler.dense.weight" in caplog.text
    body, body_params = huggingface.load(tmp_path, architecture="BertModel")
    assert_same_bits(body_params["encoder"], params["bert"]["encoder"])
    assert type(body).__name__ == "BertModel"


@needs_torch
def test_old_names_prefixes_copies_and_buffers_are_understood(tmp_path):
    theirs = reference("BertForPreTraining")
    theirs.save_pretrained(tmp_path)
    _, expected = huggingface.load(tmp_path)

    def age(tensors):
        old = {}
        for name, tensor in tensors.items():
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            old[name.removeprefix("bert.")] = tensor
        old["cls.predictions.decoder.weight"] = old["embeddings.word_embeddings.weight"].copy()
        old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
        old["embeddings.position_ids"] = np.arange(SIZES["max_position_embeddings"])[None]
        return old

    rewrite(tmp_path, age)
    model, params = huggingface.load(tmp_path)
    assert_same_bits(params, expected)
    assert huggingface.compare(model, params, tmp_path) <= 1e-5


def test_sharded_and_torch_files_hold_the_same_parameters(tmp_path):
    theirs = reference("BertForPreTraining")
    theirs.save_pretrained(tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    theirs.config.save_pretrained(tmp_path / "torch")
    torch.save(theirs.state_dict(), tmp_path / "torch" / "pytorch_model.bin")
    _, expected = huggingface.load(tmp_path / "whole")
    for form in ("shards", "torch"):
        assert_same_bits(huggingface.load(tmp_path / form)[1], expected)

    next((tmp_path / "shards").glob("*.safetensors")).unlink()
    with pytest.raises(UserError, match="found no such file"):
        huggingface.load(tmp_path / "shards")


def test_a_torch_file_that_would_run_code_is_refused(tmp_path):
    theirs = reference("BertModel")
    theirs.config.save_pretrained(tmp_path)
    set_config(tmp_path, architectures=["BertModel"])
    torch.save({"embeddings": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="Expected a dictionary of tensors"):
        huggingface.load(tmp_path)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_float_types_become_float32(tmp_path, dtype):
    reference("BertModel").save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: {name: tensor.astype(dtype) for name, tensor in tensors.items()})
    tensors = {name: tensor.astype(np.float32) for name, tensor in read_all(tmp_path).items()}
    _, params = huggingface.load(tmp_path)
    leaves = flax.traverse_util.flatten_dict(params, sep="/")
    assert {leaf.dtype for leaf in leaves.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(
        leaves["embeddings/word_embeddings/embedding"], tensors["embeddings.word_embeddings.weight"]
    )


def read_all(directory):
    with safetensors.safe_open(directory / "model.safetensors", framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@needs_torch
def test_config_defaults_are_those_of_transformers(tmp_path):
    model = BertForPreTraining(BertConfig(**SIZES))
    huggingface.save(model, random_params(model), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["hidden_act"], config["layer_norm_eps"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded, params = huggingface.load(tmp_path)
    assert loaded.config.hidden_act == "gelu"  # the exact form, unlike BertConfig's own default
    assert huggingface.compare(loaded, params, tmp_path) <= 1e-5


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model_type": "bloom"}, "Expected a model_type of .*bert.*, found 'bloom'"),
        ({"model_type": None}, "Expected a model_type of .*bert.*, found None"),
        (
            {"architectures": ["BertLMHeadModel"]},
            "Expected an architecture of BertModel, .*, found 'BertLM",
        ),
        ({"architectures": None}, "Expected an architecture of .*, found None"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'absolute' .*, found 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = False .*, found True"),
        ({"add_cross_attention": True}, "add_cross_attention = False .*, found True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = True .*, found False"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"hidden_act": "gelu_10"}, "Expected an activation of gelu_new, .*found 'gelu_10'"),
        ({"hidden_size": "15"}, "int as the config's hidden_size, found '15'"),
        ({"num_attention_heads": 4}, "divides by the heads"),
        ({"num_hidden_layers": 2}, "encoder.layer.2.attention.output.LayerNorm.bias.*has no parameter for"),
        ({"num_hidden_layers": 4}, "bert.encoder.layer.3.*and 10 more missing"),
        ({"vocab_size": 40}, r"word_embeddings.weight \[37, 15\] instead of \[40, 15\]"),
    ],
)
def test_a_config_that_does_not_fit_is_one_sentence(tmp_path, settings, sentence):
    reference("BertForMaskedLM").save_pretrained(tmp_path)
    set_config(tmp_path, **settings)
    with pytest.raises(UserError, match=sentence) as raised:
        huggingface.load(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("rate", [0.3, 0.0, None])
def test_classifier_dropout_is_read_and_written_back(tmp_path, rate):
    reference("BertForSequenceClassification", classifier_dropout=rate).save_pretrained(tmp_path)
    model, params = huggingface.load(tmp_path)
    assert model.config.classifier_dropout == rate
    huggingface.save(model, params, tmp_path / "again")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "again")
    assert again.config.classifier_dropout == rate and again.dropout.p == (0.1 if rate is None else rate)


@needs_torch
def test_a_model_without_pooler_is_read_and_written(tmp_path):
    config = transformers.BertConfig(**SIZES)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    model, params = huggingface.load(tmp_path)
    assert model == BertModel(model.config, pooling=False) and "pooler" not in params
    assert huggingface.compare(model, params, tmp_path) <= 1e-5
    huggingface.save(model, params, tmp_path / "again")
    again, loaded = huggingface.load(tmp_path / "again")
    assert again == model
    assert_same_bits(loaded, params)


@needs_torch
def test_the_encoder_of_a_masked_language_model_is_written_without_pooler(tmp_path):
    model = BertForMaskedLM(BertConfig(**SIZES))
    params = random_params(model)
    huggingface.save(model, params, tmp_path, architecture="BertModel")
    assert huggingface.compare(model, params, tmp_path, "BertModel") <= 1e-5
    assert not huggingface.load(tmp_path)[0].pooling


@needs_torch
def test_untied_weights_do_not_matter_without_a_language_model_head(tmp_path):
    """Neither the setting nor, of a larger model that is read without its head, an output layer of its own."""
    for architecture in ("BertModel", "BertForNextSentencePrediction", "BertForSequenceClassification"):
        folder = tmp_path / architecture
        reference(architecture, tie_word_embeddings=False).save_pretrained(folder)
        assert huggingface.read_settings(folder)["tie_word_embeddings"] is False
        model, params = huggingface.load(folder)
        assert huggingface.compare(model, params, folder) <= 1e-5

    untied = reference("BertForMaskedLM", tie_word_embeddings=False)
    untied.save_pretrained(tmp_path / "untied")
    with pytest.raises(UserError, match=r"decoder\.weight tied to bert\.embeddings\.word_embeddings\.weight"):
        huggingface.load(tmp_path / "untied")
    model, params = huggingface.load(tmp_path / "untied", architecture="BertModel")
    np.testing.assert_array_equal(
        params["embeddings"]["word_embeddings"]["embedding"], untied.bert.embeddings.word_embeddings.weight.detach()
    )


def test_tensors_that_do_not_fit_are_named(tmp_path):
    reference("BertForMaskedLM").save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.pop("cls.predictions.bias") is None)
    with pytest.raises(UserError, match=r"found cls\.predictions\.bias missing; "):
        huggingface.load(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"bert.extra": np.zeros(1, np.float32)})
    with pytest.raises(UserError, match=r"found cls\.predictions\.bias missing and bert\.extra that"):
        huggingface.load(tmp_path)


def test_an_untied_decoder_is_refused(tmp_path):
    reference("BertForMaskedLM").save_pretrained(tmp_path)
    decoder = np.zeros((SIZES["vocab_size"], SIZES["hidden_size"]), np.float32)
    rewrite(tmp_path, lambda tensors: tensors | {"cls.predictions.decoder.weight": decoder})
    with pytest.raises(UserError, match=r"decoder\.weight tied to bert\.embeddings"):
        huggingface.load(tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"a transformers config at .*config\.json, found no file"):
        huggingface.load(tmp_path / "nowhere")
    reference("BertModel").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="Expected a safetensors file"):
        huggingface.load(tmp_path)
    weights.unlink()
    with pytest.raises(UserError, match=r"Expected model\.safetensors"):
        huggingface.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="Expected JSON"):
        huggingface.load(tmp_path)


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
    written._check_likeliest([1, 0], scores, tokenizer, "here")
    with pytest.raises(UserError, match=r"found '<0>' as token 2 of a text where ours is '<1>'"):
        written._check_likeliest([1, 0], scores + np.float32([[0, 0, 0], [0, 0.1, 0]]), tokenizer, "here")


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
