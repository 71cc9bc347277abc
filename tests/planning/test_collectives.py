"""The communication of compiled programs, for TPUs and of a written one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.parallel import topologies
from plmjax.planning.collectives import Collective, collectives
from plmjax.planning.hlo import Program
from plmjax.planning.traffic import Traffic
from tests.planning.programs import WRITTEN


def before_moved(instructions: str) -> Program:
    """The written program with further instructions."""
    return Program(WRITTEN.replace("  %moved =", f"{instructions}  %moved =", 1))


def test_a_collective_counts_as_often_as_its_loop_runs():
    assert collectives(Program(WRITTEN)) == [
        Collective("all-reduce", "f32", bytes=128.0, elements=32, group=4, count=15),
        Collective("all-gather", "f32", bytes=1024.0, elements=256, group=8, count=1),
    ]


def test_equal_collectives_of_one_channel_are_two():
    # As in a shard_map, where all have the first channel.
    line = "  %gathered = f32[32,8]{1,0} all-gather(%moved), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}\n"
    again = line.replace("%gathered =", "%again =")
    found = collectives(Program(WRITTEN.replace(line, (line + again).replace("channel_id=2", "channel_id=1"))))
    assert [(one.kind, one.count) for one in found] == [("all-gather", 2), ("all-reduce", 15)]


def test_a_permute_that_is_started_counts_what_it_moves_alone():
    """The result of its start also has what it moves, and two numbers."""
    started = """  %start = (f32[4,8]{1,0}, f32[4,8]{1,0}, u32[], u32[]) collective-permute-start(%y), channel_id=7, \
source_target_pairs={{0,1},{1,0}}
  %done = f32[4,8]{1,0} collective-permute-done(%start)
"""
    found = collectives(before_moved(started))
    (one,) = [one for one in found if one.kind == "collective-permute"]
    assert one == Collective("collective-permute", "f32", bytes=128.0, elements=32, group=2, count=1)


def test_what_is_sent_to_another_slice_is_counted_once_and_moves_nothing_else():
    sent = """  %token = token[] after-all()
  %out = (f32[4,8]{1,0}, u32[], token[]) send(%y, %token), channel_id=7, is_host_transfer=true
  %in = (f32[4,8]{1,0}, u32[], token[]) recv(%token), channel_id=8, is_host_transfer=true
  %sent = token[] send-done(%out), channel_id=7
"""
    program = before_moved(sent)
    found = [one for one in collectives(program) if one.kind == "send"]
    assert found == [Collective("send", "f32", bytes=128.0, elements=32, group=8, count=1)]
    assert Traffic(program).total() == Traffic(Program(WRITTEN)).total()


def test_a_sum_of_zeros_and_own_parts_is_a_gather_behind_copies_and_in_fusions_too():
    fused = """%placing (a: f32[32,8], b: f32[4,8], c: s32[]) -> f32[32,8] {
  %a = f32[32,8]{1,0} parameter(0)
  %b = f32[4,8]{1,0} parameter(1)
  %c = s32[] parameter(2)
  %same = f32[32,8]{1,0} bitcast(%a)
  ROOT %in_place = f32[32,8]{1,0} dynamic-update-slice(%same, %b, %c, %c)
}

ENTRY"""
    called = """  %none = f32[] constant(0)
  %zeros = f32[32,8]{1,0} broadcast(%none), dimensions={}
  %placed = f32[32,8]{1,0} dynamic-update-slice(%zeros, %y, %nine, %nine)
  %moving = (f32[32,8]{1,0}, f32[32,8]{1,0}, u32[]) copy-start(%placed)
  %copied = f32[32,8]{1,0} copy-done(%moving)
  %own = f32[32,8]{1,0} fusion(%zeros, %y, %nine), kind=kLoop, calls=%placing
  %other = f32[32,8]{1,0} fusion(%stack, %y, %nine), kind=kLoop, calls=%placing
  %sum = (f32[32,8]{1,0}, f32[32,8]{1,0}, f32[32,8]{1,0}) all-reduce(%copied, %own, %other), channel_id=8, to_apply=%add
  %moved ="""
    text = WRITTEN.replace("ENTRY", fused, 1).replace("  %moved =", called, 1)
    for zero, gathered in (("0", 2 * 256), ("-0", 2 * 256), ("0.0", 2 * 256), ("1", 0)):
        found = collectives(Program(text.replace("f32[] constant(0)", f"f32[] constant({zero})")))
        (one,) = [one for one in found if one.elements == 3 * 256]
        assert one == Collective("all-reduce", "f32", 3072.0, elements=768, group=8, count=1, gathered=gathered)


def test_a_sum_of_which_each_device_keeps_its_part_is_named_after_its_computation():
    fused = """%all-reduce-scatter.1 (q: f32[32,8]) -> f32[4,8] {
  %q = f32[32,8]{1,0} parameter(0)
  %whole = f32[32,8]{1,0} all-reduce(%q), channel_id=9, replica_groups=[1,8]<=[8], to_apply=%add
  %zero = s32[] constant(0)
  ROOT %part = f32[4,8]{1,0} dynamic-slice(%whole, %zero, %zero), dynamic_slice_sizes={4,8}
}

ENTRY"""
    called = """  %scattered = f32[4,8]{1,0} fusion(%gathered), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %t = (f32[4,8]"""
    entry = WRITTEN.index("ENTRY")
    text = WRITTEN[:entry] + WRITTEN[entry:].replace("  ROOT %t = (f32[4,8]", called).replace("ENTRY", fused)
    found = [one for one in collectives(Program(text)) if one not in collectives(Program(WRITTEN))]
    assert found == [Collective("reduce-scatter", "f32", 1024.0, elements=256, group=8, count=1)]


def test_arrays_that_are_gathered_together_have_the_bytes_of_all():
    """Eight shares of each; the dtype is that of the larger one."""
    both = """  %half = bf16[4,4]{1,0} custom-call(%x)
  %both = (f32[32,8]{1,0}, bf16[32,4]{1,0}) all-gather(%y, %half), channel_id=10, replica_groups=[1,8]<=[8]
"""
    found = collectives(before_moved(both))
    assert Collective("all-gather", "f32", 32 * 8 * 4 + 32 * 4 * 2, elements=32 * 12, group=8, count=1) in found


def test_the_compiler_gathers_less_than_16_mib_by_a_sum():
    """A share of the projections of attention outputs, and its copy in bfloat16."""
    mesh = Mesh(np.array(topologies.parse("v5e:8x8").devices()), ("data",))
    share, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, None, "data"), ()))
    owned = jax.ShapeDtypeStruct((12, 12, 64, 768), jnp.float32, sharding=share)

    def copy(owned):
        narrow = jax.lax.with_sharding_constraint(owned.astype(jnp.bfloat16), share)
        return jax.lax.with_sharding_constraint(narrow, whole)

    text = jax.jit(copy, out_shardings=whole).lower(owned).compile().as_text()
    (one,) = collectives(Program(text))
    assert (one.kind, one.elements, one.count, one.gathered) == ("all-reduce", owned.size, 1, owned.size)


def test_a_collective_has_the_group_of_most_devices():
    uneven = WRITTEN.replace("replica_groups={{0,1,2,3},{4,5,6,7}}", "replica_groups={{0,1},{2,3,4,5,6,7}}")
    assert [one.group for one in collectives(Program(uneven)) if one.kind == "all-reduce"] == [6]
