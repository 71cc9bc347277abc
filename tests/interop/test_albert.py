"""Properties of ALBERT's checkpoints."""

import json

import jax
import numpy as np
import pytest

from plmjax.data import tokenizers
from plmjax.data.layouts import SentenceOrder
from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.interop.albert import ADAPTER
from plmjax.interop.default_tasks import task_of
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.models.albert import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertModel,
)
from plmjax.objectives.albert import AlbertPretraining
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params
from tests.interop.test_huggingface import rewrite, set_config
from tests.optional import needs_torch

CONFIG = AlbertConfig(**SIZES, embedding_size=7, classifier_dropout_prob=0.2)
MODULES = {
    "AlbertModel": AlbertModel(CONFIG),
    "AlbertForPreTraining": AlbertForPreTraining(CONFIG),
    "AlbertForMaskedLM": AlbertForMaskedLM(CONFIG),
    "AlbertForSequenceClassification": AlbertForSequenceClassification(CONFIG, num_labels=4),
}


@needs_torch
@pytest.mark.parametrize("name", ["AlbertModel", "AlbertForMaskedLM"])
def test_a_pretrained_model_is_written_as_a_smaller_architecture(tmp_path, name):
    model = MODULES["AlbertForPreTraining"]
    params = random_params(model)
    huggingface.save(model, params, tmp_path, architecture=name)
    assert huggingface.compare(model, params, tmp_path, name) <= 1e-5
    smaller, _ = huggingface.load(tmp_path)
    assert smaller == MODULES[name]


def test_what_the_released_files_hold_besides_is_left_out(tmp_path, caplog):
    """Copies of what is tied, a buffer, and the heads that a masked language model lacks."""
    model = MODULES["AlbertForPreTraining"]
    params = random_params(model)
    huggingface.save(model, params, tmp_path)

    def publish(tensors):
        return tensors | {
            "predictions.decoder.weight": tensors["albert.embeddings.word_embeddings.weight"].copy(),
            "predictions.decoder.bias": tensors["predictions.bias"].copy(),
            "albert.embeddings.position_ids": np.arange(CONFIG.max_position_embeddings)[None],
        }

    rewrite(tmp_path, publish)
    assert_same_bits(huggingface.load(tmp_path)[1], params)
    _, smaller = huggingface.load(tmp_path, architecture="AlbertForMaskedLM")
    assert set(smaller) == {"albert", "masked_language_model"} and "pooler" not in smaller["albert"]
    assert "sop_classifier.classifier.weight" in caplog.text and "albert.pooler.weight" in caplog.text


def test_config_defaults_are_those_of_transformers(tmp_path):
    """Its class has the sizes of xxlarge; released files of other sizes name them all."""
    huggingface.save(MODULES["AlbertModel"], random_params(MODULES["AlbertModel"]), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config = {name: config[name] for name in ("model_type", "architectures")}
    assert ADAPTER.read_config(config) == AlbertConfig.xxlarge()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_hidden_groups": 4}, "num_hidden_groups from 1 to the 3 layers, found 4"),
        ({"num_hidden_groups": 2}, r"found encoder\.albert_layer_groups\.1\.albert_layers\.0\..* missing"),
        ({"inner_group_num": 2}, r"found encoder\.albert_layer_groups\.0\.albert_layers\.1\..* missing"),
        ({"embedding_size": 8}, r"word_embeddings.weight \[37, 7\] instead of \[37, 8\]"),
    ],
)
def test_a_config_that_does_not_fit_is_one_sentence(tmp_path, settings, sentence):
    huggingface.save(MODULES["AlbertModel"], random_params(MODULES["AlbertModel"]), tmp_path)
    set_config(tmp_path, **settings)
    with pytest.raises(UserError, match=sentence):
        huggingface.load(tmp_path)


@needs_torch
def test_a_change_of_depth_is_no_change_of_tensors(tmp_path):
    """One set of parameters serves any number of layers (smaller ones here, so that layers do not magnify rounding)."""
    model = MODULES["AlbertModel"]
    params = jax.tree.map(lambda leaf: leaf * np.float32(0.3), random_params(model))
    huggingface.save(model, params, tmp_path)
    set_config(tmp_path, num_hidden_layers=5)
    deeper, loaded = huggingface.load(tmp_path)
    assert_same_bits(loaded, params)
    assert huggingface.compare(deeper, loaded, tmp_path) <= 1e-5


def test_an_imported_model_is_trained_by_its_own_task():
    objective, data = task_of(MODULES["AlbertForPreTraining"])
    assert isinstance(objective, AlbertPretraining) and data.layout == SentenceOrder() and data.sequence_length == 19
    objective, _ = task_of(MODULES["AlbertForMaskedLM"])
    assert isinstance(objective, MaskedLanguageModel)


def test_a_vocabulary_alone_is_spelt_as_albert_spells(tmp_path):
    """Capitals folded and accents dropped, for a spiece.model beside the config and for one that is named apart."""
    import transformers

    from tests.data.test_tokenizers import PROSE, QUOTED, albert_model

    model = AlbertForMaskedLM(AlbertConfig(**(SIZES | {"vocab_size": 400}), embedding_size=7))
    huggingface.save(model, random_params(model), tmp_path / "source")
    (tmp_path / "apart").mkdir()
    for folder in ("source", "apart"):
        (tmp_path / folder / "spiece.model").write_bytes(albert_model())
    reference = transformers.AlbertTokenizer.from_pretrained(tmp_path / "source")
    expected = reference(PROSE[:4] + QUOTED, add_special_tokens=False)["input_ids"]
    import_checkpoint(tmp_path / "source", tmp_path / "own")
    import_checkpoint(tmp_path / "source", tmp_path / "other", tokenizer=tmp_path / "apart")
    export_checkpoint(tmp_path / "own", tmp_path / "out")
    for folder in (tmp_path / "own" / "tokenizer", tmp_path / "other" / "tokenizer", tmp_path / "out"):
        assert tokenizers.load(folder).encode_batch(PROSE[:4] + QUOTED) == expected
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again(PROSE[:4] + QUOTED, add_special_tokens=False)["input_ids"] == expected
