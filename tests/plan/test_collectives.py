"""The communication of compiled programs, for TPUs and of a written one."""

import pytest

from plmjax.parallel import topologies
from plmjax.plan.collectives import Collective, collectives
from plmjax.plan.hlo import Program
from plmjax.plan.traffic import Traffic
from tests.plan.programs import WRITTEN, compiled


def test_a_collective_counts_as_often_as_its_loop_runs():
    assert collectives(Program(WRITTEN)) == [
        Collective("all-reduce", "f32", bytes=128.0, elements=32, group=4, count=15),
        Collective("all-gather", "f32", bytes=1024.0, elements=256, group=8, count=1),
    ]


def test_what_is_sent_to_another_slice_is_counted_once_and_moves_nothing_else():
    sent = """  %token = token[] after-all()
  %out = (f32[4,8]{1,0}, u32[], token[]) send(%y, %token), channel_id=7, is_host_transfer=true
  %in = (f32[4,8]{1,0}, u32[], token[]) recv(%token), channel_id=8, is_host_transfer=true
  %sent = token[] send-done(%out), channel_id=7
  %moved ="""
    program = Program(WRITTEN.replace("  %moved =", sent, 1))
    found = [one for one in collectives(program) if one.kind == "send"]
    assert found == [Collective("send", "f32", bytes=128.0, elements=32, group=8, count=1)]
    assert Traffic(program).total() == Traffic(Program(WRITTEN)).total()


@pytest.mark.parametrize("topology", ["v3:4x4", "v5e:4x4"])
def test_every_gradient_is_reduced_once_in_bfloat16(topology):
    layers = 8
    reduced = [c for c in collectives(compiled(topology, layers)) if c.kind in ("all-reduce", "reduce-scatter")]
    gradients = [c for c in reduced if c.elements > 1]
    assert {c.dtype for c in gradients} == {"bf16"}
    assert {c.group for c in gradients} == {topologies.parse(topology).chips * (2 if topology[:2] == "v3" else 1)}
    assert sum(c.elements * c.count for c in gradients) == layers * 2 * 256 * 1024
    assert sum(c.bytes * c.count for c in gradients) == layers * 2 * 256 * 1024 * 2
