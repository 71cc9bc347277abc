"""The bytes that compiled programs read from and write to HBM."""

import pytest

from plmjax.parallel import topologies
from plmjax.plan.estimate import hbm_seconds
from plmjax.plan.hlo import Program
from plmjax.plan.traffic import Traffic
from tests.plan.programs import WRITTEN, compiled


def test_the_traffic_of_a_written_program_is_known_to_the_byte():
    # negate reads and writes 128 bytes five times; the copy reads 128 into on-chip memory; the fusion reads a slice of
    # 64. Its index and the counters of the loops are scalars.
    assert Traffic(Program(WRITTEN)).total() == 5 * 256 + 128 + 64


@pytest.mark.parametrize(("name", "bandwidth"), [("v3:2x2", 450e9), ("v5e:2x2", 819e9)])
def test_devices_of_a_chip_share_its_bandwidth(name: str, bandwidth: float) -> None:
    """A v3 has two, and 900 GB/s."""
    assert hbm_seconds(Program(WRITTEN), topologies.parse(name).chip) == pytest.approx(1472 / bandwidth)


@pytest.mark.parametrize("topology", ["v3:4x4", "v5e:4x4"])
def test_bytes_of_a_scan_grow_with_its_layers(topology):
    few, many = (Traffic(compiled(topology, layers)).total() for layers in (72, 144))
    assert many / few == pytest.approx(2, rel=0.1)
