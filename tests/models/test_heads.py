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
from plmjax.models.families import task_heads
from plmjax.models.xlnet.heads import Summary
from tests.families import FAMILIES
from tests.models.declared import CONFIGS
from tests.systems.modules import outputs, random_params, recorded_draws

RATES = [
    ("Bert", Purpose.SEQUENCE_CLASSIFICATION, ["classifier_dropout"]),
    ("Bert", Purpose.MULTIPLE_CHOICE, ["classifier_dropout"]),
    ("Bert", Purpose.TOKEN_CLASSIFICATION, ["classifier_dropout"]),
    ("Albert", Purpose.SEQUENCE_CLASSIFICATION, ["classifier_dropout_prob"]),
    ("Roberta", Purpose.SEQUENCE_CLASSIFICATION, ["classifier_dropout"] * 2),
    ("Electra", Purpose.SEQUENCE_CLASSIFICATION, ["classifier_dropout"] * 2),
    ("Electra", Purpose.MULTIPLE_CHOICE, ["summary_last_dropout"]),
    ("DistilBert", Purpose.SEQUENCE_CLASSIFICATION, ["seq_classif_dropout"]),
    ("Bart", Purpose.SEQUENCE_CLASSIFICATION, ["classifier_dropout"] * 2),
    ("Xlnet", Purpose.SEQUENCE_CLASSIFICATION, ["summary_last_dropout"]),
    ("Gpt", Purpose.SEQUENCE_CLASSIFICATION, ["summary_first_dropout"]),
    ("Gpt2", Purpose.SEQUENCE_CLASSIFICATION, ["summary_first_dropout"]),
    ("Gpt2", Purpose.MULTIPLE_CHOICE, ["summary_first_dropout"]),
    # As in fastai 2.8.12, text/models/core.py: output_p, and then 0.1 by default.
    ("Ulmfit", Purpose.SEQUENCE_CLASSIFICATION, ["output_dropout", "classifier_dropout"]),
]


@pytest.mark.parametrize(("name", "purpose", "drawn"), RATES)
def test_a_head_draws_its_own_rates(name: str, purpose: Purpose, drawn: list[str]) -> None:
    """Every rate of the config is another number."""
    config = CONFIGS[name].tiny()
    fields = [field.name for field in dataclasses.fields(config) if "drop" in field.name]
    rates = {name: number / 16 for number, name in enumerate(fields, start=1)}
    config = dataclasses.replace(config, **rates).with_depth(1)
    module = config.module(purpose, Execution(), *(() if purpose is Purpose.MULTIPLE_CHOICE else (3,)))
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    with recorded_draws() as found:
        jax.eval_shape(lambda: module.init(rngs, jnp.ones((2, 4), jnp.int32), deterministic=False))
    body = config.module(Purpose.ENCODING, Execution()).name
    assert [draw.rate for draw in found if draw.path[0] != body] == [rates[name] for name in drawn]


@pytest.mark.parametrize("config", [CONFIGS["Bert"].tiny(), CONFIGS["MobileBert"].mini(), CONFIGS["Reformer"].tiny()])
def test_a_rate_of_0_is_a_rate_and_none_is_that_of_the_hidden_states(config: Any) -> None:
    config = dataclasses.replace(config, hidden_dropout_prob=0.25)
    found = [dataclasses.replace(config, classifier_dropout=own).head_dropout for own in (None, 0.0, 0.5)]
    assert found == [0.25, 0.0, 0.5]


def gelu(x: np.ndarray) -> np.ndarray:
    """The exact one."""
    return x * (1 + erf(x / np.sqrt(2))) / 2


@pytest.mark.parametrize(
    ("head", "config", "first", "activation"),
    [
        (electra.ClassificationHead, CONFIGS["Electra"].tiny(hidden_act="relu"), "dense", gelu),
        (electra.MultipleChoiceHead, CONFIGS["Electra"].tiny(hidden_act="relu"), "summary", gelu),
        (
            distilbert.ClassificationHead,
            CONFIGS["DistilBert"].tiny(hidden_act="gelu"),
            "dense",
            lambda x: np.maximum(x, 0),
        ),
        (task_heads.ClassificationHead, CONFIGS["Roberta"].tiny(), "dense", np.tanh),
        (Summary, CONFIGS["Xlnet"].tiny(), "summary", np.tanh),
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


@pytest.mark.parametrize("config", [CONFIGS["Bart"].tiny(vocab_size=31), CONFIGS["Xlnet"].tiny(vocab_size=31)])
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


@pytest.mark.parametrize("name", ["bert", "electra", "gpt2"])
def test_rows_are_the_choices_of_one_question(name: str) -> None:
    module = FAMILIES[name].heads[0].module.config.module(Purpose.MULTIPLE_CHOICE, Execution())
    params, batch = random_params(module), FAMILIES[name].batch(module)
    rows = outputs(module, params, batch).logits
    found = outputs(module, params, {field: values[None] for field, values in batch.items()}).logits
    assert found.shape == (1, 3)
    np.testing.assert_allclose(found[0], rows, rtol=1e-6, atol=1e-6)
