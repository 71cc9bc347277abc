"""A source is encoded once for a decoder, and both sides have their padding masks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.layers.attention.multi_head import KeyValues
from plmjax.models.families.encoder_decoder import EncoderDecoderModel
from plmjax.models.transformer import TransformerConfig

IDS, MASK = jnp.array([[5, 6, 7], [8, 9, 1]]), jnp.array([[1, 1, 1], [1, 1, 0]])
TARGET = jnp.array([[3, 4], [3, 2]])


class Given(EncoderDecoderModel):
    """A model whose parts say what they are given."""

    def _encoded(self, input_ids: jax.Array, rows: Any, **how: bool) -> tuple[Any, Any]:
        assert how == {"deterministic": True, "output_hidden_states": False}
        return jnp.float32(input_ids), None

    def _key_values(self, encoded: jax.Array) -> KeyValues:
        return KeyValues(encoded + 1, encoded + 2)

    def _decoded(self, input_ids: jax.Array, rows: Any, source: Any, of_source: Any, **how: bool) -> Any:
        assert how == {"deterministic": True, "output_hidden_states": False}
        return input_ids, rows, source, of_source


@pytest.mark.parametrize("mask", [None, MASK])
def test_a_source_that_is_encoded_keeps_its_mask(mask: jax.Array | None) -> None:
    module = Given(TransformerConfig.tiny())
    source = module.apply({}, IDS, mask, method="encode")
    expected = jnp.ones_like(IDS) if mask is None else MASK
    np.testing.assert_array_equal(source.attention_mask, expected)
    assert source.attention_mask.dtype == jnp.int32
    np.testing.assert_array_equal(source.key_values.keys, IDS + 1)
    ids, rows, key_values, seen = module.apply({}, TARGET, source, MASK[:, 1:], method="decode")
    assert ids is TARGET and key_values is source.key_values and rows.cache is None
    np.testing.assert_array_equal(rows.mask, MASK[:, 1:])
    np.testing.assert_array_equal(seen.bias(2, 3) == 0, np.broadcast_to(expected[:, None, None] == 1, (2, 1, 1, 3)))
