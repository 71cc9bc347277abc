"""Heads for tokens and spans, which every encoder takes alike, as transformers has them."""

import dataclasses

import pytest

from plmjax.finetuning.heads import QuestionAnswering, TokenClassification
from plmjax.finetuning.questions import SpanExtraction
from plmjax.finetuning.tagging import TokenTagging
from plmjax.interop import huggingface
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.roberta import RobertaConfig
from tests.interop.odd_bert import SIZES, random_params
from tests.interop.test_huggingface import assert_same_bits

CONFIGS = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**SIZES),
    "albert": AlbertConfig(**SIZES, embedding_size=7),
    "electra": ElectraConfig(**SIZES, embedding_size=7),
}


@pytest.mark.parametrize("system", CONFIGS)
@pytest.mark.parametrize("kind", [TokenClassification, QuestionAnswering])
def test_transformers_opens_what_is_written_and_nothing_is_lost(tmp_path, system, kind):
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
