"""Layouts know a batch's shapes without a dataset and without TensorFlow."""

import jax.numpy as jnp
import pytest

from plmjax.data.layouts import (
    BidirectionalStreams,
    Chunks,
    ContiguousStreams,
    FullSentences,
    PairedStreams,
    SentenceOrder,
    SentencePairs,
    SingleSegment,
    Windows,
)
from tests.data.layouts.rows import shapes

TWO_WAY = ("input_ids", "segment_ids", "next_ids", "next_weights", "document_starts")
ROWS = {"input_ids", "segment_ids", "positions", "row_ids"}


@pytest.mark.parametrize(
    "layout, more",
    [
        (SentencePairs(pack=3), ("token_type_ids", "cls_positions", "next_sentence_labels", "next_sentence_weights")),
        (SentenceOrder(), ("token_type_ids", "cls_positions", "sentence_order_labels", "sentence_order_weights")),
        (FullSentences(), ()),
        (SingleSegment(pack=3), ("token_type_ids", "cls_positions")),
        (Chunks(), ("next_ids", "next_weights")),
        (ContiguousStreams(), ("next_ids", "next_weights", "begins", "document_starts")),
        (Windows(overlap=5), ("next_ids", "next_weights", "begins", "document_starts", "overlap")),
        (
            BidirectionalStreams(),
            ("next_ids", "next_weights", "begins", "document_starts", *(f"backward_{name}" for name in TWO_WAY)),
        ),
        (PairedStreams(), (*(f"decoder_{name}" for name in sorted(ROWS - {"row_ids"})), "next_ids", "next_weights")),
    ],
    ids=repr,
)
def test_fields_and_shapes(layout, more):
    batch = layout.batch(4, 16)
    assert set(batch) == {*ROWS, *more}
    for name, field in batch.items():
        per_sequence = name.startswith(("cls_", "next_sentence_", "sentence_order_"))
        several = (4, getattr(layout, "pack", 1))
        assert field.shape == (
            (4,) if name in ("row_ids", "begins", "overlap") else several if per_sequence else (4, 16)
        ), name
        floats, flags = name.endswith("_weights"), name.endswith("document_starts")
        assert field.dtype == (jnp.float32 if floats else jnp.bool_ if flags else jnp.int32), name
    made = layout.synthetic(4, 16, 100, seed=0)
    assert shapes(made) == shapes(batch)
    assert layout.tokens(4, 16) == (128 if isinstance(layout, PairedStreams | BidirectionalStreams) else 64)


def test_a_synthetic_batch_is_full_of_tokens_that_follow_from_its_seed() -> None:
    """Both sides of a pair, and both directions, have their own; what follows a token is what is asked for there."""
    for layout in (SentencePairs(pack=3), SingleSegment(pack=3), Chunks(), BidirectionalStreams(), PairedStreams()):
        first, again, other = (layout.synthetic(4, 16, 100, seed) for seed in (3, 3, 4))
        for name in ("input_ids", "decoder_input_ids"):
            if name in first:
                assert (first[name] == again[name]).all() and (first[name] != other[name]).any()
                assert first[name].min() >= 5 and first[name].max() < 100
        for name in ("segment_ids", "decoder_segment_ids", "next_weights", "backward_segment_ids"):
            assert name not in first or (first[name] >= 1).all()
    pairs, segments = (layout(pack=3).synthetic(4, 16, 100, 3) for layout in (SentencePairs, SingleSegment))
    assert all((segments[name] == pairs[name]).all() for name in segments)
    blocks = Chunks().synthetic(4, 16, 100, 3)
    assert (blocks["next_ids"][:, :-1] == blocks["input_ids"][:, 1:]).all()
    both = BidirectionalStreams().synthetic(4, 16, 100, 3)
    assert (both["next_ids"][:, :-1] == both["input_ids"][:, 1:]).all()
    assert (both["backward_input_ids"] == both["next_ids"][:, ::-1]).all()
    assert (both["backward_next_ids"] == both["input_ids"][:, ::-1]).all()
    texts = PairedStreams().synthetic(4, 16, 100, 3)
    assert (texts["next_ids"][:, :-1] == texts["decoder_input_ids"][:, 1:]).all()
    assert (texts["input_ids"] != texts["decoder_input_ids"]).any() and texts["row_ids"].tolist() == [0, 1, 2, 3]
