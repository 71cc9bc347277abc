"""Properties of ALBERT: one layer, or a few, used many times."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.interop.albert import ADAPTER
from plmjax.models.albert import AlbertConfig, AlbertForPreTraining, AlbertModel
from plmjax.models.bert import BertConfig
from plmjax.training.optimizers import BertAdamW, Lamb, Optimizer
from plmjax.training.optimizers.schedules import Constant
from tests.families.encoders import ALBERT
from tests.families.family import random_tokens
from tests.systems.comparison import assert_equals_transformers, reference
from tests.systems.modules import boxed_shapes, count, random_params

INPUTS = random_tokens(ALBERT)


GROUPS = [(2, 1), (3, 2), (1, 3), (4, 2)]
"""(groups, encoder layers in a layer); 5 layers divide into none of them but one evenly."""


def grouped(groups: int, inner: int, **settings: Any) -> AlbertConfig:
    return dataclasses.replace(ALBERT, num_hidden_layers=5, num_hidden_groups=groups, inner_group_num=inner, **settings)


@pytest.mark.nightly
@pytest.mark.parametrize(("groups", "inner"), GROUPS)
def test_groups_of_layers_equal_transformers(groups: int, inner: int) -> None:
    """transformers gives the hidden states of every encoder layer, ours are those of the layers that they make up."""
    config = grouped(groups, inner)
    model = reference("AlbertForPreTraining", config)
    every = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        outputs = every(*args, **kwargs)
        outputs.hidden_states = outputs.hidden_states and outputs.hidden_states[::inner]
        return outputs

    model.forward = forward
    params = assert_equals_transformers(ADAPTER, AlbertForPreTraining(config), model, batch=INPUTS)
    assert sorted(params["albert"]["encoder"]) == [
        "embedding_hidden_mapping_in",
        *(f"group_{i}" for i in range(groups)),
    ]
    for group in range(groups):
        assert sorted(params["albert"]["encoder"][f"group_{group}"]) == [f"layer_{i}" for i in range(inner)]


def test_layers_are_divided_into_groups_as_evenly_as_they_can_be() -> None:
    assert AlbertConfig.base().group_sizes == (12,)
    assert AlbertConfig.base(num_hidden_groups=4).group_sizes == (3, 3, 3, 3)
    assert AlbertConfig.base(num_hidden_groups=12).group_sizes == (1,) * 12
    assert [grouped(groups, 1).group_sizes for groups in (2, 3, 4)] == [(3, 2), (2, 2, 1), (2, 1, 1, 1)]


def test_a_bert_with_shared_layers_has_all_its_settings() -> None:
    bert = BertConfig.tiny(
        vocab_size=77, hidden_size=64, hidden_act="relu", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2,
        max_position_embeddings=31, type_vocab_size=3, initializer_range=0.05, layer_norm_eps=1e-3, pad_token_id=4,
        attention_window=6, classifier_dropout=0.4,
    )  # fmt: skip
    shared = AlbertConfig.of_bert(bert, groups=2)
    same = {field.name for field in dataclasses.fields(bert)} - {"classifier_dropout"}
    assert {name: getattr(shared, name) for name in same} == {name: getattr(bert, name) for name in same}
    assert (shared.embedding_size, shared.num_hidden_groups, shared.classifier_dropout_prob) == (64, 2, 0.4)


@pytest.mark.nightly
def test_a_group_costs_the_parameters_of_its_layers_and_a_layer_the_flops_of_what_it_is_made_of() -> None:
    layer = 7_087_872  # of ALBERT-base
    for groups, inner in ((1, 1), (12, 1), (4, 1), (2, 3)):
        config = AlbertConfig.base(num_hidden_groups=groups, inner_group_num=inner)
        assert count(AlbertModel(config)) == 11_683_584 + (groups * inner - 1) * layer
        assert config.layers_flops(2, 128) == inner * AlbertConfig.base().layers_flops(2, 128)


def test_dropout_differs_from_trip_to_trip() -> None:
    """With one mask for all layers, two layers of zero weights would leave the same tokens' features out."""
    config = dataclasses.replace(ALBERT, num_hidden_layers=2, hidden_dropout_prob=0.5)
    module = AlbertModel(config)
    params = random_params(module)
    layer = params["encoder"]["group_0"]["layer_0"]
    layer["attention"]["output"] = jax.tree.map(jnp.zeros_like, layer["attention"]["output"])
    layer["feed_forward"]["output"]["kernel"] *= 0
    layer["feed_forward"]["output"]["bias"] = jnp.full(24, 1e6)

    @jax.jit
    def hidden_states(params: Any) -> jax.Array:
        rngs, inputs = {"dropout": jax.random.key(0)}, INPUTS["input_ids"]
        found = module.apply({"params": params}, inputs, deterministic=False, rngs=rngs, output_hidden_states=True)
        return found.hidden_states

    states = np.asarray(hidden_states(params))
    centred = (states[1:] - layer["feed_forward_layer_norm"]["bias"]) / layer["feed_forward_layer_norm"]["scale"]
    first, second = np.asarray(centred > 0)
    assert 0.3 < (first != second).mean() < 0.7


def test_the_map_into_the_layers_is_there_when_it_changes_no_size() -> None:
    """Deviation named in the module: with E = D too."""
    for size in (11, 24):
        params = boxed_shapes(AlbertModel(dataclasses.replace(ALBERT, embedding_size=size)))
        assert params["encoder"]["embedding_hidden_mapping_in"]["kernel"].value.shape == (size, 24)


def test_lamb_gives_the_shared_parameters_one_trust_ratio() -> None:
    """All L uses of a kernel are one parameter: its update is one multiple of what it would be without a ratio."""
    module = AlbertForPreTraining(ALBERT)
    boxed = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    params, gradients = random_params(module), random_params(module, seed=3)

    def update(optimizer: type[Optimizer]) -> Any:
        rule = optimizer(learning_rate=1.0, schedule=Constant()).build(10, boxed)
        updates = jax.jit(lambda gradients, params: rule.update(gradients, rule.init(params), params)[0])(
            gradients, params
        )
        return updates["albert"]["encoder"]["group_0"]["layer_0"]["feed_forward"]["intermediate"]["kernel"]

    plain = update(BertAdamW)
    kernel = params["albert"]["encoder"]["group_0"]["layer_0"]["feed_forward"]["intermediate"]["kernel"]
    ratio = jnp.linalg.norm(kernel) / jnp.linalg.norm(plain)
    assert abs(ratio - 1) > 0.1
    np.testing.assert_allclose(update(Lamb), ratio * plain, rtol=1e-5)
