"""The rate that MFU is relative to, on processors that are busy and free by turns."""

import types

import jax
import numpy as np
import pytest

from plmjax.parallel import peak, topologies

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
    """Three products of 64 x 64 matrices, of 0.2, 0.05 and 0.1 seconds."""
    seconds, now = iter([0.0, 0.2, 0.05, 0.1]), [0.0]  # the first one compiles, before the clock is looked at

    def product(function):
        def run(a):
            now[0] += next(seconds)
            return function(a)

        return run

    monkeypatch.setattr(peak, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(peak, "jax", types.SimpleNamespace(jit=product))
    assert peak.measure_flops(size=64, seconds=0.3) == pytest.approx(2 * 64**3 / 0.05)
