"""Layouts know a batch's shapes without a dataset and without TensorFlow."""

import jax.numpy as jnp
import pytest

from plmjax.data import layouts
from tests.data.layouts.rows import shapes

LAYOUTS = [
    *(
        layouts.SentencePairs(pack=3),
        layouts.SentenceOrder(),
        layouts.FullSentences(),
        layouts.SingleSegment(pack=3),
        layouts.Documents(pack=3),
        layouts.Chunks(),
        layouts.ContiguousStreams(),
    ),
    *(layouts.Windows(overlap=5), layouts.BidirectionalStreams(), layouts.PairedStreams()),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_a_synthetic_batch_has_the_fields_and_shapes_that_its_layout_promises(layout) -> None:
    """tests/data/test_pipeline.py and the tests of each layout compare the batches of a text with the promise."""
    batch = layout.batch(4, 16)
    assert shapes(layout.synthetic(4, 16, 100, seed=0)) == shapes(batch)
    for name, field in batch.items():
        per_sequence = name.startswith(("cls_", "next_sentence_", "sentence_order_"))
        length = 16 if not per_sequence else getattr(layout, "pack", 1)
        assert field.shape == ((4,) if name in ("row_ids", "is_first", "overlap") else (4, length)), name
        floats, flags = name.endswith("_weights"), name.endswith("document_starts")
        assert field.dtype == (jnp.float32 if floats else jnp.bool_ if flags else jnp.int32), name
    assert layout.tokens(4, 16) == (
        128 if isinstance(layout, layouts.PairedStreams | layouts.BidirectionalStreams) else 64
    )


def test_a_synthetic_batch_is_full_of_tokens_that_follow_from_its_seed() -> None:
    """Both sides of a pair, and both directions, have their own; what follows a token is what is asked for there."""
    for layout in (
        layouts.SentencePairs(pack=3),
        layouts.SingleSegment(pack=3),
        layouts.Chunks(),
        layouts.BidirectionalStreams(),
        layouts.PairedStreams(),
    ):
        first, again, other = (layout.synthetic(4, 16, 100, seed) for seed in (3, 3, 4))
        for name in ("input_ids", "decoder_input_ids"):
            if name in first:
                assert (first[name] == again[name]).all() and (first[name] != other[name]).any()
                assert first[name].min() >= 5 and first[name].max() < 100
        for name in ("segment_ids", "decoder_segment_ids", "next_weights", "backward_segment_ids"):
            assert name not in first or (first[name] >= 1).all()
    pairs, segments = (
        layout(pack=3).synthetic(4, 16, 100, 3) for layout in (layouts.SentencePairs, layouts.SingleSegment)
    )
    assert all((segments[name] == pairs[name]).all() for name in segments)
    blocks = layouts.Chunks().synthetic(4, 16, 100, 3)
    assert (blocks["next_ids"][:, :-1] == blocks["input_ids"][:, 1:]).all()
    both = layouts.BidirectionalStreams().synthetic(4, 16, 100, 3)
    assert (both["next_ids"][:, :-1] == both["input_ids"][:, 1:]).all()
    assert (both["backward_input_ids"] == both["next_ids"][:, ::-1]).all()
    assert (both["backward_next_ids"] == both["input_ids"][:, ::-1]).all()
    texts = layouts.PairedStreams().synthetic(4, 16, 100, 3)
    assert (texts["next_ids"][:, :-1] == texts["decoder_input_ids"][:, 1:]).all()
    assert (texts["input_ids"] != texts["decoder_input_ids"]).any() and texts["row_ids"].tolist() == [0, 1, 2, 3]
