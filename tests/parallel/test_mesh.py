"""The mesh of a run and what does not fit it."""

import itertools
import math

import jax
import pytest

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((0, 0, 0), (8, 1, 1)), ((0, 2, 2), (2, 2, 2)), ((1, 8, 1), (1, 8, 1)), ((2, 0, 0), (2, 4, 1))],
)
def test_what_is_left_open_goes_to_data_first(sizes, expected):
    mesh = meshes.make(experiment.Mesh(*sizes), jax.devices())
    assert tuple(mesh.shape.values()) == expected and tuple(mesh.shape) == ("data", "fsdp", "tensor")
    assert {device.id for device in mesh.devices.flat} == {device.id for device in jax.devices()}


@pytest.mark.parametrize("sizes", [(3, 1, 1), (0, 3, 1), (0, 16, 1), (2, 2, 1)])
def test_axes_that_do_not_multiply_to_the_devices_are_named(sizes):
    with pytest.raises(UserError, match=r"number of devices, found .* on 8; change --mesh\.data"):
        meshes.candidates(experiment.Mesh(*sizes), 8)


@pytest.mark.parametrize("sizes", [(0, 1, -1), (-8, -1, 1)])
def test_axes_below_zero_are_named(sizes):
    with pytest.raises(UserError, match=r"--mesh\.(data|tensor) of at least 0, found -"):
        experiment.Mesh(*sizes)


def test_data_is_preferred_to_fsdp_and_fsdp_to_tensor():
    found = meshes.candidates(experiment.Mesh(), 4)
    assert found == [(4, 1, 1), (2, 2, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4)]
    assert meshes.candidates(experiment.Mesh(), 4, slices=2) == [(4, 1, 1), (2, 2, 1), (2, 1, 2)]
    assert meshes.candidates(experiment.Mesh(), 6, slices=2) == [(6, 1, 1), (2, 3, 1), (2, 1, 3)]


@pytest.mark.parametrize("name", ["v2:4x4", "v3:8x8", "v4:2x2x4", "v5p:4x4x4", "v5e:8x8", "7x:2x2x4"])
def test_neighbours_on_an_inner_axis_are_neighbours_in_the_slice(name):
    part = topologies.parse(name)
    devices = part.devices()
    mesh = meshes.make(experiment.Mesh(tensor=4), devices)
    assert {device.id for device in mesh.devices.flat} == {device.id for device in devices}
    for row in mesh.devices.reshape(-1, 4):  # a ring or a square of four: every step goes over one link at most
        for one, other in itertools.pairwise(row[:2]):
            assert sum(abs(a - b) for a, b in zip(one.coords, other.coords, strict=True)) <= 1
        spread = [max(d.coords[i] for d in row) - min(d.coords[i] for d in row) + 1 for i in range(3)]
        assert math.prod(spread) * part.chip.devices in (4, 4 * part.chip.devices)


@pytest.mark.parametrize("name", ["v5e:8x8*2", "v4:2x2x4*2"])
def test_only_data_goes_from_slice_to_slice(name):
    devices = topologies.parse(name).devices()
    mesh = meshes.make(experiment.Mesh(fsdp=4, tensor=2), devices)
    assert mesh.shape["data"] * 8 == len(devices)
    slices = [{device.slice_index for device in row.flat} for row in mesh.devices]
    half = len(slices) // 2
    assert slices == [{0}] * half + [{1}] * half


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
