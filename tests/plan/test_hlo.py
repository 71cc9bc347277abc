"""Reading compiled programs: loops, communication, cycles and bytes, on programs for TPUs and on a written one."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plmjax.parallel import topologies
from plmjax.plan.hlo import Array, Collective, Program

# A loop of five trips that counts down by two, with a loop of three inside it whose limit is carried along.
WRITTEN = """HloModule written, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_body (p: (s32[], f32[4,8], s32[])) -> (s32[], f32[4,8], s32[]) {
  %p = (s32[], f32[4,8]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %limit = s32[] get-tuple-element(%p), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %r = f32[4,8]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %t = (s32[], f32[4,8]{1,0}, s32[]) tuple(%next, %r, %limit)
}

%inner_condition (p: (s32[], f32[4,8], s32[])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %limit = s32[] get-tuple-element(%p), index=2
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%outer_body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %two = s32[] constant(2)
  %next = s32[] subtract(%i, %two)
  %zero = s32[] constant(0)
  %three = s32[] constant(3)
  %start = (s32[], f32[4,8]{1,0}, s32[]) tuple(%zero, %x, %three)
  %inner = (s32[], f32[4,8]{1,0}, s32[]) while(%start), condition=%inner_condition, body=%inner_body
  %y = f32[4,8]{1,0} get-tuple-element(%inner), index=1
  %z = f32[4,8]{1,0} negate(%y), backend_config={"estimated_cycles":"10"}
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%next, %z)
}

%outer_condition (p: (s32[], f32[4,8])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %zero = s32[] constant(0)
  ROOT %greater = pred[] compare(%i, %zero), direction=GT
}

%sliced (stack: f32[16,8], i: s32[]) -> f32[2,8] {
  %stack = f32[16,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %piece = f32[2,8]{1,0} dynamic-slice(%stack, %i, %zero), dynamic_slice_sizes={2,8}
}

ENTRY %main (x: f32[4,8], stack: f32[16,8]) -> (f32[4,8], f32[2,8]) {
  %x = f32[4,8]{1,0} parameter(0)
  %stack = f32[16,8]{1,0} parameter(1)
  %nine = s32[] constant(9)
  %start = (s32[], f32[4,8]{1,0}) tuple(%nine, %x)
  %loop = (s32[], f32[4,8]{1,0}) while(%start), condition=%outer_condition, body=%outer_body
  %y = f32[4,8]{1,0} get-tuple-element(%loop), index=1
  %moved = f32[4,8]{1,0:S(1)} copy(%y), backend_config={"estimated_cycles":"7"}
  %gathered = f32[32,8]{1,0} all-gather(%moved), channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}
  %piece = f32[2,8]{1,0:S(1)} fusion(%stack, %nine), kind=kLoop, calls=%sliced
  ROOT %t = (f32[4,8]{1,0}, f32[2,8]{1,0}) tuple(%moved, %piece)
}
"""


def test_a_written_program_is_read_to_the_byte():
    program = Program(WRITTEN)
    assert program.unknown_loops == []
    assert program.cycles() == 5 * 10 + 7
    assert program.collectives() == [
        Collective("all-reduce", "f32", bytes=128.0, elements=32, group=4, count=15),
        Collective("all-gather", "f32", bytes=1024.0, elements=256, group=8, count=1),
    ]
    # negate reads and writes 128 bytes five times; the copy reads 128 into on-chip memory; the fusion reads a slice of
    # 64 and its index of 4; a counter is two integers read and one written, 5 and 15 times.
    assert program.hbm_bytes() == 5 * 256 + 128 + (64 + 4) + (5 + 15) * 12
    assert program.largest(16) is None
    assert program.largest(32) == Array("f32", (32, 8))


ELEMENT = re.compile(r"\n +%(\w+) = [^=\n]* get-tuple-element\(%(\w+)\), index=(\d+)")


def compact(text: str) -> str:
    """The program as compilers with `xla_dump_compact_gte` write it: `x#1` for an element of a tuple."""
    computations = []
    for computation in text.split("\n}\n"):
        short = ELEMENT.sub("", computation)
        for name, source, index in ELEMENT.findall(computation):
            short = re.sub(rf"%{name}\b", f"%{source}#{index}", short)
        computations.append(short)
    return "\n}\n".join(computations)


def test_elements_of_tuples_may_have_no_instruction_of_their_own():
    program, expected = Program(compact(WRITTEN)), Program(WRITTEN)
    assert "get-tuple-element" in WRITTEN and "get-tuple-element" not in compact(WRITTEN)
    assert program.unknown_loops == [] and program.cycles() == expected.cycles()
    assert program.collectives() == expected.collectives()
    assert program.hbm_bytes() == expected.hbm_bytes()


def test_an_element_of_a_tuple_in_a_tuple_has_its_own_type():
    pair = "  %pair = (f32[2]{0}, /*index=1*/(s32[3,5]{1,0}, f32[4,8]{1,0:T(8,128)S(1)})) custom-call(%x)\n"
    text = WRITTEN.replace(
        "  %moved = f32[4,8]{1,0:S(1)} copy(%y)", f"{pair}  %moved = f32[4,8]{{1,0:S(1)}} copy(%pair#1#1)"
    )
    program = Program(text)
    (moved,) = (one for one, _ in program.executed if one.name == "moved")
    (element,) = program.operands_of(moved)
    assert element.results == (Array("f32", (4, 8), 1),) and element.operands == ("pair#1",)


def test_what_is_sent_to_another_slice_is_counted_once_and_moves_nothing_else():
    sent = """  %token = token[] after-all()
  %out = (f32[4,8]{1,0}, u32[], token[]) send(%y, %token), channel_id=7, is_host_transfer=true
  %in = (f32[4,8]{1,0}, u32[], token[]) recv(%token), channel_id=8, is_host_transfer=true
  %sent = token[] send-done(%out), channel_id=7
  %moved ="""
    program = Program(WRITTEN.replace("  %moved =", sent, 1))
    found = [one for one in program.collectives() if one.kind == "send"]
    assert found == [Collective("send", "f32", bytes=128.0, elements=32, group=8, count=1)]
    assert program.hbm_bytes() == Program(WRITTEN).hbm_bytes()


def test_a_loop_that_ends_by_its_data_is_named_and_taken_once():
    text = WRITTEN.replace("%nine = s32[] constant(9)", "%nine = s32[] custom-call(%x)")
    program = Program(text)
    assert program.cycles() == 10 + 7
    assert program.unknown_loops == ["loop"]


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        Program("HloModule nothing")


@functools.cache
def compiled(topology: str, layers: int, dtype: str = "bfloat16") -> Program:
    """One gradient step of a scanned residual network in pure data parallelism, compiled for a TPU."""
    mesh = Mesh(np.array(topologies.parse(topology).devices()), ("data",))
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    width, hidden = 256, 1024
    weights = {
        "into": jax.ShapeDtypeStruct((layers, width, hidden), jnp.float32, sharding=whole),
        "out": jax.ShapeDtypeStruct((layers, hidden, width), jnp.float32, sharding=whole),
    }
    x = jax.ShapeDtypeStruct((8 * mesh.size, 128, width), jnp.dtype(dtype), sharding=rows)

    def loss(weights, x):
        def layer(x, weights):
            hidden = jax.nn.relu(x @ weights["into"].astype(dtype))
            return x + hidden @ weights["out"].astype(dtype), None

        return jnp.mean(jnp.square(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32)))

    def step(weights, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    jitted = jax.jit(step, donate_argnums=0, out_shardings=whole)
    return Program(jitted.lower(weights, x).compile().as_text())


@pytest.mark.parametrize("topology", ["v3:4x4", "v5e:4x4"])
def test_cycles_and_bytes_of_a_scan_grow_with_its_layers(topology):
    few, many = compiled(topology, 72), compiled(topology, 144)  # fewer might stay on the chip between the loops
    assert few.unknown_loops == many.unknown_loops == []
    assert many.cycles() / few.cycles() == pytest.approx(2, rel=0.05)
    assert many.hbm_bytes() / few.hbm_bytes() == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("topology", ["v3:4x4", "v5e:4x4"])
def test_every_gradient_is_reduced_once_in_bfloat16(topology):
    layers = 8
    reduced = [c for c in compiled(topology, layers).collectives() if c.kind in ("all-reduce", "reduce-scatter")]
    gradients = [c for c in reduced if c.elements > 1]
    assert {c.dtype for c in gradients} == {"bf16"}
    assert {c.group for c in gradients} == {topologies.parse(topology).chips * (2 if topology[:2] == "v3" else 1)}
    assert sum(c.elements * c.count for c in gradients) == layers * 2 * 256 * 1024
    assert sum(c.bytes * c.count for c in gradients) == layers * 2 * 256 * 1024 * 2


def test_matmuls_are_found_in_fusions_with_their_dtypes():
    products = compiled("v5e:4x4", 8).matmuls()
    assert sum(m.count for m in products) == 8 * (2 + 4)  # forward and backward
    assert {dtype for m in products for dtype in m.dtypes} == {"bf16"}
    assert "f32" in {dtype for m in compiled("v5e:4x4", 8, "float32").matmuls() for dtype in m.dtypes}


@pytest.mark.parametrize("none", [2**63 - 1, 2**64 - 1])
def test_the_integers_that_stand_for_no_estimate_are_no_cycles(none):
    assert Program(WRITTEN.replace('"estimated_cycles":"7"', f'"estimated_cycles":"{none}"')).cycles() == 5 * 10
