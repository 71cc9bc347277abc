"""Contrastive learning: losses beside those of sentence-transformers, batches on any mesh, searches, files."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Purpose
from plmjax.experiment import Experiment, Training
from plmjax.finetuning.batches.source import ExampleRows, TaskSource
from plmjax.finetuning.tasks.contrastive import Contrastive
from plmjax.finetuning.tasks.retrieval import PairExamples, Retrieval, SearchExamples, SimilarityExamples
from plmjax.models.bert import BertConfig
from plmjax.models.families.text_encoder import TextEncoderOutput
from plmjax.models.xlnet.xlnet import XlnetConfig
from plmjax.training.optimizers import StochasticGradientDescent
from tests.finetuning import parity
from tests.finetuning.parity import VOCABULARY, Numbers
from tests.optional import needs_sentence_transformers, torch
from tests.systems.modules import outputs, random_params
from tests.training import built

MODEL = BertConfig.tiny(vocab_size=97, hidden_size=24, num_attention_heads=3, num_hidden_layers=1)
XLNET = XlnetConfig(vocab_size=97, d_model=24, n_layer=1, n_head=3, d_inner=40).with_dropout(0.0)


def pairs(count: int, negatives: int = 0, seed: int = 0) -> PairExamples:
    """Pairs of different texts of numbers."""
    draws = np.random.default_rng(seed)

    def text() -> str:
        return " ".join(map(str, draws.integers(10, 97, draws.integers(3, 8))))

    others = [[text() for _ in range(negatives)] for _ in range(count)]
    return PairExamples("", list(range(count)), [text() for _ in others], [text() for _ in others], others)


def batch_of(examples: PairExamples, pack: int = 1, **settings: Any) -> dict[str, jax.Array]:
    encoded = Contrastive(**settings).encode(examples, Numbers(), MODEL, Retrieval(sequence_length=12))
    return parity.batch(encoded, 12 * pack, pack)


LOSSES: dict[str, tuple[int, dict[str, Any]]] = {
    "negatives": (2, {"temperature": 0.1}),
    "dot products": (1, {"similarity": "dot", "temperature": 1.0}),
    "sizes": (1, {"sizes": (8, 24, 4), "size_weights": (1.0, 0.5, 2.0)}),
}


@needs_sentence_transformers
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_and_their_gradients_are_those_of_sentence_transformers(kind: str) -> None:
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer import losses

    negatives, settings = LOSSES[kind]
    objective, batch = Contrastive(**settings), batch_of(pairs(7, negatives), **settings)
    vectors = np.random.default_rng(1).normal(size=(*batch["example_ids"].shape, 24)).astype(np.float32)

    def loss(vectors: jax.Array) -> jax.Array:
        outputs = TextEncoderOutput(vectors.reshape(-1, 1, 24))
        sums, weights, factors = objective.sums_of(outputs, batch), objective.weights(batch), objective.coefficients()
        return sum(factors.get(term, 1.0) * sums.losses[term] / weights[term] for term in weights)

    found, gradient = jax.jit(jax.value_and_grad(loss))(vectors)
    places = range(2 + negatives)
    theirs = [torch.tensor(vectors[:, place, 0], dtype=torch.float64, requires_grad=True) for place in places]
    similarity = util.dot_score if objective.similarity == "dot" else util.cos_sim
    ranking = losses.MultipleNegativesRankingLoss(None, 1 / objective.temperature, similarity)
    expected = sum(
        weight * ranking.compute_loss_from_embeddings([each[:, :size] for each in theirs], None)
        for size, weight in zip(objective.sizes or (24,), objective.size_weights or (1.0,), strict=True)
    )
    expected.backward()
    np.testing.assert_allclose(found, expected.item(), rtol=1e-5)
    for place, each in enumerate(theirs):
        np.testing.assert_allclose(gradient[:, place, 0], each.grad.numpy(), atol=1e-5)


class FewSteps(TaskSource):
    """A source that ends with the phase."""

    def train(self, phase: Any, *arguments: Any) -> Any:
        return itertools.islice(super().train(phase, *arguments), phase.steps)


def stepped(mesh: tuple[int, int, int], accumulation: int = 1) -> Any:
    """(parameters before, after two steps of 16 rows, metrics)."""
    model, objective = MODEL.with_dropout(0.0), Contrastive(sizes=(24, 8))
    task = Retrieval(sequence_length=24, pack=2)
    run = Experiment(
        model, objective, task, optimizer=StochasticGradientDescent(0.1),
        training=Training(steps=2, batch_size=16, accumulation=accumulation, unroll=1),
    )  # fmt: skip
    encoded = objective.encode(pairs(40, 1), Numbers(), model, task)
    rows = ExampleRows(encoded, 24, 2, pad=0)
    first, last, metrics = built.trained(run, mesh, lambda data: FewSteps([rows], rows, VOCABULARY, seed=0))
    return first.params, last.params, metrics


@pytest.mark.parametrize(
    ("mesh", "accumulation"), [((2, 1, 1), 2), pytest.param((2, 2, 2), 4, marks=pytest.mark.nightly)]
)
def test_several_devices_and_microbatches_have_the_negatives_of_the_whole_batch(mesh: Any, accumulation: int) -> None:
    before, expected, metrics = stepped((1, 1, 1))
    _, found, same = stepped(mesh, accumulation)
    assert float(same["loss"]) == pytest.approx(float(metrics["loss"]), rel=1e-5)
    for start, a, b in zip(*map(jax.tree.leaves, (before, expected, found)), strict=True):
        np.testing.assert_allclose(b - start, a - start, atol=1e-5)


def scores_of(examples: PairExamples, **settings: Any) -> np.ndarray:
    """The scores of all passages for each query of one batch, in the order of the file, with vectors alike."""
    batch = batch_of(examples)
    order = np.argsort(np.asarray(batch["example_ids"])[:, 0, 0])
    batch = {name: field[order] for name, field in batch.items()}
    vectors = jnp.ones((batch["example_ids"].size, 1, 24))
    return np.asarray(Contrastive(**settings).scores(TextEncoderOutput(vectors), batch, None))


def test_a_passage_of_the_same_query_is_not_its_negative() -> None:
    """Rows 0 and 3 have one query, rows 1 and 2 one passage; a negative of row 2 answers row 0. The others stay."""
    queries, positives = ["10", "11", "12", "10"], ["20", "21", "21", "23"]
    left_out = scores_of(PairExamples("", [1, 2, 3, 4], queries, positives, [["30"], ["31"], ["23"], ["33"]])) < 0
    expected = np.zeros((4, 8), bool)  # the passages of the queries, then their negatives
    expected[0, [3, 6]] = expected[3, [0, 6]] = True  # both passages of the query, and the text of one as a negative
    expected[1, 2] = expected[2, 1] = True
    np.testing.assert_array_equal(left_out, expected)


def test_places_without_an_example_cost_nothing() -> None:
    objective, batch = Contrastive(), batch_of(pairs(5, 1), pack=3)
    vectors = np.random.default_rng(0).normal(size=(batch["example_ids"].size // 3, 3, 24)).astype(np.float32)
    there = np.asarray(batch["example_ids"]) >= 0
    assert there[:, 0].sum() == 5 < there[:, 0].size
    compute = jax.jit(
        jax.value_and_grad(lambda vectors: objective.sums_of(TextEncoderOutput(vectors), batch).losses["task"])
    )
    found, _ = compute(vectors)
    vectors[~there.reshape(-1, 3)] = 7.0
    other, _ = compute(vectors)
    assert objective.weights(batch)["task"] == 5 and float(found) == float(other)
    _, gradient = compute(jnp.zeros_like(vectors))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("model", "pooling"), [(MODEL, "mean"), (XLNET, "cls")])
def test_packed_texts_have_the_vectors_of_the_recipe(model: Any, pooling: str) -> None:
    """The recipe pools the hidden states of each text alone; an XLNet's row ends in [CLS]."""
    objective, task = Contrastive(pooling=pooling), Retrieval(sequence_length=40, pack=4, passage_prefix="40 41 ")
    examples = SearchExamples("", [1, 2], ["a", "b"], ["10 11", "12"], [{}, {}], ["c", "d"], ["20 21 22", "23"])
    encoded = objective.encode(examples, Numbers(), model, task)
    rows = ExampleRows(encoded, 40, 4, pad=0, padding=model.template.padding)
    packed = rows.batch(rows.in_order, np.arange(len(rows)))
    module = objective.module(model, Execution())
    params = random_params(module)
    vectors = outputs(module, params, objective.model_inputs(packed)).vectors[0]
    recipe, encoder = objective.text_vectors(task, model), model.module(Purpose.EMBEDDING, Execution())
    texts = [[10, 11], [12], [40, 41, 20, 21, 22], [40, 41, 23]]
    for number, text in enumerate(texts):
        row = np.array([model.template.lay_out([text], VOCABULARY).tokens])
        states = outputs(encoder, params[model.system.name], {"input_ids": row}).last_hidden_state[0]
        place = packed["example_ids"][0].tolist().index(number)
        np.testing.assert_allclose(vectors[place], recipe.pool(np.asarray(states)), atol=1e-5)


def test_two_passes_over_a_line_differ_by_dropout_alone() -> None:
    """Unsupervised SimCSE: without dropout both vectors are equal, with it each of the batch has masks of its own."""
    texts = ["10 11 12", "13 14", "15 16 17 18"]
    batch = batch_of(PairExamples("lines.txt", [1, 2, 3], texts, texts, [[], [], []]))
    module = Contrastive(pooling="cls").module(MODEL.with_dropout(0.3), Execution())
    params, inputs = random_params(module), Contrastive().model_inputs(batch)

    @functools.partial(jax.jit, static_argnames="deterministic")
    def vectors(**options: Any) -> jax.Array:
        return module.apply({"params": params}, **inputs, **options).vectors.reshape(3, 2, 24)

    assert params.keys() == {"bert"}  # and no layer above [CLS]
    alone = np.asarray(vectors(deterministic=True))
    np.testing.assert_allclose(alone[:, 0], alone[:, 1], atol=1e-6)
    dropped = np.asarray(vectors(deterministic=False, rngs={"dropout": jax.random.key(0)}))
    assert np.abs(dropped[:, 0] - dropped[:, 1]).max(axis=-1).min() > 1e-2


def test_similarities_of_pairs_are_compared_by_their_order() -> None:
    vectors = [np.array(vector, np.float32) for vector in ([1, 0], [2, 0], [1, 0], [1, 1], [0, 1], [5, 0])]
    examples = SimilarityExamples("sts.tsv", [2, 3, 4], [("a", "b")] * 3, [5.0, 3.5, 1.0])
    metrics, files = Contrastive().evaluate_outputs(examples, None, vectors)
    assert metrics["spearman"] == 1.0 and metrics["pearson"] < 1.0
    assert files["predictions.tsv"].splitlines() == [
        "line\tscore\tsimilarity", "2\t5\t1.000000", "3\t3.5\t0.707107", "4\t1\t0.000000",
    ]  # fmt: skip
    by_product, _ = Contrastive(similarity="dot", features=1).evaluate_outputs(examples, None, vectors)
    assert by_product["spearman"] == 1.0  # the products of the first feature are 2, 1 and 0
