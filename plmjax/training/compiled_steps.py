"""The compiled train steps of a run: one per phase, or one per model size if the model adapts to its parameters."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from plmjax.contracts.model_config import ModelConfig
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.objectives.capabilities import AdaptsModel
from plmjax.parallel import hosts, peak
from plmjax.training import header, memory, switches
from plmjax.training.program import Program
from plmjax.training.session import Rates, Session
from plmjax.training.state import TrainState


class AdaptedPrograms:
    """The programs of a phase for a model whose size follows a learned statistic of its parameters (`AdaptsModel`)."""

    def __init__(self, run: Experiment, program_of: Callable[[Experiment, ResolvedPhase], Program]) -> None:
        self._run, self._program_of = run, program_of
        self._programs: dict[tuple[ResolvedPhase, ModelConfig], Program] = {}
        adapts = isinstance(run.objective, AdaptsModel)
        self._measured = jax.jit(functools.partial(run.objective.statistic, run.model)) if adapts else None

    def __call__(self, program: Program, params: Any) -> Program:
        """Return the program for these parameters in the phase of `program`."""
        if self._measured is None:
            return program
        self._programs.setdefault((program.phase, program.experiment.model), program)
        model = self._run.objective.adapt_config(self._run.model, float(self._measured(params)))
        key = program.phase, model
        if key not in self._programs:
            self._programs[key] = self._program_of(dataclasses.replace(self._run, model=model), program.phase)
        return self._programs[key]


class CompiledStep(NamedTuple):
    """A program, its compiled train step, and the rates of a step."""

    program: Program
    train: Any
    rates: Rates


class CompiledSteps:
    """The compiled train steps of a session. Each is compiled at its first use."""

    def __init__(self, run: Experiment, session: Session, adapted: Callable[[Program, Any], Program]) -> None:
        self._run, self._session, self._adapted = run, session, adapted
        self._known: dict[Program, tuple[Any, Rates]] = {}

    def compile(self, program: Program, state: TrainState, done: int) -> CompiledStep:
        """Return the program for the parameters of the state, its compiled train step, and the rates of a step.

        The header of the phase is printed when a step is compiled. done: number of finished steps.
        """
        program = self._adapted(program, state.params)
        if program not in self._known:
            self._known[program] = self._compile(program, state, done)
        return CompiledStep(program, *self._known[program])

    def _compile(self, program: Program, state: TrainState, done: int) -> tuple[Any, Rates]:
        run, session = self._run, self._session
        session.report_progress("compiling", hosts.ACTIVITY)
        session.print(f"compile  the step of phase {program.phase.index}, for {program.mesh.size} device(s)")
        start = time.perf_counter()
        with switches.explain_compilation(run, program):
            compiled = program.train.lower(state, program.batch).compile()
        seconds = time.perf_counter() - start
        flops = program.experiment.training_objective.train_flops(program.experiment.model, program.batch)
        rates = Rates(header.tokens(run, program), flops, peak.PeakFlops(program.mesh) if session.is_primary else None)
        if session.is_primary:
            session.print(
                *header.lines(
                    run, program, compiled, flops=flops, peak_flops=rates.peak_flops, compile_seconds=seconds, step=done
                )
            )
        memory.check(run, program, compiled)
        return compiled, rates
