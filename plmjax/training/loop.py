"""The training loop: build, restore, and for every step: compute, log, evaluate, save.

The order within a step is fixed, and the checkpoint is its last part. So a run that is killed at any moment and started
again repeats the logging and the evaluation that were not finished, and ends with the same parameters.
"""

import dataclasses
import signal
from collections.abc import Sequence
from pathlib import Path

import jax

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.files import storage
from plmjax.parallel import hosts
from plmjax.parallel.host_flags import HostFlags
from plmjax.parallel.stopping import Interrupted
from plmjax.training import constants, header, memory, placement
from plmjax.training.checkpoints.best import check_metric
from plmjax.training.checkpoints.checkpoints import Checkpoints, Description, restore
from plmjax.training.compiled_steps import AdaptedPrograms, CompiledSteps
from plmjax.training.evaluation import Evaluation, HeldOut, unigram_nats
from plmjax.training.feed import BatchSource, local_rows, on_device, source_in_phase
from plmjax.training.initial_state import InitialParameters
from plmjax.training.program import Program, build, check_states
from plmjax.training.session import Session
from plmjax.training.state import TrainState
from plmjax.training.step_timer import StepTimer


@dataclasses.dataclass
class Result:
    """The result of a run: its last state, the program that computed it, and its last evaluation."""

    state: TrainState
    program: Program
    metrics: dict[str, float]


def devices(platform: str) -> list[jax.Device]:
    """Return the devices of a platform; "auto" takes JAX's default platform.

    Raises:
        UserError: this machine has no device of that platform.
    """
    if platform == "auto":
        return jax.devices()
    try:
        return jax.devices(platform)
    except RuntimeError:
        extra = f" (with pip install 'plmjax[{platform}]')" if platform in ("gpu", "tpu") else ""
        raise UserError(
            f"Expected a {platform.upper()} for --training.platform {platform}, found {jax.default_backend()} only; "
            f"run where there is one{extra}, or choose --training.platform auto."
        ) from None


def train(
    run: Experiment,
    workdir: str | Path,
    source: BatchSource,
    *,
    tokenizer: dict[str, bytes],
    initial: InitialParameters = InitialParameters(),
    evaluation: Evaluation | None = None,
    continued: Path | None = None,
) -> Result:
    """Train a run to its last step, from its last checkpoint if there is one.

    tokenizer: file name -> contents, saved in every checkpoint.
    initial: the initial parameters of a new run; by default all are sampled from the seed.
    evaluation: the evaluation of the run; by default the means over the held-out rows of its source.
    continued: the checkpoint of another run, of the same model and optimizer, that a new run continues.

    Raises:
        UserError: an error that the user can correct; no checkpoint is lost.
        Interrupted: SIGTERM or Ctrl-C arrived, and the state was saved.
    """
    workdir = storage.path(workdir)
    hosts.agree("the dataset's fingerprint", source.fingerprint)

    # Build the mesh, and a program for each phase. Nothing is computed yet.
    placed = placement.choose_mesh(run, devices(run.training.platform), source.vocabulary, source.batch)

    def program_of(run: Experiment, phase: ResolvedPhase) -> Program:
        unigram = unigram_nats(source_in_phase(source, phase).unigram_counts, run.model.vocab_size)
        return build(run, phase, placed.mesh, vocabulary=source.vocabulary, shapes=source.batch, unigram=unigram)

    programs = [program_of(run, phase) for phase in run.resolved_phases]
    check_states(programs)
    evaluation = evaluation or HeldOut.of(run, source)
    check_metric(run.checkpoint, evaluation.names(programs[0]))

    # Restore the last checkpoint, or initialize the state.
    keeper = Checkpoints(workdir / "checkpoints", run.checkpoint)
    started = {"tokenizer": tokenizer, "initial": initial, "continued": continued}
    state, description = _restore_or_initialize(run, source, programs, keeper, **started)

    # Train the remaining steps of each phase. The work that is due after a step has a fixed order.
    step, last = description.step, run.training.steps
    votes = HostFlags(placed.mesh)
    adapted = AdaptedPrograms(run, program_of)
    parts = {"source": source, "keeper": keeper, "evaluation": evaluation, "adapted": adapted, "votes": votes}
    with Session(run, workdir, tokenizer=tokenizer, start=description, **parts) as session:
        session.print(header.mesh(placed), *header.cores(description.cores))
        steps = CompiledSteps(run, session, adapted)
        for program in programs:
            phase = program.phase
            if step == phase.first_step:
                state = state.replace(carry=program.start_carry())
            if step >= phase.last_step or session.out_of_patience:
                continue
            with memory.explain_out_of_memory(run, phase, placed.mesh.devices.flat[0]):
                program, compiled, rates = steps.compile(program, state, step)
                hosts.agree(f"the start of phase {phase.index}")
                rows = source.train(phase, step - phase.first_step, local_rows(program.batch))
                batches, pace, first = on_device(rows, program.batch), StepTimer(), step + 1
                for step in range(first, phase.last_step + 1):
                    # The first batch may need an index of the text, which takes longer.
                    limit = hosts.STEP if step > first else hosts.ACTIVITY
                    session.profile.before(step)
                    if earlier := pace.throttle():
                        session.show(step - 2, earlier, pace, rates)
                    session.report_progress(f"waiting for the batch of step {step}", limit)
                    batch = pace.next_batch(batches)
                    if adapted(program, state.params) is not program:
                        session.gather(pace, step - 1)
                        (program, compiled, rates), pace = steps.compile(program, state, step - 1), StepTimer()
                    session.report_progress(f"computing step {step}", limit)
                    session.stop.unsaved = True
                    state, metrics = compiled(state, batch)
                    pace.add(metrics)
                    session.profile.after(step, state)

                    due = session.due(step, last=step == phase.last_step)
                    if not due:
                        continue
                    finished = session.gather(pace, step)[-1]
                    if due.log:
                        session.log(step, finished, pace, rates)
                    else:
                        session.show(step, finished, pace, rates)
                    if due.evaluate:
                        state = session.evaluate(program, state, step)
                        due = session.add_stop(due)
                    if session.out_of_patience or step == last:
                        break  # The checkpoint of the run's last step waits for the last evaluation.
                    if due.save or due.stop:
                        session.save(state, step, last=bool(due.stop))
                    if due.stop:
                        batches.close()
                        where = "" if session.stop.received else " on another host"
                        raise Interrupted(
                            f"Stopped by {signal.Signals(due.stop).name}{where} and saved at step {step}."
                        )
                    pace.resume()
                batches.close()
        program = adapted(program, state.params)
        state = session.evaluate(program, state, step)
        session.save(state, step, last=True)
    if session.stop.received and jax.process_count() == 1:  # After the last step; several hosts return the result.
        raise Interrupted(f"Stopped by {session.stop.received.name} and saved at step {step}, the last.")
    return Result(state=state, program=program, metrics=session.metrics)


def _restore_or_initialize(
    run: Experiment,
    source: BatchSource,
    programs: Sequence[Program],
    keeper: Checkpoints,
    *,
    tokenizer: dict[str, bytes],
    initial: InitialParameters,
    continued: Path | None,
) -> tuple[TrainState, Description]:
    """Return the state of the last checkpoint or the initial state, and its description. Arguments as for `train`.

    Raises:
        UserError: the checkpoint belongs to another dataset, or is damaged.
    """
    latest = keeper.latest()
    if latest is None and continued is not None:
        state, before = restore(continued, _made_by(programs, int(continued.name) + 1).state)
        keeper.save_constants(state)
        return state, Description(run, before.step, tokenizer, source.fingerprint, cores=before.cores)
    if latest is None:
        description = Description(run, 0, tokenizer, source.fingerprint)
        sources = constants.of_run(source.vocabulary, source.unigram_counts, description)
        state = programs[0].initialize(run.training.seed, sources, initial.replaced)
        state = state.replace(params=initial.from_sampled(state.params))
        keeper.save_constants(state)
        return state, description
    state, description = keeper.restore(latest, _made_by(programs, latest).state)
    if description.dataset != source.fingerprint:
        raise UserError(
            f"Expected the data that {keeper.directory.parent} was trained on (digest {description.dataset[:8]}), "
            f"found others ({source.fingerprint[:8]}); restore its files, or name another --workdir."
        )
    return state, description


def _made_by(programs: Sequence[Program], step: int) -> Program:
    """Return the first program whose phase ends at `step` (from 1) or later, or else the last program."""
    return next((program for program in programs if step <= program.phase.last_step), programs[-1])
