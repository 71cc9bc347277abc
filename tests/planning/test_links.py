"""The links of a slice: how long a collective sends on them, and along which axes."""

import dataclasses
import itertools

import pytest

from plmjax.parallel import topologies
from plmjax.planning.collectives import Collective, communication, groups
from plmjax.planning.hlo import Program
from plmjax.planning.links import OUTSIDE, Transmission, axes, busiest_seconds, interconnect_seconds, transmissions
from tests.planning.programs import WRITTEN

PLACES = [(x, y, 0) for y, x in itertools.product(range(4), range(4))]
"""Coordinates of the chips of a slice of 4x4."""
WHOLE = "channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}"


def test_links_of_a_slice_carry_what_the_formulas_say():
    part = topologies.parse("v5e:4x4")
    both, one = 2 * 45e9, 45e9
    whole = {"dtype": "f32", "bytes": 1.6e9, "elements": 4e8, "group": 16, "count": 1}
    seconds = lambda **changes: interconnect_seconds([Collective(**whole | changes)], part)  # noqa: E731
    assert seconds(kind="all-reduce") == pytest.approx(2 * 1.5e9 / both)
    assert seconds(kind="all-gather", count=3) == pytest.approx(3 * 1.5e9 / both)
    assert seconds(kind="all-gather", group=4) == pytest.approx(1.2e9 / one)
    for group in (2, 16):  # a chip sends to one other, however many take part
        assert seconds(kind="collective-permute", group=group) == pytest.approx(1.6e9 / one)
    for kind in ("reduce-scatter", "all-to-all"):
        assert seconds(kind=kind) == pytest.approx(1.5e9 / both)
    assert seconds(kind="all-reduce", group=1) == 0
    # The two cores of a v3 chip share its links.
    chips = topologies.parse("v3:4x4")
    assert interconnect_seconds([Collective("all-reduce", "f32", 1.6e9, 0, 32, 1)], chips) == pytest.approx(
        2 * 1.5e9 / (2 * 82e9)
    )


def test_what_goes_between_slices_takes_the_hosts_network():
    # A sum over two slices is a reduce-scatter in each, an exchange of what that leaves, and an all-gather in each.
    part, one = topologies.parse("v5e:4x4*2"), topologies.parse("v5e:4x4")
    inside = [Collective(kind, "bf16", 1.6e9, 8e8, 16, 1) for kind in ("reduce-scatter", "all-gather")]
    across = Collective("send", "bf16", 1e8, 5e7, 16, 3)
    assert interconnect_seconds(inside, part) == interconnect_seconds(inside, one) == pytest.approx(2 * 1.5e9 / 90e9)
    assert interconnect_seconds([*inside, across], part) == pytest.approx(2 * 1.5e9 / 90e9 + 3e8 / 3.125e9)
    # Two devices of a chip share it, and all of three slices are the group within one.
    shared = topologies.Slice(dataclasses.replace(part.chip, devices=2), part.shape, slices=3)
    inside = [dataclasses.replace(one, group=32) for one in inside]
    assert interconnect_seconds(inside, shared) == pytest.approx(2 * 1.5e9 / 90e9)
    assert interconnect_seconds([across], shared) == pytest.approx(2 * 3e8 / 3.125e9)


@pytest.mark.parametrize(
    ("attribute", "first", "along"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", [0, 1, 2, 3], {0}),
        ("replica_groups=[4,4]<=[16]", [0, 1, 2, 3], {0}),
        ("replica_groups=[4,4]<=[4,4]T(1,0)", [0, 4, 8, 12], {1}),
        ("replica_groups=mesh['data'=4,'fsdp'=4] {'data'}", [0, 4, 8, 12], {1}),
        ("replica_groups=mesh['data'=2,'fsdp'=8] {'fsdp'}", [0, 1, 2, 3, 4, 5, 6, 7], {0, 1}),
        ("replica_groups=mesh['data'=4,'fsdp'=4], device_ids=([4,4]T(1,0)) {'data'}", [0, 1, 2, 3], {0}),
        ("replica_groups=mesh['a'=2,'b'=8], device_ids=([2,2,4]T(1,0,2)) {'a'}", [0, 4], {1}),
        ("replica_groups=mesh['a'=8,'b'=2] {'a':(2)2,'b'}", [0, 1, 4, 5], {0, 1}),
        ("replica_groups={}", list(range(16)), {0, 1}),
        ("source_target_pairs={{0,4},{4,12},{12,8},{8,0}}", [0, 4], {1}),
    ],
)
def test_a_collective_uses_the_links_of_the_axes_along_which_its_devices_differ(attribute, first, along):
    text = WRITTEN.replace(WHOLE, f"channel_id=1, {attribute}")
    program = Program(text)
    (reduced,) = (one for one, _ in program.top_level if one.name == "r")
    found = groups(reduced, 16)
    assert found[0] == first and axes(found, PLACES) == along
    unknown = dataclasses.replace(reduced, attributes="channel_id=1, replica_groups=ring(8)")
    with pytest.raises(ValueError, match="Expected the groups of r in a known form"):
        groups(unknown, 8)


def test_what_an_instruction_sends_takes_longer_if_the_links_reach_less():
    part = topologies.parse("v5e:2x4")
    places = [(x, y, 0) for y, x in itertools.product(range(4), range(2))]
    sent = """  %token = token[] after-all()
  %out = (f32[4,8]{1,0}, u32[], token[]) send(%y, %token), channel_id=7, is_host_transfer=true
  %moved ="""
    program = Program(WRITTEN.replace("  %moved =", sent, 1))
    found = transmissions(program, part, places, efficiency=0.8)
    seconds = {name: one.cycles / 1.5e9 for name, one in found.items()}
    gathered = interconnect_seconds([Collective("all-gather", "f32", 1024.0, 256, 8, 1)], part)
    assert seconds["gathered"] == pytest.approx(gathered / 0.8)
    assert {name: one.axes for name, one in found.items()} == {
        "r": {0, 1}, "gathered": {0, 1}, "out": {OUTSIDE},
    }  # fmt: skip
    assert found["out"] == Transmission(pytest.approx(1.5e9 * 128 / 3.125e9 / 0.8), frozenset({OUTSIDE}))


def test_collectives_along_two_axes_go_on_at_once():
    part = topologies.parse("v5e:2x4")
    places = [(x, y, 0) for y, x in itertools.product(range(4), range(2))]
    along = {0: "replica_groups={{0,1},{2,3},{4,5},{6,7}}", 1: "replica_groups={{0,2,4,6},{1,3,5,7}}"}
    alone = {axis: Program(WRITTEN.replace(WHOLE, f"channel_id=1, {groups}")) for axis, groups in along.items()}
    seconds = {}
    for axis, program in alone.items():
        cycles = transmissions(program, part, places)
        assert cycles["r"].axes == {axis} and cycles["gathered"].axes == {0, 1}
        runs = {name: times for name, (_, times) in communication(program).items()}
        seconds[axis] = sum(one.cycles * runs[name] for name, one in cycles.items()) / 1.5e9
        assert busiest_seconds(program, part, places) == pytest.approx(seconds[axis])
    assert seconds[0] < seconds[1]  # of two chips and of four
