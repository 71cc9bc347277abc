"""Buckets of distances against transformers' T5."""

import numpy as np
import pytest

from plmjax.layers.attention.relative_positions import distance_buckets
from tests.optional import torch, transformers


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "largest"), [(32, 128), (8, 20), (32, 64), (16, 128)])
def test_buckets_are_those_of_transformers(both_sides: bool, buckets: int, largest: int) -> None:
    """Of every distance, farther ones than the largest included."""
    attention = transformers.models.t5.modeling_t5.T5Attention
    places = np.arange(-5000, 5001)
    expected = attention._relative_position_bucket(torch.tensor(places), both_sides, buckets, largest).numpy()
    found = distance_buckets(both_sides, buckets, largest)
    np.testing.assert_array_equal(found[np.clip(places, -largest, largest) + largest], expected)
    assert len(set(found.tolist())) == (buckets - 1 if both_sides else buckets)  # none is at distance 0 and after
