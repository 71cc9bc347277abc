"""Heads for tokens, spans, sequences and choices, which every encoder takes, as transformers has them."""

import dataclasses

import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.errors import UserError
from plmjax.finetuning.tasks.choices import Choices, MultipleChoice
from plmjax.finetuning.tasks.questions import SpanExtraction
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.finetuning.tasks.tagging import TokenTagging
from plmjax.interop import huggingface
from plmjax.interop.default_tasks import task_of
from plmjax.models.families.encoder import EncoderConfig
from tests.families import IN_TRANSFORMERS
from tests.interop.odd_bert import assert_nothing_is_lost, random_params
from tests.interop.test_huggingface import assert_same_bits, set_config
from tests.optional import needs_torch

CONFIGS = {name: family.heads[0].module.config for name, family in IN_TRANSFORMERS.items()}
CONFIGS = {name: config for name, config in CONFIGS.items() if isinstance(config, EncoderConfig)}
"""Configs of encoders. The heads of decoders are in test_gpt.py."""
SYSTEMS = [
    pytest.param(name, marks=pytest.mark.nightly if name in ("roberta", "electra", "longformer") else ())
    for name in CONFIGS
]
RATES = {
    "albert": {},
    "distilbert": {"seq_classif_dropout": 0.3},
    "electra": {"classifier_dropout": 0.3, "summary_last_dropout": 0.2},
}
"""System -> the dropout rates of its heads, where they are not BERT's one."""


@needs_torch
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("purpose", [Purpose.TOKEN_CLASSIFICATION, Purpose.QUESTION_ANSWERING])
def test_heads_of_tokens_are_written_and_read(tmp_path, system, purpose):
    """Longformer has a head for answers of its own, the others share theirs."""
    labels = purpose is Purpose.TOKEN_CLASSIFICATION
    model = CONFIGS[system].module(purpose, Execution(), *((4,) if labels else ()))
    params = random_params(model)
    huggingface.save(model, params, tmp_path)
    assert huggingface.compare(model, params, tmp_path) <= 1e-5
    again, loaded = huggingface.load(tmp_path)
    assert type(again) is type(model) and again.config == model.config
    assert_same_bits(params, loaded)
    objective, _ = task_of(again)
    assert isinstance(objective, TokenTagging if labels else SpanExtraction)
    assert dataclasses.replace(objective).module(model.config, model.execution) == model


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("kind", ["choices", "labels"])
def test_heads_of_a_system_are_written_and_read(tmp_path, system, kind):
    """With the dropout of their own that the config gives them."""
    config = dataclasses.replace(CONFIGS[system], **RATES.get(system, {"classifier_dropout": 0.3}))
    chosen = kind == "choices"
    model = (
        config.module(Purpose.MULTIPLE_CHOICE, Execution())
        if chosen
        else config.module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 4)
    )
    assert_nothing_is_lost(model, tmp_path)
    objective, data = task_of(model)
    assert isinstance(objective, MultipleChoice if chosen else SequenceClassification)
    assert isinstance(data, Choices) == chosen
    assert objective.module(config, Execution()) == model


def test_a_summary_of_another_kind_is_refused(tmp_path):
    model = CONFIGS["electra"].module(Purpose.MULTIPLE_CHOICE, Execution())
    huggingface.save(model, random_params(model), tmp_path)
    set_config(tmp_path, summary_type="mean")
    with pytest.raises(UserError, match=r"summary_type = 'first' .*, found 'mean'"):
        huggingface.load(tmp_path)
