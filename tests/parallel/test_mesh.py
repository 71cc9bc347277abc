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


def test_data_is_preferred_to_fsdp_and_fsdp_to_tensor():
    found = meshes.candidates(experiment.Mesh(), 4)
    assert found == [(4, 1, 1), (2, 2, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4)]
    assert meshes.candidates(experiment.Mesh(), 4, slices=2) == [(4, 1, 1), (2, 2, 1), (2, 1, 2)]
    assert meshes.candidates(experiment.Mesh(), 6, slices=2) == [(6, 1, 1), (2, 3, 1), (2, 1, 3)]


@pytest.mark.parametrize("name", ["v2:4x4", "v4:2x2x4", "v5e:8x8"])
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


def test_only_data_goes_from_slice_to_slice():
    devices = topologies.parse("v5e:8x8*2").devices()
    mesh = meshes.make(experiment.Mesh(fsdp=4, tensor=2), devices)
    assert mesh.shape["data"] * 8 == len(devices)
    slices = [{device.slice_index for device in row.flat} for row in mesh.devices]
    half = len(slices) // 2
    assert slices == [{0}] * half + [{1}] * half


@pytest.mark.parametrize(
    ("sizes", "batch", "message"),
    [
        ((3, 1, 1), (32, 1), r"number of devices, found 3 x 1 x 1 on 8; change --mesh\.data"),
        ((0, 16, 1), (32, 1), "number of devices"),
        ((0, 1, -1), (32, 1), r"--mesh\.tensor of at least 0, found -1"),
        ((4, 2, 1), (12, 1), "found 12; take 8 or 16,"),
        ((4, 2, 1), (4, 2), "found 4; take 16,"),
        ((4, 2, 1), (0, 1), "found 0; take 8,"),
        ((8, 1, 1), (32, 0), "at least one microbatch, found 0"),
    ],
)
def test_what_does_not_divide_is_told_what_does(sizes, batch, message):
    with pytest.raises(UserError, match=message):
        meshes.check_batch(*batch, meshes.make(experiment.Mesh(*sizes), jax.devices()))
    meshes.check_batch(32, 2, meshes.make(experiment.Mesh(4, 2), jax.devices()))
