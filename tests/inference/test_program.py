"""The program that evaluates a checkpoint."""

import dataclasses

import numpy as np
import pytest

from plmjax.experiment import Phase
from plmjax.inference import program
from plmjax.inference.program import adapted_program, program_of
from tests.strangers import experiments
from tests.strangers.source import ChainSource


def test_rows_are_as_long_as_those_of_the_last_phase() -> None:
    phases = Phase(fraction=0.5, sequence_length=8), Phase(fraction=0.5, sequence_length=12)
    run = dataclasses.replace(experiments.recurrent(), phases=phases)
    assert program_of(run, ChainSource(run.data)).phase.sequence_length == 12


@pytest.mark.parametrize(("shares", "span"), [((0.1, 0.2), 64), ((0.95, 0.1), None)])
def test_a_program_computes_what_its_parameters_need(
    shares: tuple[float, ...], span: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Adaptive-Span of 200 tokens; other models have one program for all parameters."""
    monkeypatch.setattr(program, "program_of", lambda run, source: (run, source))
    run = experiments.changed(experiments.adaptive_span(), model={"attn_span": 200, "ramp": 8, "computed_span": None})
    params = {"adaptive_span": {"layers": {"span_shares": np.float32([shares])}}}
    found = adapted_program("whole", run, "source", params)
    expected = dataclasses.replace(run, model=dataclasses.replace(run.model, computed_span=span))
    assert found == ("whole" if span is None else (expected, "source"))
    assert adapted_program("whole", experiments.gpt2(), "source", params) == "whole"
