"""Batches on their way to the devices."""

from collections.abc import Iterator

import jax
import numpy as np

from plmjax.data.mixing import Portion
from plmjax.training import feed


def test_every_device_has_its_rows_until_the_source_ends_or_the_run_does() -> None:
    """The devices of a mesh need not be in the order of the rows, and some have the same rows."""
    devices = np.array(jax.devices())[[5, 2, 7, 0, 3, 6, 1, 4]].reshape(4, 2)
    mesh = jax.sharding.Mesh(devices, ("data", "tensor"))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    sizes = {"ids": (12, 5), "weights": (12,)}
    shapes = {name: jax.ShapeDtypeStruct(size, np.float32, sharding=place) for name, size in sizes.items()}
    assert feed.local_rows(shapes).tolist() == list(range(12))
    draws = np.random.default_rng(0)
    source = [{name: draws.normal(size=size).astype(np.float32) for name, size in sizes.items()} for _ in range(4)]
    ended = []

    def opened() -> Iterator[feed.HostBatch]:
        try:
            yield from source
        finally:
            ended.append(True)

    for ahead in (1, 3, 9):
        found = list(feed.on_device(opened(), shapes, ahead))
        assert len(found) == 4 and ended.pop()
        for ours, batch in zip(found, source, strict=True):
            for name, array in ours.items():
                assert array.sharding == place
                np.testing.assert_array_equal(array, batch[name])
    own = opened()  # a name of its own: otherwise Python would close it with the frame that reads it
    batches = feed.on_device(own, shapes, 1)
    next(batches)
    assert not ended
    batches.close()
    assert ended


def test_metrics_of_a_mixture_have_the_names_of_its_sources() -> None:
    class Mixed:
        def portions(self, phases: object, step: int) -> dict[str, Portion]:
            return {"web": Portion(0.75, step / 2), "books": Portion(0.25, 3.0)} if phases else {}

    assert feed.mixture_metrics(Mixed(), ["a phase"], 5) == {
        "mixture/web/share": 0.75, "mixture/web/epochs": 2.5, "mixture/books/share": 0.25, "mixture/books/epochs": 3.0,
    }  # fmt: skip
    assert feed.mixture_metrics(Mixed(), [], 5) == feed.mixture_metrics(object(), ["a phase"], 5) == {}
