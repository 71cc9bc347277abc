"""The training loop: build, restore, and for every step: step, log, evaluate, save.

The order within a step is fixed. The checkpoint is the last part. So a run that is killed at any moment and started
again repeats the logging and the evaluation that were not finished, and ends with the same parameters.
"""

import contextlib
import dataclasses
import functools
import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from plmjax.contracts.model_config import ModelConfig
from plmjax.errors import Explained, UserError
from plmjax.experiment import Experiment
from plmjax.experiment.phases import ResolvedPhase
from plmjax.files import storage
from plmjax.objectives.capabilities import AdaptsModel
from plmjax.parallel import hosts, peak
from plmjax.parallel.stopping import Interrupted, StopSignals
from plmjax.parallel.votes import Votes
from plmjax.training import constants, header, memory, placement, switches
from plmjax.training.checkpoints.best import Best, check_metric
from plmjax.training.checkpoints.checkpoints import Checkpoints, Description
from plmjax.training.evaluation import Evaluation, HeldOut, unigram_nats
from plmjax.training.feed import BatchSource, local_rows, mixture_metrics, on_device
from plmjax.training.initial_state import InitialParameters
from plmjax.training.metrics import MetricsFile, Terminal
from plmjax.training.pace import Pace, Window
from plmjax.training.profiling import Profile
from plmjax.training.program import Program, build
from plmjax.training.progress import Progress
from plmjax.training.state import TrainState


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
    tokenizer: dict[str, bytes],
    initial: InitialParameters = InitialParameters(),
    evaluation: Evaluation | None = None,
) -> Result:
    """Train a run to its last step, from its last checkpoint if there is one.

    tokenizer: file name -> contents, saved in every checkpoint.
    initial: the initial parameters of a new run; by default all are sampled from the seed.
    evaluation: the evaluation of the run; by default the means over the held-out rows of its source.

    Raises:
        UserError: an error that the user can correct; no checkpoint is lost.
        Interrupted: SIGTERM or Ctrl-C arrived, and the state was saved.
    """
    workdir = storage.path(workdir)
    hosts.agree("the dataset's fingerprint", source.fingerprint)
    placed = placement.place(run, devices(run.training.platform), source.vocabulary, source.batch)
    unigram = unigram_nats(source.unigram_counts, run.model.vocab_size)
    plan = run.resolved_phases

    def program_of(run: Experiment, phase: ResolvedPhase) -> Program:
        return build(run, phase, placed.mesh, source.vocabulary, source.batch, unigram)

    programs = [program_of(run, phase) for phase in plan]
    evaluation = evaluation or HeldOut.of(run, source)
    check_metric(run.checkpoint, evaluation.names(programs[0]))
    keeper = Checkpoints(workdir / "checkpoints", run.checkpoint)
    latest = keeper.latest()
    if latest is None:
        description = Description(run, 0, tokenizer, source.fingerprint)
        sources = constants.of_run(source.vocabulary, source.unigram_counts, description)
        state = programs[0].initialize(run.training.seed, sources, initial.replaced)
        state = state.replace(params=initial.from_sampled(state.params))
        keeper.save_constants(state)
    else:
        made_by = next((program for program in programs if latest <= program.phase.last_step), programs[-1])
        state, description = keeper.restore(latest, made_by.state)
        if description.dataset != source.fingerprint:
            raise UserError(
                f"Expected the dataset that {workdir} was trained on, with fingerprint {description.dataset}, found "
                f"{source.fingerprint}; resume with the same data or name another --workdir."
            )
    session = _Session(
        run=run,
        workdir=workdir,
        source=source,
        tokenizer=tokenizer,
        keeper=keeper,
        start=description,
        votes=Votes(placed.mesh),
        evaluation=evaluation,
        program_of=program_of,
    )
    with session:
        if session.is_primary:
            for line in [header.mesh(placed), *header.cores(description.cores)]:
                session.terminal.print(line)
        step = description.step
        for program in programs:
            if step == program.phase.first_step:
                state = state.replace(carry=program.start_carry())
            if step < program.phase.last_step and not session.exhausted:
                with memory.explain_out_of_memory(run, program.phase, placed.mesh.devices.flat[0]):
                    state, step = session.phase(program, state, step)
        program = session.adapted(program, state.params)
        state = session.evaluate(program, state, step)
        session.save(state, step, last=True)
    if session.stop.received and jax.process_count() == 1:  # After the last step; on several hosts the run is done.
        raise Interrupted(f"Stopped by {session.stop.received.name} and saved at step {step}, the last.")
    return Result(state=state, program=program, metrics=session.metrics)


@dataclasses.dataclass(frozen=True)
class _Due:
    """The work due after a step; `stop` is the number of the signal that stops the run, or 0."""

    log: bool
    evaluate: bool
    save: bool
    stop: int

    def __bool__(self) -> bool:
        return bool(self.log or self.evaluate or self.save or self.stop)


class _Session:
    """One invocation of a run: its files, its terminal, its signals.

    is_primary: true on host 0, the only host that writes files and prints.
    """

    def __init__(
        self,
        *,
        run: Experiment,
        workdir: Path,
        source: BatchSource,
        tokenizer: dict[str, bytes],
        keeper: Checkpoints,
        start: Description,
        votes: Votes,
        evaluation: Evaluation,
        program_of: Callable[[Experiment, ResolvedPhase], Program],
    ) -> None:
        self.run, self.workdir, self.source, self.tokenizer, self.keeper = run, workdir, source, tokenizer, keeper
        self.first = start.step
        self.evaluated = start.step if start.metrics else -1
        self.metrics = start.metrics
        self.window = Window(start.window)
        self.best, self.record = Best.of(run), start.record
        self.saved_at = time.monotonic()
        self.votes = votes
        self.evaluation = evaluation
        self.program_of = program_of
        self.programs: dict[tuple[ResolvedPhase, ModelConfig], Program] = {}
        adapts = isinstance(run.objective, AdaptsModel)
        self.measured = jax.jit(functools.partial(run.objective.measured, run.model)) if adapts else None
        self.is_primary = hosts.is_primary()

    def __enter__(self) -> "_Session":
        profiled: tuple[int, ...] = ()
        if self.is_primary:
            self.file = MetricsFile(self.workdir, self.first, self.run)
            self.terminal = Terminal(self.run.training.steps, self.first)
            self.show_progress(self.first)
            profiled = self.run.training.profile_steps
        folder = self.file.folder / "profile" if self.is_primary else self.workdir
        asked = self.workdir if self.is_primary else None
        self.profile = Profile(profiled, folder, self.first + 1, self.run.training.steps, asked)
        self.stop = StopSignals().__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with contextlib.ExitStack() as closing:  # Callbacks run in reverse; a save's error comes after the run's.
            closing.push(self.stop)
            if error is not None and not isinstance(error, Interrupted):
                closing.enter_context(contextlib.suppress(Explained))
            closing.callback(self._finish_saving, all_hosts=error is None or isinstance(error, Interrupted))
            if self.is_primary:
                closing.callback(self.file.close, whole=error is None)
                closing.callback(self.terminal.close)
            closing.callback(self.profile.close)

    def _finish_saving(self, all_hosts: bool) -> None:
        """Wait for a save that is in progress.

        Args:
            all_hosts: true if every host calls this. Then no host leaves before all have written their part. The hosts
                agree that a checkpoint is complete through JAX's coordination service, which ends with the process of
                host 0.
        """
        self.keeper.close()
        if all_hosts:
            hosts.agree("the end of the run")

    def progressed(self, doing: str, pace: str = hosts.STEP) -> None:
        """Report progress. Every host must call this equally often."""
        hosts.progressed(doing, pace)
        if self.is_primary:
            self.terminal.set_activity(doing)

    @property
    def exhausted(self) -> bool:
        """Return whether the metric of the best checkpoint has not improved for `training.patience` evaluations."""
        return self.best.exhausted(self.record)

    def adapted(self, program: Program, params: Any) -> Program:
        """Return the program of the same phase that computes as much of the model as the parameters need."""
        if self.measured is None:
            return program
        model = self.run.objective.adapted(self.run.model, float(self.measured(params)))
        if model == program.model:
            return program
        known = program.phase, model
        if known not in self.programs:
            self.programs[known] = self.program_of(dataclasses.replace(self.run, model=model), program.phase)
        return self.programs[known]

    def phase(self, program: Program, state: TrainState, done: int) -> tuple[TrainState, int]:
        """Run the steps after step `done` to the end of the phase, and return (state, last step).

        The phase ends early if the best metric stops improving.
        """
        program = self.adapted(program, state.params)
        known = {program: self.compile(program, state, done)}
        compiled, rates = known[program]
        hosts.agree(f"the start of phase {program.phase.index}")
        rows = self.source.train(program.phase, done - program.phase.first_step, local_rows(program.batch))
        batches, pace = on_device(rows, program.batch), Pace()
        for step in range(done + 1, program.phase.last_step + 1):
            # The first batch may need an index of the text, which takes longer.
            limit = hosts.STEP if step > done + 1 else hosts.ACTIVITY
            self.profile.before(step)
            if earlier := pace.throttle():
                self.show_unlogged(step - 2, earlier, pace, rates)
            self.progressed(f"waiting for the batch of step {step}", limit)
            batch = pace.next_batch(batches)
            if (needed := self.adapted(program, state.params)) is not program:
                self.gather(pace, step - 1)
                if needed not in known:
                    known[needed] = self.compile(needed, state, step - 1)
                program, (compiled, rates), pace = needed, known[needed], Pace()
            self.progressed(f"computing step {step}", limit)
            self.stop.unsaved = True
            state, metrics = compiled(state, batch)
            pace.add(metrics)
            self.profile.after(step, state)
            if due := self.due(step, last=step == program.phase.last_step):
                finished = self.gather(pace, step)[-1]
                if due.log:
                    self.log(step, finished, pace, rates)
                else:
                    self.show_unlogged(step, finished, pace, rates)
                if due.evaluate:
                    state = self.evaluate(program, state, step)
                    due = dataclasses.replace(due, stop=max(due.stop, self.votes(self.stop.received or 0, 0)[0]))
                over = step == self.run.training.steps or self.exhausted
                # The checkpoint of the run's last step waits for the last evaluation.
                if (due.save or due.stop) and not over:
                    self.save(state, step, last=bool(due.stop))
                if due.stop and not over:
                    batches.close()
                    where = "" if self.stop.received else " on another host"
                    raise Interrupted(f"Stopped by {signal.Signals(due.stop).name}{where} and saved at step {step}.")
                if self.exhausted:
                    break
                pace.resume()
        batches.close()
        return state, step

    def compile(self, program: Program, state: TrainState, done: int) -> tuple[Any, "_Rates"]:
        """Return the compiled train step of a phase, and print the header of the phase."""
        self.progressed("compiling", hosts.ACTIVITY)
        if self.is_primary:
            devices = program.mesh.size
            self.terminal.print(f"compile  the step of phase {program.phase.index}, for {devices} device(s)")
        start = time.perf_counter()
        with switches.explain_compilation(self.run, program):
            compiled = program.train.lower(state, program.batch).compile()
        seconds = time.perf_counter() - start
        flops = self.run.trained.train_flops(program.model, program.batch)
        rates = _Rates(
            header.tokens(self.run, program), flops, peak.PeakFlops(program.mesh) if self.is_primary else None
        )
        if self.is_primary:
            for line in header.lines(self.run, program, compiled, flops, rates.peak_flops, seconds, done):
                self.terminal.print(line)
        memory.check(self.run, program, compiled)
        return compiled, rates

    def due(self, step: int, last: bool) -> _Due:
        """Return the work due after a step, the same on every host."""
        training, checkpoint = self.run.training, self.run.checkpoint
        overdue = bool(checkpoint.minutes) and time.monotonic() - self.saved_at > checkpoint.minutes * 60
        stop, overdue = self.votes(self.stop.received or 0, overdue)
        return _Due(
            log=step % training.log_every == 0 or last,
            evaluate=bool(training.evaluate_every) and step % training.evaluate_every == 0,
            save=bool(overdue or (checkpoint.every and step % checkpoint.every == 0)),
            stop=stop,
        )

    def gather(self, pace: Pace, step: int) -> list[dict[str, float]]:
        """Add the steps up to `step` to the window of the next logged line, and return their metrics.

        Raises:
            UserError: a loss is not finite.
        """
        values = pace.drain()
        for number, metrics in enumerate(values, start=step - len(values) + 1):
            if not math.isfinite(metrics["loss"]):
                with contextlib.suppress(Explained):
                    self.keeper.wait()
                kept = self.keeper.latest()
                raise UserError(
                    f"Expected a finite loss, found {metrics['loss']} at step {number}; lower "
                    f"--optimizer.learning_rate or look at that batch (the last checkpoint is of "
                    f"{'step ' + str(kept) if kept is not None else 'no step yet'})."
                )
            self.window.add(metrics)
        return values

    def show_unlogged(self, step: int, metrics: Mapping[str, float], pace: Pace, rates: "_Rates") -> None:
        """Show a finished step that is not logged."""
        if self.is_primary:
            seconds, left = pace.seconds, self.run.training.steps - step
            # The time of the first step may include a wait for text.
            self.terminal.show_unlogged(
                step, metrics, (rates.tokens / seconds, left * seconds) if pace.steps > 1 else None
            )

    def log(self, step: int, metrics: dict[str, float], pace: Pace, rates: "_Rates") -> None:
        """Write the line of a step: means over the window, and the rates since the last line."""
        values = self.window.means()
        if self.is_primary:
            seconds = pace.seconds
            values["learning_rate"] = metrics["learning_rate"]
            values["tokens_per_second"] = rates.tokens / seconds
            values["model_flops_per_second"] = rates.flops / seconds
            values["mfu"] = rates.peak_flops.share(rates.flops / seconds)
            values["input_wait"] = pace.input_wait
            values |= mixture_metrics(self.source, self.run.resolved_phases, step)
            self.file.write(step, values)
            self.terminal.show_logged(step, values, (self.run.training.steps - step) * seconds)
            rate = values["tokens_per_second"]
            self.show_progress(step, values["train/loss"], rate, self.tokens_left(step) / rate)
        pace.restart()

    def tokens_left(self, step: int) -> int:
        """Return the number of tokens of the steps after `step`, in all phases."""
        return sum(
            max(0, phase.last_step - max(phase.first_step, step))
            * self.run.data.tokens(phase.batch_size, phase.sequence_length)
            for phase in self.run.resolved_phases
        )

    def show_progress(self, step: int, *values: float) -> None:
        """Replace WORKDIR/progress.json. values: loss, tokens per second and seconds left, once they are known."""
        progress = Progress(step, self.run.training.steps, hosts.worker(), self.keeper.finished, *values)
        progress.write(self.file.folder)

    def evaluate(self, program: Program, state: TrainState, step: int) -> TrainState:
        """Evaluate, if this step has not been evaluated, and log the metrics.

        Return the state after the optimizer has received the loss.
        """
        if self.evaluated == step:
            return state
        self.progressed(f"evaluating at step {step}", hosts.ACTIVITY)
        inputs = program.loss_inputs(state)
        program = self.adapted(program, inputs.params)
        means = self.evaluation(program, inputs, self.run.training.evaluation_batches)
        values = {f"eval/{name}": value for name, value in means.items()}
        if self.is_primary and values:
            self.file.write(step, values)
            self.terminal.print(f"eval at step {step}  " + "  ".join(f"{name} {means[name]:.4f}" for name in means))
        self.evaluated, self.metrics = step, values
        self.record = self.best.after(self.record, values)
        if self.exhausted and self.is_primary:
            self.terminal.print(f"stopped    {self.best.waiting(self.record)}")
        return program.on_evaluation(state, means["loss"]) if "loss" in means else state

    def save(self, state: TrainState, step: int, last: bool = False) -> None:
        """Start to save a checkpoint of this step; the last one of the run is finished when this returns."""
        self.progressed(f"saving at step {step}", hosts.ACTIVITY)
        metrics = self.metrics if self.evaluated == step else {}
        description = Description(
            experiment=self.run,
            step=step,
            tokenizer=self.tokenizer,
            dataset=self.source.fingerprint,
            metrics=metrics,
            window=self.window.sums,
            record=self.record,
        )
        # A run that resumes at this step does not write these records again.
        before = self.file.flush if self.is_primary else lambda: None
        (self.keeper.save_last if last else self.keeper.save)(state, description, before)
        self.saved_at = time.monotonic()


@dataclasses.dataclass(frozen=True)
class _Rates:
    """Tokens and model FLOPs of a step, and on host 0 the peak FLOPs of the mesh."""

    tokens: int
    flops: float
    peak_flops: peak.PeakFlops | None
