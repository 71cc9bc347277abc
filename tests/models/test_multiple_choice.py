"""Questions with choices, of every system with a head for them: what a row means, and the dropout of the head."""

import dataclasses

import flax.linen as nn
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from tests.families import FAMILIES
from tests.systems.modules import dropped, outputs, random_params

RATES = {
    "bert": "classifier_dropout",
    "roberta": "classifier_dropout",
    "albert": "classifier_dropout_prob",
    "electra": "summary_last_dropout",
    "distilbert": "seq_classif_dropout",
    "gpt": "summary_first_dropout",
    "gpt2": "summary_first_dropout",
}
"""System with a head for choices -> the field of its dropout."""
MODULES = {name: FAMILIES[name].heads[0].module.config.module(Purpose.CHOICES, Execution()) for name in RATES}


@pytest.mark.parametrize("name", MODULES)
def test_rows_are_the_choices_of_one_question(name: str) -> None:
    module, batch = MODULES[name], FAMILIES[name].batch(MODULES[name])
    params = random_params(module)
    rows = outputs(module, params, batch).logits
    found = outputs(module, params, {field: values[None] for field, values in batch.items()}).logits
    assert found.shape == (1, 3)
    np.testing.assert_allclose(found[0], rows, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_the_head_of_each_system_has_its_own_dropout(name: str) -> None:
    """BERT's after its pooler, ELECTRA's between the two layers of its head, GPT's before it; no other is left."""
    module, batch = MODULES[name], FAMILIES[name].batch(MODULES[name])
    params = random_params(module)

    def with_rate(rate: float) -> nn.Module:
        return module.clone(config=dataclasses.replace(module.config, **{RATES[name]: rate}))

    plain = outputs(module, params, batch).logits
    assert np.abs(dropped(with_rate(0.0), params, batch).logits - plain).max() <= 1e-3
    assert np.abs(dropped(with_rate(0.5), params, batch).logits - plain).max() > 1e-3
