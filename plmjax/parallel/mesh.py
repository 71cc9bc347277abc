"""The named device mesh of a run: axes data, fsdp and tensor."""

import math
from collections.abc import Sequence

import jax
from jax.experimental import mesh_utils

from plmjax import experiment
from plmjax.errors import UserError

AXES = ("data", "fsdp", "tensor")


def shape(mesh: experiment.Mesh, devices: int) -> tuple[int, int, int]:
    """Sizes of (data, fsdp, tensor) on so many devices.

    Raises:
        UserError: the axes do not multiply to the number of devices.
    """
    rest = mesh.fsdp * mesh.tensor
    data = mesh.data or devices // max(rest, 1)
    if min(data, mesh.fsdp, mesh.tensor) < 1 or data * rest != devices:
        raise UserError(
            f"Expected data x fsdp x tensor to be the number of devices, found {mesh.data or '?'} x {mesh.fsdp} x "
            f"{mesh.tensor} on {devices}; change --mesh.data, --mesh.fsdp or --mesh.tensor."
        )
    return data, mesh.fsdp, mesh.tensor


def make(mesh: experiment.Mesh, devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
    """A mesh over `devices`, laid out along the links of their slice where they have coordinates."""
    sizes = shape(mesh, len(devices))
    if devices[0].platform == "tpu":
        arranged = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    else:
        arranged = mesh_utils.create_device_mesh(sizes, devices)
    return jax.sharding.Mesh(arranged, AXES)


def batch_shards(mesh: jax.sharding.Mesh) -> int:
    """Pieces a batch is cut into: the devices along data and fsdp."""
    return math.prod(mesh.shape[axis] for axis in ("data", "fsdp"))


def check_batch(batch_size: int, accumulation: int, mesh: jax.sharding.Mesh) -> None:
    """Raises UserError unless every device gets as many whole rows of every microbatch as the next."""
    if accumulation < 1:
        raise UserError(f"Expected at least one microbatch, found {accumulation}; set --training.accumulation 1.")
    pieces = batch_shards(mesh) * accumulation
    if batch_size < 1 or batch_size % pieces:
        smaller, larger = batch_size // pieces * pieces, (batch_size // pieces + 1) * pieces
        sizes = f"{smaller} or {larger}" if smaller else str(larger)
        raise UserError(
            f"Expected a batch size that divides by {batch_shards(mesh)} devices x {accumulation} microbatches, found "
            f"{batch_size}; take {sizes}, or change --training.accumulation or --mesh."
        )
