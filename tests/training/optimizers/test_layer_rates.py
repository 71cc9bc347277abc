"""Rates of layers against ELECTRA's released rule and updates written out by hand; gradual unfreezing."""

import functools

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import ParameterGroup, Purpose
from plmjax.errors import UserError
from plmjax.models.albert import AlbertConfig
from plmjax.models.bert import BertConfig
from plmjax.models.families.task_heads import HEAD
from plmjax.training.optimizers import AdamW, BertAdamW, Lamb, Optimizer, gradient_norm
from plmjax.training.optimizers.layer_rates import groups_below_the_head
from plmjax.training.optimizers.schedules import Constant

LAYERS = 3
AXES = {
    "encoder/embeddings/words": (None, None),
    "encoder/embeddings_project/kernel": (None, None),
    "encoder/layers/kernel": (None, "layers", None),  # where the axis stands is no matter
    "encoder/layers/bias": ("layers", None),
    "encoder/pooler/kernel": (None, None),
    "classifier/kernel": (None, None),
}
GROUPS = (
    ParameterGroup(("encoder/embeddings", "encoder/embeddings_project")),
    *(ParameterGroup(("encoder/layers",), layer) for layer in range(LAYERS)),
    ParameterGroup(("encoder",)),
)
SHAPES = [(5, 2), (2, 4), (4, LAYERS, 4), (LAYERS, 4), (4, 4), (4, 2)]


def tree(seed: int, box: bool = False):
    """Random float32 arrays under the paths of AXES, boxed with their logical axes if asked."""
    random = np.random.default_rng(seed)
    found = {name: random.normal(size=shape).astype(np.float32) for name, shape in zip(AXES, SHAPES, strict=True)}
    found = {name: nn.LogicallyPartitioned(array, AXES[name]) if box else array for name, array in found.items()}
    return flax.traverse_util.unflatten_dict(found, sep="/")


def leaves(params) -> dict[str, np.ndarray]:
    found = flax.traverse_util.flatten_dict(params, sep="/")
    return {name: np.asarray(leaf, np.float64) for name, leaf in found.items()}


def factors(decay: float) -> dict[str, np.ndarray]:
    """The factor of every number of the tree, told by hand: head 1, pooler, layers 2, 1, 0, embeddings."""
    layers = np.array([decay**4, decay**3, decay**2])
    return {
        "encoder/embeddings/words": decay**5,
        "encoder/embeddings_project/kernel": decay**5,
        "encoder/layers/kernel": layers[None, :, None],
        "encoder/layers/bias": layers[:, None],
        "encoder/pooler/kernel": decay,
        "classifier/kernel": 1.0,
    }


@functools.cache
def built(optimizer: Optimizer):
    """Its first state and its compiled update."""
    transformation = optimizer.build(10, tree(0, box=True), GROUPS)
    return transformation.init, jax.jit(transformation.update)


def run(optimizer: Optimizer, gradients, box: bool = False):
    """(parameters and state after each of the gradients)."""
    (init, update), params, after = built(optimizer), tree(0, box), []
    state = init(params)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        after.append((leaves(nn.meta.unbox(params)), state))
    return after


@pytest.mark.parametrize(("rule", "box"), [(BertAdamW, True), (AdamW, False), (Lamb, True)])
def test_every_update_is_that_of_one_rate_times_the_layers_factor(rule, box):
    """Weight decay included, which the released code multiplies by the layer's rate as well."""
    settings = {"learning_rate": 0.05, "schedule": Constant(), "weight_decay": 0.1}
    gradient = tree(1, box)
    ((plain, _),) = run(rule(**settings), [gradient], box)
    ((layered, _),) = run(rule(**settings, layer_decay=0.5), [gradient], box)
    before = leaves(tree(0))
    for name, factor in factors(0.5).items():
        expected = before[name] + factor * (plain[name] - before[name])
        np.testing.assert_allclose(layered[name], expected, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("layers", [1, 12])
def test_depths_are_electras(layers):
    """google-research/electra model/optimization.py: depth 0, layer + 1, and layers + 2 for the task's own."""
    for name, (distance, leaf) in distances(BertConfig.tiny(num_hidden_layers=layers)).items():
        assert np.broadcast_shapes(distance.shape, leaf.shape) == leaf.shape
        if name.startswith(f"{HEAD}/"):
            depth = layers + 2
        elif "/layers/" in name:
            depth = np.arange(layers) + 1
        else:
            depth = 0 if name.startswith("bert/embeddings/") else layers + 1
            assert name.startswith(("bert/embeddings/", "bert/pooler/"))
        np.testing.assert_array_equal(distance.ravel(), layers + 2 - depth, err_msg=name)


def test_layers_may_be_stacked_separate_or_shared():
    """The same distances for a stack and for parameters of their own; layers that share theirs are one group."""
    axes = {"kernel": nn.LogicallyPartitioned(np.zeros(2), (None,))}
    separate = {"model": {"words": axes, "layer_0": axes, "layer_1": axes}, "head": axes}
    own = tuple(ParameterGroup((f"model/{name}",)) for name in ("words", "layer_0", "layer_1"))
    found = groups_below_the_head(separate, own)
    assert [int(found[f"{name}/kernel"]) for name in ("model/words", "model/layer_0", "model/layer_1", "head")] == [
        3, 2, 1, 0
    ]  # fmt: skip
    shared = distances(AlbertConfig.tiny())
    kinds = {"/".join(name.split("/")[:2]): distance.tolist() for name, (distance, _) in shared.items()}
    expected = {"albert/embeddings": 2, "albert/encoder": 1, "albert/pooler": 1}
    assert kinds == expected | {"classifier/kernel": 0, "classifier/bias": 0}


def distances(config) -> dict:
    """Name -> (number of groups up to the head, shape) of the parameters of a classifier."""
    module = config.module(Purpose.SEQUENCE_CLASSIFICATION, Execution(), 2)
    boxed = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    shapes = flax.traverse_util.flatten_dict(nn.meta.unbox(boxed), sep="/")
    below = groups_below_the_head(boxed, config.parameter_groups)
    return {name: (distance, shapes[name]) for name, distance in below.items()}


@pytest.mark.parametrize("rule", [AdamW, Lamb])
def test_groups_are_unfrozen_from_the_head_down(rule):
    """Two steps each: head; pooler; layers 2, 1, 0; embeddings. A group that waits does not move, decay or count."""
    settings = rule(learning_rate=0.05, schedule=Constant(), weight_decay=0.1, unfreeze_every=2)
    gradients = [tree(seed) for seed in range(1, 13)]
    waits = {name: np.log2(1 / np.asarray(factor)).astype(int) for name, factor in factors(0.5).items()}
    before = leaves(tree(0))
    gradients[0]["encoder"]["embeddings"]["words"][0, 0] = np.nan  # does not leave a group that waits
    for number, (params, state) in enumerate(run(settings, gradients)):
        norm = 0.0
        for name, turns in waits.items():
            unfrozen = np.broadcast_to(turns <= number // 2, before[name].shape)
            np.testing.assert_array_equal(params[name] != before[name], unfrozen, err_msg=f"{name} at {number}")
            moments = leaves(optax.tree.get(state, "mean" if rule != AdamW else "mu"))
            np.testing.assert_array_equal(moments[name] != 0, unfrozen)
            norm += np.sum(leaves(gradients[number])[name][unfrozen] ** 2)
        assert float(gradient_norm(state)) == pytest.approx(np.sqrt(norm), rel=1e-5)
        before = params
    assert all((turns <= number // 2).all() for turns in waits.values())


@pytest.mark.parametrize("rule", [AdamW, Lamb])
def test_a_group_that_is_unfrozen_is_trained_as_if_the_run_began_then(rule):
    """Adam corrects the bias of moments by the number of their updates, not by that of the run (torch.optim.Adam)."""
    settings = {"learning_rate": 0.05, "schedule": Constant(), "weight_decay": 0.1, "clip_norm": 0.0}
    gradients = [tree(seed) for seed in range(1, 13)]
    (*_, (found, _)) = run(rule(**settings, unfreeze_every=2), gradients)
    waits = {name: np.log2(1 / np.asarray(factor)).astype(int) for name, factor in factors(0.5).items()}
    for turn in range(6):
        (*_, (expected, _)) = run(rule(**settings), gradients[2 * turn :])
        for name, turns in waits.items():
            own = np.broadcast_to(turns == turn, found[name].shape)
            np.testing.assert_allclose(found[name][own], expected[name][own], rtol=1e-5, err_msg=name)


def test_settings_and_a_model_that_cannot_be_are_named():
    groupless = {"table": nn.LogicallyPartitioned(jnp.zeros((2, 2)), (None, None))}
    for settings, params, message in (
        ({"layer_decay": 0.0}, tree(0, box=True), "layer_decay above 0 and up to 1, found 0"),
        ({"layer_decay": 1.5}, tree(0, box=True), "layer_decay above 0 and up to 1, found 1.5"),
        ({"unfreeze_every": -1}, tree(0, box=True), "unfreeze_every of at least 0"),
        ({"layer_decay": 0.9}, groupless, "model with groups of parameters .* found none among table"),
    ):
        with pytest.raises(UserError, match=message):
            BertAdamW(**settings).build(10, params, GROUPS)
