"""The heads of tasks: what those of two layers compute, the rate of dropout of each, and rows that are choices."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

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
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.models.reformer.reformer import ReformerConfig
from plmjax.models.roberta import RobertaConfig
from plmjax.models.ulmfit import UlmfitConfig
from plmjax.models.xlnet.heads import Summary
from plmjax.models.xlnet.xlnet import XlnetConfig
from tests.families import FAMILIES
from tests.systems.modules import outputs, random_params, recorded_draws


def gelu(x: np.ndarray) -> np.ndarray:
    """The exact one."""
    return x * (1 + erf(x / np.sqrt(2))) / 2


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
    ("head", "config", "first", "activation"),
    [
        (electra.ClassificationHead, ElectraConfig.tiny(hidden_act="relu"), "dense", gelu),
        (electra.MultipleChoiceHead, ElectraConfig.tiny(hidden_act="relu"), "summary", gelu),
        (distilbert.ClassificationHead, DistilBertConfig.tiny(hidden_act="gelu"), "dense", lambda x: np.maximum(x, 0)),
        (task_heads.ClassificationHead, RobertaConfig.tiny(), "dense", np.tanh),
        (Summary, XlnetConfig.tiny(), "summary", np.tanh),
    ],
)
def test_a_head_of_two_layers_has_the_activation_of_transformers(
    head: Any, config: Any, first: str, activation: Any
) -> None:
    """modeling_electra.py, modeling_distilbert.py, modeling_roberta.py, modeling_xlnet.py: whatever the layers have."""
    outputs, random = 1 if head is electra.MultipleChoiceHead else 3, np.random.default_rng(0)
    module = head(config, Execution(), *([] if head is electra.MultipleChoiceHead else [outputs]))
    shapes = {first: {"kernel": (128, 128), "bias": (128,)}, "output": {"kernel": (128, outputs), "bias": (outputs,)}}
    params = {
        part: {name: random.normal(size=shape) / 10 for name, shape in own.items()} for part, own in shapes.items()
    }
    x = random.normal(size=(2, 128))
    hidden = activation(x @ params[first]["kernel"] + params[first]["bias"])
    found = module.apply({"params": params}, jnp.asarray(x, jnp.float32), True)
    expected = hidden @ params["output"]["kernel"] + params["output"]["bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "purpose", "rate"),
    [
        (BertConfig.tiny(), Purpose.SEQUENCE_CLASSIFICATION, "classifier_dropout"),
        (BertConfig.tiny(), Purpose.MULTIPLE_CHOICE, "classifier_dropout"),
        (AlbertConfig.tiny(), Purpose.SEQUENCE_CLASSIFICATION, "classifier_dropout_prob"),
        (GptConfig.tiny(), Purpose.SEQUENCE_CLASSIFICATION, "summary_first_dropout"),
        (Gpt2Config.tiny(), Purpose.SEQUENCE_CLASSIFICATION, "summary_first_dropout"),
        (Gpt2Config.tiny(), Purpose.MULTIPLE_CHOICE, "summary_first_dropout"),
    ],
)
def test_a_linear_head_has_its_own_rate_before_it(config: Any, purpose: Purpose, rate: str) -> None:
    config, rates = with_rates(config)
    labels = () if purpose is Purpose.MULTIPLE_CHOICE else (3,)
    assert config.module(purpose, Execution(), *labels).bind({}).dropout.rate == rates[rate]


def test_labels_of_words_have_the_rate_of_the_heads_before_them() -> None:
    config, rates = with_rates(BertConfig.tiny(num_hidden_layers=1))
    module = config.module(Purpose.TOKEN_CLASSIFICATION, Execution(), 3)
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.init(rngs, jnp.ones((1, 4), jnp.int32), deterministic=False))
    assert [draw.rate for draw in found if draw.path[0] != "bert"] == [rates["classifier_dropout"]]


def test_pooled_features_have_the_rate_of_the_last_layers_output() -> None:
    """As in fastai 2.8.12, text/models/core.py: output_p, and then 0.1 by default."""
    config, rates = with_rates(UlmfitConfig.tiny())
    classifier = config.module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 3).bind({}).classifier
    assert classifier.dropouts == (rates["output_dropout"], rates["classifier_dropout"])


@pytest.mark.parametrize(
    ("config", "rate"),
    [
        *((one.tiny(), "classifier_dropout") for one in (BertConfig, RobertaConfig, ElectraConfig)),
        (MobileBertConfig.mini(), "classifier_dropout"),
        (ReformerConfig.tiny(), "classifier_dropout"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_rate_of_0_is_a_rate_and_none_is_that_of_the_hidden_states(config: Any, rate: str) -> None:
    config = dataclasses.replace(config, hidden_dropout_prob=0.25)
    found = [dataclasses.replace(config, **{rate: own}).head_dropout for own in (None, 0.0, 0.5)]
    assert found == [0.25, 0.0, 0.5]


@pytest.mark.parametrize("config", [BartConfig.tiny(vocab_size=31), XlnetConfig.tiny(vocab_size=31)])
def test_the_label_of_a_text_is_that_of_its_last_token_and_not_of_padding(config: Any) -> None:
    module = config.module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 3)
    ids, mask = np.array([[5, 6, 7, 8, 1, 1]]), np.array([[1, 1, 1, 1, 0, 0]])
    params = random_params(module)
    given = {"input_ids": ids, "attention_mask": mask}
    padded = outputs(module, params, given).label_logits
    other = outputs(module, params, given | {"input_ids": np.where(mask, ids, 9)}).label_logits
    at_last = outputs(module, params, given | {"cls_positions": np.array([[3]])}).label_logits[:, 0]
    np.testing.assert_allclose(padded, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(padded, at_last, rtol=1e-5, atol=1e-6)


MODULES = {
    name: FAMILIES[name].heads[0].module.config.module(Purpose.MULTIPLE_CHOICE, Execution())
    for name in ("bert", "roberta", "albert", "electra", "distilbert", "gpt", "gpt2")
}


BY_DAY = ("bert", "gpt", "gpt2")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.nightly) for name in MODULES]
)
def test_rows_are_the_choices_of_one_question(name: str) -> None:
    module, batch = MODULES[name], FAMILIES[name].batch(MODULES[name])
    params = random_params(module)
    rows = outputs(module, params, batch).logits
    found = outputs(module, params, {field: values[None] for field, values in batch.items()}).logits
    assert found.shape == (1, 3)
    np.testing.assert_allclose(found[0], rows, rtol=1e-6, atol=1e-6)
