"""benchmarks/plan.py: the options that make a run fit, and the table."""

import importlib
import json
import subprocess
import sys
from types import ModuleType

import jax
import pytest

from plmjax.experiment import phases
from plmjax.plan import search
from tests.paths import ROOT


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/plan.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("plan")


@pytest.mark.parametrize(("fewest", "options"), [(8, ["--phases.0.accumulation", "8"]), (1, [])])
def test_a_run_gets_the_microbatches_that_fit_and_keeps_its_own_if_they_are_more(
    plans: ModuleType, monkeypatch: pytest.MonkeyPatch, fewest: int, options: list[str]
) -> None:
    asked = []

    def counted(run: object, batches: search.Batches, phase: phases.ResolvedPhase, mesh: jax.sharding.Mesh) -> int:
        asked.append((batches.shapes(phase)["input_ids"].shape[1] == phase.sequence_length, mesh.size))
        return fewest

    monkeypatch.setattr(search, "fewest_microbatches", counted)
    assert plans.fitting("experiments/bert_tiny.py", "v5e:2x2") == options
    assert asked == [(True, 4)]


def test_the_table_has_a_row_for_each_phase_of_each_slice(
    plans: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A slice for which there is no plan has a row of dashes."""
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess:
        commands.append(command)
        return subprocess.CompletedProcess(command, int("v2:4x4" in command), stdout=json.dumps({"topology": "v3:4x4"}))

    monkeypatch.setattr(plans, "fitting", lambda run, topology: [f"--fits {topology}"])
    monkeypatch.setattr(plans.subprocess, "run", run)
    monkeypatch.setattr(
        plans.plan_report, "columns", lambda found: (["slice", "ms"], [["v3:4x4", "1"]] * ("phases" in found[0]))
    )
    monkeypatch.setattr(plans.plan_report, "breakdown_columns", lambda found: (["part"], [[str(len(found))]]))
    chosen = "experiments/bert_base_4x4.py"
    monkeypatch.setattr(sys, "argv", ["plan.py", "--run", chosen, "--topology", "v2:4x4", "--topology", "v3:4x4"])
    plans.main()
    assert [command[3:] for command in commands] == [
        ["plan", chosen, "--topology", name, "--json", "--breakdown", f"--fits {name}"] for name in ("v2:4x4", "v3:4x4")
    ]
    printed = capsys.readouterr().out
    assert "| slice | ms |" in printed and "| v2:4x4 | - |" in printed and "| 2 |" in printed
