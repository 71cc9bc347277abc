"""Layers without heads and features: which heads are removed; outputs, export and gradients of the smaller model."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.compression.pruning.blocks import BlockMovementPruning
from plmjax.compression.pruning.heads import without_least_important
from plmjax.compression.run import Source
from plmjax.contracts.execution import Execution
from plmjax.models.bert import BertConfig, BertForMaskedLM
from plmjax.models.compressed import configs, removal
from plmjax.models.compressed.configs import with_compression
from plmjax.models.compressed.parameters import dense
from plmjax.models.distilbert import DistilBertConfig, DistilBertForMaskedLM
from tests.systems.modules import random_params

SIZES = {
    "vocab_size": 40, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 10,
    "max_position_embeddings": 16, "initializer_range": 0.4,
}  # fmt: skip
IDS = np.random.default_rng(0).integers(5, 40, (2, 9), np.int32)
MASK = np.array([[1] * 9, [1] * 6 + [0] * 3], np.int32)
HEADS, FEATURES = [[0, 2], [1], [0, 1, 2]], [[1, 2, 5], list(range(10)), [9]]


def model_of(name: str):
    """(module, parameters by path) with biases that are not 0."""
    made = {"bert": (BertConfig, BertForMaskedLM), "distilbert": (DistilBertConfig, DistilBertForMaskedLM)}
    config, kind = made[name]
    module = kind(config(**SIZES), Execution())
    return module, flax.traverse_util.flatten_dict(random_params(module, seed=1, deviation=0.4), sep="/")


@functools.partial(jax.jit, static_argnums=0)
def computed(module: nn.Module, params: dict) -> Any:
    return module.apply({"params": params}, IDS, attention_mask=MASK, output_hidden_states=True)


def outputs(module: nn.Module, flat: dict) -> Any:
    """Logits and hidden states."""
    return computed(module, flax.traverse_util.unflatten_dict(flat, sep="/"))


def zeroed(flat: dict, name: str) -> dict:
    """The parameters with the weights of all heads and features set to 0 that HEADS and FEATURES leave out."""
    prefix, flat = f"{name}/encoder/layers", {path: value.copy() for path, value in flat.items()}
    for layer, (heads, features) in enumerate(zip(HEADS, FEATURES, strict=True)):
        gone = [head for head in range(3) if head not in heads]
        flat[f"{prefix}/attention/value/kernel"][layer][:, gone] = 0  # the output keeps its weights: a constant is left
        gone = [feature for feature in range(10) if feature not in features]
        flat[f"{prefix}/feed_forward/intermediate/kernel"][layer][:, gone] = 0
    return flat


@pytest.mark.parametrize("name", ["bert", pytest.param("distilbert", marks=pytest.mark.nightly)])
def test_a_model_without_its_zeros_has_the_same_outputs(name: str) -> None:
    module, flat = model_of(name)
    flat = zeroed(flat, name)
    expected = outputs(module, flat)
    smaller, config = removal.remove_zeros(flat, module.config)
    assert config.layer_heads == (2, 1, 3) and config.layer_widths == (3, 10, 1)
    assert configs.layer_sizes(config) == ((2, 3), (1, 10), (3, 1))
    assert smaller[f"{name}/encoder/layer_0/attention/query/kernel"].shape == (1, 12, 2, 4)
    found = outputs(type(module)(config, Execution()), smaller)
    np.testing.assert_allclose(found.logits, expected.logits, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(found.hidden_states[:-1], expected.hidden_states[:-1], rtol=1e-5, atol=2e-5)
    whole, plain = dense(smaller, config)
    assert plain == module.config
    np.testing.assert_allclose(outputs(module, whole).logits, expected.logits, rtol=1e-5, atol=2e-5)


def test_layers_can_lose_parts_twice_and_keep_at_least_one() -> None:
    module, flat = model_of("bert")
    once, config = removal.keep(flat, module.config, HEADS, FEATURES)
    twice, config = removal.keep(once, config, [[1], [0], [0, 2]], [[0, 2], [3, 4], [0]])
    direct, same = removal.keep(flat, module.config, [[2], [1], [0, 2]], [[1, 5], [3, 4], [9]])
    assert config == same and twice.keys() == direct.keys()
    for path, value in twice.items():
        np.testing.assert_array_equal(value, direct[path])
    empty = {path: np.zeros_like(value) for path, value in flat.items()}
    assert removal.remove_zeros(empty, module.config)[1].layer_heads == (1, 1, 1)


def test_flops_and_groups_are_those_of_the_smaller_layers() -> None:
    config = BertConfig(**SIZES)
    smaller = with_compression(config, layer_heads=(2, 1, 3), layer_widths=(3, 10, 1))
    rows, length = 2, 9
    per_token = sum((4 * 12 + 2 * length) * heads * 4 + 2 * 12 * width for heads, width in smaller.layer_sizes)
    assert smaller.layers_flops(rows, length) == 6.0 * rows * length * per_token
    same = with_compression(config, layer_heads=(3, 3, 3), layer_widths=(10, 10, 10))
    assert same.layers_flops(rows, length) == config.layers_flops(rows, length)
    prefixes = [group.prefixes[0] for group in smaller.parameter_groups]
    assert prefixes == ["bert/embeddings", *(f"bert/encoder/layer_{layer}" for layer in range(3)), "bert"]


def test_scores_of_blocks_become_masks_of_whole_parts() -> None:
    _, flat = model_of("bert")
    pruning = BlockMovementPruning(sparsity=0.5)
    stacks = dict.fromkeys((path for path in flat if "/layers/" in path and path.endswith("kernel")), True)
    boxes = {
        path: nn.LogicallyPartitioned(flat[path], ("layers",) + (None,) * (flat[path].ndim - 1)) for path in stacks
    }
    scores = {path: pruning.scores(path, box) for path, box in boxes.items()}
    draws = np.random.default_rng(3)
    scores = {path: draws.normal(size=box.value.shape) for path, box in scores.items() if box is not None}
    scored = {path.split("/layers/")[1] for path in scores}
    assert scored == {"attention/query/kernel", "feed_forward/intermediate/kernel"}
    masks = pruning.masks({path: flat[path] for path in stacks}, scores, stacks, step=1, steps=1)
    of = {path.split("/layers/")[1]: np.broadcast_to(mask, flat[path].shape) for path, mask in masks.items()}
    heads = of["attention/query/kernel"][:, 0, :, 0]
    assert (heads.sum(axis=1) == 1).all()  # half of three heads
    np.testing.assert_array_equal(of["attention/output/kernel"][:, :, 0, 0], heads)
    np.testing.assert_array_equal(of["attention/value/kernel"][:, 5, :, 2], heads)
    features = of["feed_forward/intermediate/kernel"][:, 0]
    assert (features.sum(axis=1) == 5).all()
    np.testing.assert_array_equal(of["feed_forward/output/kernel"][:, :, 3], features)
    blocks = dataclasses.replace(pruning, attention_block=2)
    shapes = {path.split("/layers/")[1]: blocks.scores(path, box) for path, box in boxes.items()}
    assert shapes["attention/key/kernel"].value.shape == (3, 6, 3, 2)
    assert shapes["attention/output/kernel"].value.shape == (3, 3, 2, 6)
    scores = {
        path: draws.normal(size=one.value.shape) for path, box in boxes.items() if (one := blocks.scores(path, box))
    }
    masks = blocks.masks({path: flat[path] for path in stacks}, scores, stacks, step=1, steps=1)
    for name, axes in (("key", (0, 2)), ("output", (1, 2))):  # of [D N H] and [N H D]
        (path,) = (path for path in scores if path.endswith(f"attention/{name}/kernel"))
        kept = np.stack([one >= np.sort(one.ravel())[-18] for one in scores[path].astype(np.float32)])  # half of 36
        for axis in axes:
            kept = np.repeat(kept, 2, axis=1 + axis)
        np.testing.assert_array_equal(masks[path], kept)


OUTPUT, OF_QUERY = "bert/encoder/layers/attention/output/kernel", "attention/query/kernel"
UNUSED = {0: (1, 2), 1: (0, 1, 2, 3), 2: (2,)}
"""Layer -> its heads whose outputs no layer reads."""


@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_the_least_important_heads_are_removed(rounds: int, small_run: Path) -> None:
    """Those of no importance; of a layer in which all are, one stays."""
    source = Source.read(small_run)
    config = BertConfig.tiny(
        vocab_size=800, hidden_size=8, num_hidden_layers=3, num_attention_heads=4, intermediate_size=6
    )
    run = dataclasses.replace(source.description.experiment, model=config)
    params = flax.traverse_util.flatten_dict(random_params(run.objective.module(config, Execution())), sep="/")
    params[OUTPUT] = np.array(params[OUTPUT])
    for layer, heads in UNUSED.items():
        params[OUTPUT][layer][[*heads]] = 0
    source = dataclasses.replace(source, params=params, collections=None)
    smaller, model = without_least_important(source, run, 0.5, rows=3, rounds=rounds)
    assert model.layer_heads == (2, 1, 3)
    (whole,) = (value for path, value in params.items() if path.endswith(OF_QUERY))
    for layer in (0, 2):
        (found,) = smaller[f"bert/encoder/layer_{layer}/{OF_QUERY}"]
        kept = [head for head in range(4) if head not in UNUSED[layer]]
        np.testing.assert_array_equal(found, whole[layer][:, kept])
