"""Calibration: measure the ranges of activations of int8 projections on a run's training examples."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from plmjax import experiment as experiments
from plmjax.compression.compression import Params
from plmjax.compression.examples import examples_of
from plmjax.compression.run import Source
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.layers.int8 import CALIBRATED, PROJECTIONS, RANGES
from plmjax.objectives.objective import Batch
from plmjax.parallel import mesh as meshes
from plmjax.training import program as programs
from plmjax.training.checkpoints import checkpoints


def calibrate(source: Source, run: Experiment, batches: int) -> Params:
    """Return path of a range -> the largest magnitude of its activations on `batches` training batches, float32.

    Models compute in float, without dropout. With 0 batches all ranges are 0.

    Raises:
        UserError: the data of the run is not there, or the model has no projections that compute in int8.
    """
    feed = examples_of(source, run)
    mesh = meshes.make(experiments.Mesh(), jax.local_devices()[:1])
    phase = dataclasses.replace(run.resolved_phases[-1], accumulation=1, first_step=0)
    program = programs.build(run, phase, mesh, vocabulary=feed.vocabulary, shapes=feed.batch)
    objective = run.objective
    execution = programs.execution(run, jax.default_backend())
    execution = dataclasses.replace(execution, projection=PROJECTIONS[CALIBRATED])
    module = objective.module(run.model, execution)
    inputs = checkpoints.load_loss_inputs(source.directory, program.state)
    carry = program.start_carry()

    def collect(ranges: Any, batch: Batch, key: jax.Array) -> Any:
        batch = objective.corrupt(batch, key, feed.vocabulary, inputs.constants)
        arguments = objective.model_inputs(batch) | objective.carry_inputs(carry)
        variables, rngs = {**inputs.variables, RANGES: ranges}, {"sampling": key}
        _, after = module.apply(variables, **arguments, deterministic=True, rngs=rngs, mutable=[RANGES])
        return after.get(RANGES, {})

    keys = jax.random.split(jax.random.key(run.training.seed), max(batches, 1))
    found = jax.eval_shape(collect, {}, program.batch, keys[0])
    if not jax.tree.leaves(found):
        raise UserError(
            f"Expected a model with projections that compute in int8, found {run.model.system}; take --method "
            f"weight_only."
        )
    found = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), found)
    update = jax.jit(collect)
    rows = np.arange(phase.batch_size)
    for key, batch in zip(keys, itertools.islice(feed.train(phase, 0, rows), batches), strict=False):
        found = update(found, jax.tree.map(jnp.asarray, batch), key)
    return ranges_of({RANGES: jax.device_get(found)})


def ranges_of(collections: Mapping[str, Any]) -> Params:
    """Return path of a range -> its value, from the collections of a module's variables."""
    flat = flax.traverse_util.flatten_dict(collections[RANGES], sep="/")
    return {path: np.asarray(value) for path, value in flat.items()}
