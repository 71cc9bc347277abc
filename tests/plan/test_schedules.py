"""Final schedules: bundles counted as often as they are issued, and the files of a compiler that is here."""

import os

import jax
import jax.numpy as jnp
import pytest

from plmjax.parallel import topologies
from plmjax.plan import hlo, schedules
from plmjax.plan.schedules import Schedule

# Two bundles before a loop of 18 trips, whose pipeline does its three bundles of work (0x4 to 0x6) in 16 of them.
WRITTEN = """
     0   :  { %3 = vsyncpa [#allocation4], 0 } /* entry bundle: %fusion = fusion(%a, %b) */
   0x1   :  { %s9 = smov.u32 0 }
   0x2 LB: > { %p1_p1 = scmp.ge.s32.totalorder %s13_s13, 1  ;;  %p2_p2 = scmp.lt.s32.totalorder %s13_s13, 17 }
   0x3   : > { %p3_p3 = pnand %p1_p1, %p2_p2  ;;  %101 = sbr.rel (%p3_p3) target = $region25 }
   0x4   :  {}
   0x5   : > { %v1 = vadd.f32 %v2, %v3 /*
window_bounds: (64, 4)
 */ }
   0x6   : > { %v4 = vmul.f32 %v1, %v1 }
   0x7 PF: > { %s11_s13 = sadd.s32 1, %s13_s13 } /* Start/End empty region 25 */
   0x8   : > { %p8_p13 = scmp.ge.s32.totalorder %s11_s13, 18 /* loop exit test */ }
   0x9   :  { %10 = sbr.rel (!%p8_p13) target = $region26 }
   0xa   :  {}
   0xb   :  { %78 = vsyncpa [#allocation4], 1 }
"""


def test_bundles_count_as_often_as_they_are_issued():
    assert schedules.parse(WRITTEN) == Schedule(2 + 18 * 4 + 16 * 3 + 3)
    every_trip = WRITTEN.replace("pnand %p1_p1, %p2_p2", "por %p1_p1, %p2_p2")
    assert schedules.parse(every_trip) == Schedule(2 + 18 * 7 + 3)
    to_the_end = WRITTEN.replace("%s13_s13, 17 }", "%s13_s13, 25 }")  # more trips than the loop has
    assert schedules.parse(to_the_end) == Schedule(2 + 18 * 4 + 17 * 3 + 3)
    never = to_the_end.replace("%s13_s13, 1  ;;", "%s13_s13, 20  ;;")
    assert schedules.parse(never) == Schedule(2 + 18 * 4 + 3)


def test_a_bundle_that_delays_counts_its_delay():
    delayed = WRITTEN.replace("0x4   :  {}", "0x4   :  { %9 = vdelay 4 }")
    delayed = delayed.replace("%v1, %v1 }", "%v1, %v1  ;;  %8 = vdelay 2 }")
    assert schedules.parse(delayed) == Schedule(schedules.parse(WRITTEN).bundles + 16 * 4 + 16 * 2)


def test_loops_multiply_and_one_that_ends_by_its_data_counts_once():
    inner = """   0x5 LB: >> { %v1 = vadd.f32 %v2, %v3 }
   0x5   : >> { %p9_p9 = scmp.ge.s32.totalorder %s4_s4, 5 /* loop exit test */ }
"""
    start = WRITTEN.index("   0x5   : >")
    nested = WRITTEN[:start] + inner + WRITTEN[start:]
    before_the_branch = WRITTEN.replace("   0x3   : >", inner + "   0x3   : >")
    assert schedules.parse(before_the_branch) == Schedule(2 + 18 * (4 + 2 * 5) + 16 * 3 + 3)
    assert schedules.parse(nested) == Schedule(2 + 18 * 4 + 16 * (3 + 2 * 5) + 3)
    assert schedules.parse(nested.replace(", 5 /* loop", ", %s5_s5 /* loop")) == Schedule(2 + 18 * 4 + 16 * 5 + 3, 1)


def test_a_folder_of_schedules_is_read_and_emptied(tmp_path):
    for name in (
        "17-fusion.2-01-final_bundles.txt",
        "17-fusion.2-00-schedule-analysis_final_bundles.txt",
        "17-TLP.html",
    ):
        (tmp_path / name).write_text(WRITTEN)
    assert schedules.read(tmp_path) == {"fusion.2": schedules.parse(WRITTEN)}
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def compiled() -> tuple[hlo.Program, dict[str, Schedule]]:
    """A matrix product, a softmax and random bits, compiled for one TPU chip."""
    (device,) = topologies.parse("v5e:1x1").devices()
    place = jax.sharding.SingleDeviceSharding(device)

    def program(a, b, scores):
        bits = jax.random.bits(
            jax.random.wrap_key_data(jnp.array([1, 2], jnp.uint32), impl="threefry2x32"), (4096, 512)
        )
        return a @ b, jax.nn.softmax(scores, -1), bits

    shapes = [((512, 1024), "bfloat16"), ((1024, 1024), "bfloat16"), ((8, 512, 512), "float32")]
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape, dtype in shapes]
    schedules.clear(topologies.schedules())
    text = jax.jit(program).lower(*arguments).compile().as_text()
    return hlo.Program(text), schedules.read(topologies.schedules())


def test_other_processes_do_not_write_their_schedules_here(compiled):
    assert "xla_jf_dump_to" not in os.environ.get("LIBTPU_INIT_ARGS", "")


def test_the_compiler_writes_a_schedule_of_whatever_takes_time(compiled):
    program, found = compiled
    assert all(one.name in found for one, _ in program.executed if one.cycles)
    assert not any(found[one.name].unknown_loops for one, _ in program.executed if one.cycles)
