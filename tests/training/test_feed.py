"""Batches on their way to the devices."""

import itertools
from collections.abc import Iterator

import jax
import numpy as np

from plmjax.training import feed


def test_batches_come_in_order_and_their_source_is_closed_where_a_run_ends_first() -> None:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {"row_ids": jax.ShapeDtypeStruct((2,), np.int32, sharding=place)}
    ended = []

    def source() -> Iterator[feed.HostBatch]:
        try:
            for step in itertools.count():
                yield {"row_ids": np.array([2 * step, 2 * step + 1], np.int32)}
        finally:
            ended.append(step)

    opened = source()  # a name of its own: otherwise Python would close it with the frame that reads it
    batches = feed.on_device(opened, shapes)
    assert [next(batches)["row_ids"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]] and not ended
    batches.close()
    assert ended
