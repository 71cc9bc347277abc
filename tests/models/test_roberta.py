"""Properties of RoBERTa."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from plmjax.models.roberta import RobertaConfig, RobertaForMaskedLM, RobertaModel
from tests.families.encoders import ROBERTA


def test_positions_are_counted_from_behind_the_padding_token() -> None:
    """As published: the k-th real token takes row k + padding id, padding the row of that id, wherever it stands."""
    ids = jnp.array([[3, 3, 9, 8, 3, 7], [5, 6, 7, 8, 9, 3]])
    published = [[3, 3, 4, 5, 3, 6], [4, 5, 6, 7, 8, 3]]
    given = jnp.array([[0, 0, 0, 1, 0, 2], [0, 1, 2, 0, 1, 0]])
    packed = [[3, 3, 4, 5, 3, 6], [4, 5, 6, 4, 5, 3]]
    model = RobertaModel(ROBERTA)
    np.testing.assert_array_equal(model.position_rows(ids, None), published)
    np.testing.assert_array_equal(model.position_rows(ids, given), packed)


def test_the_masked_language_models_head_has_always_the_exact_gelu() -> None:
    """Deviation named in the module."""
    module = RobertaForMaskedLM(dataclasses.replace(ROBERTA, hidden_act="relu")).bind({})
    assert (module.masked_language_model.config.hidden_act, module.encoder.config.hidden_act) == ("gelu", "relu")


def test_the_longest_row_leaves_the_rows_of_the_table_up_to_the_padding_token() -> None:
    assert RobertaConfig.base().longest == 512
    assert jax.eval_shape(RobertaModel(ROBERTA).init, jax.random.key(0), jnp.zeros((1, 17), jnp.int32))
