"""Parameters that are known without computing any."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.parameters import abstract_parameters
from plmjax.contracts.system import Purpose
from plmjax.models.bert import BertConfig
from plmjax.models.gpt2 import Gpt2Config

CONFIGS = BertConfig.tiny(), Gpt2Config.tiny()


@pytest.mark.parametrize("config", CONFIGS, ids=["bert", "gpt2"])
def test_shapes_types_and_axes_are_those_of_the_first_parameters(config) -> None:
    module, example = config.module(Purpose.PRETRAINING, Execution()), {"input_ids": jnp.zeros((2, 3), jnp.int32)}
    found, made = abstract_parameters(module, example), jax.jit(module.init)(jax.random.key(1), **example)["params"]
    assert jax.tree.structure(found) == jax.tree.structure(made)
    assert nn.get_partition_spec(found) == nn.get_partition_spec(made)
    for one, array in zip(jax.tree.leaves(found), jax.tree.leaves(made), strict=True):
        assert (one.shape, one.dtype) == (array.shape, array.dtype)
