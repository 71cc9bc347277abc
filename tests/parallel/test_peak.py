"""The rate that MFU is relative to, on processors that are busy and free by turns."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plmjax.parallel import peak, topologies


@pytest.fixture(autouse=True)
def nothing_is_measured_yet(monkeypatch):
    monkeypatch.setattr(peak, "MEASURED", {})


@pytest.fixture
def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))


def test_a_processor_that_was_busy_at_first_is_measured_again(mesh, monkeypatch):
    rates = iter([100.0, 400.0, 300.0])
    monkeypatch.setattr(peak, "measured_flops", lambda: next(rates))
    peak_flops = peak.PeakFlops(mesh)
    assert peak_flops.share(40.0) == 0.4
    assert peak_flops.share(92.0) == pytest.approx(92 / 400)  # 92 % of what the busy processor did
    assert peak_flops.share(96.0) == pytest.approx(96 / 400)  # hardly faster than before: not measured for every line
    assert peak_flops.share(240.0) == pytest.approx(240 / 400)  # measured again, busy once more: the largest counts
    assert next(rates, None) is None


def test_no_step_beats_the_measured_rate(mesh, monkeypatch):
    monkeypatch.setattr(peak, "measured_flops", lambda: 100.0)
    peak_flops = peak.PeakFlops(mesh)
    assert [peak_flops.share(rate) for rate in (200.0, 210.0, 105.0)] == [1.0, 1.0, 0.5]


def test_runs_and_phases_of_a_process_share_what_it_has_measured(mesh, monkeypatch):
    rates = iter([100.0, 400.0])
    monkeypatch.setattr(peak, "measured_flops", lambda: next(rates))
    first, second = peak.PeakFlops(mesh), peak.PeakFlops(mesh)
    assert first.rate == second.rate == 100.0
    assert second.share(60.0) == 60 / 400  # doubtful, so measured again
    assert first.rate == 100.0 and peak.PeakFlops(mesh).rate == 400.0


def test_a_slower_measurement_does_not_replace_a_faster_one(mesh, monkeypatch):
    rates = iter([400.0, 100.0])
    monkeypatch.setattr(peak, "measured_flops", lambda: next(rates))
    assert peak.PeakFlops(mesh).share(300.0) == 0.75  # doubtful, so measured again
    assert peak.PeakFlops(mesh).rate == 400.0 and next(rates, None) is None


def test_a_data_sheet_is_never_measured_again(mesh, monkeypatch):
    monkeypatch.setattr(topologies, "peak_flops", lambda kind: 100.0)
    monkeypatch.setattr(peak, "measured_flops", lambda: pytest.fail("measured"))
    peak_flops = peak.PeakFlops(mesh)
    assert (peak_flops.rate, peak_flops.origin) == (200.0, "of the data sheet")
    assert peak_flops.share(190.0) == 0.95


def test_a_gpu_without_a_data_sheet_here_is_measured_as_it_computes(monkeypatch):
    asked = []

    def measured(dtype=jnp.float32, size=1024):
        asked.append((dtype, size))
        return 100.0

    monkeypatch.setattr(peak, "measured_flops", measured)
    devices = [types.SimpleNamespace(device_kind="NVIDIA Unheard 9000", platform="gpu") for _ in range(4)]
    peak_flops = peak.PeakFlops(types.SimpleNamespace(devices=np.array(devices), size=4))
    assert asked == [(jnp.bfloat16, 8192)] and peak_flops.rate == 400.0  # each GPU has its own units


def test_accelerators_are_measured_with_larger_products():
    """An H200 multiplies matrices of 1,024 at 38 TFLOP/s, a twentieth of the rate of large ones."""
    assert [peak.product_size(platform) for platform in ("cpu", "gpu", "tpu")] == [1024, 8192, 8192]


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
    assert peak.measured_flops(size=64, seconds=0.3) == pytest.approx(2 * 64**3 / 0.05)
    assert next(seconds, None) is None
