"""The table of chips and the slices that libtpu describes."""

import importlib.util
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from plmjax.errors import UserError
from plmjax.parallel import topologies
from plmjax.planning.hlo import Program


@pytest.mark.parametrize(
    ("name", "chips", "devices", "hosts", "accelerator", "runtime", "label"),
    [
        ("v2:4x4", 16, 32, 4, "v2-32", "tpu-ubuntu2204-base", ""),
        ("v3:8x8", 64, 128, 16, "v3-128", "tpu-ubuntu2204-base", "tpu-v3-slice"),
        ("v4:2x2x4", 16, 16, 4, "v4-32", "tpu-ubuntu2204-base", "tpu-v4-podslice"),
        ("v5e:1x1", 1, 1, 1, "v5litepod-1", "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice"),
        ("v5e:4x4*2", 32, 32, 8, "v5litepod-16", "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice"),
        ("v5p:2x2x4", 16, 16, 4, "v5p-32", "v2-alpha-tpuv5", "tpu-v5p-slice"),
        ("v6e:8x8", 64, 64, 16, "v6e-64", "v2-alpha-tpuv6e", "tpu-v6e-slice"),
        ("7x:1x1x1", 1, 2, 1, "tpu7x-2", "v2-alpha-tpu7-ubuntu2404", "tpu7x"),
        ("7x:2x2x4", 16, 32, 4, "tpu7x-32", "v2-alpha-tpu7-ubuntu2404", "tpu7x"),
    ],
)
def test_libtpu_and_cloud_describe_the_slice_as_the_table_does(
    name, chips, devices, hosts, accelerator, runtime, label
):
    piece = topologies.parse(name)
    found = piece.devices()
    assert (piece.name, piece.chips, piece.hosts) == (name, chips, hosts)
    assert len(found) == devices == chips * piece.chip.devices
    assert len({device.process_index for device in found}) == hosts
    assert found[0].device_kind == piece.chip.kind
    assert topologies.peak_flops(found[0].device_kind) == piece.chip.peak / piece.chip.devices
    assert (piece.accelerator_type, piece.chip.runtime, piece.chip.label) == (accelerator, runtime, label)
    assert topologies.parse("v5e:2x4").hosts == 1  # eight chips have one host of their own, which no larger slice has


CHIPS = {
    "v2": (46, 0, 16, 700, 62, 0, 4, 0.70, 2, 2, 16, False, 0),
    "v3": (123, 0, 32, 900, 82, 0, 4, 0.94, 2, 2, 32, False, 0),
    "v4": (275, 0, 32, 1200, 45, 0, 4, 1.05, 2, 1, 4, False, 0),
    "v5e": (197, 394, 16, 819, 45, 25 / 8, 8, 1.50, 1, 1, 16, True, 28),
    "v5p": (459, 918, 95, 2765, 90, 50 / 8, 4, 1.75, 2, 1, 4, False, 0),
    "v6e": (918, 1836, 32, 1640, 90, 100 / 8, 8, 1.75, 1, 1, 16, True, 0),
    "7x": (2307, 0, 192, 7370, 100, 0, 4, 0, 2, 2, 4, False, 0),
}
"""Tera-operations in bfloat16 and int8, GiB of HBM and GB/s of it, of a link and of the network to other slices, chips
of the largest host; GHz, cores, devices, chips from which links close to a ring, permutes beside computation, and
scoped memory in MiB. The clock of a 7x is not known."""


@pytest.mark.parametrize("name", CHIPS)
def test_figures_of_a_chip_are_those_of_its_data_sheet_and_its_generation(name):
    chip = topologies.CHIPS[name]
    sheet = (chip.peak / 1e12, chip.int8_peak / 1e12, chip.memory / 2**30, chip.bandwidth / 1e9, chip.link / 1e9)
    generation = (chip.cores, chip.devices, chip.wrap, chip.rings, chip.scoped_memory / 1024)
    found = (*sheet, chip.network / 1e9, chip.largest_host, (chip.clock or 0) / 1e9, *generation)
    assert found == pytest.approx(CHIPS[name]) and chip.hosts_of == 4


@pytest.mark.parametrize(
    ("name", "smallest", "largest", "some"),
    [
        ("v2", "2x2", 256, "2x2 4x4 8x8 8x16 16x16"),
        ("v3", "2x2", 1024, "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32"),
        ("v4", "2x2x1", 4096, "2x2x2 2x2x4 2x4x4 4x4x4 4x4x12 8x8x12 8x16x16 16x16x16"),
        ("v5e", "1x1", 256, "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"),
        ("v5p", "2x2x1", 6144, "2x2x2 2x2x4 2x4x4 4x4x4 4x4x244 12x12x36 16x16x24"),
        ("v6e", "1x1", 256, "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"),
        ("7x", "1x1x1", 9216, "2x2x1 2x2x4 4x4x4 16x20x28 16x24x24"),
    ],
)
def test_slices_are_those_that_cloud_offers(name, smallest, largest, some):
    """In two dimensions these alone; in three, whole cubes beyond 64 chips, each named once."""
    shapes = topologies.CHIPS[name].shapes
    chips = [topologies.parse(f"{name}:{shape}").chips for shape in shapes]
    assert (shapes[0], max(chips)) == (smallest, largest) and set(some.split()) <= set(shapes)
    assert chips == sorted(chips) and len(set(shapes)) == len(shapes)
    if shapes[0].count("x") == 1:
        assert shapes == tuple(some.split())
    for sides in ([int(side) for side in shape.split("x")] for shape in shapes[chips.index(64) + 1 :]):
        assert sides == sorted(sides) and (len(sides) == 2 or all(side % 4 == 0 for side in sides))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("v2:32x32", r"a shape in which Cloud offers slices of v2, .* as 4x4, 8x8, 8x16 or 16x16\."),
        ("v3:axb", "as 2x2, 4x4, 4x8 or 8x8"),
        ("v4:4x4x6", "as 4x4x4, 4x4x8, 4x4x12 or 4x8x8"),
        ("v5e:", "as 1x1, 2x2, 2x4 or 4x4"),
        ("v5e:9x9*2", "as 4x8, 8x8, 8x16 or 16x16"),
        ("v5e:4x4*1", r"number of slices from 2.*write v5e:4x4\*2, or v5e:4x4 for one"),
        ("v5e:4x4*x", "number of slices from 2"),
        ("v6:4x4", "did you mean 'v6e'"),
        ("v3:8x8*2", "one slice of v3, since Cloud joins several from v4 on, found 2"),
    ],
)
def test_a_name_of_no_slice_is_answered_with_the_nearest(name, sentence):
    with pytest.raises(UserError, match=sentence):
        topologies.parse(name)


def test_without_libtpu_the_answer_is_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'plmjax\[plan\]'"):
        topologies.parse("v3:8x8").devices()


def test_figures_of_a_device_are_those_of_its_kind(monkeypatch):
    """A device has a long or a short name; a GPU's name begins that of its models; a CPU's figures are not known."""
    for kind, name in (("TPU v5 lite", "v5e"), ("TPU v5e", "v5e"), ("TPU v5", "v5p")):
        assert topologies.chip_of(kind) is topologies.CHIPS[name]
    peaks = {"H200": 989e12, "H100 80GB HBM3": 989e12, "H100 PCIe": 756e12, "A100-SXM4-80GB": 312e12}
    assert {name: topologies.peak_flops(f"NVIDIA {name}") for name in peaks} == peaks
    assert topologies.device_memory(topologies.parse("v2:2x2").devices()[0]) == 8 * 2**30  # half a chip's
    assert topologies.parse("v3:8x8").device_memory == topologies.parse("v5e:8x8").device_memory == 16 * 2**30
    assert topologies.device_memory(jax.devices()[0]) is topologies.peak_flops("cpu") is None
    gpu = types.SimpleNamespace(device_kind="NVIDIA H100", platform="gpu", memory_stats=lambda: {"bytes_limit": 7e10})
    assert topologies.device_memory(gpu) == 7e10
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert topologies.device_memory(gpu) is None  # the figures of hosts may differ, and then so would their meshes


def test_links_close_to_a_ring_on_whole_pods_and_cubes_only():
    """An accelerator type gives the most cube-like slice."""
    for name, links in (("v5e:8x8", 2), ("v5e:16x16", 4), ("v4:2x2x4", 4), ("v4:4x4x4", 6)):
        piece = topologies.parse(name)
        assert piece.link_bandwidth == links * piece.chip.link
    given = {"v4:4x4x16": "4x8x8", "v4:4x8x8": "4x8x8", "v5p:4x4x24": "4x8x12", "v3:4x8": "4x8"}
    assert {name: topologies.parse(name).usual_shape for name in given} == given


# A compiler each, of up to 4 s: pytest -m nightly tests/parallel
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[] if one == "v2:2x2" else [pytest.mark.nightly])
     for one in ("v2:2x2", "v3:2x2", "v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2")],
)  # fmt: skip
def test_the_clock_turns_the_compilers_cycles_into_the_chips_peak(name):
    piece = topologies.parse(name)
    size = 4096
    place = jax.sharding.SingleDeviceSharding(piece.devices()[0])
    matrix = jax.ShapeDtypeStruct((size, size), jnp.bfloat16, sharding=place)
    compiled = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
    seconds = Program(compiled.as_text()).cycles() / piece.chip.clock
    share = 2 * size**3 / seconds / topologies.peak_flops(piece.chip.kind)
    assert 0.85 < share < 1.02


HOLDER = """
import fcntl, sys, time
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_must_wait_for_libtpu_says_for_which(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(topologies, "LOCK", tmp_path / "lock")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "false")
    topologies._wait_for_lock()  # there is no file yet
    command = [sys.executable, "-c", HOLDER, str(topologies.LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        monkeypatch.setattr(topologies.time, "sleep", lambda seconds: holder.communicate(""))
        topologies._wait_for_lock()
        said = capsys.readouterr().err
        assert f"waiting for process {holder.pid}, which has loaded libtpu" in said and said.count("\n") == 1
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    monkeypatch.setattr(topologies, "_lock_holder", lambda: 1)
    topologies._wait_for_lock()
    assert capsys.readouterr().err == ""
