"""Properties of GPT: a table that is dropped as a whole, and heads at the last token."""

import dataclasses

import jax
import numpy as np

from plmjax.models.gpt import GptForCausalLM, GptForMultipleChoice, GptForSequenceClassification
from tests.families.decoders import GPT
from tests.families.family import padded_untyped_tokens
from tests.systems.modules import dropped, outputs, random_params

BATCH = padded_untyped_tokens(GPT)


def test_dropout_falls_on_the_table_before_tokens_are_looked_up() -> None:
    """Deviation: only the tokens' rows are scored. A dropped number is gone from the inputs and from the scores."""
    module = GptForCausalLM(dataclasses.replace(GPT, embd_pdrop=0.5))
    params = random_params(module)
    table = np.asarray(params["gpt"]["table"]["embedding"])
    drawn = {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}}
    found = jax.jit(lambda: module.apply({"params": params}, **BATCH, output_hidden_states=True, **drawn))()
    kept = np.asarray(found.scores.table)
    assert kept.shape == (53, 24)
    gone = kept == 0
    assert 0.4 < gone.mean() < 0.6
    np.testing.assert_allclose(kept[~gone], 2 * table[:53][~gone], rtol=1e-6)
    positions = np.asarray(found.hidden_states[0]) - kept[BATCH["input_ids"]]
    np.testing.assert_allclose(positions, np.broadcast_to(positions[:1], positions.shape), atol=1e-6)
    gone = np.abs(positions[0]) < 1e-6
    assert 0.4 < gone.mean() < 0.6
    np.testing.assert_allclose(positions[0][~gone], 2 * table[53 : 53 + 17][~gone], rtol=1e-4, atol=1e-6)


def test_both_orders_of_a_pair_are_labelled_by_the_sum_of_their_vectors() -> None:
    """Without a bias the scores of a sum are the sum of the scores; both orders have them."""
    module = GptForSequenceClassification(GPT, num_labels=5)
    params = random_params(module)
    alone = outputs(module, params, BATCH).logits
    pair = {name: np.stack([rows[[0, 1]], rows[[2, 2]]]) for name, rows in BATCH.items()}
    found = outputs(module, params, pair).logits
    assert found.shape == (2, 2, 5)
    np.testing.assert_allclose(found[0], np.tile(alone[0] + alone[1], (2, 1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], np.tile(2 * alone[2], (2, 1)), rtol=1e-5, atol=1e-5)


def test_dropout_takes_the_same_numbers_from_the_choices_of_a_question() -> None:
    """As train.py, `model`: alike choices keep alike scores, and other questions lose other numbers."""
    module = GptForMultipleChoice(dataclasses.replace(GPT, summary_first_dropout=0.5))
    batch = {name: np.broadcast_to(rows[0], (4, 3, 17)) for name, rows in BATCH.items()}
    found = np.asarray(dropped(module, random_params(module), batch).logits)
    assert found.shape == (4, 3)
    np.testing.assert_allclose(found, np.broadcast_to(found[:, :1], found.shape), rtol=1e-6)
    assert len(set(found[:, 0].round(4).tolist())) == 4
