"""Questions with choices, of every encoder: equal to transformers, and a row may hold a choice of several questions."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest

from plmjax.interop import huggingface
from plmjax.layers.execution import Execution
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.electra import ElectraConfig
from plmjax.models.roberta import RobertaConfig
from tests.models import encoders

SIZES = encoders.SIZES | {"max_position_embeddings": 21}
MODULES = {
    "bert": BertConfig(**SIZES).for_multiple_choice(Execution()),
    "roberta": RobertaConfig(**SIZES, hidden_act="gelu_new").for_multiple_choice(Execution()),
    "albert": AlbertConfig(**SIZES, embedding_size=14).for_multiple_choice(Execution()),
    "electra": ElectraConfig(**SIZES, embedding_size=14).for_multiple_choice(Execution()),
}
every_module = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)


@every_module
def test_outputs_and_gradients_equal_transformers(module: nn.Module) -> None:
    """The three rows are the choices of one question."""
    name = type(module).__name__
    batch = {field: rows[None] for field, rows in encoders.inputs(module.config).items()}
    model = encoders.reference(name, module.config)
    params = encoders.assert_equals_transformers(
        huggingface.adapter_of(module), module, model, batch, {"logits": "logits"}
    )
    assert module.apply({"params": params}, **batch).logits.shape == (1, 3)
    rows = module.apply({"params": params}, **encoders.inputs(module.config)).logits
    np.testing.assert_allclose(module.apply({"params": params}, **batch).logits[0], rows, rtol=1e-6, atol=1e-6)


@every_module
def test_packed_equals_unpacked(module: nn.Module) -> None:
    encoders.assert_packed_equals_unpacked(module, encoders.inputs(module.config), "logits", "pooler_output")


def test_the_head_of_each_system_has_its_own_dropout() -> None:
    """BERT's after its pooler, ELECTRA's between the two layers of its head; no other is left."""
    rates = {
        "bert": {"classifier_dropout": 0.5},
        "roberta": {"classifier_dropout": 0.5},
        "albert": {"classifier_dropout_prob": 0.5},
        "electra": {"summary_last_dropout": 0.5},
    }
    for system, module in MODULES.items():
        params, batch = encoders.random_params(module), encoders.inputs(module.config)
        for rate in ({name: 0.0 for name in rates[system]}, rates[system]):
            dropping = module.clone(config=dataclasses.replace(module.config, **rate))
            plain, dropped = (
                dropping.apply({"params": params}, **batch, deterministic=deterministic, rngs=rngs).logits
                for deterministic, rngs in ((True, None), (False, {"dropout": jax.random.key(0)}))
            )
            assert (np.abs(plain - dropped).max() > 1e-3) == bool(max(rate.values())), (system, rate)
