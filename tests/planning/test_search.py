"""The search of a plan: the largest batch that fits, and the fastest microbatches and rematerialization."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import jax
import pytest

from plmjax.contracts.execution import REMAT_POLICIES
from plmjax.experiment import phases
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.planning import estimate
from plmjax.planning import report as plan_report
from plmjax.planning import search as plan_search
from plmjax.planning.compilation import Batches, DoesNotFit
from plmjax.training import placement
from tests.planning.test_estimate import GIB, experiment


def answer(
    needed: Callable[[int, int], float], accumulation: int = 1, *, rows: int = 64, index: int = 0, available: float = 16
) -> tuple[str, list[tuple[int, int]]]:
    """The answer to a batch of so many rows on each of four devices, and the rows and microbatches that were tried.

    needed: rows and microbatches -> GiB that they need. available: GiB of a device.
    """
    tried = []

    def compile_phase(run, batches, phase, mesh):
        tried.append((phase.batch_size // (4 * phase.accumulation), phase.accumulation))
        if needed(*tried[-1]) > available:
            raise DoesNotFit(needed(*tried[-1]) * GIB, available * GIB)

    run = experiment() if index else dataclasses.replace(experiment(), phases=())
    sizes = {"batch_size": 4 * rows * accumulation, "accumulation": accumulation}
    phase = phases.ResolvedPhase(index, 0, 9, 128, declared=index, **sizes)
    mesh, part = meshes.make(run.mesh, jax.devices()[:4]), topologies.parse("v5e:2x2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plmjax.planning.compilation.compile_phase", compile_phase)
        patch.setattr(plan_search, "_fixed_bytes", lambda *_: 2 * GIB)
        error = DoesNotFit(needed(rows, accumulation) * GIB, available * GIB)
        return plan_search.what_fits(run, Batches.of_text(run), phase, mesh=mesh, part=part, error=error), tried


@pytest.mark.parametrize(("index", "accumulation", "option"), [(0, 1, "training"), (1, 2, "phases.1")])
def test_a_batch_that_fits_is_near_the_largest(index, accumulation, option):
    """A row takes a tenth of a GiB beside two and a half for each microbatch: 132 rows fit, or 127 of two."""
    rows, needed = 512 // accumulation, lambda rows, count: 2 + rows / 10 + count / 2
    said, tried = answer(needed, accumulation, rows=rows, index=index, available=15.75)
    gib = needed(rows, accumulation)
    assert f"15.75 GiB of a v5e:2x2 device, found {rows} rows of 128 a device to need {gib:.2f} GiB" in said
    best = int(said.split(f"--{option}.batch_size ")[1].split(" ")[0]) // (4 * accumulation)
    limit = int(10 * (15.75 - 2 - accumulation / 2))
    assert 0.9 * limit <= best <= limit
    assert said.endswith(f"or --{option}.accumulation 8.")  # 4 x 128 rows would need too much
    assert len(tried) <= plan_search.FITTING_COMPILES and len(set(tried)) == len(tried)


@pytest.mark.parametrize(
    ("needed", "accumulation", "advice"),
    [
        (lambda rows, count: 17 + rows, 1, "; cut the parameters with --mesh.fsdp or take a larger slice."),
        (lambda rows, count: 2 + rows + 20 * (count > 1), 1, "; take --training.batch_size 56."),  # 14 rows on each
        (lambda rows, count: 2 + rows, 2, "; take --training.batch_size 112 or --training.accumulation 16."),
    ],
)
def test_microbatches_are_advised_only_if_their_gradient_fits_too(needed, accumulation, advice):
    said, tried = answer(needed, accumulation)
    assert said.endswith(advice) and len(tried) <= plan_search.FITTING_COMPILES


@pytest.fixture
def pretended(monkeypatch):
    """The programs that a search compiles, with memory and time as given, without a compiler."""
    compiled = []

    def pretend(gib, seconds):
        def compile_phase(run, batches, phase, mesh):
            rows = phase.batch_size // (4 * phase.accumulation)
            compiled.append((phase.batch_size, phase.index, run.training.remat, phase.accumulation))
            needed = 2**30 * (1 + rows * gib[run.training.remat])
            if needed > 15.75 * 2**30:
                raise DoesNotFit(needed, 15.75 * 2**30)
            return SimpleNamespace(total=needed, phase=phase)

        def describe(run, compilation, part):
            phase = compilation.phase
            time = phase.batch_size * phase.sequence_length * 1e-6 * seconds(run.training.remat, phase.accumulation)
            return {"estimate": {"step_seconds": time, "tokens_per_second": 1 / time}}

        monkeypatch.setattr("plmjax.planning.compilation.compile_phase", compile_phase)
        monkeypatch.setattr("plmjax.planning.estimate.describe", describe)
        return compiled

    # An estimate that says that everything fits, so that the compiler has to say what does not.
    monkeypatch.setattr(
        "plmjax.training.placement.residuals_of_rows", lambda run, phases, *_, **how: [(0, 0)] * len(phases)
    )
    monkeypatch.setattr(
        "plmjax.training.placement.state_bytes", lambda *_, **how: placement.StateBytes(0, 0, 0, False, 0)
    )
    return pretend


def test_a_search_tries_every_policy_from_the_fewest_microbatches_that_fit(pretended):
    gib = {"none": 1.5, "dots": 1.0, "dots_without_batch": 0.6, "full": 0.2}
    slower = {"none": 1.0, "full": 1.3}
    compiled = pretended(gib, lambda remat, count: slower.get(remat, 1.2) * count**0.5)
    run = experiment(batch_size=64)  # 16 rows a device: 25 GiB without remat
    found = plan_search.search(run, "v5e:2x2", batch_sizes=(128,), compiles=6)
    assert {size for size, *_ in compiled} == {64, 128} and len(set(compiled)) == len(compiled) <= 2 * 6
    assert found["left_out"] and "25.0, too much" in plan_report.search(found)
    found = plan_search.search(run, "v5e:2x2")
    tried = {one["remat"]: one for one in found["tried"] if "hours" in one}
    for remat, fewest in (("none", 2), ("full", 1)):
        assert [phase["accumulation"] for phase in tried[remat]["phases"] if "steps" in phase] == [fewest] * 2
    assert found["overrides"] == "--training.remat dots_without_batch --phases.1.accumulation 1".split()


def test_a_search_takes_more_microbatches_while_a_step_gets_faster(pretended):
    times, slower = {1: 1.7, 2: 1.2, 4: 1.0, 8: 1.1, 16: 0.5}, {"none": 0.0}
    compiled = pretended(dict.fromkeys(REMAT_POLICIES, 0.1), lambda remat, n: times[n] + slower.get(remat, 0.1))
    found = plan_search.search(experiment(batch_size=64), "v5e:2x2", compiles=32, prices={"": 9.0, "v5e": 1.5})
    assert [count for _, index, remat, count in compiled if (index, remat) == (0, "none")] == [1, 2, 4, 8]
    assert found["overrides"] == "--phases.0.accumulation 4 --phases.1.accumulation 4".split()
    assert [one["cost"] for one in found["tried"]] == [1.5 * 4 * one["hours"] for one in found["tried"]]
    # The hours are those of the fastest tries, 900 steps of 64 x 64 and 100 of 64 x 128; the page shows all.
    assert found["tried"][0]["hours"] == pytest.approx((900 * 64 + 100 * 128) * 64 * 1e-6 / 3600)
    text = plan_report.search(found)
    assert all(text.count(f" {16 // count} x {count} ") == 2 * len(REMAT_POLICIES) for count in (1, 2, 4, 8))


def test_the_best_batch_has_the_least_time_a_row_though_the_run_has_more_hours(pretended):
    """A step of twice the rows takes 1.8 times as long, and the run has as many steps."""
    slower = {"none": 0.0}
    pretended(dict.fromkeys(REMAT_POLICIES, 0.1), lambda remat, count: 1.0 + slower.get(remat, 0.1))
    run = dataclasses.replace(experiment(batch_size=16), phases=())
    describe = estimate.describe

    def larger_is_better(run, compilation, part):
        found = describe(run, compilation, part)
        found["estimate"]["step_seconds"] *= 0.9 ** (compilation.phase.batch_size > 16)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "describe", larger_is_better)
        found = plan_search.search(run, "v5e:2x2", batch_sizes=(32,), compiles=32)
    tried = {one["batch_size"]: one["hours"] for one in found["tried"] if one["remat"] == "none"}
    assert tried[32] > tried[0]
    assert "--training.batch_size 32" in " ".join(found["overrides"]) and found["tried"][0]["batch_size"] == 32


def test_a_search_begins_with_the_microbatches_that_the_estimate_allows(monkeypatch):
    """A row takes 4 GiB, and 14.4 of a device's 16 may be used: 2 of 16 rows fit, or 1 beside 3 copies of 2 GiB."""
    run = dataclasses.replace(experiment(batch_size=64), phases=())
    (phase,) = run.resolved_phases
    mesh = meshes.make(run.mesh, topologies.parse("v5e:2x2").devices())
    monkeypatch.setattr(placement, "residuals_of_rows", lambda run, parts, *_, **how: [(4 * GIB, 8 * GIB)] * len(parts))
    for copy, fewest in ((0, 8), (2 * GIB, 8), (3 * GIB, 16), (20 * GIB, 16)):
        monkeypatch.setattr(
            placement, "state_bytes", lambda *_, copy=copy, **how: placement.StateBytes(0, copy, 0, False, 0)
        )
        assert plan_search.fewest_microbatches(run, Batches.of_text(run), phase, mesh) == fewest
