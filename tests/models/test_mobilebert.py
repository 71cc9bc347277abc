"""Properties of MobileBERT and to its teacher: bottlenecks, neighbors, and a norm without statistics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.interop.mobilebert import ADAPTER
from plmjax.models.mobilebert import MobileBertConfig, MobileBertForPreTraining, MobileBertModel, with_neighbors
from tests.families.family import padded_tokens
from tests.families.students import MOBILEBERT
from tests.systems.comparison import assert_equals_transformers, reference, transformers_reference
from tests.systems.modules import boxed_shapes, outputs, random_params

INPUTS = padded_tokens(MOBILEBERT)
WHOLE = INPUTS | {"attention_mask": np.ones_like(INPUTS["attention_mask"])}
"""The same rows, in which the padding tokens are words."""


def test_each_word_is_joined_with_the_next_and_the_previous() -> None:
    x = jnp.arange(1.0, 6.0)[None, :, None]
    plain = [[2, 1, 0], [3, 2, 1], [4, 3, 2], [5, 4, 3], [0, 5, 4]]
    packed = [[2, 1, 0], [0, 2, 1], [4, 3, 0], [0, 4, 3], [0, 5, 0]]
    np.testing.assert_array_equal(with_neighbors(x, None)[0], plain)
    np.testing.assert_array_equal(with_neighbors(x, jnp.array([[1, 1, 2, 2, 0]]))[0], packed)
    np.testing.assert_array_equal(with_neighbors(x, jnp.array([[1, 1, 0, 0, 0]]))[0, 1], [0, 2, 1])


@pytest.mark.nightly
def test_the_last_word_does_not_read_the_padding() -> None:
    """Deviation: in transformers it does; a row that is full is equal, whatever vector the padding token has."""
    module = MobileBertModel(MOBILEBERT)
    model = reference("MobileBertModel", MOBILEBERT)
    model.get_input_embeddings().padding_idx = None  # a padding token that is read learns, as in test_parity.py
    assert model.get_input_embeddings().weight[MOBILEBERT.pad_token_id].abs().max() > 0.1
    params = assert_equals_transformers(ADAPTER, module, model, batch=WHOLE)
    expected = transformers_reference(ADAPTER, module, model, batch=INPUTS).outputs["hidden_states"][0][1]
    found = module.apply({"params": params}, **INPUTS, output_hidden_states=True).hidden_states[0][1]
    np.testing.assert_allclose(found[:10], expected[:10], rtol=1e-5, atol=1e-5)
    assert np.abs(found[10] - expected[10]).max() > 0.01


def test_student_and_teacher_have_states_of_one_shape() -> None:
    """One for each layer and the embeddings, which a student can imitate layer by layer."""
    shapes = set()
    for config in (MobileBertConfig.base(), MobileBertConfig.tiny(), MobileBertConfig.ib_bert_large()):
        module = MobileBertModel(config)
        ids = jax.ShapeDtypeStruct((2, 8), jnp.int32)
        params = jax.eval_shape(module.init, jax.random.key(0), ids)
        found = jax.eval_shape(
            lambda params, ids, m=module: m.apply(params, ids, output_hidden_states=True), params, ids
        )
        shapes.add(found.hidden_states.shape)
    assert shapes == {(25, 2, 8, 512)}


def test_a_model_without_activation_has_no_pooler() -> None:
    module = MobileBertForPreTraining(MobileBertConfig.mini())
    assert set(boxed_shapes(module)["mobilebert"]) == {"embeddings", "encoder"}
    module = MobileBertModel(dataclasses.replace(MOBILEBERT, classifier_activation=False))
    found = outputs(module, random_params(module), WHOLE)
    np.testing.assert_array_equal(found.pooler_output, found.last_hidden_state[:, 0])
