"""The metrics that are made of the sums of an evaluation."""

import dataclasses
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from plmjax.experiment import Phase
from plmjax.objectives.objective import LossInputs
from plmjax.training import evaluation, loop, metrics
from tests.families import STEPS
from tests.third_party import experiments


def test_every_batch_is_corrupted_by_a_key_of_its_own_and_every_evaluation_alike() -> None:
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {"row_ids": jax.ShapeDtypeStruct((1,), np.int32, sharding=place)}
    draws: list[float] = []

    def evaluate(loss_inputs: LossInputs, batch: Any, key: jax.Array) -> tuple[Any, dict, tuple]:
        draws.append(float(jax.random.uniform(key)))
        return (), {"loss": (np.float32(1), np.float32(1))}, ()

    program = types.SimpleNamespace(evaluation_phase=None, evaluation_batch=shapes, evaluate=evaluate)
    source = types.SimpleNamespace(evaluation=lambda phase, places: iter([{"row_ids": np.zeros(1, np.int32)}] * 3))
    for seed in (0, 0, 1):
        assert evaluation.HeldOut(source, seed)(program, LossInputs(())) == {"loss": 1}
    assert draws[:3] == draws[3:6] and len({*draws}) == 6
    evaluation.HeldOut(source, 0)(program, LossInputs(()), limit=2)
    assert draws[9:] == draws[:2]


def test_the_evaluation_of_a_run_has_its_seed_and_its_coefficients() -> None:
    """Nats of single bytes are told in bits too, where the exponential of the loss is a perplexity."""
    run = experiments.changed(experiments.electra(), training={"seed": 7})
    words, of_bytes = (types.SimpleNamespace(vocabulary=types.SimpleNamespace(bytes=one)) for one in (False, True))
    found = evaluation.HeldOut.of(run, words)
    assert (found.seed, found.coefficients, found.multiples) == (7, {"mlm": 1.0, "rtd": 50.0}, {})
    found = evaluation.HeldOut.of(experiments.gpt2(), of_bytes)
    means = found.means({"loss": np.array([np.log(8), 1.0])})
    assert means == pytest.approx({"loss": np.log(8), "bits_per_byte": 3.0})
    assert evaluation.HeldOut.of(experiments.glove(), of_bytes).multiples == {}


def test_the_joint_loss_has_every_term_as_in_training() -> None:
    """A term without a coefficient counts once."""
    held_out = evaluation.HeldOut(None, seed=0, coefficients={"second": 50.0})
    totals = {"loss": (6.0, 3.0), "first_loss": (6.0, 3.0), "second_loss": (2.0, 4.0), "accuracy": (3.0, 4.0)}
    found = held_out.means({name: np.array(pair) for name, pair in totals.items()})
    assert found == pytest.approx({"loss": 2, "first_loss": 2, "second_loss": 0.5, "accuracy": 0.75, "joint_loss": 27})


@pytest.mark.nightly
def test_a_run_is_judged_by_the_joint_loss_with_the_coefficients_of_its_phase(tmp_path: Path) -> None:
    settings = {"steps": 2, "evaluate_every": 1, "evaluation_batches": 1}
    phases = (Phase(fraction=0.5), Phase(fraction=0.5, changes=("objective.discriminator_weight=3",)))
    run = dataclasses.replace(experiments.changed(experiments.electra(), training=settings), phases=phases)
    run = experiments.changed(run, checkpoint={"every": 1, "best": "eval/joint_loss"})
    loop.train(run, tmp_path, STEPS["electra"][1](run.data), tokenizer={})
    lines = [line for line in metrics.read(tmp_path / "metrics.jsonl") if "eval/joint_loss" in line]
    for line, weight in zip(lines, (50, 3), strict=True):
        joint = line["eval/mlm_loss"] + weight * line["eval/rtd_loss"]
        assert line["eval/joint_loss"] == pytest.approx(joint, rel=1e-5)
