"""The prefix language model: where rows are cut, what is asked for, what sees what, and an oracle of its loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.models.gpt2 import Gpt2Config, Gpt2ForCausalLM
from plmjax.objectives.next_token import NextToken
from plmjax.objectives.objective import LossInputs
from plmjax.objectives.prefix_language_model import NextTokenAfterPrefix, PrefixLanguageModel
from tests.systems.modules import outputs, random_params

CONFIG = Gpt2Config(vocab_size=23, n_positions=8, n_embd=12, n_layer=2, n_head=3).with_dropout(0.0)
MODULE, VOCABULARY, LENGTH = Gpt2ForCausalLM(CONFIG), Vocabulary.placeholder(23), 8
OBJECTIVE = PrefixLanguageModel()


def rows(lengths: list[int]) -> dict[str, np.ndarray]:
    """Rows as `Chunks` gives them, with padding behind so many tokens."""
    real = (np.arange(LENGTH) < np.array(lengths)[:, None]).astype(np.int32)
    text = np.random.default_rng(0).integers(1, 23, (len(lengths), LENGTH + 1), np.int32)
    return {
        "input_ids": text[:, :-1] * real,
        "next_ids": text[:, 1:] * real,
        "next_weights": real.astype(np.float32),
        "segment_ids": real,
        "positions": np.arange(LENGTH, dtype=np.int32) * real,
    }


def corrupted(lengths: list[int], seed: int = 0) -> dict[str, np.ndarray]:
    return jax.device_get(OBJECTIVE.corrupt(rows(lengths), jax.random.key(seed), VOCABULARY))


def test_rows_are_cut_uniformly_and_the_rest_is_asked_for():
    """Prefixes of 1 to n of n tokens; the same key cuts alike, each row for itself."""
    batch = corrupted([8] * 4000 + [3] * 4000 + [0, 1])
    prefix, weights = batch["prefix_lengths"], batch["next_weights"]
    for found, longest in ((prefix[:4000], 8), (prefix[4000:8000], 3)):
        shares = np.bincount(found, minlength=longest + 1) / len(found)
        assert shares[0] == 0 and len(shares) == longest + 1
        np.testing.assert_allclose(shares[1:], 1 / longest, atol=0.03)
    asked = np.arange(LENGTH) >= prefix[:, None] - 1
    np.testing.assert_array_equal(weights, rows([8] * 4000 + [3] * 4000 + [0, 1])["next_weights"] * asked)
    assert (weights[:-2].sum(axis=1) >= 1).all() and weights[-2].sum() == 0 and weights[-1].sum() == 1
    np.testing.assert_array_equal(OBJECTIVE.targets(batch)[0], batch["next_ids"])
    repeating = rows([8] * 50)
    repeating["next_weights"][:, :4] = 0  # tokens of the row before, for which no row asks
    found = OBJECTIVE.corrupt(repeating, jax.random.key(0), VOCABULARY)["next_weights"]
    assert found[:, :4].sum() == 0 and found[:, 4:].sum() > 0


def test_the_prefix_sees_itself_and_nothing_sees_what_comes_later():
    """The gradient of every output by every embedded token, through two layers."""
    params, batch = random_params(MODULE), rows([8])
    ids = np.arange(3, 3 + LENGTH)[None]
    words = params["gpt2"]["word_embeddings"]["embedding"]

    @jax.jit
    @jax.jacrev
    def jacobian(words, prefix):
        changed = {"gpt2": params["gpt2"] | {"word_embeddings": {"embedding": words}}}
        inputs = {"segment_ids": batch["segment_ids"], "prefix_lengths": jnp.array([prefix])}
        return MODULE.apply({"params": changed}, ids, **inputs).last_hidden_state[0].sum(-1)

    place = np.arange(LENGTH)
    for prefix in (0, 1, 3, 8):
        reach = np.abs(jacobian(words, prefix)[:, ids[0]]).max(-1) > 0  # [T S]
        np.testing.assert_array_equal(reach, (place[None] <= place[:, None]) | (place[None] < prefix), str(prefix))


def test_the_loss_is_that_of_every_token_of_the_rest_read_with_its_context_alone():
    """And no number of the text behind a token changes its nats."""
    params, batch = random_params(MODULE), corrupted([8, 8, 5, 1], seed=4)
    assert len(set(batch["prefix_lengths"].tolist())) > 2
    expected = []
    for row, (prefix, length) in enumerate(zip(batch["prefix_lengths"], [8, 8, 5, 1], strict=True)):
        for seen in range(prefix, length + 1):
            text = np.zeros((1, LENGTH), np.int32)  # with another text behind the token
            text[:, :seen] = batch["input_ids"][row, :seen]
            logits = outputs(MODULE, params, {"input_ids": text, "prefix_lengths": np.array([prefix])}).logits
            nats = -log_softmax(np.asarray(logits)[0, seen - 1])
            expected.append(nats[batch["next_ids"][row, seen - 1]])
    run = jax.jit(functools.partial(OBJECTIVE.sums, MODULE, training=True))
    sums = run(LossInputs(params), batch, jax.random.key(0))
    weight = OBJECTIVE.weights(batch)["next_token"]
    assert float(weight) == len(expected)
    assert float(sums.losses["next_token"] / weight) == pytest.approx(np.mean(expected), rel=1e-5)


@pytest.mark.nightly
def test_a_prefix_of_one_token_is_the_causal_language_model():
    """In loss and gradient; its own task for texts without a prefix is that one."""
    params, batch = random_params(MODULE), rows([8, 6])
    whole = batch | {"prefix_lengths": np.array([1, 1])}

    def loss(objective, batch):
        key = jax.random.key(0)
        sums = lambda params: objective.sums(MODULE, LossInputs(params), batch, key, training=True)  # noqa: E731
        return jax.jit(jax.value_and_grad(lambda params: sums(params).losses["next_token"]))(params)

    found, expected = loss(OBJECTIVE, whole), loss(NextToken(), batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)
    longer = loss(OBJECTIVE, batch | {"prefix_lengths": np.array([4, 3])})
    assert abs(float(longer[0] - expected[0])) > 1e-3
    assert OBJECTIVE.language_model_task() == NextTokenAfterPrefix()


def test_a_row_that_is_scored_has_the_tokens_before_its_first_target_as_prefix():
    """At least one; the target at a place is the token behind it."""
    batch = rows([8] * 4)
    batch["next_weights"] = np.float32([[0, 0, 0, 0.5, 0, 1, 1, 1], [1] * 8, [0] * 7 + [0.5], [0] * 8])
    found = NextTokenAfterPrefix().model_inputs(batch)
    assert found["prefix_lengths"].tolist() == [4, 1, 8, 1] and found["prefix_lengths"].dtype == np.int32
    assert set(found) == {"input_ids", "positions", "segment_ids", "prefix_lengths"}
