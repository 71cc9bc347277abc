"""Plans: the step of a trainer compiled for slices that nobody owns, and answers to what cannot be."""

import dataclasses
import functools
import importlib.metadata
import json
from types import SimpleNamespace

import jax
import pytest

from plmjax.commands import cli
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data.layouts import SentencePairs
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, Finetuning, Mesh, Phase, Training
from plmjax.models.bert import BertConfig
from plmjax.objectives.bert import BertPretraining
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.planning import estimate, hlo
from plmjax.planning import report as plan_report
from plmjax.planning.compilation import Batches, Compilation, out_of_memory
from plmjax.planning.estimate import price_of, prices
from plmjax.planning.plan import plan
from plmjax.planning.refined import RANGE
from plmjax.planning.schedules import Schedule
from plmjax.training import placement
from plmjax.training import program as programs
from plmjax.training.optimizers import BertAdamW
from tests.planning.programs import WRITTEN

GIB = 2**30


def experiment(**training) -> Experiment:
    """A BERT of two layers in two phases."""
    settings = {"steps": 1000, "batch_size": 16, "gradient_dtype": "bfloat16"} | training
    return Experiment(
        model=BertConfig.tiny(vocab_size=1024),
        objective=BertPretraining(),
        data=Data(layout=SentencePairs()),
        optimizer=BertAdamW(),
        training=Training(**settings),
        phases=(Phase(fraction=0.9, sequence_length=64), Phase(fraction=0.1, sequence_length=128, accumulation=2)),
    )


def of_one_phase(**training) -> Experiment:
    return dataclasses.replace(experiment(**training), phases=(Phase(fraction=1.0, sequence_length=64),))


@pytest.fixture(scope="module")
def made() -> dict:
    """A plan of one phase without rings, whose program is compiled in a sixth of the time; its mesh is not searched."""
    run = dataclasses.replace(of_one_phase(rings="off"), mesh=Mesh(data=4, fsdp=1, tensor=1))
    return plan(run, "v5e:2x2", prices={"": 3.0, "v5e": 1.5}, breakdown=True)


MEMORY = SimpleNamespace(
    argument_size_in_bytes=5 * GIB,
    output_size_in_bytes=4 * GIB,
    alias_size_in_bytes=3 * GIB,
    temp_size_in_bytes=2 * GIB,
    generated_code_size_in_bytes=GIB,
)


def pretend(schedules: dict[str, Schedule], **options) -> dict:
    """A plan for four chips of a v3, which are eight devices. A written program stands for those of the compiler."""

    def compile_phase(run, batches, phase, mesh) -> Compilation:
        program = programs.build(run, phase, mesh, vocabulary=batches.vocabulary, shapes=batches.shapes)
        return Compilation(program, MEMORY, WRITTEN, schedules, 3.0)

    run = dataclasses.replace(experiment(), mesh=Mesh(data=8, fsdp=1, tensor=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plmjax.planning.compilation.compile_phase", compile_phase)
        return plan(run, "v3:2x2", prices={"": 2.0}, **options)


@pytest.fixture(scope="module")
def pretended() -> dict:
    return pretend({})


def test_rows_of_a_breakdown_are_cycles_and_make_the_step():
    (phase, _) = pretend({"first": Schedule(100)}, breakdown=True)["phases"]
    rows, estimate = phase["breakdown"]["cycles"], phase["estimate"]
    assert rows["collectives"]["compiler"] == pytest.approx(estimate["interconnect_seconds"] * 0.94e9) != 0
    columns = [("compiler", estimate), *((end, phase["refined"][end]) for end in ("fast", "slow"))]
    for column, made in columns:
        assert sum(row[column] for row in rows.values()) >= 0.99 * made["step_seconds"] * 0.94e9


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"changes": ("optimizer.learning_rate=1e-5", "optimizer.schedule.warmup_steps=3")}, True),
        ({"changes": ("model.hidden_dropout_prob=0",)}, False),  # leaves operations out
        ({"changes": ("optimizer=lamb",)}, False),
        ({"accumulation": 2}, False),
    ],
    ids=str,
)
def test_a_phase_is_not_compiled_again_if_its_program_differs_in_numbers_alone(changes: dict, same: bool) -> None:
    run = of_one_phase()
    phases = (dataclasses.replace(run.phases[0], fraction=0.9), Phase(fraction=0.1, sequence_length=64, **changes))
    run = dataclasses.replace(run, phases=phases)
    batches, (first, second) = Batches.of_text(run), run.resolved_phases
    mesh = meshes.make(Mesh(), jax.devices()[:1])
    built = programs.build(run, first, mesh, vocabulary=batches.vocabulary, shapes=batches.shapes)
    found = Compilation(built, memory=None, text="", schedules={}, seconds=1.0).of_phase(run, second)
    assert (found is not None) == same
    if same:
        assert (found.program.phase, found.seconds) == (second, 0.0)


def moved(phase: dict, *kinds: str) -> int:
    """The number of elements, of whole arrays, that collectives of these kinds move in a step."""
    numbers = ("f32", "bf16")
    found = [one for one in phase["collectives"] if one["kind"] in kinds and one["dtype"] in numbers]
    return sum(one["elements"] * one["count"] for one in found)


@pytest.mark.nightly
def test_gradients_cross_the_network_once_and_matrices_of_layers_travel_along_rings(monkeypatch):
    """In two rows of two, three of the four pieces reach a device. A step gathers once more than it has layers.

    The compiler divides the two microbatches of the second phase, and their gradient goes over the network once too.
    """
    monkeypatch.setattr(programs, "MICROBATCHES_ON_RINGS", 1)
    made = plan(experiment(), "v5e:2x2")
    (first, second), layers = made["phases"], 2 * 12 * 128 * 128
    others = first["parameters"] - layers
    assert moved(first, "all-gather") == pytest.approx(others, rel=0.1)
    assert moved(first, "collective-permute") == pytest.approx(3 / 4 * (2 * 3 / 2 * layers + others), rel=0.1)
    assert moved(first, "all-reduce", "reduce-scatter") < 0.1 * others
    assert moved(second, "all-gather") == pytest.approx(second["parameters"], rel=0.1)
    assert moved(second, "all-reduce", "reduce-scatter") >= 0.9 * second["parameters"]
    assert first["findings"] == [] == second["findings"]  # it does nothing that a good step does not


# The compiler takes 17 s; by day a written program has its place: pytest -m nightly tests/planning/test_estimate.py
@pytest.mark.nightly
def test_memory_adds_up_and_estimates_follow_their_formulas(made):
    assert [made[name] for name in ("chips", "cores", "devices", "hosts")] == [4, 4, 4, 1]
    (phase,), total = made["phases"], made["estimate"]
    memory, estimate = phase["memory"], phase["estimate"]
    state = ("parameters", "optimizer", "constants", "carry_and_batch", "layout_padding")
    parts = (*state, "results", "activations", "code")
    assert sum(memory[part] for part in parts) == memory["total"] < memory["device"] == 16 * 2**30
    assert phase["parameters"] <= memory["parameters"] < 1.05 * phase["parameters"]
    assert memory["optimizer"] < 1.05 * 2 * memory["parameters"]
    assert memory["layout_padding"] >= 0 and memory["activations"] > 0
    assert phase["tokens_per_step"] == 16 * 64 and phase["findings"] == []
    assert phase["model_flops"] == experiment().model.train_flops(16, 64, 10)
    assert moved(phase, "all-reduce", "reduce-scatter") == pytest.approx(phase["parameters"], rel=0.1)
    assert estimate["compute_seconds"] == phase["model_flops"] / (4 * 197e12)
    parts = [estimate[name] for name in ("compute_seconds", "hbm_seconds", "interconnect_seconds")]
    assert estimate["roofline_seconds"] == max(parts) == estimate[f"{phase['bound_by']}_seconds"]
    assert estimate["cycles_seconds"] == estimate["cycles"] / 1.5e9
    assert estimate["step_seconds"] == estimate["cycles_seconds"] + estimate["interconnect_seconds"]
    assert estimate["mfu"] == pytest.approx(estimate["compute_seconds"] / estimate["step_seconds"])
    assert estimate["tokens_per_second"] == pytest.approx(phase["tokens_per_step"] / estimate["step_seconds"])
    assert total["hours"] == estimate["hours"] == pytest.approx(1000 * estimate["step_seconds"] / 3600)
    assert total["roofline_hours"] == pytest.approx(1000 * estimate["roofline_seconds"] / 3600)
    assert total["chip_hours"] == estimate["chip_hours"] == pytest.approx(4 * total["hours"])
    assert total["model_flops"] == 1000 * phase["model_flops"]
    assert total["cost"] == pytest.approx(1.5 * 4 * total["hours"])
    assert made["compiler"] == f"libtpu {importlib.metadata.version('libtpu')}, jax {jax.__version__}"
    assert json.loads(json.dumps(made)) == made and "All times are estimates" in plan_report.page(made)


@pytest.mark.nightly
def test_the_refined_estimate_is_between_the_bounds_and_explained_to_the_cycle(made):
    (phase,) = made["phases"]
    estimate, refined, rows = phase["estimate"], phase["refined"], phase["breakdown"]["cycles"]
    assert estimate["roofline_seconds"] < refined["fast"]["step_seconds"] < refined["slow"]["step_seconds"]
    columns = [("compiler", estimate["step_seconds"])]
    for name, assumed in zip(("fast", "slow"), RANGE, strict=True):
        end = refined[name]
        assert end["assumed"] == dataclasses.asdict(assumed)
        parts = [end[f"{part}_seconds"] for part in ("computing", "waiting_hbm", "waiting_network")]
        assert end["step_seconds"] == pytest.approx(sum(parts))
        assert end["mfu"] == pytest.approx(estimate["compute_seconds"] / end["step_seconds"])
        network = end["waiting_network_seconds"] + end["hidden_network_seconds"]
        # The communication of both axes of the slice, of which the estimate takes the larger.
        of_both = network * assumed.links / estimate["interconnect_seconds"]
        assert 1 - 1e-9 <= of_both <= 2 + 1e-9
        # In so small a program the arithmetic of keys, of two words, counts.
        assert end["unscheduled_seconds"] < 0.05 * end["step_seconds"]
        columns.append((name, end["step_seconds"]))
    for column, seconds in columns:
        assert sum(row[column] for row in rows.values()) == pytest.approx(1.5e9 * seconds)
    assert sum(row["hbm_bytes"] for row in rows.values()) == pytest.approx(estimate["hbm_seconds"] * 819e9)
    used = {name for name, row in rows.items() if row["fast"] > 0}
    assert used >= {"matrix products", "attention", "normalisation", "random bits", "state", "collectives"}


def test_what_cannot_be_is_one_sentence():
    for changed, topology, sentence in (
        ({}, "v5e:3x3", "2x2, 2x4, 4x4"),
        ({"training": Training(batch_size=18)}, "v5e:2x2", "divides by 4 devices"),
        ({"mesh": Mesh(fsdp=3)}, "v5e:2x2", "number of devices"),
    ):
        with pytest.raises(UserError, match=sentence) as error:
            plan(dataclasses.replace(experiment(), **changed), topology)
        assert "\n" not in str(error.value)
    for options, sentence in (
        ([], "give --topology"),
        (["--topology", "v5e:2x2", "--batch_sizes", "64"], "--batch_sizes needs --search"),
        (["--topology", "v4:2x2x1*2"], "whose network between slices is known"),
    ):
        with pytest.raises(UserError, match=sentence):
            cli.run(["plan", "experiments/bert_tiny.py", *options])


def test_both_ways_of_the_compiler_to_run_out_of_memory_are_understood():
    first = out_of_memory(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 40.25G of "
        "15.75G hbm. Exceeded hbm capacity by 24.50G."
    )
    second = out_of_memory(
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (512.00M) exceeds available HBM (15.75G). HLO module: jit_step."
    )
    assert (first.needed, first.available) == (40.25 * 2**30, 15.75 * 2**30)
    assert (second.needed, second.available) == (512 * 2**20, 15.75 * 2**30)
    assert out_of_memory("INTERNAL: RET_CHECK failure") is None


def test_prices_are_of_all_generations_or_of_one():
    assert prices(["1.2"]) == {"": 1.2}
    assert prices(["1.2", "v5e=0.6", "v6e=2"]) == {"": 1.2, "v5e": 0.6, "v6e": 2.0}
    part = topologies.parse("v5e:4x4")
    found = [price_of(part, given) for given in ({"": 1.2, "v5e": 0.6}, {"": 1.2, "v6e": 2.0}, {"v6e": 2.0}, None)]
    assert found == [0.6, 1.2, None, None]
    for wrong in (["cheap"], ["v5e="], ["-1"], ["nan"]):
        with pytest.raises(UserError, match="Expected --price to be a number"):
            prices(wrong)
    with pytest.raises(UserError, match="did you mean 'v6e'"):
        prices(["v6=1"])


def built(run: Experiment, devices: list[jax.Device], phase: int = 0) -> programs.Program:
    """The program of a phase, which nothing compiles."""
    vocabulary, shapes = Vocabulary.placeholder(run.model.vocab_size), placement.text_batch_shapes(run)
    return programs.build(
        run, run.resolved_phases[phase], meshes.make(run.mesh, devices), vocabulary=vocabulary, shapes=shapes
    )


def test_a_plan_counts_chips_devices_and_phases_apart(pretended):
    """The two devices of a chip share its peak, its memory and its price. Totals are those of both phases."""
    assert [pretended[name] for name in ("chips", "cores", "devices", "hosts")] == [4, 8, 8, 1]
    (first, second), total = pretended["phases"], pretended["estimate"]
    assert (second["rows_per_device"], second["shards"], second["accumulation"]) == (1, 8, 2)
    seconds = second["estimate"]
    assert seconds["compute_seconds"] == second["model_flops"] / (4 * 123e12)
    assert seconds["hours"] == pytest.approx(100 * seconds["step_seconds"] / 3600)
    assert seconds["chip_hours"] == pytest.approx(4 * seconds["hours"])
    assert seconds["tokens_per_second"] == pytest.approx(16 * 128 / seconds["step_seconds"])
    assert seconds["cycles_seconds"] == (5 * 10 + 7) / 0.94e9
    memory = second["memory"]
    assert memory["device"] == 16 * GIB and memory["results"] == GIB and memory["total"] == (5 + 4 - 3 + 2 + 1) * GIB
    parts = ("parameters", "optimizer", "constants", "carry_and_batch", "layout_padding")
    assert sum(memory[part] for part in parts) == 5 * GIB
    assert total["hours"] == pytest.approx(first["estimate"]["hours"] + seconds["hours"])
    roofline = sum(phase["steps"] * phase["estimate"]["roofline_seconds"] for phase in (first, second))
    assert total["roofline_hours"] == pytest.approx(roofline / 3600)
    assert total["chip_hours"] == pytest.approx(4 * total["hours"]) and total["refined_hours"] is None
    assert total["cost"] == pytest.approx(2.0 * total["chip_hours"]) and total["price"] == 2.0
    assert total["model_flops"] == 900 * first["model_flops"] + 100 * second["model_flops"]
    assert total["tokens"] == 16 * (900 * 64 + 100 * 128) and pretended["steps"] == 1000


def test_rates_of_a_device_are_those_of_its_matrix_units_and_its_share_of_the_memory():
    """A v3 has two matrix units of 128 x 128 a device, a v5e four, which multiply twice as many integers."""
    program, schedules = hlo.Program(WRITTEN), {"z": Schedule(1)}
    fast, slow = estimate.costs_of(program, schedules, topologies.CHIPS["v3"])
    for end, costs in zip(RANGE, (fast, slow), strict=True):
        assert costs.rates.bytes == pytest.approx(end.hbm * 450e9 / 0.94e9)
        assert costs.rates.startup == pytest.approx(end.startup * 0.94e9)
    assert fast.rates.multiply_adds == pytest.approx(2 * 128**2, rel=0.01) and fast.rates.int8 == 0
    fast, _ = estimate.costs_of(program, schedules, topologies.CHIPS["v5e"])
    assert fast.rates.multiply_adds == pytest.approx(4 * 128**2, rel=0.01)
    assert fast.rates.int8 == pytest.approx(8 * 128**2, rel=0.01)
    assert estimate.costs_of(program, {}, topologies.CHIPS["v5e"]) is None
    assert estimate.costs_of(program, schedules, topologies.CHIPS["7x"]) is None


@functools.cache
def step(zero: bool = True, **training) -> tuple[Experiment, programs.Program]:
    """A run of BERT on eight devices and its program."""
    run = dataclasses.replace(experiment(**{"batch_size": 2048} | training), phases=(), mesh=Mesh(zero=zero))
    return run, built(run, jax.devices())


def findings(*lines: str, finetuning: Finetuning | None = None, **settings) -> list[str]:
    """Return the findings in a program of these instructions for such a run."""
    run, program = step(**settings)
    run = dataclasses.replace(run, finetuning=finetuning)
    text = "\n  ".join(lines)
    read = hlo.Program(f"""HloModule found, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  {text}
  ROOT %y = f32[8]{{0}} negate(%x)
}}""")
    return estimate.findings(read, SimpleNamespace(program=program), run)


def share_of_parameters(share: float) -> int:
    return int(share * sum(leaf.size for leaf in jax.tree.leaves(step()[1].state.params)))


def numbers(count: int, name: str = "p", dtype: str = "f32") -> str:
    return f"%{name} = {dtype}[{count}]{{0}} parameter(1)"


@pytest.mark.parametrize(
    ("share", "times", "found"), [(1.0, 1, False), (1.0, 2, True), (1.1, 1, True), (0.4, 2, False)]
)
def test_gradients_that_are_summed_more_than_once_are_found(share, times, found):
    reduction = "%{} = f32[{}]{{0}} all-reduce(%p), channel_id={}, replica_groups={{}}, to_apply=%add"
    count = share_of_parameters(share)
    lines = [reduction.format(f"r{number}", count, number) for number in range(times)]
    said = findings(numbers(count), *lines)
    assert bool(said) is found
    assert all("elements are reduced a step, the gradient has" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("zero", "slices", "share", "found"),
    [(True, 1, 1.0, False), (True, 1, 1.1, True), (False, 1, 0.5, True), (True, 2, 1.5, False), (True, 2, 2.5, True)],
)
def test_parameters_that_are_gathered_more_than_once_are_found(zero, slices, share, found, monkeypatch):
    """Without ZeRO every device has them all. Where gradients cross slices, parameters come back twice."""
    count = share_of_parameters(share) // 8
    gather = f"%g = bf16[{8 * count}]{{0}} all-gather(%p), channel_id=1, replica_groups={{}}, dimensions={{0}}"
    step(zero=zero)
    monkeypatch.setattr(meshes, "slices", lambda devices: slices)
    said = findings(numbers(count, dtype="bf16"), gather, zero=zero)
    assert bool(said) is found
    assert all("elements are gathered a step, the parameters are" in sentence for sentence in said)


def test_products_of_wide_numbers_are_found_unless_they_were_asked_for():
    of = {"a": "f32[8,16]", "b": "f32[16,4]", "c": "bf16[16,4]", "d": "bf16[8,16]"}
    given = [f"%{name} = {kind}{{1,0}} parameter({place})" for place, (name, kind) in enumerate(of.items())]
    product = "%{0}{1} = f32[8,4]{{1,0}} dot(%{0}, %{1}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    lines = [*given, *(product.format(*pair) for pair in ("ab", "ac", "dc"))]
    assert findings(*lines) == [
        "1 of 3 matrix products a step take float32 operands, the largest [8, 16] x [16, 4].",
        "1 of 3 matrix products a step take float32 and bfloat16 operands, the largest [8, 16] x [16, 4].",
    ]
    assert findings(*lines, dtype="float32") == [] == findings(*given, product.format("d", "c"))


def test_scores_at_more_positions_than_are_predicted_are_found():
    """Rows of 128 tokens have 20 targets; a device has 256 rows, or 128 of them at a time."""
    scores = "%scores = bf16[{},1024]{{1,0}} broadcast(%x), dimensions={{}}"
    for positions, accumulation, found in ((5120, 1, 0), (5300, 1, 1), (2560, 2, 0), (2700, 2, 1)):
        said = findings(scores.format(positions), accumulation=accumulation)
        assert len(said) == found
        assert all(f"An array over the vocabulary is [{positions}, 1024]" in sentence for sentence in said)
    assert not findings(scores.format(5300), finetuning=Finetuning())  # a task of labels asks for none


def test_a_finding_is_shown_and_strict_exits_with_1(pretended, monkeypatch, capsys):
    bad = {**pretended, "phases": [{**pretended["phases"][0], "findings": ["3 of 9 products take float32."]}]}
    command = ["plan", "experiments/bert_tiny.py", "--topology", "v5e:2x2"]
    for strict, answer, code in ((False, bad, None), (True, bad, 1), (True, pretended, None)):
        monkeypatch.setattr("plmjax.planning.plan.plan", lambda *_, answer=answer, **how: answer)
        stopped = None
        try:
            cli.run([*command, *(["--strict"] if strict else [])])
        except SystemExit as stop:
            stopped = stop.code
        assert stopped == code
        found = "finding (v3:2x2, phase 0): 3 of 9 products take float32." in capsys.readouterr().out
        assert found == (answer is bad)
