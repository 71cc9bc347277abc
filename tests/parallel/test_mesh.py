"""The mesh of a run, what does not fit it, and the rate that the MFU of its devices is relative to."""

import types

import jax
import numpy as np
import pytest

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.parallel import mesh as meshes
from plmjax.parallel import peak, topologies


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


MESH = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))


@pytest.mark.parametrize(
    ("measured", "steps"),
    [
        # A processor that was busy at first: 92 % of what it did then is doubtful, so measured again. A rate hardly
        # above is not, for every line; at 240 it is once more, while the processor is busy: the largest counts.
        ([100, 400, 300], [(40, 0.4), (92, 92 / 400), (96, 96 / 400), (240, 240 / 400)]),
        ([400, 100], [(300, 0.75), (300, 0.75)]),
        ([100, 100], [(200, 1.0), (210, 1.0), (105, 0.5)]),  # no step beats the rate
    ],
)
def test_a_rate_that_a_step_comes_near_is_measured_again(measured, steps, monkeypatch):
    """Runs and phases of a process share what it has measured."""
    rates = iter(map(float, measured))
    monkeypatch.setattr(peak, "MEASURED", {})
    monkeypatch.setattr(peak, "measure_flops", lambda: next(rates))
    peak_flops = peak.PeakFlops(MESH)
    assert peak.PeakFlops(MESH).rate == peak_flops.rate == measured[0]
    assert [peak_flops.mfu(rate) for rate, _ in steps] == [pytest.approx(share) for _, share in steps]
    assert next(rates, None) is None and peak.PeakFlops(MESH).rate == max(measured)


def test_a_data_sheet_is_never_measured_again(monkeypatch):
    monkeypatch.setattr(topologies, "peak_flops", lambda kind: 100.0)
    monkeypatch.setattr(peak, "measure_flops", lambda: pytest.fail("measured"))
    peak_flops = peak.PeakFlops(MESH)
    assert (peak_flops.rate, peak_flops.origin, peak_flops.mfu(190.0)) == (200.0, "of the data sheet", 0.95)


def test_the_measured_rate_is_that_of_the_fastest_product(monkeypatch):
    """Three products of 64 x 64 matrices, of 2, 1 and 4 seconds on a clock that is read around each."""
    clock = iter([0.0, *(0.0, 0.0, 2.0), *(2.0, 2.0, 3.0), *(3.0, 3.0, 7.0), 7.0])
    monkeypatch.setattr(peak, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    assert peak.measure_flops(size=64, seconds=6.5) == pytest.approx(2 * 64**3 / 1.0)
