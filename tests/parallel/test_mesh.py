"""The mesh of a run and what does not fit it."""

import jax
import pytest

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.parallel import mesh as meshes


@pytest.mark.parametrize(
    ("sizes", "expected"), [((0, 1, 1), (8, 1, 1)), ((0, 2, 2), (2, 2, 2)), ((1, 8, 1), (1, 8, 1))]
)
def test_takes_what_the_other_axes_leave(sizes, expected):
    mesh = meshes.make(experiment.Mesh(*sizes), jax.devices())
    assert tuple(mesh.shape.values()) == expected and tuple(mesh.shape) == ("data", "fsdp", "tensor")
    assert {device.id for device in mesh.devices.flat} == {device.id for device in jax.devices()}


@pytest.mark.parametrize("sizes", [(3, 1, 1), (0, 3, 1), (0, 16, 1), (2, 2, 1), (0, 0, 1), (0, 1, -1), (-8, -1, 1)])
def test_axes_that_do_not_multiply_to_the_devices_are_named(sizes):
    with pytest.raises(UserError, match=r"number of devices, found .* on 8; change --mesh\.data"):
        meshes.shape(experiment.Mesh(*sizes), 8)


@pytest.mark.parametrize(
    ("batch_size", "accumulation", "advice"), [(12, 1, "take 8 or 16"), (4, 2, "take 16"), (0, 1, "take 8")]
)
def test_a_batch_that_does_not_divide_is_told_what_does(batch_size, accumulation, advice):
    mesh = meshes.make(experiment.Mesh(data=4, fsdp=2), jax.devices())
    meshes.check_batch(32, 2, mesh)
    with pytest.raises(UserError, match=f"found {batch_size}; {advice},"):
        meshes.check_batch(batch_size, accumulation, mesh)


def test_accumulation_below_one_is_named():
    mesh = meshes.make(experiment.Mesh(), jax.devices())
    with pytest.raises(UserError, match="at least one microbatch, found 0"):
        meshes.check_batch(32, 0, mesh)
