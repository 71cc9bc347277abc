"""ULMFiT's classifier against torch modules: outputs, gradients, running statistics; windows, padding and packing."""

from __future__ import annotations

from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.models import ulmfit
from plmjax.models.ulmfit import UlmfitConfig, UlmfitForSequenceClassification
from tests.families import torch_layers
from tests.models.test_awd_lstm import as_tree, gradient_of, in_torch
from tests.optional import torch
from tests.systems.modules import random_params

SIZES = {"vocab_size": 23, "embedding_size": 6, "hidden_size": 10, "num_layers": 2}
CONFIG = UlmfitConfig(**SIZES, classifier_dropout=0.0).with_dropout(0.0)
LENGTHS = (11, 4, 9)
SEGMENTS = (np.arange(11) < np.array(LENGTHS)[:, None]).astype(np.int32)
IDS = np.random.default_rng(1).integers(4, 23, SEGMENTS.shape) * SEGMENTS
ENDS = np.array(LENGTHS)[:, None] - 1
LABELS = np.array([0, 2, 1])


@pytest.fixture(autouse=True)
def windows_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest text has two windows and a part of a third."""
    monkeypatch.setattr(ulmfit, "WINDOW", 5)


def drawn(module: nn.Module) -> dict[str, Any]:
    """Variables that all matter."""
    shapes = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), IDS))
    random = np.random.default_rng(0)
    statistics = jax.tree.map(
        lambda leaf: random.uniform(0.2, 1.2, leaf.shape).astype(np.float32), shapes["batch_stats"]
    )

    def far(path: Any, leaf: np.ndarray) -> np.ndarray:
        """Far from 0, so that what is normalized differs from text to text: else rounding noise is enlarged."""
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return leaf * (10 if name.endswith("embedding") else 5 if name.endswith("kernel") else 1)

    params = jax.tree_util.tree_map_with_path(far, random_params(module))
    return {"params": params, "batch_stats": statistics}


def theirs(params: dict[str, torch.Tensor], running: dict[str, torch.Tensor], training: bool) -> torch.Tensor:
    """Scores of the texts, each read by itself in windows with a state that is detached between them.

    The head is fastai's `LinBnDrop`, whose linear maps have no biases beside a norm. Training moves the statistics.
    """
    features = []
    for ids, length in zip(IDS, LENGTHS, strict=True):
        states, outputs = [None] * CONFIG.num_layers, []
        for begin in range(0, length, 5):
            x = params["awd_lstm/word_embeddings/embedding"][ids[begin : min(begin + 5, length)]]
            for number, state in enumerate(states):
                x, *state = torch_layers.lstm(params, f"awd_lstm/layer_{number}", x, state=state)
                states[number] = [part.detach() for part in state]
            outputs.append(x)
        whole = torch.cat(outputs)
        features.append(torch.cat([whole[-1], whole.max(dim=0)[0], whole.mean(dim=0)]))
    x = torch.stack(features)
    for layer, activation in (("hidden", torch.relu), ("output", lambda x: x)):
        norm = f"classifier/{layer}_norm"
        statistics, learned = ((f"{norm}/mean", f"{norm}/variance"), (f"{norm}/scale", f"{norm}/bias"))
        given = *(running[name] for name in statistics), *(params[name] for name in learned)
        x = activation(torch.nn.functional.batch_norm(x, *given, training) @ params[f"classifier/{layer}/kernel"])
    return x


def test_scores_gradients_and_statistics_are_torchs() -> None:
    """The scores of an evaluation are of the statistics before the step."""
    module = UlmfitForSequenceClassification(CONFIG, num_labels=3)
    variables = drawn(module)
    inputs = {"input_ids": IDS, "segment_ids": SEGMENTS, "cls_positions": ENDS}

    def loss(params: Any) -> tuple[jax.Array, Any]:
        everything = variables | {"params": params}
        output, after = module.apply(everything, **inputs, deterministic=False, mutable=["batch_stats"])
        logits, evaluated = output.logits[:, 0], module.apply(everything, **inputs).logits[:, 0]
        return -jnp.mean(jax.nn.log_softmax(logits)[np.arange(3), LABELS]), (logits, after["batch_stats"], evaluated)

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (loss, (logits, statistics, evaluated)), gradient = step(variables["params"])
    tensors, running = in_torch(variables["params"]), in_torch(variables["batch_stats"], learn=False)
    np.testing.assert_allclose(evaluated, theirs(tensors, running, False).detach().numpy(), rtol=1e-5, atol=1e-5)
    expected = theirs(tensors, running, True)
    nats = torch.nn.functional.cross_entropy(expected, torch.tensor(LABELS))
    nats.backward()
    chex.assert_trees_all_close((loss, logits), (nats.item(), expected.detach().numpy()), rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(statistics, as_tree(running), rtol=1e-5, atol=1e-6)
    # An element is a sum of terms that cancel each other, and the statistics of three texts enlarge its rounding, which
    # depends on the processor: what counts is the size of the terms, that of the largest element.
    expected = gradient_of(tensors)
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(expected["awd_lstm"]))
    chex.assert_trees_all_close(gradient, expected, rtol=1e-4, atol=1e-5 * largest)


def packed() -> dict[str, np.ndarray]:
    """The second and third text in one row, in the other the first and nothing."""
    ids, segments = np.zeros((2, 17), np.int32), np.zeros((2, 17), np.int32)
    ids[0, :4], ids[0, 4:13], ids[1, :11] = IDS[1, :4], IDS[2, :9], IDS[0]
    segments[0, :4], segments[0, 4:13], segments[1, :11] = 1, 2, 1
    return {"input_ids": ids, "segment_ids": segments, "cls_positions": np.array([[3, 12], [10, 0]])}


def test_packed_texts_score_as_texts_of_their_own() -> None:
    """In training and in evaluation, and so are the statistics: a place without a text is no part of the batch."""
    module = UlmfitForSequenceClassification(CONFIG, num_labels=3)
    variables = drawn(module)

    @jax.jit
    def scores(inputs: dict[str, np.ndarray]) -> tuple[jax.Array, Any]:
        found, after = module.apply(variables, **inputs, deterministic=False, mutable=["batch_stats"])
        return jnp.stack([found.logits, module.apply(variables, **inputs).logits]), after

    together, statistics = scores(packed())
    apart, expected = scores({"input_ids": IDS, "attention_mask": SEGMENTS})
    found = jnp.stack([together[:, 1, 0], together[:, 0, 0], together[:, 0, 1]], axis=1)
    # In a packed row other tokens are the first of a window: without a gradient that changes nothing.
    np.testing.assert_allclose(found, apart, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(statistics, expected, rtol=1e-5, atol=1e-6)


def test_no_gradient_goes_back_beyond_a_window() -> None:
    """This holds for the last state; the pooled tokens of a window have a gradient of their own."""
    encoder = UlmfitForSequenceClassification(CONFIG, num_labels=3)
    variables = drawn(encoder)
    ids = np.arange(4, 15)[None]

    def last(table: jax.Array) -> jax.Array:
        changed = variables["params"] | {
            "awd_lstm": variables["params"]["awd_lstm"] | {"word_embeddings": {"embedding": table}}
        }
        bound = encoder.bind({"params": changed})
        return jnp.sum(bound._read(jnp.asarray(ids), jnp.ones_like(ids), True)[:, -1])

    gradient = jax.jit(jax.grad(last))(variables["params"]["awd_lstm"]["word_embeddings"]["embedding"])
    moved = np.abs(gradient[ids[0]]).sum(axis=-1) > 0
    np.testing.assert_array_equal(moved, np.arange(11) >= 10)
