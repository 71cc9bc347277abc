"""The record of a bench."""

import json

import jax
import pytest

from plmjax import experiment
from plmjax.commands import cli
from plmjax.parallel import peak, topologies
from plmjax.runs import bench as benches
from plmjax.runs.resolve import resolve
from plmjax.training import loop
from tests.metric_names import undocumented
from tests.small_runs import SMALL_BERT
from tests.third_party import experiments


@pytest.mark.nightly
def test_a_measure_that_this_machine_lacks_is_left_out(capsys, monkeypatch):
    products = peak.measure_flops
    monkeypatch.setattr(peak, "measure_flops", lambda dtype, size, seconds: products(dtype, 64, seconds=0.01))
    cli.run(["bench", "experiments/bert_tiny.py", *SMALL_BERT, "--measured_steps", "1"])
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()}
    assert "mfu" not in shown and "None" not in shown.values()  # a CPU has no data sheet
    assert shown["device"] == "cpu" and {"of_matmul", "step_seconds"} <= shown.keys()
    assert shown["input"] == "random tokens"
    cli.run(["bench", "experiments/bert_tiny.py", *SMALL_BERT, "--measured_steps", "1", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["mfu"] is None and record["steps"] == 1 and not undocumented(record)


def test_rates_are_relative_to_the_seconds_of_a_step(small_run, monkeypatch):
    """Two devices share the cores of a CPU, but have a data sheet each. The batches are those of a named dataset."""
    rate = 1e9
    monkeypatch.setattr(peak, "measure_flops", lambda dtype, size, seconds: rate)
    monkeypatch.setattr(topologies, "peak_flops", lambda kind: rate)
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:2])
    run = resolve(experiment.override(experiment.load("experiments/bert_tiny.py"), SMALL_BERT)).experiment
    named = experiments.changed(run, data={"path": str(small_run / "dataset")})
    (found,) = benches.bench(named, steps=3, warmup=1)
    assert (found["steps"], found["devices"], found["input"]) == (3, 2, "dataset")
    seconds, flops = found["step_seconds"], run.objective.train_flops(run.model, run.data.layout.batch(16, 32))
    assert 0 < seconds < 30 and found["step_cpu_seconds"] > 0 and 0 <= found["input_wait"] <= 1
    assert found["tokens_per_second"] == pytest.approx(16 * 32 / seconds)
    assert found["model_flops_per_second"] == pytest.approx(flops / seconds)
    assert found["matmul_flops_per_second"] == rate
    assert found["of_matmul"] == pytest.approx(flops / seconds / rate)
    assert found["mfu"] == pytest.approx(flops / seconds / (2 * rate))
