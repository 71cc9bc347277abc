"""The train step of every system compiles for a TPU slice, cut along every axis, and its plan adds up."""

import dataclasses

import pytest

from plmjax.experiment import Data
from plmjax.parallel import topologies
from plmjax.planning import compilation, estimate
from tests.families import FAMILIES
from tests.families.family import Family
from tests.third_party import experiments

# A plan is of a pretraining, whose layout gives the shapes of its batches; those of a task come from its files.
PLANNED = [pytest.param(family, id=name) for name, family in FAMILIES.items() if isinstance(family.step().data, Data)]


# The TPU's compiler takes 2 to 25 s for each; their parameters are cut by the same rules, and
# tests/planning/test_estimate.py plans a BERT: pytest -m nightly tests/systems/test_plans.py
@pytest.mark.nightly
@pytest.mark.parametrize("family", PLANNED)
def test_its_step_compiles_for_a_slice(family: Family) -> None:
    part = topologies.parse("v5e:2x4")
    run = experiments.changed(family.step(), mesh={"data": 2, "fsdp": 2, "tensor": 2}, training={"unroll": 0})
    run = dataclasses.replace(run, phases=())
    (phase,) = run.resolved_phases
    batches = compilation.Batches.of_text(run)
    made = compilation.compile_phase(run, batches, phase, compilation.place(run, batches, part).mesh)
    described = estimate.describe(run, made, part)
    assert described["memory"]["total"] < described["memory"]["device"]
    assert 0 < described["estimate"]["compute_seconds"] <= described["estimate"]["step_seconds"]
    assert {one["kind"] for one in described["collectives"]} & {"all-reduce", "reduce-scatter", "all-gather"}
    # The bytes are those of the program: on a chip of two devices each has half of the bandwidth.
    parts = (part, topologies.parse("v3:2x2"))
    seconds = [estimate.describe(run, made, one)["estimate"]["hbm_seconds"] for one in parts]
    assert seconds[0] * 819e9 == pytest.approx(seconds[1] * 900e9 / 2)
