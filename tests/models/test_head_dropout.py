"""The rates of dropout in the heads of tasks, each a field of its own: which one is drawn where."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.models import distilbert, electra
from plmjax.models.albert import AlbertConfig
from plmjax.models.bart.bart import BartConfig
from plmjax.models.bert import BertConfig
from plmjax.models.distilbert import DistilBertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.families import task_heads
from plmjax.models.gpt import GptConfig
from plmjax.models.gpt2 import Gpt2Config
from plmjax.models.roberta import RobertaConfig
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.models.xlnet.heads import Summary
from plmjax.models.xlnet.xlnet import XlnetConfig
from tests.systems.modules import recorded_draws


def with_rates(config: Any) -> tuple[Any, dict[str, float]]:
    """The config with another rate in every field for one, and these rates."""
    fields = [field.name for field in dataclasses.fields(config) if "drop" in field.name]
    rates = {name: number / 16 for number, name in enumerate(fields, start=1)}
    return dataclasses.replace(config, **rates), rates


@pytest.mark.parametrize(
    ("head", "config", "drawn"),
    [
        (electra.ClassificationHead, ElectraConfig.tiny(), ["classifier_dropout"] * 2),
        (electra.MultipleChoiceHead, ElectraConfig.tiny(), ["summary_last_dropout"]),
        (distilbert.ClassificationHead, DistilBertConfig.tiny(), ["seq_classif_dropout"]),
        (task_heads.ClassificationHead, RobertaConfig.tiny(), ["classifier_dropout"] * 2),
        (task_heads.ClassificationHead, BartConfig.tiny(), ["classifier_dropout"] * 2),
        (Summary, XlnetConfig.tiny(), ["summary_last_dropout"]),
    ],
)
def test_a_head_of_two_layers_draws_its_own_rate(head: Any, config: Any, drawn: list[str]) -> None:
    config, rates = with_rates(config)
    module = head(config, Execution(), *([] if head is electra.MultipleChoiceHead else [3]))
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.init(rngs, jnp.ones((2, 128)), False))
    assert [draw.rate for draw in found] == [rates[name] for name in drawn]


@pytest.mark.parametrize(
    ("config", "purpose", "rate"),
    [
        (BertConfig.tiny(), Purpose.TEXT_LABELS, "classifier_dropout"),
        (BertConfig.tiny(), Purpose.CHOICES, "classifier_dropout"),
        (AlbertConfig.tiny(), Purpose.TEXT_LABELS, "classifier_dropout_prob"),
        (GptConfig.tiny(), Purpose.TEXT_LABELS, "summary_first_dropout"),
        (Gpt2Config.tiny(), Purpose.TEXT_LABELS, "summary_first_dropout"),
        (Gpt2Config.tiny(), Purpose.CHOICES, "summary_first_dropout"),
    ],
)
def test_a_linear_head_has_its_own_rate_before_it(config: Any, purpose: Purpose, rate: str) -> None:
    config, rates = with_rates(config)
    labels = () if purpose is Purpose.CHOICES else (3,)
    assert config.module(purpose, Execution(), *labels).bind({}).dropout.rate == rates[rate]


def test_labels_of_words_have_the_rate_of_the_heads_before_them() -> None:
    config, rates = with_rates(BertConfig.tiny(num_hidden_layers=1))
    module = config.module(Purpose.TOKEN_LABELS, Execution(), 3)
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.init(rngs, jnp.ones((1, 4), jnp.int32), deterministic=False))
    assert [draw.rate for draw in found if draw.path[0] != "bert"] == [rates["classifier_dropout"]]


def test_pooled_features_have_the_rate_of_the_last_layers_output() -> None:
    """As in fastai 2.8.12, text/models/core.py: output_p, and then 0.1 by default."""
    config, rates = with_rates(UlmfitConfig.tiny())
    classifier = config.module(Purpose.TEXT_LABELS, Execution(), 3).bind({}).classifier
    assert classifier.dropouts == (rates["output_dropout"], rates["classifier_dropout"])
