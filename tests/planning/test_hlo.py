"""Reading compiled programs: loops, products and cycles, on programs for TPUs and on a written one."""

import pytest

from plmjax.planning.collectives import collectives
from plmjax.planning.hlo import Array, Program
from tests.planning.programs import WRITTEN


def test_loops_are_counted_and_cycles_added():
    program = Program(WRITTEN)
    assert program.unknown_loops == []
    assert program.cycles() == 5 * 10 + 7
    for none in (2**63 - 1, 2**64 - 1):  # which stand for no estimate
        assert Program(WRITTEN.replace('"estimated_cycles":"7"', f'"estimated_cycles":"{none}"')).cycles() == 5 * 10
    assert program.largest(16) is None
    assert program.largest(32) == Array("f32", (32, 8))


@pytest.mark.parametrize(
    ("step", "comparison", "limit", "trips"),
    [
        ("subtract", "GT", 1, 4),
        ("subtract", "GE", 1, 5),
        ("subtract", "NE", 1, 4),
        ("subtract", "EQ", 9, 1),
        ("add", "LT", 13, 2),
        ("add", "LE", 13, 3),
        ("multiply", "LT", 72, 3),
        ("minimum", "GT", 2, 1),
        ("maximum", "EQ", 8, 0),
        ("and", "GT", 1, 1),
        ("or", "LT", 11, 1),
    ],
)
def test_trips_are_those_of_the_counter(step: str, comparison: str, limit: int, trips: int):
    """From 9 on, with 2 as the other operand of every step."""
    begin, end = WRITTEN.index("%outer_condition"), WRITTEN.index("%sliced")
    condition = WRITTEN[begin:end].replace("direction=GT", f"direction={comparison}")
    condition = condition.replace("constant(0)", f"constant({limit})")
    text = WRITTEN.replace("subtract(%i, %two)", f"{step}(%i, %two)").replace(WRITTEN[begin:end], condition)
    program = Program(text)
    assert program.unknown_loops == [] and program.cycles() == trips * 10 + 7


@pytest.mark.parametrize(
    ("dtype", "shape", "layout", "size"),
    [
        ("bf16", (8, 16, 16, 64), "3,2,1,0:T(8,128)(2,1)S(1)", 2 * 8 * 16 * 16 * 128),
        ("f32", (3, 8, 30522), "2,1,0:T(8,128)", 4 * 3 * 8 * 30592),
        ("f32", (30522, 8), "0,1:T(8,128)", 4 * 8 * 30592),
        ("f32", (24, 1024, 12), "1,2,0:T(8,128)", 4 * 24 * 1024 * 16),
        ("f32", (1000,), "0:T(1024)", 4 * 1024),
        ("f32", (1000,), "0", 4 * 1000),
        ("f32", (), ":T(128)", 4),
    ],
)
def test_stored_bytes_are_those_of_whole_tiles(dtype: str, shape: tuple[int, ...], layout: str, size: int):
    assert Array(dtype, shape, layout=layout).stored_bytes == size
    assert [Array(kind, (2, 3, 4)).hbm for kind in ("pred", "s4", "bf16", "f32")] == [24, 12, 48, 96]
    assert Array(dtype, (2, 3, 4), space=1).hbm == Array(dtype, ()).hbm == 0
    name = f"{dtype}[{','.join(map(str, shape))}]"
    text = f"ENTRY %main () -> {name} {{\n  ROOT %x = {name}{{{layout}}} parameter(0)\n}}\n"
    ((read, _),) = Program(text).top_level
    assert read.results[0].stored_bytes == size


def test_an_element_of_a_tuple_in_a_tuple_has_its_own_type():
    pair = "  %pair = (f32[2]{0}, /*index=1*/(s32[3,5]{1,0}, f32[4,8]{1,0:T(8,128)S(1)})) custom-call(%x)\n"
    text = WRITTEN.replace(
        "  %moved = f32[4,8]{1,0:S(1)} copy(%y)", f"{pair}  %moved = f32[4,8]{{1,0:S(1)}} copy(%pair#1#1)"
    )
    program = Program(text)
    (moved,) = (one for one, _ in program.top_level if one.name == "moved")
    (element,) = program.operands_of(moved)
    assert element.results == (Array("f32", (4, 8), 1),) and element.operands == ("pair#1",)


def test_a_loop_that_ends_by_its_data_is_named_and_taken_once():
    text = WRITTEN.replace("%nine = s32[] constant(9)", "%nine = s32[] custom-call(%x)")
    program = Program(text)
    assert program.cycles() == 10 + 7
    assert program.unknown_loops == ["loop"]


CHOICE = """HloModule choice, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %added = f32[] add(%a, %b)
}

%short (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %first = f32[8]{0} all-reduce(%x), channel_id=1, to_apply=%sum, backend_config={"estimated_cycles":"5"}
}

%long (y: f32[8]) -> f32[8] {
  %y = f32[8]{0} parameter(0)
  %copied = f32[8]{0} copy(%y), backend_config={"estimated_cycles":"30"}
  ROOT %second = f32[8]{0} all-reduce(%copied), channel_id=2, to_apply=%sum, backend_config={"estimated_cycles":"5"}
}

ENTRY %main (where: s32[], z: f32[8]) -> f32[8] {
  %where = s32[] parameter(0)
  %z = f32[8]{0} parameter(1)
  ROOT %chosen = f32[8]{0} conditional(%where, %z, %z), branch_computations={%short, %long}
}
"""


def test_the_longest_branch_of_a_conditional_is_the_one_that_runs():
    program = Program(CHOICE)
    assert program.cycles() == 30 + 5
    (reduced,) = collectives(program)
    assert (reduced.kind, reduced.elements, reduced.count) == ("all-reduce", 8, 1)


# As libtpu writes a kernel of Pallas: its metadata has lines of its own, which begin and end with braces.
KERNEL = """  %kernel = f32[4,8]{1,0} custom-call(%y), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 128, \\"window\\": \\"}\\"}"
}}, metadata={op_name="jit(f)/pallas_call"}
"""  # noqa: E501


def test_metadata_of_a_kernel_does_not_end_its_computation():
    program = Program(WRITTEN.replace("  %moved =", f"{KERNEL}  %moved =", 1))
    names = [one.name for one, _ in program.top_level]
    assert names == [one.name for one, _ in Program(WRITTEN).top_level[:-4]] + ["kernel", *names[-4:]]
    (kernel,) = (one for one, _ in program.top_level if one.name == "kernel")
    assert (kernel.target, kernel.attribute("op_name")) == ("tpu_custom_call", "jit")
    assert program.cycles() == 5 * 10 + 7 and len(collectives(program)) == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (WRITTEN.replace("  %moved =", "  }, metadata={\n  %moved =", 1), "Expected an instruction .* found '}, meta"),
        (WRITTEN.replace("\nENTRY", "\n  %lost = f32[] negate(%x)\nENTRY"), "Expected a computation .* '%lost"),
        (WRITTEN.replace("index=0\n", "index=0, metadata={\n", 1), "Expected closed braces"),
        (WRITTEN.rstrip("}\n"), "Expected the computation main to end"),
        ("HloModule nothing", "ENTRY"),
    ],
)
def test_a_line_that_is_not_understood_is_an_error(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        Program(text)
