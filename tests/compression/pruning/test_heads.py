"""The choice of the heads that are removed, in one round or several."""

import itertools
import types

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.compression.pruning import heads
from plmjax.contracts.execution import Execution
from plmjax.data.layouts import FullSentences
from plmjax.experiment import Data, Experiment, Phase, Training
from plmjax.models.bert import BertConfig, BertModel
from plmjax.objectives.masked_language_model import MaskedLanguageModel
from plmjax.objectives.objective import LossInputs

LAYERS, HEADS = 3, 4
CONFIG = BertConfig(20, 8, LAYERS, HEADS, 6, max_position_embeddings=8)
IMPORTANCE = np.array([[0.9, 0.1, 0.5, 0.8], [0.2, 0.3, 0.35, 0.25], [0.7, 0.6, 0.4, 0.95]])
QUERY = "attention/query/bias"


@pytest.fixture
def params() -> dict[str, np.ndarray]:
    """Parameters of a BERT; the bias of a head's queries is its importance."""
    shapes = jax.eval_shape(BertModel(CONFIG, Execution()).init, jax.random.key(0), np.zeros((1, 2), np.int32))
    flat = flax.traverse_util.flatten_dict({"bert": nn.meta.unbox(shapes["params"])}, sep="/")
    found = {path: np.zeros(one.shape, np.float32) for path, one in flat.items()}
    found[f"bert/encoder/layers/{QUERY}"] += IMPORTANCE[..., None]
    return found


def remaining(params: dict[str, np.ndarray]) -> list[list[float]]:
    """The importance of the heads of each layer."""
    found = []
    for path in sorted(path for path in params if path.endswith(QUERY)):
        found += [[round(float(bias[0]), 2) for bias in layer] for layer in params[path]]
    return found


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_the_least_important_heads_are_removed(rounds: int, params: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many whatever the number of rounds; the most important head of a layer stays, however unimportant it is.

    Each round reads further rows of the last phase.
    """
    measured, read = [], []

    def importance(params: dict, model: BertConfig, run: Experiment, vocabulary: object, batches, collections):
        measured.append(list(batches))
        return [np.array(layer) for layer in remaining(params)]

    feed = types.SimpleNamespace(
        vocabulary=None, train=lambda phase, first, rows: read.append((phase, first, rows)) or itertools.count()
    )
    monkeypatch.setattr(heads, "importance", importance)
    monkeypatch.setattr(heads, "examples_of", lambda source, run: feed)
    phases = tuple(Phase(fraction=0.5, sequence_length=length) for length in (4, 8))
    run = Experiment(CONFIG, MaskedLanguageModel(), Data(layout=FullSentences()), training=Training(), phases=phases)
    source = types.SimpleNamespace(params=params, collections=None)
    smaller, model = heads.without_least_important(source, run, 0.5, rows=7, rounds=rounds)
    assert measured == [list(range(7 * number, 7 * number + 7)) for number in range(rounds)]
    ((phase, first, rows),) = read
    assert (phase.sequence_length, phase.batch_size, first, rows.tolist()) == (8, 1, 0, [0])
    assert remaining(smaller) == [[0.9, 0.8], [0.35], [0.7, 0.6, 0.95]]
    assert model.layer_heads == (2, 1, 3)


def test_layers_are_in_the_order_of_their_numbers() -> None:
    """The tenth follows the ninth."""
    paths = [f"distilbert/encoder/layer_{number}/attention/output/kernel" for number in range(12)]
    assert sorted(sorted(paths), key=heads._layer) == paths
    assert heads._layer("bert/encoder/layers/attention/output/kernel") == 0


def test_weights_of_a_head_that_oppose_each_other_cancel_out() -> None:
    """The importance is the magnitude of the gradient of the head's gate, a sum over all of its weights."""
    path, random = "bert/encoder/layers/attention/output/kernel", np.random.default_rng(0)
    kernel, *slopes = random.normal(size=(4, LAYERS, HEADS, 2, 8)).astype(np.float32)

    def sums(module: None, inputs: LossInputs, batch: dict, key: jax.Array, training: bool) -> types.SimpleNamespace:
        (found,) = jax.tree.leaves(inputs.params)
        return types.SimpleNamespace(losses={"term": jnp.sum(batch["slopes"] * found)})

    objective = types.SimpleNamespace(
        module=lambda model, execution: None,
        corrupt=lambda batch, key, vocabulary: batch,
        weights=lambda batch: {"term": 1.0},
        coefficients=lambda: {},
        sums=sums,
    )
    run = types.SimpleNamespace(objective=objective, training=Training())
    found = heads.importance({path: kernel}, CONFIG, run, None, ({"slopes": one} for one in slopes))
    total = sum(np.abs(np.sum(kernel * one, axis=(2, 3))) for one in slopes)
    np.testing.assert_allclose(np.stack(found), total / np.linalg.norm(total, axis=1, keepdims=True), rtol=1e-5)
