"""The named device mesh of a run, with axes data, fsdp and tensor, laid out along the links between the devices."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.parallel import rings

AXES = ("data", "fsdp", "tensor")


def candidates(mesh: experiment.Mesh, devices: int, slices: int = 1) -> list[tuple[int, int, int]]:
    """Return every (data, fsdp, tensor) that fits the mesh settings on this number of devices, best first.

    The data axis communicates least. The fsdp axis gathers parameters. The tensor axis waits for sums in every layer.
    Only the data axis extends over several slices, which a slow network joins.

    Raises:
        UserError: the product of the axes is not the number of devices, or data does not divide by the slices.
    """
    divisors = [size for size in range(1, devices + 1) if devices % size == 0]
    found = [
        (devices // (fsdp * tensor), fsdp, tensor)
        for tensor in divisors
        for fsdp in divisors
        if devices % (fsdp * tensor) == 0 and mesh.fsdp in (0, fsdp) and mesh.tensor in (0, tensor)
    ]
    found = [sizes for sizes in found if mesh.data in (0, sizes[0])]
    if not found:
        asked = " x ".join(str(size or "?") for size in (mesh.data, mesh.fsdp, mesh.tensor))
        raise UserError(
            f"Expected data x fsdp x tensor to be the number of devices, found {asked} on {devices}; "
            f"change --mesh.data, --mesh.fsdp or --mesh.tensor."
        )
    across = [sizes for sizes in found if sizes[0] % slices == 0]
    if not across:
        raise UserError(
            f"Expected a data axis that divides by the {slices} slices, found {mesh.data or found[0][0]}; "
            f"change --mesh.data."
        )
    return across


def slices(devices: Sequence[jax.Device]) -> int:
    """Return the number of TPU slices that the devices belong to; 1 for other devices."""
    return len({getattr(device, "slice_index", 0) for device in devices})


def make(mesh: experiment.Mesh, devices: Sequence[jax.Device], wanted: str = "auto") -> jax.sharding.Mesh:
    """Return a mesh over `devices`. Axes that are not set get size 1, and data gets all other devices.

    The devices of a TPU slice are laid out along its links, and several slices one after the other along data. If data
    has all devices of a slice with rings (`plmjax.parallel.rings`), they are in the order of the slice's rows.

    wanted: `training.rings` of the run.
    """
    count = slices(devices)
    data, fsdp, tensor = candidates(mesh, len(devices), count)[0]
    if count > 1:
        arranged = mesh_utils.create_hybrid_device_mesh(
            (data // count, fsdp, tensor), (count, 1, 1), devices, allow_split_physical_axes=True
        )
    elif data == len(devices) and in_rings(devices, wanted):
        arranged = np.array(rings.in_rows(devices)).reshape(data, fsdp, tensor)
    else:
        on_tpu = devices[0].platform == "tpu"
        arranged = mesh_utils.create_device_mesh((data, fsdp, tensor), devices, allow_split_physical_axes=on_tpu)
    return jax.sharding.Mesh(arranged, AXES)


def in_rings(devices: Sequence[jax.Device], wanted: str) -> bool:
    """Return whether to lay out the devices for rings. wanted: `training.rings` of the run."""
    return (wanted == "on" and rings.grid(devices) is not None) or (wanted == "auto" and rings.are_supported(devices))


def batch_shards(mesh: jax.sharding.Mesh) -> int:
    """Return the number of shards of a batch: the number of devices along data and fsdp."""
    return math.prod(mesh.shape[axis] for axis in ("data", "fsdp"))


def check_batch(batch_size: int, accumulation: int, mesh: jax.sharding.Mesh) -> None:
    """Raise UserError unless every device gets the same number of rows of every microbatch."""
    if accumulation < 1:
        raise UserError(f"Expected at least one microbatch, found {accumulation}; set --training.accumulation 1.")
    shards = batch_shards(mesh) * accumulation
    if batch_size < 1 or batch_size % shards:
        smaller, larger = batch_size // shards * shards, (batch_size // shards + 1) * shards
        sizes = f"{smaller} or {larger}" if smaller else str(larger)
        raise UserError(
            f"Expected a batch size that divides by {batch_shards(mesh)} devices x {accumulation} microbatches, found "
            f"{batch_size}; take {sizes}, or change --training.accumulation or --mesh.data."
        )
