"""Terms and their sums for given activations: no model is computed, so that every case is quick."""

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from plmjax.compression.distillation import losses
from plmjax.compression.distillation.attention_scores import scores_of
from plmjax.compression.distillation.captured_activations import Activations
from plmjax.compression.distillation.mobilebert import moments, standardize
from plmjax.compression.distillation.stored import StoredScores
from plmjax.compression.distillation.terms import SoftTargets
from plmjax.compression.distillation.tinybert import MAP, HiddenStates
from plmjax.finetuning.tasks.sentences import SequenceClassification
from tests.products import equations

DRAWS = np.random.default_rng(0)
TASK = SequenceClassification(labels=("a", "b", "c"))
SEGMENTS = jnp.array([[1, 1, 2, 0], [1, 0, 0, 0]])


def drawn(*shape: int) -> np.ndarray:
    return DRAWS.normal(size=shape).astype(np.float32)


def reading(**fields: Any) -> Activations:
    return dataclasses.replace(Activations(types.SimpleNamespace(depth=1), {}), **fields)


FIRST = StoredScores(jnp.zeros((3, 1), jnp.int32), jnp.zeros((3, 1)))
DISTANCES = {
    "divergence": lambda student, teacher: losses.soft_divergence(student, teacher, 2.0),
    "cross-entropy": lambda student, teacher: losses.soft_cross_entropy(student, teacher, 2.0),
    "cosine": losses.cosine_distance,
    "squares": losses.squared_distance,
    "normalized": lambda student, _: losses.normalize(student),
    "moments": lambda student, _: jnp.stack(moments(student)),
    "standardized": lambda student, _: standardize(student),
    "stored": lambda student, teacher: FIRST.replace(logits=jnp.float32(teacher[:, :1])).divergence(student, 2.0),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_distances_of_bfloat16_numbers_are_computed_in_float32(name: str) -> None:
    both = [jnp.asarray(drawn(3, 5), jnp.bfloat16) for _ in range(2)]
    found = DISTANCES[name](*both)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, DISTANCES[name](*(one.astype(jnp.float32) for one in both)))


def test_products_of_terms_have_factors_of_the_dtype_of_the_states() -> None:
    """The map of hidden states, and queries and keys; both are summed in float32 in the end."""
    student = reading(config=types.SimpleNamespace(depth=1), hidden_states=jnp.zeros((2, 2, 4, 5), jnp.bfloat16))
    teacher = reading(config=types.SimpleNamespace(depth=1), hidden_states=jnp.zeros((2, 2, 4, 6), jnp.bfloat16))
    projection = {"kernel": jnp.zeros((5, 2, 3)), "bias": jnp.zeros((2, 3))}
    added = {MAP: {"kernel": jnp.zeros((5, 6)), "bias": jnp.zeros(6)}}

    def mapped(added: Any) -> jax.Array:
        return HiddenStates(1.0).sum(TASK, student, teacher, batch={"segment_ids": SEGMENTS}, added=added)

    def scored(attention: Any) -> jax.Array:
        return jnp.sum(jnp.sin(scores_of(attention, student.hidden_states[0])))

    for function, params in ((mapped, added), (scored, {"query": projection, "key": projection})):
        traced = jax.make_jaxpr(jax.grad(function))(params)
        found = [one for _, one in equations(traced.jaxpr) if one.primitive.name == "dot_general"]
        assert {factor.aval.dtype.name for one in found for factor in one.invars} == {"bfloat16"}
        assert found and jax.eval_shape(function, params).dtype == jnp.float32


def test_stored_scores_of_a_place_without_a_text_add_nothing() -> None:
    """With all classes stored the sum is that of the scores themselves."""
    batch, mine, taught = {"example_ids": jnp.array([[4, -1], [0, 2]])}, drawn(2, 2, 3), drawn(2, 2, 3)
    classes = np.argsort(-taught, axis=-1)
    scores = StoredScores(jnp.asarray(classes), jnp.asarray(np.take_along_axis(taught, classes, axis=-1)))
    student = reading(outputs=types.SimpleNamespace(logits=jnp.asarray(mine)))
    term, live = SoftTargets(1.0, 2.0), reading(outputs=types.SimpleNamespace(logits=jnp.asarray(taught)))
    found = [
        float(term.sum(TASK, student, teacher, batch=batch, added={})) for teacher in (reading(outputs=scores), live)
    ]
    p, log_q = softmax(taught / 2, -1), log_softmax(mine / 2, -1)
    apart = 4 * (p * (np.log(p) - log_q)).sum(-1)
    assert found == pytest.approx([apart.sum() - apart[0, 1]] * 2, rel=1e-4)
