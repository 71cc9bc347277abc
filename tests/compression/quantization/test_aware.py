"""Quantization-aware training."""

import functools
import json
from pathlib import Path

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.commands import cli
from plmjax.compression.quantization.aware import QuantizationAware
from plmjax.contracts.execution import Execution
from plmjax.contracts.mask_terms import MaskTerms
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.inference.evaluate import evaluate
from plmjax.layers.attention.backends import BACKENDS
from plmjax.layers.feed_forward import ACTIVATIONS
from plmjax.layers.int8 import PROJECTIONS, SIMULATED
from plmjax.models.bert import BertConfig
from plmjax.objectives.objective import LossInputs
from plmjax.training.checkpoints import checkpoints
from tests.systems.modules import random_params

CONFIG = BertConfig(
    40, 8, 2, 2, 16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=12,
    initializer_range=0.3,
)  # fmt: skip
DECAY, STEPS, RATE = 0.9999, 20, 0.05


@jax.custom_vjp
def fake_quantize(x: jax.Array, scale: jax.Array) -> jax.Array:
    """FakeLinearQuantizationWithSTE: round, clamp, divide; the gradient of the result is that of x."""
    return jnp.clip(jnp.round(x * scale), -127, 127) / scale


fake_quantize.defvjp(lambda x, scale: (fake_quantize(x, scale), None), lambda _, g: (g, None))


class Layers:
    """QuantizedLinear and QuantizedEmbedding in training; scales are 127 / thresholds, which are moving averages."""

    def __init__(self, params: dict, thresholds: dict) -> None:
        self.params, self.thresholds = params, thresholds

    def weight(self, path: str, layer: int | None = None) -> jax.Array:
        weight = self.params[path] if layer is None else self.params[path][layer]
        return fake_quantize(weight, 127 / jnp.abs(jax.lax.stop_gradient(weight)).max())

    def activation(self, x: jax.Array, name: str) -> jax.Array:
        largest = jnp.abs(jax.lax.stop_gradient(x)).max()
        before = self.thresholds.get(name)
        self.thresholds[name] = largest if before is None else before - (1 - DECAY) * (before - largest)
        return fake_quantize(x, 127 / self.thresholds[name])

    def linear(self, x: jax.Array, path: str, layer: int, inputs: int = 1) -> jax.Array:
        x = self.activation(x, f"{path}/input_range/{layer}")
        axes = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
        y = jax.lax.dot_general(x, self.weight(f"{path}/kernel", layer), (axes, ((), ())))
        return self.activation(y + self.params[f"{path}/bias"][layer], f"{path}/output_range/{layer}")

    def norm(self, x: jax.Array, path: str, layer: int | None = None) -> jax.Array:
        scale, bias = (self.params[f"{path}/{name}"] for name in ("scale", "bias"))
        scale, bias = (scale, bias) if layer is None else (scale[layer], bias[layer])
        x = x - x.mean(axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + CONFIG.layer_norm_eps) * scale + bias


def published_loss(params: dict, thresholds: dict, batch: dict) -> tuple[jax.Array, dict]:
    """The loss of a BERT that is made of these layers, and the thresholds after it."""
    layers = Layers(params, dict(thresholds))
    tables = "bert/embeddings/{}_embeddings/embedding"
    words, positions, types = (layers.weight(tables.format(name)) for name in ("word", "position", "token_type"))
    x = words[batch["input_ids"]] + positions[batch["positions"]]
    x = layers.norm(x + types[batch["token_type_ids"]], "bert/embeddings/layer_norm")
    of, size = "bert/encoder/layers", CONFIG.hidden_size // CONFIG.num_attention_heads
    seen = MaskTerms()
    for layer in range(CONFIG.num_hidden_layers):
        query, key, value = (layers.linear(x, f"{of}/attention/{name}", layer) for name in ("query", "key", "value"))
        query = query * (1 / np.sqrt(size)).astype(np.float32)
        context = BACKENDS["dense"](query, key, value, mask_terms=seen, terms=(), rate=0.0, dropout_key=None)
        x = layers.norm(
            x + layers.linear(context, f"{of}/attention/output", layer, 2), f"{of}/attention_layer_norm", layer
        )
        inner = ACTIVATIONS["gelu_new"](layers.linear(x, f"{of}/feed_forward/intermediate", layer))
        x = layers.norm(
            x + layers.linear(inner, f"{of}/feed_forward/output", layer), f"{of}/feed_forward_layer_norm", layer
        )
    pooled = jnp.tanh(x[:, 0] @ layers.weight("bert/pooler/kernel") + params["bert/pooler/bias"])
    logits = pooled @ params["classifier/kernel"] + params["classifier/bias"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"], axis=1)
    return -jnp.mean(chosen), layers.thresholds


def batch_of(step: int, rows: int = 4, length: int = 6) -> dict[str, np.ndarray]:
    draws = np.random.default_rng(step)
    ids = draws.integers(5, CONFIG.vocab_size, (rows, length), np.int32)
    return {
        "input_ids": ids,
        "segment_ids": np.ones_like(ids),
        "positions": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "token_type_ids": draws.integers(0, 2, ids.shape, np.int32),
        "labels": ids[:, 1:2] % 2,
        "example_ids": np.arange(rows, dtype=np.int32)[:, None],
        "cls_positions": np.zeros((rows, 1), np.int32),
    }


def descended(params: dict, gradient: dict) -> dict:
    return jax.tree.map(lambda value, each: value - RATE * each, params, gradient)


@pytest.mark.nightly
def test_twenty_steps_are_those_of_the_published_rule() -> None:
    objective = QuantizationAware("tensor").training_objective(SequenceClassification(labels=("even", "odd")), STEPS)
    module = objective.module(CONFIG, Execution())
    init = jax.jit(lambda key: objective.init(module, key, batch_of(0), constants=(), carry=()))
    variables = nn.meta.unbox(init(jax.random.key(0)))
    flatten = functools.partial(flax.traverse_util.flatten_dict, sep="/")
    theirs, thresholds = flatten(variables["params"]), {}
    params, ranges = variables["params"], variables["ranges"]

    @jax.jit
    def step(params, ranges, batch):
        def loss(params):
            inputs = LossInputs(params, collections={"ranges": ranges})
            sums = objective.sums(module, inputs, batch, jax.random.key(0), training=True)
            (term,) = sums.losses.values()
            return term / objective.weights(batch)[next(iter(sums.losses))], sums.collections["ranges"]

        (value, ranges), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return descended(params, gradient), ranges, value

    @jax.jit
    def published(params, thresholds, batch):
        (value, after), gradient = jax.value_and_grad(published_loss, has_aux=True)(params, thresholds, batch)
        return descended(params, gradient), after, value

    losses = []
    for number in range(STEPS):
        params, ranges, ours = step(params, ranges, batch_of(number))
        theirs, thresholds, expected = published(theirs, thresholds, batch_of(number))
        losses.append((float(ours), float(expected)))
    ours, expected = np.array(losses).T
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    assert np.ptp(expected) > 0.1  # the steps change the loss
    for path, value in flatten(ranges).items():
        for layer in range(CONFIG.num_hidden_layers):
            np.testing.assert_allclose(value[layer], thresholds[f"{path}/{layer}"], rtol=1e-4)
    # The weights of an evaluation are rounded too.
    batch = batch_of(STEPS) | {"sequence_starts": np.zeros((4, 1), np.int32)}
    inputs, key = LossInputs(params, collections={"ranges": ranges}), jax.random.key(0)
    found, _ = objective.evaluation(module, inputs, batch, key)
    assert found.losses == objective.sums(module, inputs, batch, key, training=False).losses


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_weights_have_the_scales_that_were_asked_for(granularity: str) -> None:
    """Each matrix has one range, or each of its outputs has one."""
    aware = QuantizationAware(granularity)
    module = aware.training_objective(SequenceClassification(labels=("even", "odd")), 1).module(CONFIG, Execution())
    tree = random_params(module)
    path = "bert/encoder/layers/feed_forward/intermediate/kernel"
    kernel = flax.traverse_util.flatten_dict(tree, sep="/")[path]
    largest = np.abs(kernel).max(axis=1 if granularity == "channel" else (1, 2), keepdims=True)
    expected = np.round(kernel * (127 / largest)) * (largest / 127)
    finished, model = aware.finish(flax.traverse_util.flatten_dict(tree, sep="/"), CONFIG)
    np.testing.assert_allclose(finished[path], expected, rtol=1e-5, atol=1e-7)
    assert model == CONFIG


def test_a_step_and_an_evaluation_are_computed_with_rounded_values() -> None:
    class Seen(SequenceClassification):
        """Returns the parameters that it is computed with."""

        def sums(self, module, loss_inputs, batch, key, *, training):
            return loss_inputs.params

        def evaluation(self, module, loss_inputs, batch, key):
            return loss_inputs.params

    objective = QuantizationAware("tensor").training_objective(Seen(labels=("even", "odd")), 1)
    module, kernel = objective.module(CONFIG, Execution()), np.float32([[127.0, 63.4], [-0.6, 0.4]])
    assert module.execution.projection == PROJECTIONS[SIMULATED]
    given = LossInputs({"bert": {"pooler": {"kernel": jnp.asarray(kernel), "bias": jnp.float32([0.3])}}})
    for found in (
        objective.sums(module, given, {}, jax.random.key(0), training=True),
        objective.evaluation(module, given, {}, jax.random.key(0)),
    ):
        assert found["bert"]["pooler"]["kernel"].tolist() == [[127, 63], [-1, 0]]
        assert found["bert"]["pooler"]["bias"].tolist() == [np.float32(0.3)]


@pytest.mark.nightly
def test_the_result_computes_as_the_training_did(task_run: Path, tmp_path: Path, capsys) -> None:
    steps = ["--training.steps", "4", "--finetuning.warmup", "0"]
    method = ["--method", "aware", "--granularity", "channel", "--compression.granularity", "tensor"]
    cli.run(["compress", "quantize", str(task_run), "--output", str(tmp_path / "out"), *method, *steps])
    said = capsys.readouterr().out
    assert "products in int8 with 6 kernels of the layers" in said
    workdir = tmp_path / "out" / "training"
    ranges = flax.traverse_util.flatten_dict(checkpoints.load_collections(checkpoints.find(workdir))["ranges"], sep="/")
    params, description = checkpoints.load_parameters(tmp_path / "out")
    params = flax.traverse_util.flatten_dict(params, sep="/")
    assert len(ranges) == 12
    for path, value in ranges.items():
        np.testing.assert_array_equal(params[path], value)
    run = description.experiment
    assert run.compression is None and run.training.matmul_precision == "int8_static"
    scales = [value for path, value in params.items() if path.endswith("kernel_scale")]
    assert len(scales) == 6 and all(np.ptp(scale) == 0 for scale in scales)
    (*_, record) = json.loads((tmp_path / "out" / "ancestry.json").read_text())["ancestors"]
    assert record["settings"] == {"method": "aware", "granularity": "tensor"}
    trained, found = evaluate(workdir), evaluate(tmp_path / "out")
    assert found["eval/loss"] == pytest.approx(trained["eval/loss"], abs=1e-4)
    assert found["eval/loss"] < evaluate(task_run)["eval/loss"] + 0.05  # it has trained on
