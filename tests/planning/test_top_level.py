"""The top-level program: its own bundles, each counted if the slowest device issues it."""

from plmjax.planning import schedules, top_level
from tests.planning.programs import TOP_LEVEL


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
    shorter = "\n".join(line for line in PERMUTE.splitlines() if "%s9_s5" not in line and "%s9_s6" not in line)
    shorter = "\n".join(line for line in shorter.splitlines() if "{ %s9_s4" not in line)
    assert top_level.between_calls(shorter) == {"fusion.1": bundles - 3 - 1 - 2}  # devices 0 to 3 are slower now


def test_a_branch_that_does_not_depend_on_the_number_of_the_device_is_not_taken():
    """Neither a comparison of another number nor one with a register that is no target says where a branch leads."""
    bundles = schedules.parse(PERMUTE).cycles
    other_number = PERMUTE.replace("logical chip id", "physical chip id")
    assert top_level.between_calls(other_number) == {"fusion.1": bundles}
    no_target = PERMUTE.replace("remote-chip-id", "remote-core-idx")
    assert top_level.between_calls(no_target) == {"fusion.1": bundles - 2}


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
