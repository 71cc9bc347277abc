"""Adaptive-Span's objective: the spans in the loss, their bounds, and the program that reads no more than they ask."""

import dataclasses
import functools
import shutil

import flax.linen as nn
import flax.traverse_util
import jax
import numpy as np
import pytest

from plmjax.contracts.execution import Execution
from plmjax.experiment import Experiment
from plmjax.inference.program import adapted_program, program_of
from plmjax.models.adaptive_span import AdaptiveSpanConfig
from plmjax.objectives import adaptive_span
from plmjax.objectives.adaptive_span import AdaptiveSpanPretraining
from plmjax.objectives.objective import LossInputs
from plmjax.training import loop
from plmjax.training.evaluation import HeldOut
from plmjax.training.optimizers import StochasticGradientDescent
from plmjax.training.optimizers.schedules import Constant
from plmjax.training.program import Program
from tests.systems.modules import random_params
from tests.third_party import experiments
from tests.third_party.source import ChainSource

SIZES = {"vocab_size": 64, "d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 16, "dropout": 0.0}
CONFIG = AdaptiveSpanConfig(**SIZES, attn_span=256, ramp=8, initial_fraction=0.9)
"""238 of 256 tokens at first."""
OBJECTIVE = AdaptiveSpanPretraining()


def shares(*values: float) -> dict:
    """Parameters with these shares, of two heads in each of two layers."""
    return {"adaptive_span": {"layers": {"span_shares": np.asarray(values, np.float32).reshape(2, 2), "kernel": 3}}}


def run() -> Experiment:
    """Nine steps with a loss that is almost all spans, which shrink by 0.3 of the longest one in the first step."""
    steps = {"steps": 9, "log_every": 3, "evaluate_every": 0, "batch_size": 8}
    small = experiments.changed(experiments.adaptive_span(), training=steps, mesh={"data": 1})
    optimizer = StochasticGradientDescent(learning_rate=0.003, schedule=Constant(), clip_norm=0.0)
    objective = AdaptiveSpanPretraining(span_coefficient=1.0)
    return dataclasses.replace(small, model=CONFIG, objective=objective, optimizer=optimizer)


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    monkeypatch.setattr(loop, "devices", lambda platform: jax.devices()[:1])


def test_the_longest_head_counts_with_its_ramp() -> None:
    """And with the token at which its mask just becomes 0, which a span that is no whole number has not."""
    assert float(OBJECTIVE.statistic(CONFIG, shares(0.1, 0.25, 0, 0.2))) == 64 + 8 + 1
    assert float(OBJECTIVE.statistic(CONFIG, shares(0.1, 0.251, 0, 0.2))) == 64 + 8 + 1
    assert float(OBJECTIVE.statistic(CONFIG, shares(0.1, 1, 0, 0.2))) == 256


READ = {
    256: {9: 64, 64: 64, 65: 128, 193: None},
    8192: {448: 448, 449: 512, 513: 640, 1025: 1280, 2047: 2048, 7168: 7168, 7169: None},
}
"""Span of the model -> longest span of a head -> what is read."""


def test_the_span_that_is_read() -> None:
    """A multiple of 64, at most a quarter more than needed, at most what a run allows, by one of few programs."""
    for span, longest, read in ((span, *pair) for span, pairs in READ.items() for pair in pairs.items()):
        config = dataclasses.replace(CONFIG, attn_span=span)
        assert OBJECTIVE.adapt_config(config, longest).computed_span == read
        allowed = dataclasses.replace(config, computed_span=100)
        assert OBJECTIVE.adapt_config(allowed, longest).computed_span == (64 if read == 64 else 100)
    read = {longest: OBJECTIVE.adapt_config(config, longest).span for longest in range(1, 8193)}
    assert all(longest <= span < max(longest + 64, 1.25 * longest) for longest, span in read.items())
    assert len(set(read.values())) == 24


def with_shares(params: dict, *values: float) -> dict:
    """All parameters, with these shares."""
    flat = flax.traverse_util.flatten_dict(params) | flax.traverse_util.flatten_dict(
        {"adaptive_span": {"layers": {"span_shares": np.float32(values).reshape(2, 2)}}}
    )
    return flax.traverse_util.unflatten_dict(flat)


def test_spans_are_added_over_layers_and_averaged_over_heads() -> None:
    """Two heads in each of two layers, and two rows: 256 x (0.2 + 0.5) for each row."""
    ids, module = np.zeros((2, 3), np.int32), OBJECTIVE.module(CONFIG, Execution())
    batch = {"input_ids": ids, "next_ids": ids, "segment_ids": ids + 1, "next_weights": np.ones((2, 3), np.float32)}
    batch |= {"is_first": np.ones(2, np.int32), "document_starts": np.zeros((2, 3), bool)}
    params = with_shares(random_params(module), 0.1, 0.3, 0.25, 0.75)
    given = LossInputs(params, carry=nn.meta.unbox(OBJECTIVE.initial_carry(CONFIG, 2, 3)))
    sums = jax.jit(functools.partial(OBJECTIVE.sums, module, training=True))(given, batch, jax.random.key(0))
    assert float(sums.losses["span"]) == pytest.approx(2 * 256 * 0.7, rel=1e-6)
    assert float(OBJECTIVE.weights(batch)["span"]) == 2 and OBJECTIVE.coefficients() == {"span": 5e-7}
    longest, rows = map(float, sums.metrics["longest_span"])
    assert (longest, rows) == (2 * (0.75 * 256 + 8 + 1), 2)


def test_shares_stay_from_0_to_1() -> None:
    found = OBJECTIVE.constrain(shares(-0.1, 0.5, 1.5, 0))["adaptive_span"]["layers"]
    np.testing.assert_allclose(found["span_shares"], [[0, 0.5], [1, 0]])
    assert found["kernel"] == 3


@pytest.mark.nightly
def test_the_program_is_built_again_and_the_parameters_are_those_of_the_whole_span(tmp_path, capsys, monkeypatch):
    """Spans fall from 230 tokens to 0; each program says what it reads. The loss counts S z of each layer."""
    source = ChainSource(run().data)
    # Built again after a step at which nothing else is due.
    seldom = experiments.changed(run(), training={"log_every": 9}, checkpoint={"every": 0})
    result = loop.train(seldom, tmp_path / "cut", source, tokenizer={})
    assert int(result.state.step) == 9
    text = capsys.readouterr().out
    read = [line for line in text.splitlines() if line.startswith("computes")]
    assert read[0] == "computes the last 256 tokens of the longest span of 256"
    assert read[-1].startswith("computes the last 64 tokens") and 1 < len(read) == len(set(read))
    assert "continuing from step" in text and result.program.experiment.model.computed_span == 64
    found = jax.device_get(result.state.params["adaptive_span"]["layers"]["span_shares"])
    assert (found >= 0).all() and found.max() < 0.2

    monkeypatch.setattr(adaptive_span, "STEP", 256)
    whole = loop.train(run(), tmp_path / "whole", source, tokenizer={})
    assert whole.program.experiment.model.computed_span is None
    for ours, theirs in zip(jax.tree.leaves(result.state.params), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert "computes the last 256 tokens" in capsys.readouterr().out


@dataclasses.dataclass(frozen=True)
class Growing(AdaptiveSpanPretraining):
    """Rewards spans instead."""

    def coefficients(self) -> dict[str, float]:
        return {"span": -1.0}


@pytest.mark.nightly
def test_spans_that_grow_are_read(tmp_path, capsys) -> None:
    grown = dataclasses.replace(run(), model=dataclasses.replace(CONFIG, initial_fraction=0.0), objective=Growing())
    result = loop.train(grown, tmp_path, ChainSource(grown.data), tokenizer={})
    read = [line for line in capsys.readouterr().out.splitlines() if line.startswith("computes")]
    assert read[0].startswith("computes the last 64 tokens") and result.program.experiment.model.span == 256
    assert result.metrics["eval/longest_span"] == 256


def bits(params) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(jax.device_get(params))]


@pytest.mark.nightly
@pytest.mark.parametrize("objective", [AdaptiveSpanPretraining(span_coefficient=1.0), Growing()], ids=["less", "more"])
def test_a_run_that_is_killed_after_any_step_ends_in_the_same_bits(objective, tmp_path, capsys) -> None:
    """Spans change the program at the first steps; it depends on no log, no save and no evaluation."""
    share = 0.9 if type(objective) is AdaptiveSpanPretraining else 0.0
    spans = dataclasses.replace(run(), model=dataclasses.replace(CONFIG, initial_fraction=share), objective=objective)
    one = experiments.changed(spans, training={"steps": 5, "log_every": 5}, checkpoint={"every": 0})
    source = ChainSource(one.data)
    expected = bits(loop.train(one, tmp_path / "whole", source, tokenizer={}).state.params)
    assert capsys.readouterr().out.count("computes the last") > 2
    often = experiments.changed(one, training={"log_every": 1, "evaluate_every": 2}, checkpoint={"every": 1, "keep": 9})
    assert bits(loop.train(often, tmp_path / "often", source, tokenizer={}).state.params) == expected
    for step in range(1, 5):
        killed = tmp_path / f"killed {step}"
        later = shutil.ignore_patterns(*(str(number) for number in range(step + 1, 6)))
        shutil.copytree(tmp_path / "often", killed, ignore=later)
        assert bits(loop.train(often, killed, source, tokenizer={}).state.params) == expected, step
        assert f"continuing from step {step}" in capsys.readouterr().out


@pytest.mark.nightly
def test_an_evaluation_reads_no_more_than_the_longest_span() -> None:
    """Half of the keys and fewer, with the same loss; nothing is built again where the longest head needs the rest."""
    one, source = run(), ChainSource(run().data)
    program = program_of(one, source)
    params = random_params(program.module)
    inputs = LossInputs(params, (), {}, program.start_evaluation_carry())

    def of_shares(*values: float) -> Program:
        found = inputs.replace(params=with_shares(params, *values))
        adapted = adapted_program(program, one, source, found.params)
        losses = [HeldOut.of(one, source).totals(each, found)["loss"] for each in (program, adapted)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
        return adapted

    assert of_shares(0.2, 0.1, 0.3, 0.25).experiment.model.span == 128
    assert of_shares(0.2, 0.1, 0.9, 0.25) is program
