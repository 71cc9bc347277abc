"""The refined estimate: what an instruction takes, what a program waits for, and what stands for what is not known."""

import dataclasses
import re

import pytest

from plmjax.planning import hlo, refined
from plmjax.planning.breakdown import breakdown, category
from plmjax.planning.collectives import collectives, communication
from plmjax.planning.estimate import unpriced_calls
from plmjax.planning.links import Transmission
from plmjax.planning.refined import Costs, Rates
from plmjax.planning.schedules import Schedule
from plmjax.planning.traffic import Traffic

RATES = Rates(multiply_adds=8.0, bytes=4.0)
LINKS = frozenset({0, 1})
NAMED = 'metadata={op_name="jit(step)/'
LAYER = f"{NAMED}jvp(Model)/Model/encoder/while/body/layers"
DOT = "f32[8,8]{1,0:S(1)} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"

# An all-gather that is started before two products and needed after them; a loop of three trips around a copy that
# is started before, and needed after, one instruction; two equal negations, a kernel, and a call that is nothing.
WRITTEN = f"""HloModule written, is_scheduled=true, num_partitions=4

%body (p: (s32[], f32[16])) -> (s32[], f32[16]) {{
  %p = (s32[], f32[16]{{0}}) parameter(0)
  %i = s32[]{{:S(2)}} get-tuple-element(%p), index=0
  %one = s32[]{{:S(2)}} constant(1)
  %next = s32[]{{:S(2)}} add(%i, %one)
  %x = f32[16]{{0}} get-tuple-element(%p), index=1
  %load = (f32[16]{{0:S(1)}}, f32[16]{{0}}, u32[]{{:S(2)}}) copy-start(%x)
  %busy = f32[16]{{0:S(1)}} exponential(%next), {LAYER}/attention/exp"}}, backend_config={{"estimated_cycles":"90"}}
  %loaded = f32[16]{{0:S(1)}} copy-done(%load)
  %y = f32[16]{{0:S(1)}} negate(%loaded), {LAYER}/layer_norm/neg"}}, backend_config={{"estimated_cycles":"40"}}
  %z = f32[16]{{0:S(1)}} negate(%y), {LAYER}/feed_forward/neg"}}, backend_config={{"estimated_cycles":"40"}}
  ROOT %t = (s32[], f32[16]{{0}}) tuple(%next, %z)
}}

%condition (p: (s32[], f32[16])) -> pred[] {{
  %p = (s32[], f32[16]{{0}}) parameter(0)
  %i = s32[]{{:S(2)}} get-tuple-element(%p), index=0
  %three = s32[]{{:S(2)}} constant(3)
  ROOT %less = pred[]{{:S(2)}} compare(%i, %three), direction=LT
}}

ENTRY %main (a: f32[8,8], b: f32[8,8], x: f32[16]) -> f32[8,8] {{
  %a = f32[8,8]{{1,0}} parameter(0)
  %b = f32[8,8]{{1,0}} parameter(1)
  %x = f32[16]{{0}} parameter(2)
  %gather = (f32[8]{{0}}, f32[32]{{0}}) all-gather-start(%x), channel_id=1, dimensions={{0}}
  %first = {DOT}, {LAYER}/key/dot_general"}}
  %second = {DOT}, {LAYER}/attention/dot_general"}}
  %gathered = f32[32]{{0}} all-gather-done(%gather)
  %zero = s32[]{{:S(2)}} constant(0)
  %start = (s32[], f32[16]{{0}}) tuple(%zero, %x)
  %loop = (s32[], f32[16]{{0}}) while(%start), condition=%condition, body=%body
  %kernel = f32[8,8]{{1,0:S(1)}} custom-call(%first), custom_call_target="tpu_custom_call", {NAMED}add"}}
  %nothing = f32[8,8]{{1,0:S(1)}} custom-call(), custom_call_target="AllocateBuffer"
  %prepared = token[] custom-call(), custom_call_target="PrepareAsyncCallDone"
  ROOT %sum = f32[8,8]{{1,0:S(1)}} add(%kernel, %second), {NAMED}add"}}, backend_config={{"estimated_cycles":"30"}}
}}
"""

SCHEDULES = {name: Schedule(bundles) for name, bundles in {"first": 100, "busy": 10, "y": 20, "sum": 25}.items()}


def costs(schedules: dict[str, Schedule] = SCHEDULES) -> Costs:
    return Costs(hlo.Program(WRITTEN), schedules, RATES)


def cost(name: str, schedules: dict[str, Schedule] = SCHEDULES) -> refined.Cost:
    found = costs(schedules)
    return next(found[one] for one, _ in found.program.top_level if one.name == name)


def test_an_instruction_takes_the_longest_of_bundles_products_and_bytes():
    assert cost("first").refined == 128  # 512 bytes read at 4 a cycle
    assert cost("first", SCHEDULES | {"first": Schedule(200)}).refined == 200
    faster = Costs(hlo.Program(WRITTEN), SCHEDULES, Rates(multiply_adds=2.0, bytes=400.0))
    assert next(faster[one].refined for one, _ in faster.program.top_level if one.name == "first") == 8**3 / 2
    assert (cost("sum").refined, cost("sum").estimated) == (25, 30)


def test_equal_instructions_share_a_schedule_and_one_without_keeps_the_compilers_estimate():
    assert (cost("z").scheduled, cost("z").source) == (20, "schedule")  # the negation before it is its twin
    assert (cost("second").scheduled, cost("second").source) == (100, "schedule")
    bare = re.sub(r"(%z = .*?), metadata=\{[^}]*\}", r"\1", WRITTEN)  # twins may differ in whether they have metadata
    found = Costs(hlo.Program(bare), SCHEDULES, RATES)
    assert [found[one].scheduled for one, _ in found.program.top_level if one.name == "z"] == [20]
    unscheduled = cost("busy", {})
    assert (unscheduled.refined, unscheduled.source) == (90, "compiler")
    ended_by_data = cost("busy", {"busy": Schedule(10, unknown_loops=1)})
    assert (ended_by_data.refined, ended_by_data.source) == (90, "schedule")


def test_a_kernel_is_not_free_in_either_estimate():
    known = cost("kernel", SCHEDULES | {"kernel": Schedule(70)})
    assert (known.compiler, known.refined, known.estimated) == (None, 70, 70)
    assert (cost("kernel").source, cost("kernel").estimated) == ("none", 0)
    in_hbm = WRITTEN.replace("%kernel = f32[8,8]{1,0:S(1)}", "%kernel = f32[8,8]{1,0}")
    found = Costs(hlo.Program(in_hbm), SCHEDULES, RATES)
    assert next(found[one].estimated for one, _ in found.program.top_level if one.name == "kernel") == 256 / 4
    (unknown,) = unpriced_calls(costs())
    assert unknown.startswith("1 custom calls of tpu_custom_call a step have neither an estimate nor a schedule")
    assert unpriced_calls(costs(SCHEDULES | {"kernel": Schedule(70)})) == []


def test_what_the_schedule_hides_is_not_waited_for():
    # The gather sends for 300 cycles, of which the two products hide 128 each. The copy reads 64 bytes in 16 cycles,
    # of which ten bundles of other work hide ten, three times.
    time = refined.timeline(costs(), {"gather": Transmission(300.0, LINKS)})
    assert time.computing == 2 * 128 + 3 * (10 + 20 + 20) + 25
    assert time.waiting_network == 300 - 2 * 128
    assert time.waiting_hbm == 3 * (16 - 10)
    assert (time.network, time.hbm) == (300, 2 * 128 + 3 * 16)
    assert refined.timeline(costs(), {"gather": Transmission(200.0, LINKS)}).waiting_network == 0


def in_flight(*lines: str, looped: str = "f32[16]{0:S(1)} exponential()") -> refined.Timeline:
    """The time of a program that moves arrays of 16, 24 and 32 numbers, in 16, 24 and 32 cycles.

    %gather sends for 40 cycles. Each exponential takes 10, without the HBM and the network.

    looped: the instruction in a loop of three trips.
    """
    text = "\n  ".join(lines)
    program = hlo.Program(f"""%body (p: (s32[], f32[16])) -> (s32[], f32[16]) {{
  %p = (s32[], f32[16]{{0}}) parameter(0)
  %i = s32[]{{:S(2)}} get-tuple-element(%p), index=0
  %x = f32[16]{{0}} get-tuple-element(%p), index=1
  %one = s32[]{{:S(2)}} constant(1)
  %counted = s32[]{{:S(2)}} add(%i, %one)
  %busy = {looped}
  ROOT %t = (s32[], f32[16]{{0}}) tuple(%counted, %x)
}}

{WRITTEN[WRITTEN.index("%condition") : WRITTEN.index("ENTRY")]}
ENTRY %main (x: f32[16], y: f32[24], z: f32[32]) -> f32[16] {{
  %x = f32[16]{{0}} parameter(0)
  %y = f32[24]{{0}} parameter(1)
  %z = f32[32]{{0}} parameter(2)
  {text}
  ROOT %last = f32[16]{{0:S(1)}} exponential()
}}""")
    schedules = {one.name: Schedule(10) for one, _ in program.top_level if one.opcode == "exponential"}
    sent = {"gather": Transmission(40.0, LINKS)} | ({"busy": Transmission(7.0, LINKS)} if "all-" in looped else {})
    return refined.timeline(Costs(program, schedules, RATES), sent)


LOAD = "%load = (f32[16]{0:S(1)}, f32[16]{0}, u32[]) copy-start(%x)"
LOADED = "%loaded = f32[16]{0:S(1)} copy-done(%load)"
NEXT = "%next = (f32[32]{0:S(1)}, f32[32]{0}, u32[]) copy-start(%z)"
NEXT_LOADED = "%next.loaded = f32[32]{0:S(1)} copy-done(%next)"
GATHER = "%gather = (f32[24]{0}, f32[96]{0}) all-gather-start(%y)"
GATHERED = "%gathered = f32[96]{0} all-gather-done(%gather)"
LOOP = """%zero = s32[]{:S(2)} constant(0)
  %start = (s32[], f32[16]{0}) tuple(%zero, %x)
  %loop = (s32[], f32[16]{0}) while(%start), condition=%condition, body=%body"""
ONE = "%one = f32[16]{0:S(1)} exponential()"
OTHER = "%other = f32[16]{0:S(1)} exponential()"


def test_two_transfers_in_flight_share_the_hbm_one_after_the_other():
    # 48 cycles of transfers. The first instruction hides 10 of the first copy's; the other 10 of the second one's.
    time = in_flight(LOAD, NEXT, ONE, LOADED, OTHER, NEXT_LOADED)
    assert (time.computing, time.waiting_hbm, time.hbm) == (30, (16 - 10) + (32 - 10), 48)
    # 20 cycles hide the first copy and 4 cycles of the second one.
    assert in_flight(LOAD, NEXT, ONE, OTHER, LOADED, NEXT_LOADED).waiting_hbm == 48 - 20
    # What is needed first began last: it waits for both, and nothing is left to wait for.
    time = in_flight(NEXT, LOAD, ONE, LOADED, OTHER, NEXT_LOADED)
    assert time.waiting_hbm == 48 - 10


def test_every_trip_of_a_loop_hides_what_its_instructions_leave_to_others():
    assert in_flight(NEXT, LOOP, NEXT_LOADED).waiting_hbm == 32 - 3 * 10
    reading = "f32[16]{0:S(1)} exponential(%x)"  # for 16 cycles, all of which the HBM is busy
    assert in_flight(NEXT, LOOP, NEXT_LOADED, looped=reading).waiting_hbm == 32
    assert in_flight(GATHER, LOOP, GATHERED, looped=reading).waiting_network == 0
    sending = "f32[16]{0} all-reduce(%x), to_apply=%condition"  # of 7 cycles; the links carry nothing else meanwhile
    time = in_flight(GATHER, LOOP, GATHERED, looped=sending)
    assert (time.network, time.waiting_network) == (40 + 3 * 7, 40 + 3 * 7)


def test_a_copy_and_a_collective_in_flight_hide_each_other():
    # The collective goes on while the copy is waited for, and the copy while the collective is.
    time = in_flight(GATHER, LOAD, ONE, LOADED, OTHER, GATHERED)
    assert (time.waiting_hbm, time.waiting_network) == (16 - 10, 40 - 10 - (16 - 10) - 10)
    time = in_flight(NEXT, GATHER, ONE, GATHERED, OTHER, NEXT_LOADED)
    assert (time.waiting_hbm, time.waiting_network) == (0, 40 - 10)
    # At the end of the program the longer of the two is waited for.
    time = in_flight(GATHER, NEXT)
    assert (time.waiting_hbm, time.waiting_network) == (32 - 10, 40 - 32)


BRANCHES = """%short (s: f32[16]) -> f32[16] {
  %s = f32[16]{0:S(1)} parameter(0)
  ROOT %few = f32[16]{0:S(1)} negate(%s), backend_config={"estimated_cycles":"8"}
}

%long (l: f32[16]) -> f32[16] {
  %l = f32[16]{0:S(1)} parameter(0)
  ROOT %many = f32[16]{0:S(1)} exponential(%l), backend_config={"estimated_cycles":"90"}
}

"""


@pytest.mark.parametrize(
    ("instruction", "cycles"),
    [
        ("conditional(%p, %z, %z), true_computation=%short, false_computation=%long", 12),
        ("call(%z), to_apply=%long", 12),
        ("call(%z), to_apply=%short", 8),
        ("add(%z, %z)", 0),
    ],
)
def test_what_is_called_takes_its_own_time_and_hides_transfers(instruction: str, cycles: int) -> None:
    """The longer one of two branches, by its schedule. A transfer that is updated ends with what it began with."""
    program = hlo.Program(f"""{BRANCHES}ENTRY %main (p: pred[], x: f32[16], z: f32[16]) -> f32[16] {{
  %p = pred[]{{:S(2)}} parameter(0)
  %x = f32[16]{{0}} parameter(1)
  %z = f32[16]{{0:S(1)}} parameter(2)
  %load = (f32[16]{{0:S(1)}}, f32[16]{{0}}, u32[]) copy-start(%x)
  %called = f32[16]{{0:S(1)}} {instruction}
  %going = (f32[16]{{0:S(1)}}, f32[16]{{0}}, u32[]) copy-update(%load)
  %loaded = f32[16]{{0:S(1)}} copy-done(%going)
  ROOT %last = f32[16]{{0:S(1)}} tanh(%loaded)
}}""")
    schedules = {"many": Schedule(12), "few": Schedule(8), "last": Schedule(30)}
    time = refined.timeline(Costs(program, schedules, RATES), {})
    assert (time.computing, time.waiting_hbm, time.hbm) == (cycles + 30, 16 - cycles, 16)


def test_the_bundles_between_instructions_take_their_time_and_hide_what_is_in_flight() -> None:
    """An instruction that has no schedule of its own has that of an equal one all the same."""
    before = {"y": Schedule(20, before=2), "z": Schedule(None, before=3), "second": Schedule(None, before=7)}
    plain, found = (refined.timeline(costs(SCHEDULES | more), {}) for more in ({}, before))
    assert (plain.between, found.between) == (0, 3 * (2 + 3) + 7)
    assert found.computing == plain.computing + found.between
    assert cost("z", SCHEDULES | before) == dataclasses.replace(cost("z"), before=3)
    sent = {"gather": Transmission(300.0, LINKS)}
    waits = [refined.timeline(costs(SCHEDULES | more), sent).waiting_network for more in ({}, before)]
    assert waits == [300 - 256, 300 - 256 - 7]


# What is fused for an all-gather: its start before a loop of three trips, an exponential beside it, and its end.
FUSED = f"""HloModule fused, is_scheduled=true, num_partitions=4

%begin (p: f32[8]) -> f32[32] {{
  %p = f32[8]{{0}} parameter(0)
  %g = f32[32]{{0}} all-gather(%p), channel_id=7, dimensions={{0}}
  ROOT %c = f32[32]{{0:S(1)}} custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%async_collective_fusion.3 (q: f32[32]) -> f32[32] {{
  %q = f32[32]{{0:S(1)}} parameter(0)
  %h = f32[32]{{0}} all-gather(%q), channel_id=7, dimensions={{0}}
  ROOT %e = f32[32]{{0:S(1)}} exponential(%q)
}}

%end (r: f32[32]) -> f32[32] {{
  %r = f32[32]{{0:S(1)}} parameter(0)
  %k = f32[32]{{0}} all-gather(%r), channel_id=7, dimensions={{0}}
  ROOT %d = f32[32]{{0:S(1)}} custom-call(%k), custom_call_target="AsyncCollectiveDone"
}}

%body (p: (s32[], f32[32])) -> (s32[], f32[32]) {{
  %p = (s32[], f32[32]{{0:S(1)}}) parameter(0)
  %i = s32[]{{:S(2)}} get-tuple-element(%p), index=0
  %one = s32[]{{:S(2)}} constant(1)
  %next = s32[]{{:S(2)}} add(%i, %one)
  %x = f32[32]{{0:S(1)}} get-tuple-element(%p), index=1
  %beside = f32[32]{{0:S(1)}} fusion(%x), kind=kLoop, calls=%async_collective_fusion.3
  ROOT %t = (s32[], f32[32]{{0:S(1)}}) tuple(%next, %beside)
}}
{WRITTEN[WRITTEN.index("%condition") : WRITTEN.index("ENTRY")].replace("f32[16]{0}", "f32[32]{0:S(1)}")}
ENTRY %main (x: f32[8]) -> f32[32] {{
  %x = f32[8]{{0}} parameter(0)
  %started = f32[32]{{0:S(1)}} fusion(%x), kind=kCustom, calls=%begin
  %zero = s32[]{{:S(2)}} constant(0)
  %start = (s32[], f32[32]{{0:S(1)}}) tuple(%zero, %started)
  %loop = (s32[], f32[32]{{0:S(1)}}) while(%start), condition=%condition, body=%body
  %y = f32[32]{{0:S(1)}} get-tuple-element(%loop), index=1
  ROOT %done = f32[32]{{0:S(1)}} fusion(%y), kind=kCustom, calls=%end
}}
"""


def test_a_collective_that_is_fused_with_what_it_overlaps_is_hidden_by_it():
    program = hlo.Program(FUSED)
    assert [(one.kind, one.count) for one in collectives(program)] == [("all-gather", 1)]
    ((name, _),) = communication(program).items()
    found = Costs(program, {"started": Schedule(9), "beside": Schedule(50), "done": Schedule(9)}, RATES)
    for sent, waited in ((200.0, 50.0), (100.0, 0.0)):
        time = refined.timeline(found, {name: Transmission(sent, LINKS)})
        assert (time.computing, time.waiting_network, time.network) == (3 * 50, waited, sent)
    assert [one.name for one, _ in found.computing() if found[one].refined] == ["beside"]


def test_collectives_that_share_a_channel_end_in_the_order_in_which_they_began():
    twice = FUSED.replace(
        "  %zero = s32", "  %started.2 = f32[32]{0:S(1)} fusion(%x), kind=kCustom, calls=%begin.2\n  %zero = s32"
    )
    for name, variables in (("begin", "pgc"), ("end", "rkd")):
        copied = FUSED[FUSED.index(f"%{name} ") : FUSED.index("}\n\n", FUSED.index(f"%{name} "))]
        for one in (name, *variables):
            copied = copied.replace(f"%{one} ", f"%{one}.2 ").replace(f"%{one})", f"%{one}.2)")
        twice = twice.replace("ENTRY", f"{copied}}}\n\nENTRY")
    twice = twice.replace("ROOT %done", "%done").rstrip("}\n")
    twice += "\n  ROOT %done.2 = f32[32]{0:S(1)} fusion(%started.2), kind=kCustom, calls=%end.2\n}\n"
    program = hlo.Program(twice)
    assert [(one.kind, one.count) for one in collectives(program)] == [("all-gather", 2)]
    sent = dict.fromkeys(communication(program), Transmission(200.0, LINKS))
    assert sorted(sent) == ["g", "g.2"]
    time = refined.timeline(Costs(program, {"beside": Schedule(50)}, RATES), sent)
    assert (time.network, time.computing, time.waiting_network) == (400, 150, 250)
    # An instruction between the two ends hides some of the second one: it is not waited for at the first end.
    between = twice.replace("  ROOT %done.2", "  %between = f32[32]{0:S(1)} exponential(%y)\n  ROOT %done.2")
    schedules = {"beside": Schedule(50), "between": Schedule(60)}
    time = refined.timeline(Costs(hlo.Program(between), schedules, RATES), sent)
    assert (time.network, time.computing, time.waiting_network) == (400, 150 + 60, 250 - 60)


def test_collectives_along_two_axes_go_on_at_once():
    program = hlo.Program(
        WRITTEN.replace("%second =", f"{GATHER.replace('gather =', 'other =').replace('%y', '%x')}\n  %second =", 1)
    )
    # On the links of the first, the second one sends only after it: until the end, beside the loop and the sum.
    behind = (300 - 2 * 128) + 200 - (3 * (10 + 20 + 20) + 3 * (16 - 10) + 25)
    for axes, waited in ((0, behind), (1, 300 - 2 * 128)):
        sent = {"gather": Transmission(300.0, frozenset({0})), "other": Transmission(200.0, frozenset({axes}))}
        time = refined.timeline(Costs(program, SCHEDULES, RATES), sent)
        assert time.waiting_network == waited and time.network == 500
    # One along both axes waits for those along either.
    both = {"gather": Transmission(300.0, frozenset({0})), "other": Transmission(200.0, LINKS)}
    assert refined.timeline(Costs(program, SCHEDULES, RATES), both).waiting_network == behind


def test_the_categories_add_up_to_both_estimates():
    found = costs(SCHEDULES | {"kernel": Schedule(70)})
    ends = found, found.at(Rates(multiply_adds=8.0, bytes=2.0, startup=5.0))
    times = [refined.timeline(costs, {"gather": Transmission(300.0, LINKS)}) for costs in ends]
    made = breakdown(ends, times, 300.0, parameters={12345})
    rows = made["cycles"]
    assert {name: row["fast"] for name, row in rows.items() if row["fast"]} == {
        "matrix products": 128, "attention": 128 + 3 * 10, "normalisation": 3 * 20, "layers": 3 * 20, "state": 70 + 25,
        "collectives": 300 - 256, "transfers": 18,
    }  # fmt: skip
    # 512 bytes take 256 cycles now, after five for the first of them; the copy 32 after five, of which ten are hidden.
    assert {name: row["slow"] for name, row in rows.items() if row["slow"]} == {
        "matrix products": 261, "attention": 261 + 3 * 10, "normalisation": 3 * 20, "layers": 3 * 20, "state": 70 + 25,
        "transfers": 3 * (37 - 10),
    }  # fmt: skip
    for end, costs_of_end, time in zip(("fast", "slow"), ends, times, strict=True):
        assert sum(row[end] for row in rows.values()) == pytest.approx(time.total)
        computed = sum(runs * costs_of_end[one].refined for one, runs in costs_of_end.computing())
        assert time.computing == pytest.approx(computed)
    computed = sum(runs * ends[1][one].estimated for one, runs in ends[1].computing())
    assert sum(row["compiler"] for row in rows.values()) == pytest.approx(computed + 300)
    assert sum(row["hbm_bytes"] for row in rows.values()) == Traffic(found.program).total()


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("jvp(M)/M/encoder/while/body/closed_call/layers/attention/attention._attend/exp", "attention"),
        ("transpose(jvp(M))/M/encoder/while/body/layers/attention/transpose(jvp(BTNH,BSNH->BNTS))/mul", "attention"),
        ("jvp(M)/M/encoder/while/body/layers/attention/attention._attend/output/add", "layers"),
        ("jvp(M)/M/encoder/while/body/layers/attention_layer_norm/sub", "normalisation"),
        ("jvp(M)/M/encoder/while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice", "residuals"),
        ("while/body/closed_call/vmap(jvp(M))/M/word_embeddings.attend/sub", "ends"),
        ("vmap(jit(_randint))/vmap()/add", "other"),
        ("attention/key/jvp(M)/M/encoder/while/body/layers/attention/exp", "attention"),
        ("mul", "state"),
        ("shard_map/while/body/closed_call/add", "state"),
    ],
)
def test_scopes_name_categories(scope, expected):
    text = f'ENTRY %main (a: f32[]) -> f32[] {{\n  ROOT %c = f32[8]{{0}} exponential(), {NAMED}{scope}"}}\n}}'
    program = hlo.Program(text)
    assert category(program, program.roots["main"], parameters=()) == expected


def test_what_has_the_size_of_a_parameter_and_computes_nothing_else_is_state():
    for instruction, scope, state in (
        ("convert(%a)", "jvp(M)/M/word_embeddings/convert", True),  # a copy of a parameter
        ("exponential(%a)", "jvp(M)/M/word_embeddings/exp", False),
        ("exponential(%a)", "", True),  # of no module, and of the size of a parameter
    ):
        named = f', {NAMED}{scope}"}}' if scope else ""
        text = "ENTRY %main (a: f32[]) -> f32[] {\n  %a = f32[4,8]{1,0} parameter(0)\n"
        program = hlo.Program(f"{text}  ROOT %c = bf16[4,8]{{1,0}} {instruction}{named}\n}}")
        assert category(program, program.roots["main"], parameters={7, 32}) == ("state" if state else "ends")
        assert category(program, program.roots["main"], parameters={7}) == ("ends" if scope else "other")


@pytest.mark.parametrize(("rounds", "expected"), [(7, "layers"), (8, "random bits")])
def test_rounds_of_threefry_are_random_bits_and_a_few_exclusive_ors_are_not(rounds, expected):
    lines = [f'%x{number + 1} = u32[8]{{0}} xor(%x{number}, %x0), {LAYER}/mask/xor"}}' for number in range(rounds)]
    text = "\n  ".join(["%x0 = u32[8]{0} parameter(0)", *lines[:-1], f"ROOT {lines[-1]}"])
    program = hlo.Program(f"""%drawn (x0: u32[8]) -> u32[8] {{
  {text}
}}

ENTRY %main (a: u32[8]) -> u32[8] {{
  %a = u32[8]{{0}} parameter(0)
  ROOT %bits = u32[8]{{0}} fusion(%a), kind=kLoop, calls=%drawn
}}""")
    assert category(program, program.roots["main"], parameters=()) == expected


def test_a_scalar_starts_no_transfer() -> None:
    """The counters of a loop may be written without a space of their own. They lie in the memory of the scalar unit."""
    written = WRITTEN.replace("s32[]{:S(2)}", "s32[]{:T(128)}").replace("pred[]{:S(2)}", "pred[]{:T(128)}")
    rates = Rates(multiply_adds=8.0, bytes=4.0, startup=100.0)
    there, anywhere = (Costs(hlo.Program(text), {}, rates) for text in (WRITTEN, written))
    scalars = [one for one, _ in anywhere.program.top_level if not any(array.shape for array in one.results)]
    assert "next" in {one.name for one in scalars}
    assert all(anywhere[one].refined == 0 for one in scalars)
    sent = {"gather": Transmission(300.0, LINKS)}
    assert refined.timeline(anywhere, sent).total == refined.timeline(there, sent).total


def test_an_instruction_computes_and_moves_its_bytes_at_once_after_its_start():
    """A schedule without open loops counts alone, whatever the compiler estimates."""
    cost = refined.Cost(compiler=900, scheduled=50, open_loops=0, products=70.0, hbm_bytes=8.0, hbm=60.0, startup=30.0)
    for changes, expected in (
        ({}, 70 + 30),
        ({"hbm": 80.0}, 80 + 30),
        ({"scheduled": 90}, 90 + 30),
        ({"open_loops": 1}, 900 + 30),
        ({"scheduled": None}, 900 + 30),
        ({"scheduled": None, "compiler": None}, 70 + 30),
    ):
        assert dataclasses.replace(cost, **changes).refined == expected
    assert (cost.estimated, dataclasses.replace(cost, compiler=None).estimated) == (900, 100)
    sources = [dataclasses.replace(cost, scheduled=None, compiler=compiler).source for compiler in (900, None)]
    assert (cost.source, *sources) == ("schedule", "compiler", "none")
