"""A student beside its teacher on a mesh of three axes and in microbatches: the numbers of one device."""

import dataclasses

import jax
import numpy as np
import pytest

from plmjax.compression.distillation.distilled import TEACHER, Distillation
from plmjax.compression.distillation.tinybert import TinyBertDistillation
from plmjax.objectives.objective import ConstantSources
from plmjax.parallel import mesh as meshes
from plmjax.training import program as programs
from plmjax.training.optimizers.schedules import Linear
from tests.families import STEPS
from tests.third_party import experiments


def trained(name: str, distillation: Distillation, mesh: tuple[int, int, int], accumulation: int) -> tuple:
    """(parameters after two steps, metrics of the second, shardings of the teacher)."""
    make, source = STEPS[name]
    run = experiments.changed(experiments.without_dropout(make()), optimizer={"epsilon": 1e-3, "schedule": Linear()})
    sizes = dict(zip(meshes.AXES, mesh, strict=True))
    run = experiments.changed(run, training={"steps": 2, "accumulation": accumulation}, mesh=sizes)
    compression = dataclasses.replace(distillation, teacher=run.model.with_depth(4))
    run = dataclasses.replace(run, compression=compression)
    (phase,) = run.resolved_phases
    source = source(run.data)
    devices = jax.devices()[: int(np.prod(mesh))]
    built = programs.build(
        run, phase, meshes.make(run.mesh, devices), vocabulary=source.vocabulary, shapes=source.batch
    )
    made = ConstantSources(
        source.vocabulary, source.unigram_counts, list, lambda checkpoint, init: init(jax.random.key(7))
    )
    state = built.initialize(0, made)
    for batch in source.train(phase, 0):
        on_mesh = {field: jax.device_put(batch[field], like.sharding) for field, like in built.batch.items()}
        state, metrics = built.train(state, on_mesh)
    teacher = jax.tree.leaves(state.constants[TEACHER])
    return jax.device_get(state.params), jax.device_get(metrics), [one.sharding.is_fully_replicated for one in teacher]


# Constants on a mesh and several terms in microbatches are by day those of word2vec and of BERT, in
# tests/training/test_step.py; half a minute: pytest -m nightly tests/compression
@pytest.mark.nightly
def test_a_mesh_and_microbatches_change_nothing() -> None:
    """Of TinyBERT, which has parameters of its own beside the student."""
    params, metrics, _ = trained("bert", TinyBertDistillation(), (1, 1, 1), 1)
    for mesh, accumulation in (((2, 2, 2), 1), ((1, 1, 1), 4)):
        others, found, replicated = trained("bert", TinyBertDistillation(), mesh, accumulation)
        for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-6)
        assert found["loss"] == pytest.approx(float(metrics["loss"]), rel=1e-5)
        assert all(replicated) == (mesh == (1, 1, 1)), "the teacher is sharded beside the student"
