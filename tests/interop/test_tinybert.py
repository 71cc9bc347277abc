"""TinyBERT's released files: a BERT of a small size, with projections that only its distillation reads."""

import json

import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.interop import huggingface
from plmjax.models.bert import BertConfig, BertForPreTraining, BertForSequenceClassification
from tests.interop.odd_bert import assert_same_bits, random_params
from tests.interop.test_huggingface import rewrite
from tests.optional import needs_torch

CONFIG = BertConfig(
    vocab_size=37,
    hidden_size=12,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=46,
    max_position_embeddings=19,
    hidden_act="gelu",
)
"""The shape of TinyBERT of 4 layers: a feed-forward network that is not four times as wide."""
MODULES = {
    "BertForPreTraining": BertForPreTraining(CONFIG),
    "BertForSequenceClassification": BertForSequenceClassification(CONFIG, num_labels=3),
}
FIT = {
    "one projection": ("fit_dense",),
    "one for each state": ("fit_denses.0", "fit_denses.1", "fit_denses.2", "fit_denses.3", "fit_denses.4"),
}
"""Tensor names in the first and in the second version of the released files."""


def publish(folder, fit):
    """Turns a written checkpoint into a released one: its projections, and the settings of its config."""
    rewrite(
        folder,
        lambda tensors: (
            tensors
            | {f"{name}.weight": np.ones((17, CONFIG.hidden_size), np.float32) for name in FIT[fit]}
            | {f"{name}.bias": np.ones(17, np.float32) for name in FIT[fit]}
        ),
    )
    settings = json.loads((folder / "config.json").read_text())
    for name in ("architectures", "layer_norm_eps", "pad_token_id", "attention_window", "classifier_dropout", "dtype"):
        settings.pop(name)
    settings |= {"cell": {}, "emb_size": CONFIG.hidden_size, "structure": [], "pre_trained": "", "training": ""}
    (folder / "config.json").write_text(json.dumps(settings))


@needs_torch
@pytest.mark.parametrize("fit", FIT)
@pytest.mark.parametrize("name", MODULES)
def test_a_released_checkpoint_is_imported_and_exported(tmp_path, caplog, name, fit):
    """Both ways with equal outputs and the same bits; what is left out is named, and is not written again."""
    model, source, out = MODULES[name], tmp_path / "released", tmp_path / "exported"
    params = random_params(model)
    huggingface.save(model, params, source)
    publish(source, fit)
    loaded, found = huggingface.load(source, architecture=name)
    assert loaded == model and f"{FIT[fit][0]}.weight" in caplog.text
    assert_same_bits(found, params)
    assert huggingface.compare(loaded, found, source, name) <= 1e-5
    huggingface.save(loaded, found, out)
    assert huggingface.compare(loaded, found, out) <= 1e-5
    again, last = huggingface.load(out)
    assert again == model
    assert_same_bits(last, params)


def test_the_class_of_a_released_checkpoint_is_asked_for(tmp_path):
    """Its config.json names none."""
    model = MODULES["BertForPreTraining"]
    huggingface.save(model, random_params(model), tmp_path)
    publish(tmp_path, "one projection")
    with pytest.raises(UserError, match="choose one with --architecture"):
        huggingface.load(tmp_path)


def test_the_released_sizes_have_the_exact_gelu_and_heads_of_their_own_width() -> None:
    small, large = BertConfig.tinybert_4(), BertConfig.tinybert_6()
    assert small.hidden_act == large.hidden_act == "gelu"
    assert (small.num_hidden_layers, small.hidden_size, small.intermediate_size) == (4, 312, 1200)
    assert large.num_hidden_layers == 6 and large.intermediate_size == 3072
    assert small.hidden_size // small.num_attention_heads == 26
