"""The output of a bench."""

import json
import types

import jax
import numpy as np
import pytest

from plmjax import experiment
from plmjax.commands import cli
from plmjax.data import mixture, remote, tokenizers
from plmjax.data.mixing import Mixture
from plmjax.parallel import peak, topologies
from plmjax.runs import bench as benches
from plmjax.training import feed, loop, pace
from tests.metric_names import undocumented
from tests.small_runs import SMALL_BERT
from tests.strangers import experiments


@pytest.mark.nightly
def test_a_measure_that_this_machine_lacks_is_left_out(capsys, monkeypatch):
    products = peak.measured_flops
    monkeypatch.setattr(peak, "measured_flops", lambda dtype, size, seconds: products(dtype, 64, seconds=0.01))
    cli.run(["bench", "experiments/bert_tiny.py", *SMALL_BERT, "--measured_steps", "1"])
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()}
    assert "mfu" not in shown and "None" not in shown.values()  # a CPU has no data sheet
    assert shown["device"] == "cpu" and {"of_matmul", "step_seconds", "input"} <= shown.keys()
    cli.run(["bench", "experiments/bert_tiny.py", *SMALL_BERT, "--measured_steps", "1", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["mfu"] is None and not undocumented(record)


def test_what_a_bench_measures_are_the_seconds_of_its_steps(monkeypatch):
    """On a clock that goes on by 7 seconds, 3 of them of the processor, with every batch that a step takes.

    Two devices share the cores of a CPU, but have a data sheet each.
    """
    taken, rate, arrays, products = [], 1e9, feed.on_device, []
    clock = types.SimpleNamespace(perf_counter=lambda: 7.0 * len(taken), process_time=lambda: 3.0 * len(taken))

    def counted(*arguments):
        for batch in arrays(*arguments):
            taken.append(batch)
            yield batch

    monkeypatch.setattr(benches, "time", clock)
    monkeypatch.setattr(pace, "time", clock)
    monkeypatch.setattr(feed, "on_device", counted)
    monkeypatch.setattr(peak, "measured_flops", lambda dtype, size, seconds: products.append((dtype, size)) or rate)
    monkeypatch.setattr(topologies, "peak_flops", lambda kind: rate)
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:2])
    run = experiment.override(experiment.load("experiments/bert_tiny.py"), SMALL_BERT, "")
    (found,) = benches.bench(run, steps=3, warmup=1)
    assert len(taken) == 1 + 3 and found["steps"] == 3
    assert products == [(np.float32, peak.product_size("cpu"))] * 2  # before and after the steps
    assert (found["step_seconds"], found["step_cpu_seconds"]) == (7.0, 3.0)
    assert found["tokens_per_second"] == 16 * 32 / 7
    flops = run.objective.train_flops(run.model, run.data.layout.batch(16, 32))
    assert found["model_flops_per_second"] == flops / 7
    assert (found["matmul_flops_per_second"], found["of_matmul"]) == (rate, flops / 7 / rate)
    assert (found["devices"], found["mfu"]) == (2, flops / 7 / (2 * rate))
    assert found["input_wait"] >= 1 / 3  # the first step at least waits for its batch


def test_batches_are_those_of_the_dataset_that_the_run_names(small_run) -> None:
    """From its first step on, in the order of its seed; or random tokens, four batches in turn."""
    run = experiments.changed(experiment.read(small_run / "experiment.json"), model={"vocab_size": 900})
    (phase,) = run.resolved_phases
    named = experiments.changed(run, data={"path": str(small_run / "dataset")})
    vocabulary, found = benches._batches(named, phase)
    rows = [next(found)["input_ids"] for _ in range(2)]
    assert vocabulary.size == tokenizers.load(small_run / "tokenizer").vocabulary.size == 800
    assert rows[0].shape == (phase.batch_size, phase.sequence_length) and not np.array_equal(*rows)
    again, other = (
        next(benches._batches(experiments.changed(named, training={"seed": seed}), phase)[1])["input_ids"]
        for seed in (run.training.seed, run.training.seed + 1)
    )
    assert np.array_equal(again, rows[0]) and not np.array_equal(other, rows[0])
    vocabulary, found = benches._batches(run, phase)
    rows = [next(found)["input_ids"] for _ in range(5)]
    assert vocabulary.size == 900 and np.array_equal(rows[0], rows[4])
    assert len({row.tobytes() for row in rows}) == 4


def test_a_dataset_is_read_within_the_limits_of_the_run(small_run, monkeypatch) -> None:
    """So is a mixture: with its memory, its window of pieces and the run's seed."""
    run = experiments.changed(experiment.read(small_run / "experiment.json"), training={"seed": 7})
    (phase,) = run.resolved_phases
    found = types.SimpleNamespace(train=lambda phase, start: iter([]))
    folder, asked = str(small_run / "dataset"), []
    monkeypatch.setattr(remote, "open_dataset", lambda path, memory, vocab_size: asked.append((memory, vocab_size)))
    monkeypatch.setattr(remote, "source", lambda *given: asked.append(given[-2:]) or found)
    monkeypatch.setattr(mixture, "open_sources", lambda sources, *limits: asked.append(limits))
    monkeypatch.setattr(mixture, "source_of", lambda *given: asked.append(given[-2:]) or found)
    for data in ({"path": folder}, {"mixture": Mixture(sources=(f"a={folder}", f"b={folder}"))}):
        asked.clear()
        benches._batches(experiments.changed(run, data=data | {"cache_limit": "12345", "shuffle_window": 3}), phase)
        assert asked == [(12345, run.model.vocab_size), (7, 3)]
