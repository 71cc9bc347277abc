"""TPU chips: the figures of each generation, the names of its slices, and slices as devices to compile for.

This is the only table of chips in plmjax. Planning for a slice needs no TPU: libtpu describes the slice and compiles
for it on any machine. Names are `GENERATION:SHAPE` in chips, such as `v3:8x8` or `v4:2x2x4`.

Sources. Peak, memory and bandwidth: docs.cloud.google.com/tpu/docs/{v2,v3,v4,v5e,v5p,v6e,tpu7x}. Links: Norrie et al.,
"The Design Process for Google's Training Chips" (IEEE Micro 2021) for v2 and v3 (496 and 656 Gbit/s a link and
direction); "How to Scale Your Model" (jax-ml.github.io/scaling-book) for v4 to v6e; the TPU7x page for 7x. Network
between slices: the v5e and v6e pages (2 x 100 and 4 x 200 Gbit/s for the 8 chips of a host), the book for v5p.
Clock: peak / the most operations a cycle that libtpu's own cycle estimates reach for a large matmul, which is
2 * 128^2 times 1 (v2), 2 (v3), 4 (v5e), 8 (v4, v5p) and 16 (v6e) a device; tests/parallel/test_topologies.py checks.
Names of Cloud: docs.cloud.google.com/tpu/docs/runtimes for the software, /kubernetes-engine/docs/concepts/plan-tpus for
the labels of Kubernetes. The first page does not list 7x; its names are those in published code.
Shapes: the pages of the chips; for v2 and v3 the accelerator types with their hosts in pytorch/xla
(torch_xla/_internal/tpu.py). AI-Hypercomputer/xpk (system_characteristics.py) lists slices in three dimensions, none
with a side of 256 chips.
"""

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax

from plmjax import platform
from plmjax.errors import UserError, nearest, quoted

GIB = 2**30
LOCK = Path("/tmp/libtpu_lockfile")
"""File that a process with libtpu locks, unless its environment allows several processes."""
LOOK_SECONDS = 0.5
"""Seconds between two checks of the lock by a waiting process."""


PLANES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
"""Slices of v5e and v6e."""


def solids(largest: int) -> tuple[str, ...]:
    """Return the shapes of the slices of a 3D torus: a few below one cube of 4x4x4 chips, then multiples of the cube.

    They are sorted by their number of chips. Among shapes with the same number the most cube-like comes first, which
    Cloud TPU gives for an accelerator type.

    largest: number of chips of the largest slice.
    """
    sides = range(4, 256, 4)
    cubes = [
        (one, two, three)
        for one in sides
        for two in sides[sides.index(one) :]
        for three in sides[sides.index(two) : largest // (one * two * 4)]
    ]
    cubes.sort(key=lambda shape: (math.prod(shape), sum(shape)))
    return ("2x2x1", "2x2x2", "2x2x4", "2x4x4", *("x".join(map(str, shape)) for shape in cubes))


@dataclasses.dataclass(frozen=True)
class Chip:
    """One TPU generation. All figures are per chip. A JAX device is `1 / devices` of a chip."""

    name: str
    """Name that users write, such as v5e."""
    kind: str
    """`device_kind` of its devices in JAX."""
    peak: float
    """bfloat16 FLOP/s."""
    memory: float
    """HBM, bytes."""
    bandwidth: float
    """HBM, bytes/s."""
    link: float
    """One link between chips, one direction, bytes/s."""
    clock: float | None
    """Cycles/s of the compiler's cycle estimates; None where libtpu's programs cannot be read."""
    cores: int
    """Number of TensorCores."""
    devices: int
    """Number of JAX devices per chip: the number of cores if each is a device of its own (v2, v3, 7x), else 1."""
    wrap: int
    """An axis of a slice has wrap-around links if its size is a multiple of this number."""
    shapes: tuple[str, ...]
    """The slices that Cloud offers, in chips."""
    accelerator: str
    """Cloud TPU's accelerator type before the size: v5litepod."""
    runtime: str
    """Software version of its Cloud TPU machines that JAX is installed on."""
    int8_peak: float = 0.0
    """int8 operations/s; 0 where the chip has no integer matrix products, or where they are no faster than bfloat16."""
    label: str = ""
    """Value of GKE's node label cloud.google.com/gke-tpu-accelerator; empty where GKE does not offer the chip."""
    network: float = 0.0
    """Bandwidth per chip of its host's network to other slices, one direction, bytes/s; 0 where slices cannot be
    joined, or where the speed is not published."""
    hosts_of: int = 4
    """Number of chips of one host in a slice of several hosts."""
    largest_host: int = 4
    """Number of chips of the largest host that is a complete slice."""
    scoped_memory: int = 0
    """KiB of vector memory for the arrays of one instruction, chosen by the fastest plan of BERT-Large; 0 leaves the
    choice to libtpu."""
    in_service: bool = True
    """True where Cloud TPU's own API offers the chip, in addition to GKE."""
    multislice: bool = True
    """True where Cloud joins slices by the data-center network: from v4 on (Multislice supports no older ones)."""
    rings: bool = False
    """True where libtpu runs permutes beside computation, so that parameters can be sent along rings."""
    libtpu_name: str = ""
    """Name in libtpu where it differs."""
    options: tuple[tuple[str, str], ...] = ()
    """Options of libtpu besides the name."""


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v2", "TPU v2", 46e12, 16 * GIB, 700e9, 62e9, 0.70e9, 2, 2, wrap=16,
             shapes=("2x2", "4x4", "8x8", "8x16", "16x16"), accelerator="v2", runtime="tpu-ubuntu2204-base",
             multislice=False),
        Chip("v3", "TPU v3", 123e12, 32 * GIB, 900e9, 82e9, 0.94e9, 2, 2, wrap=32,
             shapes=("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
             accelerator="v3", runtime="tpu-ubuntu2204-base", label="tpu-v3-slice",
             multislice=False),
        # Cloud runs the two cores of v4 as one device ("megacore"); by default libtpu describes two devices.
        Chip("v4", "TPU v4", 275e12, 32 * GIB, 1200e9, 45e9, 1.05e9, 2, 1, wrap=4, shapes=solids(4096),
             accelerator="v4", runtime="tpu-ubuntu2204-base", label="tpu-v4-podslice",
             options=(("chip_config_name", "megacore"),)),
        Chip("v5e", "TPU v5 lite", 197e12, 16 * GIB, 819e9, 45e9, 1.50e9, 1, 1, wrap=16, shapes=PLANES,
             accelerator="v5litepod", runtime="v2-alpha-tpuv5-lite", label="tpu-v5-lite-podslice",
             largest_host=8, network=3.125e9, int8_peak=394e12, scoped_memory=28672, rings=True),
        # The pod has 8,960 chips, and its largest slice is 16x16x24.
        Chip("v5p", "TPU v5", 459e12, 95 * GIB, 2765e9, 90e9, 1.75e9, 2, 1, wrap=4, shapes=solids(6144),
             accelerator="v5p", runtime="v2-alpha-tpuv5", label="tpu-v5p-slice",
             network=6.25e9, int8_peak=918e12),
        Chip("v6e", "TPU v6 lite", 918e12, 32 * GIB, 1640e9, 90e9, 1.75e9, 1, 1, wrap=16, shapes=PLANES,
             accelerator="v6e", runtime="v2-alpha-tpuv6e", label="tpu-v6e-slice",
             largest_host=8, network=12.5e9, int8_peak=1836e12, rings=True),
        Chip("7x", "TPU7x", 2307e12, 192 * GIB, 7370e9, 100e9, None, 2, 2, wrap=4,
             shapes=("1x1x1", *solids(9216)), accelerator="tpu7x", runtime="v2-alpha-tpu7-ubuntu2404", label="tpu7x",
             in_service=False, libtpu_name="tpu7x"),
    )
}  # fmt: skip
"""Name -> chip."""

GPU_PEAKS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}
"""Beginning of a GPU's `device_kind` -> dense bfloat16 FLOP/s (NVIDIA's data sheets). The first match counts."""


def peak_flops(device_kind: str) -> float | None:
    """Return the bfloat16 FLOP/s of one device of this `device_kind`, a TPU or a GPU.

    It is None if the kind is unknown.
    """
    if chip := chip_of(device_kind):
        return chip.peak / chip.devices
    return next((peak for start, peak in GPU_PEAKS.items() if device_kind.startswith(start)), None)


def chip_of(device_kind: str) -> Chip | None:
    """Return the generation of a TPU device, or None for other devices."""
    # Later releases of the runtime call the same devices by their short names ("TPU v5e").
    return next((chip for chip in CHIPS.values() if device_kind in (chip.kind, f"TPU {chip.name}")), None)


FOR_RINGS = {
    "xla_max_concurrent_async_collective_permutes": "64",
    "xla_lhs_loop_fusion_latency_multiplier": "0.1",
}
"""Options for a program with rings (`plmjax.parallel.rings`), chosen by plans of BERT-Large. Without them libtpu runs
few permutes at the same time. It also estimates that one short instruction hides a whole permute, and so it places the
other permutes one after another, without computation beside them. With the options it spreads them over the
computation."""


def compiler_options(device: jax.Device, *, rings: bool) -> dict[str, str]:
    """Return the XLA options of a train step for a device, which may be absent; an empty dict if it is no TPU.

    rings: true if the step has rings.
    """
    chip = chip_of(device.device_kind)
    if chip is None:
        return {}
    memory = {"xla_tpu_scoped_vmem_limit_kib": str(chip.scoped_memory)} if chip.scoped_memory else {}
    return memory | (FOR_RINGS if rings else {})


def device_memory(device: jax.Device) -> float | None:
    """Return the memory of a device for arrays and programs, in bytes.

    It is None if the device uses the memory of the machine (a CPU), or if the size is not known.
    """
    if chip := chip_of(device.device_kind):
        return chip.memory / chip.devices
    if device.platform == "cpu" or jax.process_count() > 1:  # hosts with other figures would choose other meshes
        return None
    return (device.memory_stats() or {}).get("bytes_limit")


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips of one generation in a grid, or several such grids joined only by the data-center network."""

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    @property
    def name(self) -> str:
        """The name in the form that `parse` reads."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}" + (f"*{self.slices}" if self.slices > 1 else "")

    @property
    def chips(self) -> int:
        """Number of chips of all slices."""
        return math.prod(self.shape) * self.slices

    @property
    def hosts(self) -> int:
        """Number of Cloud machines of all slices."""
        chips = math.prod(self.shape)
        return self.slices * (1 if chips <= self.chip.largest_host else chips // self.chip.hosts_of)

    @property
    def accelerator_type(self) -> str:
        """Cloud TPU's name of one slice, which counts TensorCores: v3-128 and v5litepod-64 are both 8x8."""
        return f"{self.chip.accelerator}-{math.prod(self.shape) * self.chip.cores}"

    @property
    def usual_shape(self) -> str:
        """The shape that Cloud TPU gives for the accelerator type."""
        return next(one for one in self.chip.shapes if math.prod(_sizes(one)) == math.prod(self.shape))

    @property
    def device_memory(self) -> float:
        """HBM of one device, bytes."""
        return self.chip.memory / self.chip.devices

    @property
    def link_bandwidth(self) -> float:
        """Bytes/s that one chip can send over all its links.

        It has two links along an axis with wrap-around links, and one along another axis of more than one chip.
        """
        axes = [size for size in self.shape if size > 1]
        return self.chip.link * sum(2 if size % self.chip.wrap == 0 else 1 for size in axes)

    def devices(self) -> list[jax.Device]:
        """Return the slice's devices, to compile for but not to run on.

        Raises:
            UserError: libtpu is not installed.
        """
        if importlib.util.find_spec("libtpu") is None:
            raise UserError(
                f"Expected the TPU compiler to plan for {self.name}, found no libtpu; pip install 'plmjax[plan]'."
            )
        # Without this variable libtpu asks a metadata server about its TPU, and waits for the answer.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        if not platform.has_tpu():
            # The lock prevents two processes from using one TPU. Without a TPU two plans may run at the same time.
            os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
            # Without these variables libtpu prints five lines about a missing host and slice. Their values have no
            # effect: the slice to compile for is given below.
            os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
            os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        _wait_for_lock()
        from jax.experimental import topologies

        # JAX would cache the programs of an absent TPU, and warn at the next plan that it cannot read them.
        jax.config.update("jax_enable_compilation_cache", False)
        whole_hosts = math.prod(self.shape) % self.chip.hosts_of == 0
        bounds = {} if whole_hosts else {"chips_per_host_bounds": (*self.shape, 1)[:3]}
        name = f"{self.chip.libtpu_name or self.chip.name}:{'x'.join(map(str, self.shape))}"
        options = dict(self.chip.options) | bounds | ({"num_slices": self.slices} if self.slices > 1 else {})
        with _schedules_enabled():
            return topologies.get_topology_desc(topology_name=name, platform="tpu", **options).devices


@functools.cache
def schedules() -> Path:
    """Return the folder into which libtpu writes its final schedules while it compiles.

    The folder is removed when the process ends. libtpu reads its name once, when it is loaded. Code that compiles for a
    slice removes the files after each program.
    """
    folder = Path(tempfile.mkdtemp(prefix="plmjax-schedules-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _schedules_enabled() -> Iterator[None]:
    """Set the environment variable that makes libtpu write its schedules. Other processes do not inherit it."""
    before = os.environ.get("LIBTPU_INIT_ARGS")
    flags = f"--xla_jf_dump_to={schedules()} --xla_jf_dump_llo_text=true --xla_jf_dump_hlo_text=false"
    flags += " --xla_jf_dump_llo_pass_label_regex=^final_bundles"
    os.environ["LIBTPU_INIT_ARGS"] = f"{flags} {before or ''}".strip()  # of two equal flags the last one counts
    try:
        yield
    finally:
        if before is None:
            del os.environ["LIBTPU_INIT_ARGS"]
        else:
            os.environ["LIBTPU_INIT_ARGS"] = before


def _wait_for_lock() -> None:
    """Wait while another process has libtpu's lock, and print its process id. libtpu itself would fail.

    The kernel's list of locks is read instead of the lock file, because a process that closes the file loses its lock.
    """
    if os.environ.get("ALLOW_MULTIPLE_LIBTPU_LOAD", "").lower() in ("1", "true"):
        return
    printed = False
    while holder := _lock_holder():
        if not printed:
            print(
                f"waiting for process {holder}, which has loaded libtpu; with ALLOW_MULTIPLE_LIBTPU_LOAD=1 in the "
                f"environment both compile at once.",
                file=sys.stderr,
                flush=True,
            )
        printed = True
        time.sleep(LOOK_SECONDS)


def _lock_holder() -> int | None:
    """Return the id of another process that has libtpu's lock; None without one or without a list of locks."""
    try:
        inode, locks = LOCK.stat().st_ino, Path("/proc/locks").read_text()
    except OSError:
        return None
    found = re.findall(rf"POSIX +ADVISORY +WRITE (\d+) \w+:\w+:{inode} ", locks)
    return next((int(process) for process in found if int(process) != os.getpid()), None)


def parse(name: str) -> Slice:
    """Parse a name such as `v3:8x8`, or `v5e:8x8*2` for two slices.

    Raises:
        UserError: the generation or the shape is unknown; the message has known ones.
    """
    generation, _, shape = name.partition(":")
    shape, star, count = shape.partition("*")
    if generation not in CHIPS:
        raise UserError(
            f"Expected a topology GENERATION:SHAPE, such as v3:8x8 or v4:2x2x4, found the generation "
            f"{quoted(generation)}; {nearest(generation, CHIPS)}"
        )
    chip = CHIPS[generation]
    if shape not in chip.shapes:
        close = nearest_shapes(chip, shape)
        raise UserError(
            f"Expected a shape in which Cloud offers slices of {generation}, found {quoted(shape)}; choose one, such "
            f"as {', '.join(close[:-1])} or {close[-1]}."
        )
    sizes = _sizes(shape)
    if not star:
        return Slice(chip, sizes)
    if not count.isdecimal() or int(count) < 2:
        raise UserError(
            f"Expected a number of slices from 2 after the *, found {quoted(count)}; write {generation}:{shape}*2, or "
            f"{generation}:{shape} for one."
        )
    return several(Slice(chip, sizes), int(count))


def several(part: Slice, count: int) -> Slice:
    """Return `count` slices like `part`, joined by the data-center network.

    Raises:
        UserError: Cloud does not join slices of the generation.
    """
    if count > 1 and not part.chip.multislice:
        joined = [chip.name for chip in CHIPS.values() if chip.multislice]
        raise UserError(
            f"Expected one slice of {part.chip.name}, since Cloud joins several from v4 on, found {count}; choose a "
            f"larger shape, or one of {', '.join(joined)}."
        )
    return dataclasses.replace(part, slices=count)


def of_accelerator_type(name: str) -> Slice:
    """Parse Cloud's name of a slice, such as v4-32 or v5litepod-16. Its shape is the usual one of its size.

    The number is the number of TensorCores. On v5e and v6e it is also the number of chips, which have one core each.

    Raises:
        UserError: there is no such generation, or no shape of that size; the message has known ones.
    """
    generation, _, size = name.rpartition("-")
    chip = next((chip for chip in CHIPS.values() if generation in (chip.name, chip.accelerator)), None)
    if chip is None:
        raise UserError(
            f"Expected Cloud's name of a slice, such as v4-32 or v5litepod-16, found {quoted(name)}; "
            f"{nearest(generation, {chip.accelerator for chip in CHIPS.values()})}"
        )
    slices = [parse(f"{chip.name}:{shape}") for shape in chip.shapes]
    found = [one for one in slices if size.isdecimal() and one.accelerator_type == f"{chip.accelerator}-{int(size)}"]
    if not found:
        raise UserError(
            f"Expected one of the sizes of a {chip.name} slice, "
            f"{', '.join(one.accelerator_type for one in slices)}, found {quoted(name)}; choose one."
        )
    return found[0]


def nearest_shapes(chip: Chip, shape: str, count: int = 4) -> list[str]:
    """Return the `count` offered shapes whose numbers of chips are closest to that of `shape`, smallest first.

    shape: any text; text that is no shape has one chip.
    """
    size = math.prod(max(number, 1) for number in _sizes(shape))
    close = sorted(chip.shapes, key=lambda known: abs(math.log(math.prod(_sizes(known)) / size)))[:count]
    return [known for known in chip.shapes if known in close]


def _sizes(shape: str) -> tuple[int, ...]:
    return tuple(int(size) if size.isdecimal() else 0 for size in shape.split("x"))
