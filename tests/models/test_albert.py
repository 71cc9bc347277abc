"""ALBERT against transformers, its sharing against a plain loop, and what must hold whatever the weights are."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.errors import UserError
from plmjax.experiment import Optimizer
from plmjax.interop.albert import ADAPTER
from plmjax.layers.encoder import EncoderLayer, attention_bias
from plmjax.layers.execution import Execution
from plmjax.models.albert import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AlbertForSequenceClassification,
    AlbertModel,
)
from plmjax.training import optimizers
from tests.models import encoders
from tests.models.encoders import assert_trees_close, count, random_params

ODD = AlbertConfig(**encoders.SIZES, embedding_size=11, max_position_embeddings=19)
EVEN = dataclasses.replace(
    ODD, vocab_size=56, embedding_size=10, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
)
INPUTS = encoders.inputs(ODD)
ORDER = "sop_logits"


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu"}, {"embedding_size": 24}], ids=repr)
def test_pretraining_outputs_and_gradients_equal_transformers(changes: dict[str, Any]) -> None:
    """With E = D this also shows the deviation named in the module: the map is there all the same."""
    config = dataclasses.replace(ODD, **changes)
    module, model = AlbertForPreTraining(config), encoders.reference("AlbertForPreTraining", config)
    outputs = {"logits": "prediction_logits", ORDER: ORDER}
    params = encoders.assert_equals_transformers(ADAPTER, module, model, INPUTS, outputs)
    mapping = params["albert"]["encoder"]["embedding_hidden_mapping_in"]["kernel"]
    assert mapping.shape == (config.embedding_size, config.hidden_size)


@pytest.mark.parametrize(
    "module",
    [AlbertModel(ODD), AlbertForMaskedLM(ODD), AlbertForSequenceClassification(ODD, num_labels=5)],
    ids=lambda module: type(module).__name__,
)
def test_other_heads_equal_transformers(module: nn.Module) -> None:
    name = type(module).__name__
    model = encoders.reference(name, ODD, **({"num_labels": 5} if hasattr(module, "num_labels") else {}))
    encoders.assert_equals_transformers(ADAPTER, module, model, INPUTS, ADAPTER.architectures[name].outputs)


GROUPS = [(2, 1), (3, 2), (1, 3), (4, 2)]
"""(groups, encoder layers in a layer); 5 layers divide into none of them but one evenly."""


def grouped(groups: int, inner: int, **settings: Any) -> AlbertConfig:
    return dataclasses.replace(ODD, num_hidden_layers=5, num_hidden_groups=groups, inner_group_num=inner, **settings)


@pytest.mark.parametrize(("groups", "inner"), GROUPS)
def test_groups_of_layers_equal_transformers(groups: int, inner: int) -> None:
    """transformers gives the hidden states of every encoder layer, ours are those of the layers that they make up."""
    config = grouped(groups, inner)
    model = encoders.reference("AlbertForPreTraining", config)
    every = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        outputs = every(*args, **kwargs)
        outputs.hidden_states = outputs.hidden_states and outputs.hidden_states[::inner]
        return outputs

    model.forward = forward
    outputs = {"logits": "prediction_logits", ORDER: ORDER}
    params = encoders.assert_equals_transformers(ADAPTER, AlbertForPreTraining(config), model, INPUTS, outputs)
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


def test_a_group_costs_the_parameters_of_its_layers_and_a_layer_the_flops_of_what_it_is_made_of() -> None:
    layer = 7_087_872  # of ALBERT-base
    for groups, inner in ((1, 1), (12, 1), (4, 1), (2, 3)):
        config = AlbertConfig.base(num_hidden_groups=groups, inner_group_num=inner)
        assert count(AlbertModel(config)) == 11_683_584 + (groups * inner - 1) * layer
        assert config.layers_flops(2, 128) == inner * AlbertConfig.base().layers_flops(2, 128)


@encoders.every_execution
def test_execution_changes_nothing_in_groups(execution: Execution) -> None:
    encoders.assert_execution_changes_nothing(AlbertForPreTraining(grouped(2, 2, **encoders.DROPOUT)), execution, ORDER)


def test_every_layer_is_the_same_one() -> None:
    """Outputs and gradients are those of a Python loop that calls one layer, with one set of parameters, L times."""
    module, layer = AlbertModel(ODD), EncoderLayer(ODD, Execution(), deterministic=True)
    params = random_params(module)
    bias = attention_bias(jnp.asarray(INPUTS["attention_mask"]), None)

    def looped(params: Any) -> list[jax.Array]:
        single = module.clone(config=dataclasses.replace(ODD, num_hidden_layers=1))  # for the embeddings and the map
        found = [single.apply({"params": params}, **INPUTS, output_hidden_states=True).hidden_states[0]]
        for _ in range(ODD.num_hidden_layers):
            found.append(layer.apply({"params": params["encoder"]["group_0"]["layer_0"]}, found[-1], bias))
        return found

    def repeated(params: Any) -> jax.Array:
        return module.apply({"params": params}, **INPUTS, output_hidden_states=True).hidden_states

    assert_trees_close(list(repeated(params)), looped(params), 1e-5)
    weights = np.random.default_rng(0).normal(size=(ODD.num_hidden_layers + 1, *INPUTS["input_ids"].shape, 24))
    weights = weights.astype(np.float32)
    gradients = [
        jax.jit(jax.grad(lambda params, f=function: jnp.sum(jnp.stack(list(f(params))) * weights)))(params)
        for function in (repeated, looped)
    ]
    assert_trees_close(*gradients, 1e-4)
    shapes = {leaf.shape for leaf in jax.tree.leaves(params["encoder"]["group_0"])}
    assert (24, 37) in shapes and not any(shape[0] == ODD.num_hidden_layers for shape in shapes if len(shape) == 4)


def test_dropout_differs_from_trip_to_trip() -> None:
    """With one mask for all layers, two layers of zero weights would leave the same tokens' features out."""
    config = dataclasses.replace(ODD, num_hidden_layers=2, hidden_dropout_prob=0.5)
    module = AlbertModel(config)
    params = random_params(module)
    layer = params["encoder"]["group_0"]["layer_0"]
    layer["attention"]["output"] = jax.tree.map(jnp.zeros_like, layer["attention"]["output"])
    layer["feed_forward"]["output"]["kernel"] *= 0
    layer["feed_forward"]["output"]["bias"] = jnp.full(24, 1e6)
    states = module.apply(
        {"params": params},
        INPUTS["input_ids"],
        deterministic=False,
        rngs={"dropout": jax.random.key(0)},
        output_hidden_states=True,
    ).hidden_states
    centred = (states[1:] - layer["feed_forward_layer_norm"]["bias"]) / layer["feed_forward_layer_norm"]["scale"]
    first, second = np.asarray(centred > 0)
    assert 0.3 < (first != second).mean() < 0.7


def test_padding_changes_nothing() -> None:
    encoders.assert_padding_changes_nothing(AlbertForPreTraining(ODD), INPUTS, ORDER)


def test_packed_equals_unpacked() -> None:
    """Deviation named in the module: a row may hold several sequences, and each is as if it stood alone."""
    encoders.assert_packed_equals_unpacked(AlbertForPreTraining(ODD), INPUTS, "pooler_output", ORDER)


def test_packed_sequences_do_not_leak() -> None:
    encoders.assert_packed_sequences_do_not_leak(AlbertModel(ODD))


@pytest.mark.parametrize("module", [AlbertForPreTraining(ODD), AlbertForMaskedLM(ODD)], ids=lambda x: type(x).__name__)
def test_logits_at_masked_positions_are_those_of_all_positions(module: nn.Module) -> None:
    encoders.assert_logits_at_masked_positions_are_those_of_all(module, INPUTS)


@encoders.every_execution
def test_execution_changes_nothing(execution: Execution) -> None:
    module = AlbertForPreTraining(dataclasses.replace(ODD, **encoders.DROPOUT))
    encoders.assert_execution_changes_nothing(module, execution, ORDER)


def test_sharded_equals_unsharded() -> None:
    module = AlbertForPreTraining(dataclasses.replace(EVEN, **encoders.DROPOUT))
    placed = encoders.assert_sharded_equals_unsharded(module, ORDER)
    kernel = placed["albert"]["encoder"]["group_0"]["layer_0"]["attention"]["query"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (12, 2, 6)


def test_bfloat16_computes_close_by_with_float32_parameters() -> None:
    encoders.assert_bfloat16_is_close(AlbertForPreTraining(ODD), INPUTS)


@pytest.mark.parametrize(
    ("name", "encoder", "pretraining"),
    [
        ("base", 11_683_584, 11_813_810),
        ("large", 17_683_968, 17_847_474),
        ("xlarge", 58_724_864, 59_021_490),
        ("xxlarge", 222_595_584, 223_158_450),
    ],
)
def test_published_parameter_counts(name: str, encoder: int, pretraining: int) -> None:
    first, second = getattr(AlbertConfig, name)(), getattr(AlbertConfig, f"{name}_v2")()
    assert second.hidden_dropout_prob == second.attention_probs_dropout_prob == 0
    assert first.hidden_dropout_prob == first.attention_probs_dropout_prob == (0 if name == "xxlarge" else 0.1)
    for config in (first, second, dataclasses.replace(first, num_hidden_layers=2)):
        assert count(AlbertModel(config)) == encoder
        assert count(AlbertForPreTraining(config)) == pretraining


def test_lamb_gives_the_shared_parameters_one_trust_ratio() -> None:
    """All L uses of a kernel are one parameter: its update is one multiple of what it would be without a ratio."""
    module = AlbertForPreTraining(ODD)
    boxed = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    params, gradients = random_params(module), random_params(module, seed=3)

    def update(name: str) -> Any:
        rule = optimizers.build(Optimizer(name=name, learning_rate=1.0, schedule="constant"), 10, boxed)
        updates, _ = rule.update(gradients, rule.init(params), params)
        return updates["albert"]["encoder"]["group_0"]["layer_0"]["feed_forward"]["intermediate"]["kernel"]

    plain = update("bert_adamw")
    kernel = params["albert"]["encoder"]["group_0"]["layer_0"]["feed_forward"]["intermediate"]["kernel"]
    ratio = jnp.linalg.norm(kernel) / jnp.linalg.norm(plain)
    assert abs(ratio - 1) > 0.1
    np.testing.assert_allclose(update("lamb"), ratio * plain, rtol=1e-5)


def test_initial_values() -> None:
    module = AlbertForPreTraining(AlbertConfig.tiny(vocab_size=2000))
    for name, value in encoders.initial_weights(module):
        assert np.abs(value).max() <= 0.04, f"{name} is cut at two standard deviations"
        if value.size > 10_000:
            assert abs(value.std() / 0.02 - 0.8796) < 0.02, f"{name}: the cut is not made up for"


def test_train_flops() -> None:
    """6 (E D + L (4 D^2 + 2 D F + 2 T D)) a token, 6 (D E + E V) a prediction: as much as BERT but for both ends."""
    assert AlbertConfig.base().train_flops(1, 512, 20) == pytest.approx(290.7e9, rel=1e-3)
    assert AlbertConfig.xxlarge().train_flops(2, 512, 20) == pytest.approx(2 * 7578.5e9, rel=1e-3)


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="embedding_size of at least 1, found 0"):
        AlbertConfig.tiny(embedding_size=0)
    with pytest.raises(UserError, match="classifier_dropout_prob from 0 to below 1, found 1"):
        AlbertConfig.tiny(classifier_dropout_prob=1.0)
    with pytest.raises(UserError, match="num_hidden_groups from 1 to the 12 layers, found 13"):
        AlbertConfig.base(num_hidden_groups=13)
    with pytest.raises(UserError, match="inner_group_num of at least 1, found 0"):
        AlbertConfig.base(inner_group_num=0)
    with pytest.raises(UserError, match="divides by the heads"):
        AlbertConfig.base(num_attention_heads=7)
