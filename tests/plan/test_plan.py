"""The batches, the prices and the breakdown of a plan reach its parts; nothing is compiled."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from plmjax.errors import UserError
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.plan import compilation, search
from plmjax.plan import plan as plans
from plmjax.plan.compilation import Batches, Compilation, DoesNotFit
from plmjax.training import phases, placement
from plmjax.training import program as programs
from plmjax.vocabulary import Vocabulary
from tests.plan.test_estimate import GIB, experiment


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
        placement, "state_bytes", lambda *given: asked.append(given[-2:]) or placement.StateBytes(0, 0, 0, False)
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


def test_a_batch_that_fits_is_one_of_the_task(
    batches: Batches, compiled: list[Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed: list[Any] = []
    monkeypatch.setattr(search, "_fixed", lambda run, *given: fixed.append(given) or GIB)
    run, mesh = experiment(), meshes.make(experiment().mesh, jax.devices()[:4])
    phase = phases.resolve(run)[0]
    search.what_fits(run, batches, phase, mesh, topologies.parse("v5e:2x2"), DoesNotFit(20 * GIB, 16 * GIB))
    assert fixed == [(batches, phase, mesh)] and compiled and all(found == batches for found in compiled)


def test_a_step_is_built_and_compiled_with_the_batches_and_its_mesh(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mesh = experiment(), meshes.make(experiment().mesh, jax.devices()[:4])
    phase, asked = phases.resolve(run)[1], []
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
