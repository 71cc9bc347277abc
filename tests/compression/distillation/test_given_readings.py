"""Terms and their sums for readings that are given: no model is computed, so that every case is quick."""

import dataclasses
import types
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from plmjax.compression.distillation import losses
from plmjax.compression.distillation.attention_scores import scores_of
from plmjax.compression.distillation.distilbert import Cosine, DistilBertDistillation
from plmjax.compression.distillation.distilled import INNER, TEACHER, Distillation, Distilled, WithTeacher
from plmjax.compression.distillation.mobilebert import moments, standardized
from plmjax.compression.distillation.patient import Patience
from plmjax.compression.distillation.readings import ComputedScores, Reading
from plmjax.compression.distillation.soft_targets import SoftTargetDistillation
from plmjax.compression.distillation.stored import StoredScores
from plmjax.compression.distillation.terms import SoftTargets, Term
from plmjax.compression.distillation.tinybert import MAP, AttentionScores, HiddenStates
from plmjax.finetuning.tasks.sentences import SequenceClassification
from plmjax.models.bert import BertConfig
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import LossInputs, LossSums, Objective
from plmjax.objectives.wrapped import ADDED
from tests.products import equations

DRAWS = np.random.default_rng(0)
TASK = SequenceClassification(labels=("a", "b", "c"))
SEGMENTS = jnp.array([[1, 1, 2, 0], [1, 0, 0, 0]])
REAL = np.asarray(SEGMENTS) > 0


def drawn(*shape: int) -> np.ndarray:
    return DRAWS.normal(size=shape).astype(np.float32)


def reading(**fields: Any) -> Reading:
    return dataclasses.replace(Reading(types.SimpleNamespace(depth=1), {}), **fields)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_distances_of_distributions(temperature: float) -> None:
    """The cross-entropy, and the divergence with the factor that keeps the size of its gradient."""
    student, teacher = drawn(3, 5), drawn(3, 5)
    p, log_q = softmax(teacher / temperature, -1), log_softmax(student / temperature, -1)
    entropy, crossed = -(p * np.log(p)).sum(-1), -(p * log_q).sum(-1)
    np.testing.assert_allclose(losses.soft_cross_entropy(student, teacher, temperature), crossed, rtol=1e-5)
    expected = temperature**2 * (crossed - entropy)
    np.testing.assert_allclose(losses.soft_divergence(student, teacher, temperature), expected, rtol=1e-4)


FIRST = StoredScores(jnp.zeros((3, 1), jnp.int32), jnp.zeros((3, 1)))
DISTANCES = {
    "divergence": lambda student, teacher: losses.soft_divergence(student, teacher, 2.0),
    "cross-entropy": lambda student, teacher: losses.soft_cross_entropy(student, teacher, 2.0),
    "cosine": losses.cosine_distance,
    "squares": losses.squared_distance,
    "normalized": lambda student, _: losses.normalized(student),
    "moments": lambda student, _: jnp.stack(moments(student)),
    "standardized": lambda student, _: standardized(student),
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
        return HiddenStates(1.0).sum(TASK, student, teacher, {"segment_ids": SEGMENTS}, added)

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
    found = [float(term.sum(TASK, student, teacher, batch, {})) for teacher in (reading(outputs=scores), live)]
    p, log_q = softmax(taught / 2, -1), log_softmax(mine / 2, -1)
    apart = 4 * (p * (np.log(p) - log_q)).sum(-1)
    assert found == pytest.approx([apart.sum() - apart[0, 1]] * 2, rel=1e-4)


@pytest.mark.parametrize("by_classes", [False, True])
def test_soft_targets_of_texts_that_exist(by_classes: bool) -> None:
    """One of four places in two rows has no text."""
    batch, mine, taught = {"example_ids": jnp.array([[4, 2], [0, -1]])}, drawn(2, 2, 3), drawn(2, 2, 3)
    mine[0, 0], taught[0, 0] = [5, 0, 0], [0, 5, 0]
    mine[0, 1], taught[0, 1] = [5, 0, 0], [6, 0, 0]
    mine[1, 0], taught[1, 0] = [0, 0, 5], [0, 1, 3]
    term = SoftTargets(1.0, 2.0, by_classes=by_classes)
    both = [reading(outputs=types.SimpleNamespace(logits=jnp.asarray(one))) for one in (mine, taught)]
    assert float(term.weight(TASK, batch)) == 3
    p, log_q = softmax(taught / 2, -1), log_softmax(mine / 2, -1)
    expected = 4 * (p * (np.log(p) - log_q)).sum(-1)[[0, 0, 1], [0, 1, 0]].sum() / (3 if by_classes else 1)
    assert float(term.sum(TASK, *both, batch, {})) == pytest.approx(expected, rel=1e-5)
    assert list(map(float, term.metrics(TASK, *both, batch)["agreement"])) == [2, 3]


@pytest.mark.parametrize("all_tokens", [False, True])
def test_soft_targets_are_those_of_hidden_tokens_or_of_all(all_tokens: bool) -> None:
    term, objective = SoftTargets(1.0, all_tokens=all_tokens), MaskedLanguageModel()
    batch = {"segment_ids": SEGMENTS, "masked_weights": jnp.array([[1.0, 1], [0, 0]])}
    assert float(term.weight(objective, batch)) == (4 if all_tokens else 2) and term.every_token == all_tokens


def test_the_cosine_is_a_mean_over_tokens_that_are_no_padding() -> None:
    mine, taught = drawn(2, 4, 6), drawn(2, 4, 6)
    both = [reading(last_hidden_state=jnp.asarray(one)) for one in (mine, taught)]
    cosines = (mine * taught).sum(-1) / np.linalg.norm(mine, axis=-1) / np.linalg.norm(taught, axis=-1)
    term, batch = Cosine(1.0), {"segment_ids": SEGMENTS}
    assert float(term.sum(MaskedLanguageModel(), *both, batch, {})) == pytest.approx(
        (1 - cosines)[REAL].sum(), rel=1e-5
    )
    assert float(term.weight(MaskedLanguageModel(), batch)) == 4


def test_mapped_states_are_compared_with_those_of_every_other_layer() -> None:
    """The embeddings, and the states behind the layers 2 and 4 of four."""
    mine, taught, kernel, bias = drawn(3, 2, 4, 5), drawn(5, 2, 4, 6), drawn(5, 6), drawn(6)
    student = reading(config=types.SimpleNamespace(depth=2), hidden_states=jnp.asarray(mine))
    teacher = reading(config=types.SimpleNamespace(depth=4), hidden_states=jnp.asarray(taught))
    added, batch = {MAP: {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}}, {"segment_ids": SEGMENTS}
    expected = sum(np.square(mine[i] @ kernel + bias - taught[2 * i]).mean(-1)[REAL].sum() for i in range(3))
    found = HiddenStates(1.0).sum(TASK, student, teacher, batch, added)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert float(HiddenStates(1.0).weight(TASK, batch)) == 4


def test_scores_that_are_computed_once_give_nats_and_hits() -> None:
    scores, targets = jnp.array([[[1.0, 3, 2], [0, 0, 4]]]), jnp.array([[1, 0]])
    found = ComputedScores(scores)
    nats, likeliest = found.cross_entropy(targets)
    expected = -log_softmax(np.asarray(scores), -1)[0, [0, 1], [1, 0]]
    np.testing.assert_allclose(nats[0], expected, rtol=1e-6)
    assert likeliest.tolist() == [[True, False]]
    assert found.logits() is scores and found.last_logits().tolist() == [[0, 0, 4]]


class Own(Objective):
    """Sums that are known, with a state and collections; its constants are told by their sources."""

    def constants(self, config: Any, sources: Any) -> Any:
        return {"own": sources}

    def weights(self, batch: Any) -> dict[str, Any]:
        return {"own": 2.0}

    def coefficients(self) -> dict[str, float]:
        return {"own": 0.75}

    def sums(self, module: Any, loss_inputs: LossInputs, batch: Any, key: Any, *, training: bool) -> LossSums:
        assert loss_inputs.constants == "constants of the objective" and loss_inputs.params == {"bert": 1}
        return LossSums({"own": jnp.float32(6)}, {"own_loss": (6.0, 2.0)}, "state", {"statistics": 1})


@dataclasses.dataclass(frozen=True)
class Told(Term):
    """A sum of all that it is given."""

    name: ClassVar[str] = "told"

    def weight(self, objective: Objective, batch: Any) -> Any:
        return 4.0

    def sum(self, objective: Objective, student: Reading, teacher: Reading, batch: Any, added: Any) -> Any:
        return jnp.float32(student.step + 10 * teacher.step + added["map"])

    def metrics(self, objective: Objective, student: Reading, teacher: Reading, batch: Any) -> dict[str, Any]:
        return {"further": (1.0, 3.0)}


@dataclasses.dataclass(frozen=True)
class Telling(Distillation):
    """The distillation with that term."""

    def terms(self) -> tuple[Term, ...]:
        return (Told(0.25),)

    def teacher_constants(self, objective: Objective, sources: Any) -> Any:
        return "those of the teacher"

    def taught(self, objective: Objective, module: Any, constants: Any, batch: Any, key: Any, **asked: bool) -> Reading:
        assert constants == "those of the teacher" and not any(asked.values())
        return reading()


def test_the_sums_of_both_models_are_put_together() -> None:
    objective, config = Distilled(Own(), Telling(hard=0.5)), BertConfig()
    constants = {TEACHER: "those of the teacher", INNER: "constants of the objective"}
    given = LossInputs({"bert": 1, ADDED: {"map": 7}}, constants, step=3)
    found = objective.sums(types.SimpleNamespace(config=config), given, {}, jax.random.key(0), training=True)
    assert {name: float(loss) for name, loss in found.losses.items()} == {"own": 3.0, "told": 3 + 30 + 7}
    assert found.metrics == {"own_loss": (6.0, 2.0), "told_loss": (40.0, 4.0), "further": (1.0, 3.0)}
    assert (found.carry, found.collections) == ("state", {"statistics": 1})
    assert objective.weights({}) == {"own": 2.0, "told": 4.0}
    assert objective.coefficients() == {"own": 0.75, "told": 0.25}
    assert Distilled(Own(), Telling(hard=0.0)).weights({}) == {"told": 4.0}
    made = objective.constants(config, 5)
    assert made == {TEACHER: "those of the teacher", INNER: {"own": 5}}
    assert WithTeacher(Objective(), Telling()).constants(config, 5) == {TEACHER: "those of the teacher"}


def test_a_triple_loss_has_its_published_factors() -> None:
    """5 x 4 KL at T = 2 over all tokens, 2 x the nats of hidden ones, and the cosine."""
    soft, cosine = DistilBertDistillation().terms()
    assert soft == SoftTargets(5.0, 2.0, all_tokens=True) and cosine == Cosine(1.0)
    assert DistilBertDistillation().hard == 2.0
    (only,) = DistilBertDistillation(restrict=True, cosine=0.0, soft=3.0, temperature=4.0).terms()
    assert only == SoftTargets(3.0, 4.0, all_tokens=False)


def test_soft_targets_have_the_factor_and_the_temperature_of_the_settings() -> None:
    """They compare predictions alone; a factor of 0 leaves them out."""
    assert SoftTargetDistillation(soft=3.0, temperature=4.0).terms() == (SoftTargets(3.0, 4.0, all_tokens=False),)
    assert SoftTargetDistillation(soft=0.0).terms() == ()


@pytest.mark.parametrize(("strategy", "taught_layers"), [("skip", (2, 4)), ("last", (4, 5))])
def test_patience_is_a_mean_over_layers_of_the_texts_that_exist(strategy: str, taught_layers: tuple[int, ...]) -> None:
    """Two layers of a student of three; two texts begin in the first row, and one in the second."""
    mine, taught = drawn(4, 2, 5, 3), drawn(7, 2, 5, 3)
    student = reading(config=types.SimpleNamespace(depth=3), hidden_states=jnp.asarray(mine))
    teacher = reading(config=types.SimpleNamespace(depth=6), hidden_states=jnp.asarray(taught))
    batch = {"example_ids": jnp.array([[4, 7], [2, -1]]), "cls_positions": jnp.array([[0, 3], [1, 0]])}
    expected = 0.0
    for row, place in ((0, 0), (0, 3), (1, 1)):
        a, b = mine[[1, 2], row, place], taught[[*taught_layers], row, place]
        a, b = (one / np.linalg.norm(one, axis=-1, keepdims=True) for one in (a, b))
        expected += np.square(a - b).mean()
    term = Patience(1.0, strategy)
    assert float(term.sum(TASK, student, teacher, batch, {})) == pytest.approx(expected, rel=1e-5)
    assert float(term.weight(TASK, batch)) == 3


def test_pairs_of_tokens_see_each_other_in_a_sequence_alone() -> None:
    """Four pairs of two tokens, and two tokens with themselves; padding is in none."""
    assert float(AttentionScores(1.0).weight(TASK, {"segment_ids": SEGMENTS})) == 4 + 1 + 1
