"""Requests that all hosts learn of at the same step; two hosts vote in test_hosts.py."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from plmjax.parallel import host_flags as votes


def test_a_vote_is_known_two_steps_later_and_at_once_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4, 1), ("data", "fsdp", "tensor"))
    vote = votes.HostFlags(mesh)
    assert vote(15, 1) == (15, 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    found = [vote(*asked) for asked in ((15, 0), (0, 1), (2, 3), (0, 0), (0, 0))]
    assert found == [(0, 0), (0, 0), (15, 0), (0, 1), (2, 3)]


def test_the_largest_request_of_any_host_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts have two devices each, and their requests differ."""
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    requests = np.repeat(np.array([[0, 3], [15, 0], [2, 0], [0, 1]], np.int32), 2, axis=0)
    monkeypatch.setattr(votes.np, "broadcast_to", lambda row, shape: requests)
    vote = votes.HostFlags(Mesh(np.array(jax.devices()), ("data",)))
    assert [vote(0, 0) for _ in range(3)][-1] == (15, 3)
