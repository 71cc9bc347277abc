"""Adaptive input and softmax: against the formula of each token, and in language models that are not their own."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.contracts.execution import Execution
from plmjax.contracts.system import Kind, Purpose, System, declare
from plmjax.errors import UserError
from plmjax.layers.normalization import LayerNorm
from plmjax.layers.rows import read_rows
from plmjax.layers.stack import stack
from plmjax.layers.words.adaptive_words import AdaptiveEmbedding, AdaptiveSoftmax, Clusters
from plmjax.layers.words.embeddings import Embedding
from plmjax.layers.words.vocabulary_scores import VocabularyScores
from plmjax.models.gpt import DecoderOutput
from plmjax.models.gpt2 import Gpt2Config, Gpt2Layer
from plmjax.parallel import sharding
from plmjax.planning.collectives import collectives
from plmjax.planning.hlo import Program
from plmjax.training import loop
from plmjax.training.optimizers.schedules import Constant
from tests.products import flops
from tests.third_party import experiments
from tests.third_party.source import ChainSource

ROWS, LENGTH, FEATURES, VOCABULARY, CUTOFFS = 4, 16, 12, 60, (20, 30, 50)
SIZES = {
    "fewer features for each": Clusters(VOCABULARY, CUTOFFS, FEATURES, 8, 2),
    "one size, projected": Clusters(VOCABULARY, CUTOFFS, FEATURES, 6),
    "one size": Clusters(VOCABULARY, CUTOFFS, FEATURES, FEATURES),
}
NORMAL = nn.initializers.normal(0.5)
RARE = Clusters(100, (7,), 6, 6)
"""Clusters of 7 and 93 rows, and 6 features: none of them divides by eight devices."""


class Words(nn.Module):
    """An embedding whose vectors are scored; it shares what `tied` says: tables and projections."""

    clusters: Clusters
    tied: tuple[bool, bool] = (True, True)

    @nn.compact
    def __call__(self, ids: jax.Array) -> tuple[jax.Array, Any]:
        words = AdaptiveEmbedding(self.clusters, NORMAL, NORMAL, name="words")
        softmax = AdaptiveSoftmax(self.clusters, NORMAL, NORMAL, *self.tied, name="softmax")
        x = words(ids)
        return x, softmax(jnp.tanh(x), words)


def parameters(clusters: Clusters, tied: tuple[bool, bool] = (True, True)) -> Any:
    """Random ones, biases too."""
    init = functools.partial(Words(clusters, tied).init, jax.random.key(0))
    found = nn.meta.unbox(jax.eval_shape(init, jnp.zeros((1, 1), jnp.int32)))["params"]
    leaves, structure = jax.tree.flatten(found)
    random = np.random.default_rng(1)
    return jax.tree.unflatten(structure, [np.float32(0.4 * random.normal(size=leaf.shape)) for leaf in leaves])


def formula(clusters: Clusters, tied: tuple[bool, bool], params: Any, ids: Any) -> tuple[jax.Array, jax.Array]:
    """The vectors [B T D] and the log probabilities [B T V], cluster by cluster, without a mask."""
    words, softmax, bounds = params["words"], params["softmax"], (0, *clusters.cutoffs, clusters.vocab_size)
    rows = []
    for cluster in range(len(bounds) - 1):
        kernel = words.get(f"projection_{cluster if clusters.div_val > 1 else 0}")
        table = words[f"table_{cluster}"]
        rows.append(table if kernel is None else table @ kernel)
    x = jnp.concatenate(rows)[ids]
    hidden, logits = jnp.tanh(x), []
    for cluster in range(len(bounds) - 1):
        name = f"projection_{cluster}"
        kernel = softmax.get(name)
        if kernel is None:
            kernel = words.get(name if clusters.div_val > 1 else "projection_0")
        table = (words if tied[0] else softmax)[f"table_{cluster}"]
        asked = hidden if kernel is None else hidden @ kernel.T
        logits.append(asked @ table.T + softmax[f"bias_{cluster}"])
        if cluster == 0:
            entries = asked @ softmax["entries"].T + softmax["entries_bias"]
            logits[0] = jnp.concatenate([logits[0], entries], axis=-1)
    found = [jax.nn.log_softmax(one) for one in logits]
    count = clusters.cutoffs[0]
    tails = [tail + found[0][..., count + number, None] for number, tail in enumerate(found[1:])]
    return x, jnp.concatenate([found[0][..., :count], *tails], axis=-1)


def batch(kind: str = "few") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and weights: targets of which few are rare, or all."""
    random = np.random.default_rng(0)
    ids = random.integers(0, VOCABULARY, (ROWS, LENGTH))
    rare = random.integers(0, 16, ids.shape) == 0
    targets = np.where(rare, random.integers(20, VOCABULARY, ids.shape), random.integers(0, 20, ids.shape))
    targets = targets if kind == "few" else random.integers(50, VOCABULARY, ids.shape)
    return ids, targets, np.float32(random.normal(size=ids.shape))


@pytest.mark.parametrize("kind", ["few", "many"])
@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("one size", (True, True)),
        pytest.param("fewer features for each", (False, False), marks=pytest.mark.nightly),
        pytest.param("one size, projected", (True, False), marks=pytest.mark.nightly),
    ],
)
def test_losses_and_gradients_are_those_of_the_formula(name, tied, kind) -> None:
    """Targets are within the capacity of the tails and above it."""
    clusters, (ids, targets, weights) = SIZES[name], batch(kind)

    def ours(params: Any) -> tuple[jax.Array, Any]:
        x, scores = Words(clusters, tied).apply({"params": params}, ids)
        total, (nats, _) = scores.weighted_cross_entropy(targets, weights)[0], scores.cross_entropy(targets)
        return jnp.sum(jnp.sin(x)) + total + jnp.sum(jnp.sin(nats)), (x, nats)

    def spelt_out(params: Any) -> tuple[jax.Array, Any]:
        x, logs = formula(clusters, tied, params, ids)
        nats = -jnp.take_along_axis(logs, targets[..., None], -1)[..., 0]
        return jnp.sum(jnp.sin(x)) + jnp.sum(weights * nats) + jnp.sum(jnp.sin(nats)), (x, nats)

    params = parameters(clusters, tied)
    found = jax.jit(jax.grad(ours, has_aux=True))(params)
    with jax.enable_x64(True):
        exact = jax.tree.map(np.float64, params)
        expected = jax.device_get(jax.jit(jax.grad(spelt_out, has_aux=True))(exact))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-6 * np.abs(other).max())


def test_a_hit_is_the_likeliest_choice_of_both_steps() -> None:
    params, (ids, *_) = parameters(SIZES["one size"]), batch()
    params["softmax"]["entries_bias"] += 1

    @jax.jit
    def all_scores() -> Any:
        _, scores = Words(SIZES["one size"]).apply({"params": params}, ids)
        parts = scores.head, *scores.tails
        return scores, [jnp.argmax(part.scores(scores.hidden).logits(), axis=-1) for part in parts]

    scores, (entry, *tails) = jax.device_get(all_scores())
    hit = jax.jit(lambda targets: scores.cross_entropy(targets)[1])
    of_tails = np.choose(np.maximum(entry - 20, 0), [20 + tails[0], 30 + tails[1], 50 + tails[2]])
    chosen = np.where(entry < 20, entry, of_tails)
    assert hit(chosen).all() and (chosen >= 20).any() and (chosen < 20).any()
    assert not hit((chosen + 1) % VOCABULARY).any()


def test_a_loss_within_the_capacity_needs_few_scores_of_the_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are counted in the step, in which a choice counts as its dearer way: here that is taken away."""
    words = Words(Clusters(8000, (1000, 3000), FEATURES, FEATURES))
    ids, weights = (jax.ShapeDtypeStruct((2, 512), dtype) for dtype in (jnp.int32, jnp.float32))
    scores = nn.meta.unbox(jax.eval_shape(lambda ids: words.init_with_output(jax.random.key(0), ids)[0][1], ids))
    full = VocabularyScores(scores.hidden, jax.ShapeDtypeStruct((8000, FEATURES), jnp.float32))
    monkeypatch.setattr(jax.lax, "cond", lambda fits, few, every: few())
    gradient = jax.grad(lambda scores, targets, weights: scores.weighted_cross_entropy(targets, weights)[0])
    assert flops(gradient, scores, ids, weights) < 0.5 * flops(gradient, full, ids, weights)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        *(((10, cutoffs, 4, 4), "from 1 to 9 at most, for 10 tokens, found") for cutoffs in ((3, 3), (10,), (0, 4))),
        ((10, (2, 5), 4, 8, 4), "of 16 at least, so that the last of 3 clusters has a feature, found 8"),
    ],
)  # fmt: skip
def test_clusters_that_do_not_fit_are_refused(sizes: tuple, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Clusters(*sizes)


# ------------------------------------------------------------------------------------------- other language models


@dataclasses.dataclass(frozen=True)
class AdaptiveGpt2Config(Gpt2Config):
    """A GPT-2 with fewer features for rarer words, which it reads and scores with the same tables."""

    @property
    def clusters(self) -> Clusters:
        return Clusters(self.vocab_size, (16, 40), self.n_embd, self.n_embd, 2)


class AdaptiveGpt2(nn.Module):
    config: AdaptiveGpt2Config
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, input_ids, positions=None, segment_ids=None, *, deterministic=True) -> DecoderOutput:
        config, init = self.config, nn.initializers.normal(0.2)
        given = {"positions": positions, "segment_ids": segment_ids, "prefix_lengths": None, "cache": None}
        rows = read_rows(config, input_ids, None, **given)
        words = AdaptiveEmbedding(config.clusters, init, init, name="words")
        places = Embedding(config.n_positions, config.n_embd, None, init, name="positions")
        layers = Gpt2Layer(config, self.execution, deterministic, name="layers")

        def body(layer: Gpt2Layer, x: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            return layer(x, rows.mask_terms, None, number)[0], None

        x = words(input_ids) + places(rows.positions)
        x, _ = stack(body, layers, config.n_layer, execution=self.execution, x=x, inputs=jnp.arange(config.n_layer))
        x = LayerNorm(config.layer_norm_epsilon, name="layer_norm")(x)
        return DecoderOutput(x, scores=AdaptiveSoftmax(config.clusters, init, init, name="softmax")(x, words))


declare(System(AdaptiveGpt2Config, Kind.DECODER, {Purpose.PRETRAINING: AdaptiveGpt2}))


# 5 s; losses and gradients are those of the formula: pytest -m nightly tests/layers
@pytest.mark.nightly
def test_other_language_models_learn_with_them(tmp_path: Path, monkeypatch) -> None:
    """In a run of its own objective, evaluated, below the unigram entropy."""
    run = experiments.gpt2()
    made = dataclasses.replace(run, model=AdaptiveGpt2Config(**dataclasses.asdict(run.model)))
    rate = {"learning_rate": 2e-2, "schedule": Constant()}
    made = experiments.changed(made, training={"steps": 60, "log_every": 60}, checkpoint={"every": 0}, optimizer=rate)
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:1])
    found = loop.train(made, tmp_path, ChainSource(made.data), tokenizer={}).metrics
    assert found["eval/loss"] < found["eval/unigram_entropy"] - 0.3


@pytest.mark.parametrize(("length", "exchanged"), [(4, True), (16, False)])
def test_devices_exchange_the_rows_of_a_table_that_has_more_rows_than_they_have_tokens(length, exchanged) -> None:
    """So the gradient of a table that is tied to scores is added up once."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    embedding = AdaptiveEmbedding(RARE, NORMAL, NORMAL)
    ids = jax.ShapeDtypeStruct((8, length), jnp.int32)
    params = nn.meta.unbox(jax.eval_shape(embedding.init, jax.random.key(0), ids))

    def loss(params: Any, ids: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(embedding.apply(params, ids)))

    shardings = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    step = jax.jit(sharding.with_mesh(jax.grad(loss), mesh), in_shardings=shardings)
    exchanges = collectives(Program(step.lower(params, ids).compile().as_text()))
    summed = sum(one.elements for one in exchanges if one.kind == "all-reduce")
    assert summed == (7 * 6 if exchanged else 100 * 6)
