"""The phases of a run: their steps, sequence lengths, batch sizes and changed settings."""

import dataclasses
import itertools
import shlex
from collections.abc import Sequence
from typing import Any

from plmjax.errors import FROM_0, FROM_1, UserError, check_ranges, quoted

CHANGEABLE = ("objective.", "model.", "optimizer.", "data.path", "data.mixture.", "data.layout.")
"""Prefixes of the options that a phase may change."""
SCHEDULE = ("optimizer.learning_rate", "optimizer.schedule")
"""Prefixes of the options whose change restarts the schedule of the learning rate."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase of a run with its own settings; 0 keeps the experiment's.

    Its length is a fraction of the run's steps, or a number of steps or of tokens. Phases of steps and tokens set the
    steps of a run whose `training.steps` is 0. Otherwise they are lengthened or shortened to `training.steps`, all by
    one factor.
    """

    fraction: float = 0.0
    """Fraction of the run's steps; 0 if `steps` or `tokens` is set."""
    sequence_length: int = 0
    """Number of tokens in a row; 0 takes that of the run."""
    batch_size: int = 0
    """Number of rows of one optimizer step; 0 takes that of the run."""
    accumulation: int = 0
    """Number of microbatches of one optimizer step; 0 takes that of the run."""
    steps: int = 0
    """Number of steps, in place of `fraction`; 0 if it is not set."""
    tokens: float = 0.0
    """Number of tokens, in place of `fraction`; the nearest number of steps is taken. 0 if it is not set."""
    ramp: int = 1
    """Number of batch sizes: with 3, a third of the steps has a third of the batch size, the next third two thirds."""
    changes: tuple[str, ...] = ()
    """Options of the run that the phase changes, each NAME=VALUE, such as objective.rate=0.15, with values and quotes
    as on the command line. They belong to objective, model, optimizer, data.path, data.mixture or data.layout, and keep
    the shapes of the parameters and of the optimizer's state. A change of optimizer.learning_rate or optimizer.schedule
    restarts the schedule.
    """

    def __post_init__(self) -> None:
        numbers = ("fraction", "sequence_length", "batch_size", "accumulation", "steps", "tokens")
        check_ranges("phases.N", self, **dict.fromkeys(numbers, FROM_0), ramp=FROM_1)
        changes = tuple(_with_underscores(change) for change in self.changes)
        object.__setattr__(self, "changes", changes)
        for change in changes:
            name, mark, _ = change.partition("=")
            if not mark or not (name + ".").startswith(CHANGEABLE):
                raise UserError(
                    f"Expected NAME=VALUE of an option of objective, model, optimizer, data.path, data.mixture or "
                    f"data.layout in --phases.N.changes, found {quoted(change)}; write objective.rate=0.15 or another."
                )

    @property
    def options(self) -> list[str]:
        """Return the changes as options of the command line."""
        return [word for change in self.changes for word in _option(change)]


def _with_underscores(change: str) -> str:
    """Return a change with underscores in place of dashes in its name, as on the command line."""
    name, mark, value = change.partition("=")
    return f"{name.replace('-', '_')}{mark}{value}"


def _option(change: str) -> list[str]:
    name, _, value = change.partition("=")
    try:
        values = shlex.split(value)
    except ValueError:
        raise UserError(
            f"Expected a value with both quotes in --phases.N.changes, found {quoted(change)}; close the quote, or put "
            f"a value with an apostrophe in quotes."
        ) from None
    return [f"--{name}={values[0]}"] if len(values) == 1 else [f"--{name}", *values]


@dataclasses.dataclass(frozen=True)
class ResolvedPhase:
    """One phase of a run, or one batch size of a phase's ramp, with a value for every setting.

    Its steps are first_step .. first_step + steps - 1.

    index: number in the run, from 0. The order of the text depends on it.
    evaluation_batch_size, evaluation_sequence_length: sizes of an evaluation batch; 0 takes those of a training batch.
    declared: index of the phase in `Experiment.phases`.
    schedule_start, schedule_steps: first step and number of steps of the learning rate's schedule.
    held_out: true for the evaluations of a phase.
    """

    index: int
    first_step: int
    steps: int
    sequence_length: int
    batch_size: int
    accumulation: int
    evaluation_batch_size: int = 0
    evaluation_sequence_length: int = 0
    declared: int = 0
    schedule_start: int = 0
    schedule_steps: int = 0
    held_out: bool = False

    @property
    def last_step(self) -> int:
        """Return the number of finished steps at the end of the phase."""
        return self.first_step + self.steps

    @property
    def evaluation(self) -> "ResolvedPhase":
        """Return the phase with the batch size and the sequence length of its evaluations."""
        return dataclasses.replace(
            self,
            batch_size=self.evaluation_batch_size or self.batch_size,
            sequence_length=self.evaluation_sequence_length or self.sequence_length,
            accumulation=1,
            held_out=True,
        )

    def rows_per_device(self, shards: int) -> int:
        """Return the number of rows of a microbatch on a device, for a batch in `shards` shards."""
        return self.batch_size // (shards * self.accumulation)


def resolve(phases: Sequence[Phase], training: Any, data: Any) -> tuple[ResolvedPhase, ...]:
    """Return the phases of a run, with one for each batch size of a ramp. A run without phases has one.

    training, data: settings of the experiment. The steps or the tokens are set in `training` or in every phase.

    Raises:
        UserError: the lengths of the phases do not fit each other, or a phase has no step.
    """
    sizes = _sizes(phases, training, data)
    ends = _ends(sizes, training, data)
    resolved: list[ResolvedPhase] = []
    for index, (one, start, end) in enumerate(zip(sizes, [0, *ends], ends, strict=False)):
        ramp = one.phase.ramp
        if one.batch_size % ramp:
            raise UserError(
                f"Expected a batch size that divides by the {ramp} sizes of --phases.{index}.ramp, found "
                f"{one.batch_size}; change one of them."
            )
        if end - start < ramp:
            raise UserError(
                f"Expected at least {'one step' if ramp == 1 else f'{ramp} steps'} in phase {index}, found "
                f"{end - start} of {ends[-1]} steps; raise --training.steps."
            )
        for part in range(ramp):
            first, after = (start + (end - start) * number // ramp for number in (part, part + 1))
            resolved.append(
                ResolvedPhase(
                    index=len(resolved),
                    first_step=first,
                    steps=after - first,
                    sequence_length=one.sequence_length,
                    batch_size=one.batch_size * (part + 1) // ramp,
                    accumulation=one.accumulation,
                    evaluation_batch_size=training.evaluation_batch_size or (one.batch_size if ramp > 1 else 0),
                    evaluation_sequence_length=training.evaluation_sequence_length,
                    declared=index,
                )
            )
    return _with_schedules(resolved, [one.phase for one in sizes])


def shortening(phases: Sequence[Phase], training: Any, data: Any) -> float:
    """Return the factor by which phases of steps or tokens are scaled to `training.steps`; 1 if they are not."""
    sizes = _sizes(phases, training, data)
    if sizes[0].phase.fraction or not training.steps:
        return 1.0
    return training.steps / sum(_own_steps(sizes, data))


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """A phase with its sequence length, largest batch size and number of microbatches."""

    phase: Phase
    sequence_length: int
    batch_size: int
    accumulation: int

    def step_tokens(self, data: Any) -> float:
        """Return the mean number of tokens of a step."""
        ramp = self.phase.ramp
        return data.tokens(self.batch_size, self.sequence_length) * (ramp + 1) / (2 * ramp)


def _sizes(phases: Sequence[Phase], training: Any, data: Any) -> list[_Sizes]:
    return [
        _Sizes(
            phase,
            phase.sequence_length or data.sequence_length,
            phase.batch_size or training.batch_size,
            phase.accumulation or training.accumulation,
        )
        for phase in phases or [Phase(1)]
    ]


def _with_schedules(resolved: Sequence[ResolvedPhase], phases: Sequence[Phase]) -> tuple[ResolvedPhase, ...]:
    """Fill in the first step and the number of steps of the learning rate's schedule in each phase."""
    starts = [0, *sorted({one.first_step for one in resolved if _starts_schedule(one, resolved, phases)} - {0})]
    ends = [*starts[1:], resolved[-1].last_step]
    found = []
    for one in resolved:
        number = max(number for number, start in enumerate(starts) if start <= one.first_step)
        steps = ends[number] - starts[number]
        found.append(dataclasses.replace(one, schedule_start=starts[number], schedule_steps=steps))
    return tuple(found)


def _starts_schedule(one: ResolvedPhase, resolved: Sequence[ResolvedPhase], phases: Sequence[Phase]) -> bool:
    """Return whether the schedule of the learning rate restarts at the first step of a phase."""
    before = [other for other in resolved[: one.index] if other.declared == one.declared]
    return not before and any(change.startswith(SCHEDULE) for change in phases[one.declared].changes)


def _ends(sizes: Sequence[_Sizes], training: Any, data: Any) -> list[int]:
    """Return the number of finished steps at the end of each phase."""
    for index, one in enumerate(sizes):
        named = {name: value for name in ("fraction", "steps", "tokens") if (value := getattr(one.phase, name))}
        if len(named) != 1:
            found = ", ".join(f"{name} {value:g}" for name, value in named.items()) or "none"
            raise UserError(f"Expected one of --phases.{index}.fraction, steps and tokens, found {found}; change it.")
    by_fraction = {bool(one.phase.fraction) for one in sizes}
    if len(by_fraction) > 1:
        raise UserError(
            "Expected a fraction of the steps for every phase, or steps or tokens for every phase, found both; change "
            "--phases.N.fraction."
        )
    if training.steps and training.tokens:
        raise UserError(
            f"--training.steps and --training.tokens exclude each other, found {training.steps} and "
            f"{training.tokens:g}; set one of them to 0."
        )
    if by_fraction == {True}:
        return _ends_of_fractions(sizes, training, data)
    if training.tokens:
        raise UserError(
            f"--training.tokens does not apply to phases with steps or tokens of their own, found {training.tokens:g}; "
            f"set --phases.N.tokens."
        )
    ends = list(itertools.accumulate(_own_steps(sizes, data)))
    return [round(end * training.steps / ends[-1]) for end in ends] if training.steps else ends


def _own_steps(sizes: Sequence[_Sizes], data: Any) -> list[int]:
    """Return the number of steps that each phase of steps or tokens sets."""
    return [
        one.phase.steps or _whole_steps(one.phase.tokens, one.step_tokens(data), f"--phases.{index}.tokens")
        for index, one in enumerate(sizes)
    ]


def _ends_of_fractions(sizes: Sequence[_Sizes], training: Any, data: Any) -> list[int]:
    done = list(itertools.accumulate(one.phase.fraction for one in sizes))
    if abs(done[-1] - 1) > 1e-6:
        raise UserError(
            f"Expected the fractions of the phases to add up to 1, found {done[-1]:g}; change --phases.N.fraction."
        )
    steps = training.steps
    if training.tokens:
        mean = sum(one.phase.fraction * one.step_tokens(data) for one in sizes)
        steps = _whole_steps(training.tokens, mean, "--training.tokens")
    if steps < 1:
        raise UserError(f"Expected at least one step, found {steps}; set --training.steps.")
    return [round(fraction * steps) for fraction in done]


def _whole_steps(tokens: float, step_tokens: float, option: str) -> int:
    """Return the number of steps nearest to a number of tokens.

    Raises:
        UserError: it is 0.
    """
    steps = round(tokens / step_tokens)
    if not steps:
        raise UserError(
            f"Expected {option} of at least one step of {step_tokens:,.0f} tokens, found {tokens:g}; raise it, or "
            f"lower the batch size."
        )
    return steps
