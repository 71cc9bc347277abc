"""Requests of single hosts, such as a stop, which all hosts receive at the same step."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DELAY = 2
"""Number of steps between a vote and its result on several hosts. By then the result is computed, so no host waits."""


class HostFlags:
    """The maximum over the requests of all hosts, one vote per step.

    The votes are reduced over the mesh between two steps. So every host gets the same result at the same step, without
    waiting for the slowest host. On one host the result is its own request.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._pending: collections.deque[jax.Array] = collections.deque()
        rows = PartitionSpec(mesh.axis_names)
        self._sharding = NamedSharding(mesh, rows)
        self._largest = jax.jit(
            lambda votes: jnp.max(votes, axis=0), out_shardings=NamedSharding(mesh, PartitionSpec())
        )

    def __call__(self, *requests: int) -> tuple[int, ...]:
        """Submit the requests of this step, and return the result of the votes `DELAY` steps ago, or 0 without any."""
        if jax.process_count() == 1:
            return requests
        rows = np.broadcast_to(np.asarray(requests, np.int32), (self._mesh.size, len(requests)))
        votes = jax.make_array_from_callback(rows.shape, self._sharding, rows.__getitem__)
        self._pending.append(self._largest(votes))
        if len(self._pending) <= DELAY:
            return (0,) * len(requests)
        return tuple(np.asarray(self._pending.popleft().addressable_data(0)).tolist())
