"""DistilBERT's masking: rare tokens are hidden more often, in the proportions of the released rule."""

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.objectives.distilbert import DistilBertPretraining
from plmjax.objectives.objective import ConstantSources
from tests.objectives.masking import VOCABULARY, batch_of, chosen


def constants(objective: DistilBertPretraining, counts: np.ndarray) -> dict[str, jax.Array]:
    return objective.constants(None, ConstantSources(VOCABULARY, counts, lambda: [], lambda checkpoint, init: None))


def hidden(objective: DistilBertPretraining, counts: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
    """bool [B T]: the positions to predict."""
    made = constants(objective, counts)
    corrupt = jax.jit(lambda batch, key: objective.corrupt(batch, key, VOCABULARY, made))
    return chosen(jax.tree.map(np.asarray, corrupt(batch, jax.random.key(0))))


def test_tokens_are_drawn_in_proportion_to_their_weights() -> None:
    """One of six tokens a row is hidden: each as often as max(count, 1)^-0.7 says (distiller.py, `token_probs`)."""
    rows, counts = 20_000, np.zeros(1000, np.int64)
    tokens = np.array([10, 11, 12, 13, 14, 15])
    counts[tokens] = [0, 1, 10, 100, 1000, 10_000]
    batch = batch_of([[8]] * rows, 8)
    batch["input_ids"][:, 1:-1] = tokens
    found = hidden(DistilBertPretraining(), counts, batch)
    assert (found.sum(axis=1) == 1).all() and not found[:, [0, -1]].any()
    weights = np.maximum(counts[tokens], 1) ** -0.7
    expected = rows * weights / weights.sum()
    assert np.abs(found[:, 1:-1].sum(axis=0) - expected).max() < 5 * np.sqrt(expected.max())
    assert (np.square(found[:, 1:-1].sum(axis=0) - expected) / expected).sum() < 25  # chi-squared, 5 degrees of freedom


def test_every_sequence_has_its_own_share() -> None:
    """Deviation named in the module: the released code draws from a whole batch."""
    counts = np.arange(1000) ** 2
    batch = batch_of([[20, 44], [64]] * 50, 64)
    found = hidden(DistilBertPretraining(), counts, batch)
    first = (found & (batch["segment_ids"] == 1)).sum(axis=1)
    assert set(first[::2]) == {3} and set(first[1::2]) == {10}


def test_the_exponent_is_that_of_the_setting() -> None:
    """The square root of 100 is 10."""
    counts = np.full(1000, 100)
    np.testing.assert_allclose(constants(DistilBertPretraining(smoothing=0.5), counts)["log_weights"], -np.log(10))
    assert not np.any(constants(DistilBertPretraining(smoothing=0.0), counts)["log_weights"])


def test_weights_are_finite_where_a_token_never_occurs() -> None:
    made = constants(DistilBertPretraining(), np.zeros(1000, np.int64))
    assert bool(jnp.all(made["log_weights"] == 0))
