"""Properties of RoBERTa's checkpoints."""

import json
from pathlib import Path

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.data import tokenizers
from plmjax.data.layouts import FullSentences
from plmjax.experiment import Data, Experiment
from plmjax.interop import huggingface
from plmjax.interop.default_tasks import task_of
from plmjax.interop.run_directories import export_checkpoint, import_checkpoint
from plmjax.models.roberta import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
)
from plmjax.objectives.roberta import RobertaPretraining
from plmjax.training.checkpoints import checkpoints
from tests.interop.odd_bert import SIZES, assert_same_bits, random_params
from tests.interop.test_huggingface import rewrite
from tests.optional import needs_torch

CONFIG = RobertaConfig(**SIZES | {"max_position_embeddings": 21})
MODULES = {
    "without pooler": RobertaModel(CONFIG),
    "masked language model": RobertaForMaskedLM(CONFIG),
    "classifier": RobertaForSequenceClassification(CONFIG, num_labels=4),
}


@needs_torch
def test_a_pretrained_model_is_written_as_an_encoder_without_pooler(tmp_path):
    model = MODULES["masked language model"]
    params = random_params(model)
    huggingface.save(model, params, tmp_path, architecture="RobertaModel")
    assert huggingface.compare(model, params, tmp_path, "RobertaModel") <= 1e-5
    smaller, _ = huggingface.load(tmp_path)
    assert smaller == MODULES["without pooler"]


def test_what_the_released_files_hold_besides_is_left_out(tmp_path, caplog):
    """roberta-base as published: a masked language model's file with an unused pooler, the decoder and a buffer."""
    import numpy as np

    model = MODULES["masked language model"]
    params = random_params(model)
    huggingface.save(model, params, tmp_path)
    size = CONFIG.hidden_size

    def publish(tensors):
        return tensors | {
            "roberta.pooler.dense.weight": np.ones((size, size), np.float32),
            "roberta.pooler.dense.bias": np.ones(size, np.float32),
            "lm_head.decoder.weight": tensors["roberta.embeddings.word_embeddings.weight"].copy(),
            "lm_head.decoder.bias": tensors["lm_head.bias"].copy(),
            "roberta.embeddings.position_ids": np.arange(CONFIG.max_position_embeddings)[None],
        }

    rewrite(tmp_path, publish)
    assert_same_bits(huggingface.load(tmp_path)[1], params)
    assert "roberta.pooler.dense.weight" in caplog.text
    encoder, encoder_params = huggingface.load(tmp_path, architecture="RobertaModel")
    assert encoder.pooling and (encoder_params["pooler"]["bias"] == 1).all()


@needs_torch
def test_config_defaults_are_those_of_transformers(tmp_path):
    """Its class has BERT's epsilon, positions and types, which no released RoBERTa has."""
    model = RobertaForMaskedLM(RobertaConfig(**SIZES | {"max_position_embeddings": 512, "type_vocab_size": 2}))
    huggingface.save(model, random_params(model), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["layer_norm_eps"] == 1e-5
    for name in ("hidden_act", "layer_norm_eps", "max_position_embeddings", "type_vocab_size", "pad_token_id"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded, params = huggingface.load(tmp_path)
    assert loaded.config.layer_norm_eps == 1e-12 and loaded.config.pad_token_id == 1
    assert huggingface.compare(loaded, params, tmp_path) <= 1e-5


def test_an_imported_model_is_trained_by_its_own_task():
    objective, data = task_of(MODULES["masked language model"])
    assert isinstance(objective, RobertaPretraining) and data.layout == FullSentences() and data.sequence_length == 19


@pytest.mark.parametrize(("kind", "size", "ids"), [("char", 60, (2, 3)), ("byte-bpe", 290, (0, 2))])
def test_the_ids_of_a_begin_and_an_end_are_those_of_the_tokenizer(
    kind: str, size: int, ids: tuple[int, int], tmp_path: Path
) -> None:
    """The published ones name padding and [CLS] in a tokenizer of characters."""
    trained = tokenizers.train(kind, size, ["the quick brown fox says: hello, world!"] * 4, tmp_path / "tokenizer")
    sizes = {"vocab_size": size, "pad_token_id": trained.vocabulary.pad, "max_position_embeddings": 21}
    config = RobertaConfig(**SIZES | sizes)
    module = config.module(Purpose.ENCODING, Execution())
    run = Experiment(model=config, objective=RobertaPretraining(), data=Data(FullSentences()))
    params = {module.name: random_params(module)}
    checkpoints.save_parameters(tmp_path / "run", params, run, checkpoints.tokenizer_files(tmp_path / "tokenizer"))
    said = export_checkpoint(tmp_path / "run", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (found["bos_token_id"], found["eos_token_id"]) == ids
    assert ("bos_token_id is the tokenizer's" in said) == (ids != (0, 2))
    import_checkpoint(tmp_path / "out", tmp_path / "again")
    export_checkpoint(tmp_path / "again", tmp_path / "same")
    assert (tmp_path / "same" / "config.json").read_bytes() == (tmp_path / "out" / "config.json").read_bytes()
