"""Properties of MobileBERT's checkpoints."""

import dataclasses
import json

import numpy as np
import pytest

from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.interop.default_tasks import task_of
from plmjax.interop.mobilebert import ADAPTER
from plmjax.models.mobilebert import (
    TEACHER,
    MobileBertConfig,
    MobileBertForMaskedLM,
    MobileBertForPreTraining,
    MobileBertModel,
)
from plmjax.objectives.bert import BertPretraining
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params
from tests.interop.test_huggingface import rewrite, set_config
from tests.optional import needs_torch

CONFIG = MobileBertConfig(**SIZES, embedding_size=6, intra_bottleneck_size=10, num_feedforward_networks=2)
MODEL = MobileBertForPreTraining(CONFIG)
"""Without a layer in its pooler, as released."""


def smaller_params(module, seed=0):
    """Parameters with which rounding does not grow from layer to layer, where no norm divides it away."""
    return {name: _scaled(value) for name, value in random_params(module, seed).items()}


def _scaled(tree):
    return {name: _scaled(value) for name, value in tree.items()} if isinstance(tree, dict) else tree * np.float32(0.3)


@needs_torch
@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("MobileBertModel", MobileBertModel(CONFIG, pooling=False)),
        ("MobileBertForMaskedLM", MobileBertForMaskedLM(CONFIG)),
    ],
)
def test_a_pretrained_model_is_written_as_a_smaller_architecture(tmp_path, name, module):
    params = smaller_params(MODEL)
    huggingface.save(MODEL, params, tmp_path, architecture=name)
    assert huggingface.compare(MODEL, params, tmp_path, name) <= 1e-5
    assert huggingface.load(tmp_path)[0] == module


def test_what_the_released_files_hold_besides_is_left_out(tmp_path, caplog):
    """A copy of what is tied, a buffer, and a derived size in the config."""
    params = random_params(MODEL)
    huggingface.save(MODEL, params, tmp_path)

    def publish(tensors):
        return tensors | {
            "cls.predictions.decoder.weight": tensors["mobilebert.embeddings.word_embeddings.weight"].copy(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
            "mobilebert.embeddings.position_ids": np.arange(CONFIG.max_position_embeddings)[None],
        }

    rewrite(tmp_path, publish)
    set_config(tmp_path, true_hidden_size=10)
    again, loaded = huggingface.load(tmp_path)
    assert again == MODEL
    assert_same_bits(loaded, params)
    huggingface.load(tmp_path, architecture="MobileBertModel")
    assert "cls.predictions.dense.weight" in caplog.text


def test_config_defaults_are_those_of_transformers():
    """Its class has a layer in the pooler, which the released model has not."""
    assert ADAPTER.read_config({}) == MobileBertConfig(classifier_activation=True)
    assert not MobileBertConfig.base().classifier_activation


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"trigram_input": False}, "trigram_input = True in the config"),
        ({"use_bottleneck": False}, "use_bottleneck = True in the config"),
        ({"normalization_type": "layer_norm"}, "normalization_type = 'no_norm' in the config"),
        ({"key_query_shared_bottleneck": False}, "attention that reads a bottleneck"),
        ({"use_bottleneck_attention": True}, "found both; set the second to False"),
        ({"num_feedforward_networks": 3}, r"found mobilebert\.encoder\.layer\.0\.ffn\.1\..* missing"),
        ({"num_feedforward_networks": 1}, r"ffn\.0\..* that the model has no parameter for"),
    ],
)
def test_a_config_that_does_not_fit_is_one_sentence(tmp_path, settings, sentence):
    huggingface.save(MODEL, random_params(MODEL), tmp_path)
    set_config(tmp_path, **settings)
    with pytest.raises(UserError, match=sentence):
        huggingface.load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (TEACHER, "a model with no_norm, as transformers has MobileBERT, found layer_norm"),
        ({"key_query_shared_bottleneck": False}, "attention that reads a bottleneck, as transformers computes it"),
    ],
)
def test_a_teacher_is_not_written(tmp_path, fields, sentence):
    module = MobileBertForPreTraining(dataclasses.replace(CONFIG, **fields))
    with pytest.raises(UserError, match=sentence):
        huggingface.save(module, random_params(module), tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_the_last_network_of_a_layer_is_where_transformers_keeps_it(tmp_path):
    from safetensors.numpy import load_file

    params = random_params(MODEL)
    huggingface.save(MODEL, params, tmp_path)
    tensors, layers = load_file(tmp_path / "model.safetensors"), params["mobilebert"]["encoder"]["layers"]
    for network, place in (("feed_forward_0", "ffn.0.intermediate"), ("feed_forward_1", "intermediate")):
        for layer in range(CONFIG.num_hidden_layers):
            tensor = tensors[f"mobilebert.encoder.layer.{layer}.{place}.dense.weight"]
            np.testing.assert_array_equal(tensor, layers[network]["intermediate"]["kernel"][layer].T)
    assert json.loads((tmp_path / "config.json").read_text())["trigram_input"] is True


def test_an_imported_model_is_trained_by_its_own_task():
    objective, data = task_of(MODEL)
    assert isinstance(objective, BertPretraining) and data.layout == SentencePairs() and data.sequence_length == 19
