"""Head pruning by importance (Michel, Levy and Neubig, NeurIPS 2019, arXiv 1905.10650).

A gate of 1 on the output of each head has the gradient dL/dg = sum(W_output * dL/dW_output), over the rows of W_output
that belong to the head. The importance of a head is the mean of |dL/dg| over rows of the training data, divided by the
norm of all heads of its layer. The least important heads are removed, in one round or several.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax.compression.compression import Params
from plmjax.compression.examples import examples_of
from plmjax.compression.run import Source
from plmjax.contracts.execution import Execution
from plmjax.contracts.model_config import ModelConfig
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.models.compressed.configs import check_prunable, layer_sizes
from plmjax.models.compressed.removal import keep
from plmjax.objectives.objective import LossInputs
from plmjax.training.step import total_loss

_OUTPUT = "/attention/output/kernel"


def without_least_important(
    source: Source, run: Experiment, fraction: float, *, rows: int = 256, rounds: int = 1
) -> tuple[Params, ModelConfig]:
    """Return the model without the least important heads; each layer keeps at least one.

    fraction: fraction of all heads to remove. rows: number of training rows on which a round measures the importance.

    Raises:
        UserError: the layers of the model must be equal, or a number is below 1.
    """
    check_prunable(run.model)
    if min(rows, rounds) < 1:
        raise UserError(f"Expected --rows and --rounds of at least 1, found {rows} and {rounds}; change them.")
    params, model = source.params, run.model
    removed, wanted = 0, round(fraction * sum(heads for heads, _ in layer_sizes(model)))
    feed = examples_of(source, run)
    batches = feed.train(dataclasses.replace(run.resolved_phases[-1], batch_size=1, first_step=0), 0, np.arange(1))
    for done in range(1, rounds + 1):
        found = importance(
            params,
            model,
            run,
            vocabulary=feed.vocabulary,
            batches=islice(batches, rows),
            collections=source.collections,
        )
        count = wanted * done // rounds - removed
        heads = _kept(found, count)
        removed += count
        features = [range(width) for _, width in layer_sizes(model)]
        params, model = keep(params, model, heads, features)
    return params, model


def importance(
    params: Params,
    model: ModelConfig,
    run: Experiment,
    *,
    vocabulary: Vocabulary,
    batches: Iterator[Mapping[str, Any]],
    collections: Any = None,
) -> list[np.ndarray]:
    """Return the importance of each head, [N] for each layer.

    batches: clean batches of one row.
    """
    module = run.objective.module(model, Execution())
    paths = sorted((path for path in params if path.endswith(_OUTPUT)), key=_layer)

    @jax.jit
    def gates(params: Params, batch: Mapping[str, Any], key: jax.Array) -> list[jax.Array]:
        batch = run.objective.corrupt(batch, key, vocabulary)
        weights = run.objective.weights(batch)

        def loss(outputs: Params) -> jax.Array:
            tree = flax.traverse_util.unflatten_dict(params | outputs, sep="/")
            inputs = LossInputs(tree, collections=nn.meta.unbox(collections or {}))
            sums = run.objective.sums(module, inputs, batch, key, training=False)
            return total_loss(run.objective, sums.losses, weights)

        outputs = {path: params[path] for path in paths}
        gradient = jax.grad(loss)(outputs)
        return [jnp.abs(jnp.sum(outputs[path] * gradient[path], axis=(2, 3))) for path in paths]

    totals: list[np.ndarray] | None = None
    for number, batch in enumerate(batches):
        found = jax.device_get(gates(params, batch, jax.random.fold_in(jax.random.key(run.training.seed), number)))
        layers = [layer for stack in found for layer in np.asarray(stack, np.float64)]
        totals = layers if totals is None else [total + layer for total, layer in zip(totals, layers, strict=True)]
    return [total / max(float(np.linalg.norm(total)), 1e-20) for total in totals]


def _layer(path: str) -> int:
    """Return the index of the layer in a path; 0 for a stack of all layers."""
    part = next(part for part in path.split("/") if part.startswith("layer"))
    return int(part.removeprefix("layer_")) if "_" in part else 0


def _kept(importances: list[np.ndarray], count: int) -> list[np.ndarray]:
    """Return the heads of each layer that remain when the `count` least important ones are removed.

    The most important head of each layer is never removed.
    """
    order = [
        (value, layer, head)
        for layer, values in enumerate(importances)
        for head, value in enumerate(values)
        if head != int(np.argmax(values))
    ]
    removed = {(layer, head) for _, layer, head in sorted(order)[:count]}
    return [
        np.array([head for head in range(len(values)) if (layer, head) not in removed])
        for layer, values in enumerate(importances)
    ]
