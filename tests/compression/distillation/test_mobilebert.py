"""MobileBERT's transfer against a transcription of the released rules, its order of layers, and their rates."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from plmjax.compression.distillation.captured_activations import Activations
from plmjax.compression.distillation.distilled import TEACHER
from plmjax.compression.distillation.mobilebert import MobileBertDistillation, layer_scores
from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.models.mobilebert import MobileBertConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import LossInputs
from plmjax.training.optimizers import Lamb
from plmjax.training.optimizers.layer_rates import scale_rates
from plmjax.training.optimizers.schedules import Constant
from tests.products import flops
from tests.systems.modules import random_params

SIZES = {
    "vocab_size": 40, "num_hidden_layers": 3, "hidden_size": 12, "embedding_size": 6, "num_attention_heads": 2,
    "intermediate_size": 10, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0, "initializer_range": 0.3,
}  # fmt: skip
STUDENT = MobileBertConfig.mini(**SIZES, intra_bottleneck_size=8)
LARGER = MobileBertConfig.ib_bert_mini(**SIZES, intra_bottleneck_size=16)
OBJECTIVE = MaskedLanguageModel(rate=0.3)
DISTILLATION = MobileBertDistillation(teacher=LARGER, steps_per_layer=10)
SEGMENTS = np.array([[1] * 9, [1] * 4 + [2] * 3 + [0] * 2], np.int32)
BATCH = {
    "input_ids": np.random.default_rng(0).integers(5, 40, (2, 9), np.int32),
    "segment_ids": SEGMENTS,
    "positions": np.array([range(9), [*range(4), *range(3), 0, 0]], np.int32),
    "token_type_ids": np.zeros((2, 9), np.int32),
    "row_ids": np.arange(2, dtype=np.int32),
}


@functools.cache
def prepared():
    """(module and parameters by role, the corrupted batch)."""
    corrupt = jax.jit(functools.partial(OBJECTIVE.corrupt, vocabulary=Vocabulary.placeholder(40)))
    batch, made = corrupt(BATCH, jax.random.key(2)), {}
    for role, config in (("student", STUDENT), ("teacher", LARGER)):
        module = OBJECTIVE.module(config, Execution())
        made[role] = module, random_params(module)
    return made, batch


@functools.partial(jax.jit, static_argnums=0)
def means(distillation: MobileBertDistillation, inputs: LossInputs, batch: Any) -> dict[str, jax.Array]:
    """The mean of each term."""
    objective = distillation.training_objective(OBJECTIVE, 30)
    module = OBJECTIVE.module(STUDENT, Execution())
    sums = objective.sums(module, inputs, batch, jax.random.key(0), training=True)
    weights = objective.weights(batch)
    return {name: loss / weights[name] for name, loss in sums.losses.items()}


def losses(step: int, distillation: MobileBertDistillation = DISTILLATION) -> dict[str, float]:
    """The mean of each term at a step."""
    made, batch = prepared()
    inputs = LossInputs(made["student"][1], {TEACHER: made["teacher"][1]}, step=jnp.asarray(step))
    return jax.tree.map(float, means(distillation, inputs, batch))


@functools.cache
def states(role: str) -> tuple[np.ndarray, dict]:
    """(hidden states in float64, parameters of the layers)."""
    module, params = prepared()[0][role]
    inputs = OBJECTIVE.model_inputs(prepared()[1])
    apply = jax.jit(functools.partial(module.apply, output_hidden_states=True))
    hidden = apply({"params": params}, **inputs).hidden_states
    return np.asarray(hidden, np.float64), params["mobilebert"]["encoder"]["layers"]


def attention(role: str, layer: int) -> np.ndarray:
    """softmax(Q K^T / sqrt(H)) in float64, [B N T S], over the tokens of a sequence."""
    hidden, layers = states(role)
    of = jax.tree.map(lambda leaf: np.asarray(leaf[layer], np.float64), layers)
    x = hidden[layer]
    if role == "student":  # NoNorm behind the bottleneck that queries and keys share
        inner = x @ of["bottleneck_attention"]["kernel"] + of["bottleneck_attention"]["bias"]
        x = inner * of["bottleneck_attention_layer_norm"]["scale"] + of["bottleneck_attention_layer_norm"]["bias"]
    query, key = (
        np.einsum("btd,dnh->btnh", x, of["attention"][name]["kernel"]) + of["attention"][name]["bias"]
        for name in ("query", "key")
    )
    scores = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(query.shape[-1])
    scores = np.where((SEGMENTS[:, :, None] == SEGMENTS[:, None])[:, None], scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize(("step", "layer"), [(0, 0), (9, 0), (10, 1), (1000, 2)])
def test_each_layer_is_compared_for_its_steps(step: int, layer: int) -> None:
    found, real = losses(step), SEGMENTS > 0
    mine, taught = (states(role)[0][layer + 1][real] for role in ("student", "teacher"))

    def standardized(x: np.ndarray) -> np.ndarray:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)

    expected = {
        "feature_maps": np.mean((standardized(mine) - standardized(taught)) ** 2),
        "means": np.mean((mine.mean(-1) - taught.mean(-1)) ** 2),
        "variances": np.mean(np.abs(mine.var(-1) - taught.var(-1))),
    }
    a, b = (np.moveaxis(attention(role, layer), 1, 2)[real] for role in ("student", "teacher"))
    expected["attention"] = np.mean(-np.sum(np.where(b > 0, b * np.log(np.where(a > 0, a, 1)), 0), axis=-1))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value / 3, rel=2e-5, abs=1e-6), name


def test_attention_counts_the_products_of_the_student_three_times() -> None:
    """Forward and backward; those of its teacher are computed forward alone. The other terms have no products."""
    products = []
    for module, params in prepared()[0].values():
        config, of = module.config, functools.partial(Activations, module.config, params)
        hidden = jax.ShapeDtypeStruct((config.depth + 1, *SEGMENTS.shape, config.width), jnp.float32)
        products.append(flops(lambda hidden, of=of: layer_scores(of(hidden_states=hidden), 1), hidden))
    found = {term.name: term.flops(STUDENT, LARGER, jax.eval_shape(lambda: BATCH)) for term in DISTILLATION.terms()}
    mine, taught = products
    assert found == {"feature_maps": 0, "means": 0, "variances": 0, "attention": 3 * mine + taught}


def test_the_second_stage_compares_distributions() -> None:
    prediction = dataclasses.replace(DISTILLATION, stage="prediction", hard=0.5)
    found = losses(0, prediction)
    assert found.keys() == {"mlm", "soft_targets"} and min(found.values()) > 0
    # At a very high temperature both distributions are uniform.
    flat = losses(0, dataclasses.replace(prediction, temperature=1e6))["soft_targets"]
    assert flat == pytest.approx(np.log(40), rel=1e-4) and abs(found["soft_targets"] - flat) > 0.01


def released_rate(layer: int, step: int, steps_per_phase: int) -> float:
    """The factor of a layer's learning rate; distill_util.py of the released code."""
    t = step % steps_per_phase
    falling = (1.0 - 0.9) * (1 - t / steps_per_phase) ** 0.5 + 0.9
    rising = (0.0 - 10.0) * (1 - t / steps_per_phase) + 10.0
    begin = steps_per_phase * layer
    phase = 0.0 if step <= begin else 1.0 if step <= begin + steps_per_phase else 0.1
    return 3.0 * min(falling, rising) * phase


def test_a_layer_and_those_below_it_have_the_released_learning_rates() -> None:
    for step in range(60):
        factors = DISTILLATION.layer_factors(jnp.asarray(step), 6)
        expected = [released_rate(layer, step, 10) for layer in range(6)]
        np.testing.assert_allclose(factors, expected, rtol=1e-6, atol=1e-7)
    frozen = dataclasses.replace(DISTILLATION, below=0.0).layer_factors(jnp.asarray(25), 6)
    assert np.flatnonzero(frozen).tolist() == [2]
    assert dataclasses.replace(DISTILLATION, stage="prediction").rate_factors(1e-3) == {}


def test_updates_are_lambs_times_the_rates_of_layers() -> None:
    """lamb_optimizer.py of the released code, but for its moments, which begin again with each layer: a deviation."""
    draws = np.random.default_rng(0)
    gradients = draws.normal(size=(25, 3, 4)) * (np.arange(25)[:, None, None] // 10 >= np.arange(3)[:, None])
    axes = {"kernel": ("layers", None), "word_embeddings": ("vocab", None)}
    start = {name: draws.normal(size=(3, 4)).astype(np.float32) for name in axes}

    def tree(leaf: jax.Array, box: bool = False) -> dict:
        values = {name: leaf if leaf.ndim else start[name] for name in axes}
        found = {name: nn.LogicallyPartitioned(values[name], axes[name]) if box else values[name] for name in axes}
        layers, words = {"kernel": found["kernel"]}, {"word_embeddings": found["word_embeddings"]}
        return {"mobilebert": {"encoder": {"layers": layers}, "embeddings": words}}

    settings = {"learning_rate": 0.02, "schedule": Constant(), "weight_decay": 0.01, "clip_norm": 0.0}
    rule = Lamb(**settings).build(25, tree(np.float32(0), box=True))
    update = scale_rates(rule, DISTILLATION.rate_factors(0.02))
    params = tree(np.float32(0))
    state, step = update.init(params), jax.jit(update.update)
    weights = start["kernel"].astype(np.float64)
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for number, gradient in enumerate(gradients):
        changes, state = step(tree(jnp.asarray(gradient, jnp.float32)), state, params)
        params = optax.apply_updates(params, changes)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        for layer in range(3):
            rate = released_rate(layer, number, 10)
            direction = mean[layer] / (np.sqrt(square[layer]) + 1e-6) + 0.01 * weights[layer]
            ratio = np.linalg.norm(weights[layer]) / np.linalg.norm(direction)
            weights[layer] = weights[layer] - 0.02 * rate * ratio * direction
    found = params["mobilebert"]
    np.testing.assert_array_equal(found["embeddings"]["word_embeddings"], start["word_embeddings"])
    np.testing.assert_allclose(found["encoder"]["layers"]["kernel"], weights, rtol=0, atol=2e-6)
