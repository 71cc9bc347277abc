"""Heads for tokens, spans, sequences and choices, which every encoder takes, as transformers has them."""

import dataclasses

import pytest

from plmjax.errors import UserError
from plmjax.finetuning.choices import Choices, MultipleChoice
from plmjax.finetuning.heads import QuestionAnswering, TokenClassification
from plmjax.finetuning.questions import SpanExtraction
from plmjax.finetuning.sentences import SequenceClassification
from plmjax.finetuning.tagging import TokenTagging
from plmjax.interop import huggingface
from plmjax.layers.execution import Execution
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.roberta import RobertaConfig
from tests.interop.odd_bert import SIZES, assert_nothing_is_lost, random_params
from tests.interop.test_huggingface import assert_same_bits, set_config

CONFIGS = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**SIZES),
    "albert": AlbertConfig(**SIZES, embedding_size=7),
    "electra": ElectraConfig(**SIZES, embedding_size=7),
}


@pytest.mark.parametrize("system", CONFIGS)
@pytest.mark.parametrize("kind", [TokenClassification, QuestionAnswering])
def test_heads_that_all_share_are_written_and_read(tmp_path, system, kind):
    model = kind(CONFIGS[system], **({"num_labels": 4} if kind is TokenClassification else {}))
    params = random_params(model)
    huggingface.save(model, params, tmp_path)
    assert huggingface.compare(model, params, tmp_path) <= 1e-5
    again, loaded = huggingface.load(tmp_path)
    assert type(again) is kind and again.config == model.config
    assert_same_bits(params, loaded)
    objective, _ = huggingface.adapter_of(again).task(again, ())
    assert isinstance(objective, TokenTagging if kind is TokenClassification else SpanExtraction)
    assert dataclasses.replace(objective).module(model.config, model.execution) == model


@pytest.mark.parametrize("system", CONFIGS)
@pytest.mark.parametrize("kind", ["choices", "labels"])
def test_heads_of_a_system_are_written_and_read(tmp_path, system, kind):
    """With the dropout of their own that the config gives them."""
    config = CONFIGS[system]
    if system != "albert":
        config = dataclasses.replace(config, classifier_dropout=0.3)
    if system == "electra":
        config = dataclasses.replace(config, summary_last_dropout=0.2)
    chosen = kind == "choices"
    model = config.for_multiple_choice(Execution()) if chosen else config.for_sequence_classification(4, Execution())
    assert_nothing_is_lost(model, tmp_path)
    objective, data = huggingface.adapter_of(model).task(model, ())
    assert isinstance(objective, MultipleChoice if chosen else SequenceClassification)
    assert isinstance(data, Choices) == chosen
    assert objective.module(config, Execution()) == model


def test_a_summary_of_another_kind_is_refused(tmp_path):
    model = CONFIGS["electra"].for_multiple_choice(Execution())
    huggingface.save(model, random_params(model), tmp_path)
    set_config(tmp_path, summary_type="mean")
    with pytest.raises(UserError, match="summary_type to 'mean', but this ELECTRA knows 'first' only"):
        huggingface.load(tmp_path)
