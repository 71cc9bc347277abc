"""The program that evaluates a checkpoint."""

import dataclasses

from plmjax.experiment import Phase
from plmjax.inference.program import program_of
from tests.strangers import experiments
from tests.strangers.source import ChainSource


def test_rows_are_as_long_as_those_of_the_last_phase() -> None:
    phases = Phase(fraction=0.5, sequence_length=8), Phase(fraction=0.5, sequence_length=12)
    run = dataclasses.replace(experiments.recurrent(), phases=phases)
    assert program_of(run, ChainSource(run.data)).phase.sequence_length == 12
