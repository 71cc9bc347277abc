"""The bytes that compiled programs read from and write to HBM."""

import pytest

from plmjax.parallel import topologies
from plmjax.planning.estimate import hbm_seconds
from plmjax.planning.hlo import Program
from plmjax.planning.traffic import Traffic
from tests.planning.programs import WRITTEN


def test_the_traffic_of_a_written_program_is_known_to_the_byte():
    # negate reads and writes 128 bytes five times; the copy reads 128 into on-chip memory; the fusion reads a slice of
    # 64. Its index and the counters of the loops are scalars.
    assert Traffic(Program(WRITTEN)).total() == 5 * 256 + 128 + 64


def moved(program: Program) -> dict[str, int]:
    """The bytes that each instruction moves."""
    traffic = Traffic(program)
    return {one.name: traffic.bytes(one) for one, _ in program.top_level if traffic.bytes(one)}


def test_what_is_changed_in_place_or_taken_in_part_moves_the_part_alone():
    """A loop writes rows into a stack, and a gather reads as many numbers as it gives."""
    program = Program("""%placed (stack: f32[16,8], rows: f32[2,8], i: s32[]) -> f32[16,8] {
  %stack = f32[16,8]{1,0} parameter(0)
  %rows = f32[2,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %changed = f32[2,8]{1,0} negate(%rows)
  %zero = s32[] constant(0)
  ROOT %new = f32[16,8]{1,0} dynamic-update-slice(%stack, %changed, %i, %zero)
}

ENTRY %main (stack: f32[16,8], rows: f32[2,8], i: s32[], ids: s32[3,1]) -> f32[16,8] {
  %stack = f32[16,8]{1,0} parameter(0)
  %rows = f32[2,8]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %ids = s32[3,1]{1,0} parameter(3)
  %placed = f32[16,8]{1,0} fusion(%stack, %rows, %i), kind=kLoop, calls=%placed
  %taken = f32[3,8]{1,0:S(1)} gather(%placed, %ids), offset_dims={1}
  %moved = (f32[3,8]{1,0}, f32[3,8]{1,0:S(1)}, u32[]) copy-start(%taken)
  %there = f32[3,8]{1,0} copy-done(%moved)
  %again = (f32[3,8]{1,0}, f32[3,8]{1,0}, u32[]) copy-start(%there)
  ROOT %copied = f32[3,8]{1,0} copy-done(%again)
}""")
    assert moved(program) == {
        "placed": 64 + 64,  # reads the rows, and writes them into the stack
        "taken": 96 + 12,  # of the stack, and the numbers of its rows
        "moved": 96,  # from the chip into the memory
        "again": 96 + 96,
    }


def test_a_constant_of_one_number_is_not_read_from_memory():
    """libtpu computes the rounds of threefry on one word with scalars: the results are in `S(6)`, its own memory."""
    program = Program("""ENTRY %main (word: u32[1], words: u32[4]) -> u32[4] {
  %word = u32[1]{0:T(128)} parameter(0)
  %words = u32[4]{0:T(128)} parameter(1)
  %bits = u32[1]{0:T(128)} constant({13})
  %four = u32[4]{0:T(128)} constant({1, 2, 3, 4})
  %first = u32[1]{0:T(128)S(6)} shift-left(%word, %bits)
  %second = u32[1]{0:T(128)S(6)} shift-left(%first, %bits)
  ROOT %sum = u32[4]{0:T(128)} add(%words, %four)
}""")
    assert moved(program) == {"first": 4, "sum": 3 * 16}


def test_a_scatter_reads_and_writes_the_rows_that_it_changes():
    """Its result has the buffer of its first operand (`aliasing_operands` in the configuration of a fusion)."""
    program = Program("""%sum (old: f32[], new: f32[]) -> f32[] {
  %old = f32[] parameter(0)
  %new = f32[] parameter(1)
  ROOT %sum = f32[] add(%old, %new)
}

%added (table: f32[16,8], ids: s32[3,1], rows: f32[3,8]) -> f32[16,8] {
  %table = f32[16,8]{1,0} parameter(0)
  %ids = s32[3,1]{1,0} parameter(1)
  %rows = f32[3,8]{1,0} parameter(2)
  ROOT %changed = f32[16,8]{1,0} scatter(%table, %ids, %rows), update_window_dims={1}, to_apply=%sum
}

%first (ids: s32[3,1], rows: f32[3,8]) -> f32[16,8] {
  %ids = s32[3,1]{1,0} parameter(0)
  %rows = f32[3,8]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %zeros = f32[16,8]{1,0} broadcast(%zero), dimensions={}
  ROOT %changed = f32[16,8]{1,0} scatter(%zeros, %ids, %rows), update_window_dims={1}, to_apply=%sum
}

ENTRY %main (table: f32[16,8], ids: s32[3,1], rows: f32[3,8]) -> f32[16,8] {
  %table = f32[16,8]{1,0} parameter(0)
  %ids = s32[3,1]{1,0} parameter(1)
  %rows = f32[3,8]{1,0} parameter(2)
  %added = f32[16,8]{1,0} fusion(%table, %ids, %rows), kind=kCustom, calls=%added
  %near = f32[16,8]{1,0:S(1)} copy(%added)
  %twice = f32[16,8]{1,0:S(1)} scatter(%near, %ids, %rows), update_window_dims={1}, to_apply=%sum
  ROOT %first = f32[16,8]{1,0} fusion(%ids, %rows), kind=kCustom, calls=%first
}""")
    assert moved(program) == {
        "added": 96 + 12 + 96 + 96,  # the old rows, their numbers, the new ones; and writes their sums
        "near": 512,
        "twice": 12 + 96,
        "first": 12 + 96 + 512,  # zeros that the fusion itself writes
    }


def test_devices_of_a_chip_share_its_bandwidth() -> None:
    """A v3 has two, and 900 GB/s."""
    for name, bandwidth in (("v3:2x2", 450e9), ("v5e:2x2", 819e9)):
        assert hbm_seconds(Program(WRITTEN), topologies.parse(name).chip) == pytest.approx(1472 / bandwidth)
