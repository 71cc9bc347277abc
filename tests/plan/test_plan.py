"""The batches, the prices and the breakdown of a plan reach its parts; nothing is compiled."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from plmjax.contracts.vocabulary import Vocabulary
from plmjax.errors import UserError
from plmjax.experiment import Finetuning, phases
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.plan import compilation, search
from plmjax.plan import plan as plans
from plmjax.plan.compilation import Batches, Compilation, DoesNotFit
from plmjax.training import placement
from plmjax.training import program as programs
from tests.plan.test_estimate import GIB, experiment, findings, numbers, share_of_parameters, step


@pytest.fixture
def batches() -> Batches:
    """Those of a task, whose vocabulary is not that of its model."""
    run = experiment()
    return Batches(Vocabulary.placeholder(77), placement.of_layout(run))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Batches]:
    """The batches of every program that is asked for."""
    asked: list[Batches] = []

    def compile_phase(run: Any, batches: Batches, phase: Any, mesh: Any) -> Any:
        asked.append(batches)
        return SimpleNamespace(total=1, phase=phase)

    monkeypatch.setattr(compilation, "compile_phase", compile_phase)
    monkeypatch.setattr(compilation, "check", lambda run, part: None)
    monkeypatch.setattr(plans, "check", lambda run, part: None)
    monkeypatch.setattr(
        placement, "residuals_of_rows", lambda run, some, platform, *of: asked.append(of) or [(0, 0)] * len(some)
    )
    monkeypatch.setattr(
        placement, "state_bytes", lambda *given: asked.append(given[-2:]) or placement.StateBytes(0, 0, 0, False, 0)
    )
    return asked


def test_a_plan_of_a_task_is_that_of_its_own_batches(
    batches: Batches, compiled: list[Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = SimpleNamespace(mesh=SimpleNamespace(devices=SimpleNamespace(flat=[]), shape={}), reason="")
    monkeypatch.setattr(plans, "place", lambda run, batches, part: compiled.append(batches) or placed)

    def describe(run: Any, compiled: Any, part: Any, breakdown: bool) -> None:
        raise UserError(f"breakdown {breakdown}")

    monkeypatch.setattr(plans, "describe", describe)
    for breakdown in (False, True):
        found = plans.plan_or_error(experiment(), "v5e:2x2", {"": 2.0}, breakdown, batches)
        assert found == {"topology": "v5e:2x2", "error": f"breakdown {breakdown}"}
    assert compiled == [batches] * 4


def test_plans_of_several_slices_have_the_same_settings(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "plan", lambda *given: given)
    run = experiment()
    assert plans.plan_or_error(run, "v5e:2x2", {"": 2.0}, True, batches) == (run, "v5e:2x2", {"": 2.0}, True, batches)
    with pytest.raises(UserError):
        plans.plan_or_error(run, "v5e:3x3", {}, False, batches)


def test_a_search_tries_the_batches_of_the_task(
    batches: Batches, compiled: list[Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = {"estimate": {"step_seconds": 1.0, "tokens_per_second": 1.0}}
    monkeypatch.setattr("plmjax.plan.estimate.describe", lambda *_: described)
    search.search(experiment(), "v5e:2x2", batches=batches)
    assert len(compiled) > 8 and all(found == batches for found in compiled)


def test_the_fastest_run_of_a_search_is_first_and_those_that_do_not_fit_are_last(
    compiled: list[Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([3.0, None, 1.0, 2.0] + [None] * 20)

    def attempt(run: Any, batches: Any, mesh: Any, part: Any, compiles: int) -> tuple[dict[str, Any], int]:
        one = next(seconds)
        return {"phases": []} | ({} if one is None else {"seconds_a_row": one, "hours": 2 * one}), 1

    monkeypatch.setattr(search, "_try", attempt)
    asked: list[Any] = []
    monkeypatch.setattr(search, "_overrides", lambda run, best: asked.append(best) or ["overrides"])
    found = search.search(experiment(), "v5e:2x2", [64], prices={"v5e": 2.0})
    order = [one.get("seconds_a_row") for one in found["tried"]]
    assert order[:3] == [1.0, 2.0, 3.0] and set(order[3:]) == {None} and len(order) == 2 * len(search.REMAT_POLICIES)
    assert asked == [found["tried"][0]] and found["overrides"] == ["overrides"]
    assert [(one["chip_hours"], one["cost"]) for one in found["tried"][:3]] == [(8.0, 16.0), (16.0, 32.0), (24.0, 48.0)]


def test_a_search_changes_every_phase_and_compiles_no_more_than_it_may(
    compiled: list[Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def attempt(run: Any, batches: Any, mesh: Any, part: Any, compiles: int) -> tuple[dict[str, Any], int]:
        sizes = {phase.batch_size for phase in run.resolved_phases}
        asked.append((run.training.remat, run.training.batch_size, sizes, compiles))
        return {"phases": []}, 3

    run, checked = experiment(batch_size=16), []
    own = dataclasses.replace(run, phases=(run.phases[0], dataclasses.replace(run.phases[1], batch_size=4)))
    monkeypatch.setattr(search, "_try", attempt)
    monkeypatch.setattr(compilation, "check", lambda *given: checked.append(given))
    found = search.search(own, "v5e:2x2", [64], compiles=7)
    first, second, *rest = search.REMAT_POLICIES
    assert asked == [
        (first, 16, {16, 4}, 7), (second, 16, {16, 4}, 4), (first, 64, {64}, 7), (second, 64, {64}, 4),
    ]  # fmt: skip
    assert found["left_out"] == [
        f"Not tried, after 6 programs: remat {remat} at a batch of {size}."
        for size in ("its own", 64)
        for remat in rest
    ]
    assert rest and found["overrides"] is None and checked == [(own, topologies.parse("v5e:2x2"))]


def test_a_batch_that_fits_is_one_of_the_task(
    batches: Batches, compiled: list[Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed: list[Any] = []
    monkeypatch.setattr(search, "_fixed", lambda run, *given: fixed.append(given) or GIB)
    run, mesh = experiment(), meshes.make(experiment().mesh, jax.devices()[:4])
    phase = run.resolved_phases[0]
    search.what_fits(run, batches, phase, mesh, topologies.parse("v5e:2x2"), DoesNotFit(20 * GIB, 16 * GIB))
    assert fixed == [(batches, phase, mesh)] and compiled and all(found == batches for found in compiled)


def test_a_step_is_built_and_compiled_with_the_batches_and_its_mesh(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mesh = experiment(), meshes.make(experiment().mesh, jax.devices()[:4])
    phase, asked = run.resolved_phases[1], []
    train = SimpleNamespace(lower=lambda state, batch: (state, batch))
    program = SimpleNamespace(train=train, state="the state", batch="the batch")
    monkeypatch.setattr(programs, "build", lambda *given: asked.append(given) or program)
    monkeypatch.setattr(compilation, "compiled_for_slice", lambda lowered: ("memory", f"text of {lowered}", {}))
    found = compilation.compile_phase(run, batches, phase, mesh)
    assert asked == [(run, phase, mesh, *batches)]
    assert found == Compilation(program, "memory", "text of ('the state', 'the batch')", {}, found.seconds)


def test_the_mesh_of_a_search_is_that_of_one_row_a_device(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(compilation, "place", lambda run, *given: asked.append((run, *given)))
    run, part = experiment(batch_size=64), topologies.parse("v3:2x2")
    own = dataclasses.replace(run, phases=(run.phases[0], dataclasses.replace(run.phases[1], batch_size=4)))
    search.place(own, batches, part)
    ((changed, *given),) = asked
    assert given == [batches, part] and changed.training.accumulation == 8
    assert [phase.accumulation for phase in changed.phases] == [8, 1]


def answer(needed: Any, accumulation: int = 1, rows: int = 64) -> tuple[str, list[tuple[int, int]]]:
    """The answer to a batch of so many rows on each of four devices of 16 GiB, and the rows that were tried.

    needed: rows and microbatches -> GiB that they need.
    """
    tried: list[tuple[int, int]] = []

    def compile_phase(run: Any, batches: Any, phase: Any, mesh: Any) -> None:
        rows = phase.batch_size // (4 * phase.accumulation)
        tried.append((rows, phase.accumulation))
        if needed(*tried[-1]) > 16:
            raise DoesNotFit(needed(*tried[-1]) * GIB, 16 * GIB)

    run, mesh = dataclasses.replace(experiment(), phases=()), meshes.make(experiment().mesh, jax.devices()[:4])
    phase = phases.ResolvedPhase(0, 0, 9, 128, batch_size=4 * rows * accumulation, accumulation=accumulation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "compile_phase", compile_phase)
        patch.setattr(search, "_fixed", lambda *_: 2 * GIB)
        error = DoesNotFit(needed(rows, accumulation) * GIB, 16 * GIB)
        return search.what_fits(run, Batches.of_text(run), phase, mesh, topologies.parse("v5e:2x2"), error), tried


def test_a_batch_of_which_no_row_fits_is_answered_with_fewer_parameters() -> None:
    said, tried = answer(lambda rows, accumulation: 17 + rows)
    assert said.endswith("and one row does as well; cut the parameters with --mesh.fsdp or take a larger slice.")
    assert len(tried) <= search.FITTING_COMPILES


def test_microbatches_are_advised_only_if_their_gradient_fits_too() -> None:
    said, _ = answer(lambda rows, accumulation: 2 + rows + 20 * (accumulation > 1))
    assert said.endswith("; take --training.batch_size 56.")  # 14 rows on each of four devices
    said, _ = answer(lambda rows, accumulation: 2 + rows)
    assert said.endswith("; take --training.batch_size 56 or --training.accumulation 8.")
    said, _ = answer(lambda rows, accumulation: 2 + rows, accumulation=2)
    assert said.endswith("; take --training.batch_size 112 or --training.accumulation 16.")


def test_bytes_of_any_batch_are_the_state_and_two_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def of(size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size,), "float32", sharding=place)

    state = SimpleNamespace(params=of(1), optimizer_state=of(10), collections=of(100), constants=of(1000))
    monkeypatch.setattr(programs, "build", lambda *given: SimpleNamespace(state=state, copy=of(10_000)))
    run = experiment()
    assert search._fixed(run, Batches.of_text(run), run.resolved_phases[0], None) == 4 * (1111 + 2 * 10_000)


@pytest.mark.parametrize(("compiles", "tried", "steps"), [(1, [1], [1]), (2, [1, 2], [2]), (9, [1, 2, 4], [2])])
def test_a_search_stops_after_its_programs_and_where_a_step_gets_slower(
    compiles: int, tried: list[int], steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not fit costs a program too."""
    seconds = {1: 3.0, 2: 1.0, 4: 2.0, 8: 0.1}
    monkeypatch.setattr(search, "fewest_microbatches", lambda *_: 1)
    monkeypatch.setattr(
        compilation, "compile_phase", lambda run, batches, phase, mesh: SimpleNamespace(total=5, phase=phase)
    )
    monkeypatch.setattr(
        "plmjax.plan.estimate.describe",
        lambda run, made, part: {
            "estimate": {"step_seconds": seconds[made.phase.accumulation], "tokens_per_second": 1.0}
        },
    )
    run = dataclasses.replace(experiment(batch_size=32), phases=())
    mesh, part = meshes.make(run.mesh, jax.devices()[:4]), topologies.parse("v5e:2x2")
    found, used = search._try(run, Batches.of_text(run), mesh, part, compiles)
    assert [one["accumulation"] for one in found["phases"]] == tried and used == len(tried)
    assert [one["accumulation"] for one in found["phases"] if "steps" in one] == steps
    assert found["hours"] == 1000 * seconds[steps[0]] / 3600 and found["seconds_a_row"] == seconds[steps[0]] / 32

    def too_large(*_: Any) -> None:
        raise DoesNotFit(20 * GIB, 16 * GIB)

    monkeypatch.setattr(compilation, "compile_phase", too_large)
    found, used = search._try(run, Batches.of_text(run), mesh, part, compiles)
    assert used == min(compiles, 4) and found.keys() == {"phases"}
    assert all(one["memory"] == 20 * GIB for one in found["phases"])


@pytest.mark.parametrize(
    ("message", "kind"),
    [("RESOURCE_EXHAUSTED: Used 40.25G of 15.75G hbm.", DoesNotFit), ("INTERNAL: no", jax.errors.JaxRuntimeError)],
)
def test_an_error_of_the_compiler_is_one_of_memory_or_stays(
    message: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedules that it wrote are read all the same, so that the next program does not find them."""
    done: list[str] = []

    def compile(compiler_options: dict[str, Any]) -> None:
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(compilation.schedule_files, "clear", lambda folder: done.append("cleared"))
    monkeypatch.setattr(compilation.schedule_files, "read", lambda folder: done.append("read"))
    with pytest.raises(kind) as raised:
        compilation.compiled_for_slice(SimpleNamespace(compile=compile))
    assert done == ["cleared", "read"]
    assert kind is not DoesNotFit or raised.value.needed == 40.25 * GIB


@pytest.mark.parametrize(("slices", "times", "found"), [(1, 1.5, True), (2, 1.5, False), (2, 2.5, True)])
def test_parameters_come_back_twice_where_gradients_cross_slices(
    slices: int, times: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = share_of_parameters(times) // 8
    gather = f"%g = bf16[{8 * count}]{{0}} all-gather(%p), channel_id=1, replica_groups={{}}, dimensions={{0}}"
    step()
    monkeypatch.setattr(meshes, "slices", lambda devices: slices)
    assert bool(findings(numbers(count, dtype="bf16"), gather)) is found


def test_a_task_of_labels_asks_for_no_scores_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = "%scores = bf16[5300,1024]{1,0} broadcast(%x), dimensions={}"
    assert findings(scores)
    run, program = step()
    task = dataclasses.replace(run, finetuning=Finetuning())
    monkeypatch.setattr("tests.plan.test_estimate.step", lambda: (task, program))
    assert not findings(scores)
