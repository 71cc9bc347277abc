"""Properties of DistilBERT's checkpoints."""

import json

import numpy as np
import pytest

from plmjax.data.layouts import FullSentences
from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.interop.default_tasks import task_of
from plmjax.models.distilbert import DistilBertConfig, DistilBertForMaskedLM, DistilBertModel
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params
from tests.interop.test_huggingface import rewrite, set_config
from tests.optional import needs_torch

CONFIG = DistilBertConfig(**{name: size for name, size in SIZES.items() if name != "type_vocab_size"})
MODEL = DistilBertForMaskedLM(CONFIG)


@needs_torch
def test_a_pretrained_model_is_written_as_an_encoder(tmp_path):
    params = random_params(MODEL)
    huggingface.save(MODEL, params, tmp_path, architecture="DistilBertModel")
    assert huggingface.compare(MODEL, params, tmp_path, "DistilBertModel") <= 1e-5
    assert huggingface.load(tmp_path)[0] == DistilBertModel(CONFIG)


def test_what_the_released_files_hold_besides_is_left_out(tmp_path, caplog):
    """A copy of what is tied, and settings that BERT's parts do not have."""
    params = random_params(MODEL)
    huggingface.save(MODEL, params, tmp_path)

    def publish(tensors):
        return tensors | {"vocab_projector.weight": tensors["distilbert.embeddings.word_embeddings.weight"].copy()}

    rewrite(tmp_path, publish)
    set_config(tmp_path, sinusoidal_pos_embds=True, tie_weights_=True, output_past=True)
    again, loaded = huggingface.load(tmp_path)
    assert again == MODEL
    assert_same_bits(loaded, params)
    huggingface.load(tmp_path, architecture="DistilBertModel")
    assert "vocab_transform.weight" in caplog.text


def test_the_settings_have_the_names_of_transformers(tmp_path):
    huggingface.save(MODEL, random_params(MODEL), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["dim"] == 15 and settings["hidden_dim"] == 22 and settings["activation"] == "gelu"
    assert (settings["n_layers"], settings["n_heads"]) == (3, 5) and "hidden_size" not in settings
    for name in ("activation", "dropout", "attention_dropout", "seq_classif_dropout", "qa_dropout"):
        del settings[name]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert huggingface.load(tmp_path)[0] == MODEL  # the defaults of transformers are those of this config
    set_config(tmp_path, n_layers=4)
    with pytest.raises(UserError, match=r"found distilbert\.transformer\.layer\.3\..* missing"):
        huggingface.load(tmp_path)
    set_config(tmp_path, n_layers=3, dim="15")
    with pytest.raises(UserError, match="Expected int as the config's hidden_size, found '15'"):
        huggingface.load(tmp_path)


def test_a_checkpoint_of_another_size_is_named(tmp_path):
    huggingface.save(MODEL, random_params(MODEL), tmp_path)
    rewrite(tmp_path, lambda tensors: tensors | {"vocab_layer_norm.bias": np.zeros(7, np.float32)})
    with pytest.raises(UserError, match=r"vocab_layer_norm.bias \[7\] instead of \[15\]"):
        huggingface.load(tmp_path)


def test_an_imported_model_is_trained_by_its_own_task():
    objective, data = task_of(MODEL)
    assert isinstance(objective, MaskedLanguageModel) and data.layout == FullSentences() and data.sequence_length == 19
