"""Final schedules: bundles counted as often as the slowest device issues them, and the files of the compiler."""

import jax
import jax.numpy as jnp
import pytest

from plmjax.parallel import topologies
from plmjax.planning import hlo, schedule_files, schedules, top_level
from plmjax.planning.schedules import Schedule
from tests.planning.programs import SCHEDULE, TOP_LEVEL


def test_bundles_count_as_often_as_they_are_issued():
    assert schedules.parse(SCHEDULE) == Schedule(2 + 18 * 4 + 16 * 3 + 3)
    every_trip = SCHEDULE.replace("pnand %p1_p1, %p2_p2", "por %p1_p1, %p2_p2")
    assert schedules.parse(every_trip) == Schedule(2 + 18 * 7 + 3)
    to_the_end = SCHEDULE.replace("%s13_s13, 17 }", "%s13_s13, 25 }")  # more trips than the loop has
    assert schedules.parse(to_the_end) == Schedule(2 + 18 * 4 + 17 * 3 + 3)
    never = to_the_end.replace("%s13_s13, 1  ;;", "%s13_s13, 20  ;;")
    assert schedules.parse(never) == Schedule(2 + 18 * 4 + 3)


def test_a_bundle_that_delays_counts_its_delay():
    delayed = SCHEDULE.replace("0x4   :  {}", "0x4   :  { %9 = vdelay 4 }")
    delayed = delayed.replace("%v1, %v1 }", "%v1, %v1  ;;  %8 = vdelay 2 }")
    assert schedules.parse(delayed) == Schedule(schedules.parse(SCHEDULE).cycles + 16 * 4 + 16 * 2)


def test_loops_multiply_and_one_that_ends_by_its_data_counts_once():
    inner = """   0x5 LB: >> { %v1 = vadd.f32 %v2, %v3 }
   0x5   : >> { %p9_p9 = scmp.ge.s32.totalorder %s4_s4, 5 /* loop exit test */ }
"""
    start = SCHEDULE.index("   0x5   : >")
    nested = SCHEDULE[:start] + inner + SCHEDULE[start:]
    before_the_branch = SCHEDULE.replace("   0x3   : >", inner + "   0x3   : >")
    assert schedules.parse(before_the_branch) == Schedule(2 + 18 * (4 + 2 * 5) + 16 * 3 + 3)
    assert schedules.parse(nested) == Schedule(2 + 18 * 4 + 16 * (3 + 2 * 5) + 3)
    assert schedules.parse(nested.replace(", 5 /* loop", ", %s5_s5 /* loop")) == Schedule(
        2 + 18 * 4 + 16 * 5 + 3, unknown_loops=1
    )


def test_a_branch_may_test_a_predicate_that_was_stored_as_a_number():
    stored = SCHEDULE.replace(
        "  ;;  %101 = sbr.rel (%p3_p3)",
        "  ;;  %s5_s5 = scalar_select /*predicate=*/%p3_p3, /*on_true=*/1, /*on_false=*/0 }\n"
        "   0x3   : > { %p4_p4 = scmp.ne.s32.totalorder %s5_s5, 0 }\n   0x3   : > { %101 = sbr.rel (%p4_p4)",
    )
    assert schedules.parse(stored) == Schedule(2 + 18 * 6 + 16 * 3 + 3)


def test_what_the_last_step_of_a_sum_does_is_done_every_nth_trip():
    # The counter of the sum is 0, 1, 2 and 0 again.
    last = SCHEDULE.replace("%p2_p2 = scmp.lt.s32.totalorder %s13_s13, 17", "%s5_s5 = sadd.s32 4294967294, %s7_s7")
    last = last.replace("%p1_p1 = scmp.ge.s32.totalorder %s13_s13, 1 ", "%p1_p1 = scmp.ge.s32.totalorder %s8_s8, 3 ")
    last = last.replace("%p3_p3 = pnand %p1_p1, %p2_p2", "%p3_p3 = scmp.ne.s32.totalorder %s5_s5, 0")
    assert schedules.parse(last) == Schedule(2 + 18 * 4 + 18 // 3 * 3 + 3)
    unknown = last.replace("%s8_s8, 3 ", "%s8_s8, 4 ")  # no counter that ends behind 2
    assert schedules.parse(unknown) == Schedule(2 + 18 * 7 + 3)


def multiplying(*bundles: str, trips: int) -> Schedule:
    """The schedule of a loop with these bundles before its test."""
    lines = [f"   0x{number + 1:x} {'LB' if not number else '  '}: > {{ {one} }}" for number, one in enumerate(bundles)]
    test = f"   0x9   : > {{ %p8_p13 = scmp.ge.s32.totalorder %s11_s13, {trips} /* loop exit test */ }}"
    return schedules.parse("\n".join(["     0   :  { %3 = vsyncpa [#allocation4], 0 }", *lines, test]))


PRODUCT = "%4157 = vmatmul.bf16.gmra.mxu{} %v44272_v30"


def test_a_bundle_waits_while_its_matrix_unit_is_busy():
    # A unit takes the 16 rows of a register in 16 cycles. Two units work at once, and an addition waits for none.
    first, second = PRODUCT.format(0), PRODUCT.format(1)
    assert multiplying(first, first, trips=1) == Schedule(1 + 1 + 16 + 1)
    assert multiplying(first, second, trips=1) == Schedule(1 + 3)
    assert multiplying(f"{first}  ;;  {second}", first, trips=1) == Schedule(1 + 1 + 16 + 1)
    assert multiplying(first, *["%v1 = vadd.f32 %v2, %v3"] * 15, first, trips=1) == Schedule(1 + 18)
    # On v6e a unit takes two rows in a cycle. A register has eight rows of float32; a unit may hold eight rows.
    for kind in ("mubr.bf16.gmra", "f32.gmra", "msk.f32.vlgmr.msra.gmra", "lmr.bf16.gmra.16"):
        faster = f"%4 = vmatmul.{kind}.mxu0 %v1"
        assert multiplying(faster, faster, trips=1) == Schedule(1 + 1 + 8 + 1)
    # Weights are loaded beside a product.
    assert multiplying(first, "%4 = vmatpush.bf16.msra.mxu0 %v1", trips=1) == Schedule(1 + 3)


def test_the_next_trip_of_a_loop_waits_for_the_units_too():
    # Four bundles and a test a trip, and a product that takes 16 cycles: 3 trips wait for that of the trip before.
    bundles = [PRODUCT.format(0), *["%v1 = vadd.f32 %v2, %v3"] * 3]
    assert multiplying(*bundles, trips=4) == Schedule(1 + 3 * 16 + 5)
    assert multiplying(*bundles, trips=4000) == Schedule(1 + 3999 * 16 + 5)
    # Bundles around the products do not make up for products that follow each other too closely.
    bundles = [PRODUCT.format(0), PRODUCT.format(0), *["%v1 = vadd.f32 %v2, %v3"] * 40]
    assert multiplying(*bundles, trips=10) == Schedule(1 + 10 * (43 + 15))


def test_a_folder_of_schedules_is_read_and_emptied(tmp_path):
    """It has those of instructions and of the program."""
    for name, text in (("17-fusion.3", SCHEDULE), ("17-TLP", TOP_LEVEL)):
        (tmp_path / f"{name}-01-final_bundles.txt").write_text(text)
    for name in ("17-fusion.2-00-schedule-analysis_final_bundles.txt", "17-TLP.html"):
        (tmp_path / name).write_text(SCHEDULE)
    found = schedule_files.read(tmp_path)
    assert found.keys() == {"fusion.1", "copy.2", "fusion.3", "fusion.4"} and list(tmp_path.iterdir()) == []
    assert found["fusion.3"] == Schedule(schedules.parse(SCHEDULE).cycles, before=15)
    assert found["copy.2"] == Schedule(None, before=2)


def test_bundles_of_a_program_count_with_the_calls_that_they_precede_or_end_a_loop_with():
    """The loop of five trips ends behind no call of its own, but its bundles run as often as the last call."""
    found = top_level.between_calls(TOP_LEVEL)
    assert found == {"fusion.1": 3, "copy.2": 2, "fusion.3": 1 + 3 + 1 + 5 * 2, "fusion.4": 2}
    assert sum(found.values()) == schedules.parse(TOP_LEVEL).cycles


# A permute among eight devices: one bundle for all, two for devices 0 to 3, four for the others, one for all, two for a
# copy to the device itself, one for the transfer.
PERMUTE = """
   0x0   :  { %s5_s0 = sld [smem:[#allocation9]] /* logical chip id */ }
   0x1   :  { %s6_s2 = sadd.s32 %s4_s1, %s5_s0 }
   0x2   :  { %p1_p1 = scmp.ge.s32.totalorder %s6_s2, 4  ;;  %p2_p2 = scmp.lt.s32.totalorder %s6_s2, 4 }
   0x3   :  { %10 = sbr.rel (%p1_p1) target = $region7  ;;  %s7_s3 = smov.u32 0 }
   0x4   :  {}
   0x5   :  {}
   0x6   :  {}
   0x7   :  {} /* Start region 6 */
   0x8   :  { %s8_s4 = smov.u32 1 }
   0x9   :  { %s8_s5 = smov.u32 2 }
   0xa PF:  { %11 = sbr.rel (!%p1_p1) target = $region9 } /* Start/End empty region 7 */
   0xb   :  {}
   0xc   :  {}
   0xd   :  {}
   0xe   :  {} /* Start region 8 */
   0xf   :  { %s9_s4 = smov.u32 1 }
  0x10   :  { %s9_s5 = smov.u32 2 }
  0x11   :  { %s9_s6 = smov.u32 3 }
  0x12   :  { %s9_s7 = smov.u32 4 }
  0x13 PF:  { %s10_s8 = sphi %s8_s5, %s9_s7 /* phi copy :: remote-chip-id */ } /* Start/End empty region 9 */
  0x14   :  { %p3_p3 = scmp.ne.s32.totalorder %s5_s0, %s10_s8 }
  0x15   :  { %12 = sbr.rel (%p3_p3) target = $region11 }
  0x16   :  {}
  0x17   :  {}
  0x18   :  {}
  0x19   :  {} /* Start region 10 */
  0x1a   :  { %v1 = vld [vmem:[#allocation7] sm:$0xff] }
  0x1b   :  { %13 = vst [vmem:[#allocation6] sm:$0xff] /*vst_source=*/%v1 }
  0x1c PF:  { %14 = dma.general /*src=*/%s1_s1 } /* Start/End empty region 11 */
  0x1d   :  { %15 = inlined_call %s1_s0 /* %fusion.1 = fusion(%a, %b) */ }
"""


def test_a_permute_counts_the_targets_of_the_slowest_device_and_no_copy_to_the_device_itself():
    bundles = schedules.parse(PERMUTE).cycles
    assert bundles == 0x1E
    assert top_level.between_calls(PERMUTE) == {"fusion.1": bundles - 2 - 2}
    # A comparison of another number, or with a register that is no target, does not say where a branch leads.
    assert top_level.between_calls(PERMUTE.replace("logical chip", "physical chip")) == {"fusion.1": bundles}
    assert top_level.between_calls(PERMUTE.replace("chip-id", "core-idx")) == {"fusion.1": bundles - 2}
    shorter = "\n".join(line for line in PERMUTE.splitlines() if "%s9_s5" not in line and "%s9_s6" not in line)
    shorter = "\n".join(line for line in shorter.splitlines() if "{ %s9_s4" not in line)
    assert top_level.between_calls(shorter) == {"fusion.1": bundles - 3 - 1 - 2}  # devices 0 to 3 are slower now


# A copy of a donated parameter of 64 KiB, one block a trip, if its result has another place.
DONATED = """
   0x0   :  { %s1_s0 = scalar_parameter_address 5  ;;  %s2_s1 = sld [smem:[#allocation7679_spill]] }
   0x1   :  { %p1_p0 = scmp.eq.s32.totalorder %s2_s1, %s1_s0 }
   0x2   :  { %10 = sbr.rel (%p1_p0) target = $region4 }
   0x3   :  {}
   0x4   :  {}
   0x5   :  {}
   0x6   :  {} /* Start region 3 */
   0x7 LB: > { %s3_s2 = sadd.s32 1, %s3_s2 }
   0x8   : > { %p2_p1 = scmp.ge.s32.totalorder %s3_s2, 50 /* loop exit test */ }
   0x9 PF:  { %s4_s3 = smov.u32 0 } /* Start/End empty region 4 */
   0xa   :  { %15 = inlined_call %s1_s0 /* %copy.1 = copy(%param.5) */ }
"""


def test_a_donated_parameter_is_not_copied_into_its_result():
    bundles = schedules.parse(DONATED).cycles
    assert bundles == 0xB - 2 + 2 * 50
    assert top_level.between_calls(DONATED) == {"copy.1": 0xB - 2}
    other_place = DONATED.replace("scalar_parameter_address", "scalar_result_address")
    assert top_level.between_calls(other_place) == {"copy.1": bundles}
    unequal = DONATED.replace("scmp.eq", "scmp.ne").replace("(%p1_p0)", "(!%p1_p0)")
    assert top_level.between_calls(unequal) == {"copy.1": 0xB - 2}


def test_the_compiler_writes_a_schedule_of_whatever_takes_time():
    """A matrix product, a softmax and random bits, compiled for one TPU chip."""
    place = jax.sharding.SingleDeviceSharding(topologies.parse("v5e:1x1").devices()[0])

    def program(a, b, scores):
        key = jax.random.wrap_key_data(jnp.array([1, 2], jnp.uint32), impl="threefry2x32")
        return a @ b, jax.nn.softmax(scores, -1), jax.random.bits(key, (512, 512))

    shapes = [((512, 1024), "bfloat16"), ((1024, 1024), "bfloat16"), ((8, 512, 512), "float32")]
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape, dtype in shapes]
    schedule_files.clear(topologies.schedules())
    compiled = hlo.Program(jax.jit(program).lower(*arguments).compile().as_text())
    found = schedule_files.read(topologies.schedules())
    timed = [one.name for one, _ in compiled.top_level if one.cycles]
    assert timed and all(name in found and not found[name].unknown_loops for name in timed)


# JAX's timings of bfloat16 products on a v5e less 0.105 ms of dispatch: docs.jax.dev/en/latest/pallas/tpu/matmul.html
@pytest.mark.nightly
@pytest.mark.parametrize(("size", "milliseconds"), [(4096, 0.722), (8192, 5.94)])
def test_products_take_as_long_as_jax_has_measured(size, milliseconds):
    part = topologies.parse("v5e:1x1")
    place = jax.sharding.SingleDeviceSharding(part.devices()[0])
    shape = jax.ShapeDtypeStruct((size, size), jnp.bfloat16, sharding=place)
    schedule_files.clear(topologies.schedules())
    program = hlo.Program(jax.jit(jnp.matmul).lower(shape, shape).compile().as_text())
    found = schedule_files.read(topologies.schedules())
    # One operand of the smaller product is copied to the chip before the program begins.
    (product,) = (one for one, _ in program.top_level if one.opcode == "fusion")
    assert 1e3 * found[product.name].cycles / part.chip.clock == pytest.approx(milliseconds, rel=0.03)
