"""DeBERTa's two networks in one step: what is masked and told apart, and the gradients of both losses."""

import dataclasses
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.objectives.deberta import DebertaPretraining
from plmjax.objectives.electra import replace_masked_tokens
from plmjax.objectives.objective import LossInputs
from tests.families.modern import DEBERTA
from tests.objectives.masking import MASK, batch_of, chosen, clean_batch, corrupt, hidden_batch
from tests.systems.modules import random_params

VOCABULARY = Vocabulary.placeholder(DEBERTA.vocab_size)
SHARED, RESIDUAL = "generator/embeddings/word_embeddings/embedding", "deberta/embeddings/word_embeddings/residual"


def test_every_chosen_token_is_a_mask_anywhere_in_the_row() -> None:
    """Deviation: exactly round(0.15 n) of n tokens, also of the last 48, which the released code never chooses."""
    batch = batch_of([[512]] * 200, 512)
    hidden = corrupt(DebertaPretraining(), batch)
    mask = chosen(hidden)
    assert (mask.sum(axis=1) == 77).all()
    np.testing.assert_array_equal(hidden["input_ids"], np.where(mask, MASK, batch["input_ids"]))
    np.testing.assert_array_equal(hidden["original_ids"], batch["input_ids"])
    assert len({key.tobytes() for key in hidden["sampling_keys"]}) == 200
    assert DebertaPretraining().weights(hidden)["rtd"] == 200 * 512
    assert mask[:, 463:511].mean() == pytest.approx(77 / 510, rel=0.1)


# 4 s; by day tests/models/test_deberta.py has the gradients of both networks, and test_electra_pretraining.py the loss
# of what was drawn.
@pytest.mark.nightly
def test_each_loss_trains_the_tables_of_its_own_network() -> None:
    """With the labels of the tokens that were drawn: a drawn token that is the original one is no replacement."""
    objective = DebertaPretraining(rate=0.4)
    batch = hidden_batch(objective, clean_batch(VOCABULARY), VOCABULARY)
    config = dataclasses.replace(DEBERTA, num_hidden_layers=1, generator_num_hidden_layers=1)
    module = objective.module(config, Execution())

    @jax.jit
    def read(params: Any, factors: dict[str, float]) -> Any:
        def loss(params: Any) -> Any:
            sums = objective.sums(module, LossInputs(params), batch, jax.random.key(0), training=False)
            return sum(factors[term] * loss for term, loss in sums.losses.items()), sums.losses

        logits = module.apply({"params": params}, **objective.model_inputs(batch), method="generate").logits
        shown = replace_masked_tokens(batch, logits)
        settings = {"segment_ids": batch["segment_ids"], "method": "discriminate"}
        return jax.grad(loss, has_aux=True)(params), shown, module.apply({"params": params}, shown, **settings).logits

    gradients = {}
    for term in ("mlm", "rtd"):
        factors = {"mlm": 0.0, "rtd": 0.0, term: 1.0}
        (gradient, losses), shown, scores = read(random_params(module), factors)
        gradients[term] = flax.traverse_util.flatten_dict(gradient, sep="/")
    assert np.any(gradients["mlm"][SHARED]) and not np.any(gradients["mlm"][RESIDUAL])
    assert np.any(gradients["rtd"][RESIDUAL]) and not np.any(gradients["rtd"][SHARED])

    fake, real = np.asarray(shown != batch["original_ids"]), np.asarray(batch["segment_ids"]) > 0
    nats = np.where(fake, np.logaddexp(0, -scores), np.logaddexp(0, scores))
    assert 0 < fake.sum() <= batch["masked_weights"].sum()
    np.testing.assert_allclose(losses["rtd"], nats[real].sum(), rtol=1e-5)
    np.testing.assert_allclose(objective.weights(batch)["rtd"], real.sum(), rtol=1e-6)
    assert objective.coefficients() == {"rtd": 50.0}
