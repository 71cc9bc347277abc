"""Layouts know a batch's shapes without a dataset and without TensorFlow."""

import jax.numpy as jnp
import pytest

from plmjax.data import layouts
from tests.data.layouts.rows import shapes

LAYOUTS = [
    layouts.SentencePairs(pack=3),
    layouts.SentenceOrder(),
    layouts.FullSentences(),
    layouts.SingleSegment(pack=3),
    layouts.Documents(pack=3),
    layouts.Windows(overlap=5),
    layouts.BidirectionalStreams(),
    layouts.PairedStreams(),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_a_synthetic_batch_has_the_promised_fields_and_full_rows_of_tokens_from_its_seed(layout) -> None:
    """tests/data/test_pipeline.py and the tests of each layout compare the batches of a text with the promise."""
    batch = layout.batch(4, 16)
    first, again, other = (layout.synthetic(4, 16, 100, seed) for seed in (3, 3, 4))
    assert shapes(first) == shapes(batch)
    for name, field in batch.items():
        per_sequence = name.startswith(("cls_", "next_sentence_", "sentence_order_"))
        length = 16 if not per_sequence else getattr(layout, "pack", 1)
        assert field.shape == ((4,) if name in ("row_ids", "is_first", "overlap") else (4, length)), name
        floats, flags = name.endswith("_weights"), name.endswith("document_starts")
        assert field.dtype == (jnp.float32 if floats else jnp.bool_ if flags else jnp.int32), name
        if name.endswith("input_ids"):
            assert (first[name] == again[name]).all() and (first[name] != other[name]).any()
            assert first[name].min() >= 5 and first[name].max() < 100
        elif name.endswith("segment_ids"):
            assert (first[name] >= 1).all()
    streams = isinstance(layout, layouts.PairedStreams | layouts.BidirectionalStreams)
    assert layout.tokens(4, 16) == (128 if streams else 64)
    given = "decoder_input_ids" if isinstance(layout, layouts.PairedStreams) else "input_ids"
    if "next_ids" in first:  # what follows a token is what is asked for there
        assert (first["next_ids"][:, :-1] == first[given][:, 1:]).all()
    if isinstance(layout, layouts.BidirectionalStreams):
        assert (first["backward_input_ids"] == first["next_ids"][:, ::-1]).all()
        assert (first["backward_next_ids"] == first["input_ids"][:, ::-1]).all()
    if isinstance(layout, layouts.PairedStreams):
        assert (first["input_ids"] != first["decoder_input_ids"]).any()
