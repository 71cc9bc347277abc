"""The example on which systems are compared, and which outputs a mask belongs to."""

import dataclasses

import numpy as np
import pytest

from plmjax.interop import huggingface
from plmjax.interop.adapter import example_rows, mask_of
from plmjax.models.bert import BertConfig, BertForSequenceClassification


@pytest.mark.parametrize("padding", [None, 0, 3, 4])
def test_an_example_has_padding_in_half_of_its_second_row_alone(padding: int | None) -> None:
    rows = example_rows(np.random.default_rng(0), 64, 5, padding, side="decoder_")
    ids, mask = rows["decoder_input_ids"], rows["decoder_attention_mask"]
    assert len(rows) == 2 and ids.dtype == mask.dtype == np.int32
    assert mask.tolist() == [[1] * 64, [1] * 33 + [0] * 31]
    assert set(ids[mask == 1].tolist()) == {0, 1, 2, 3, 4} - {padding}
    if padding is not None:
        assert (ids[mask == 0] == padding).all()


def test_each_side_of_an_encoder_and_a_decoder_has_its_own_mask() -> None:
    one, other = np.zeros((1, 2)), np.ones((1, 2))
    both = {"attention_mask": one, "decoder_attention_mask": other}
    assert mask_of("encoder_hidden", both) is one and mask_of("logits", both) is other
    assert mask_of("encoder_hidden", {"attention_mask": one}) is mask_of("logits", {"attention_mask": one}) is one
    assert mask_of("logits", {}) is None


def test_a_module_that_mixes_its_layers_or_has_another_config_is_of_no_known_class() -> None:
    adapter = huggingface.ADAPTERS["bert"]
    module = BertForSequenceClassification(BertConfig.tiny(), num_labels=2)
    assert adapter.knows(module)
    other = dataclasses.make_dataclass("Other", [], bases=(BertConfig,), frozen=True)()
    assert not adapter.knows(BertForSequenceClassification(other, num_labels=2))
    object.__setattr__(module, "mix", True)
    assert not adapter.knows(module)
