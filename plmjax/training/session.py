"""Logging, evaluation, checkpoints and stopping of a run. One session is one invocation of a run."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plmjax.errors import Explained, UserError
from plmjax.experiment import Experiment
from plmjax.parallel import hosts, peak
from plmjax.parallel.host_flags import HostFlags
from plmjax.parallel.stopping import Interrupted, StopSignals
from plmjax.training.checkpoints.best import Best
from plmjax.training.checkpoints.checkpoints import Checkpoints, Description
from plmjax.training.evaluation import Evaluation
from plmjax.training.feed import BatchSource, mixture_metrics
from plmjax.training.metrics import MetricsFile, Terminal
from plmjax.training.profiling import Profile
from plmjax.training.program import Program
from plmjax.training.progress import Progress
from plmjax.training.state import TrainState
from plmjax.training.step_timer import MetricsWindow, StepTimer


@dataclasses.dataclass(frozen=True)
class Rates:
    """Tokens and model FLOPs of a step, and on host 0 the peak FLOP/s of the mesh."""

    tokens: int
    flops: float
    peak_flops: peak.PeakFlops | None


@dataclasses.dataclass(frozen=True)
class Due:
    """The work due after a step; `stop` is the number of the signal that stops the run, or 0."""

    log: bool
    evaluate: bool
    save: bool
    stop: int

    def __bool__(self) -> bool:
        return bool(self.log or self.evaluate or self.save or self.stop)


class Session:
    """One invocation of a run: its files, its terminal, its signals.

    is_primary: true on host 0, the only host that writes files and prints.
    """

    def __init__(
        self,
        run: Experiment,
        workdir: Path,
        *,
        source: BatchSource,
        tokenizer: dict[str, bytes],
        keeper: Checkpoints,
        start: Description,
        evaluation: Evaluation,
        adapted: Callable[[Program, Any], Program],
        votes: HostFlags,
    ) -> None:
        self.run, self.workdir, self.source, self.tokenizer, self.keeper = run, workdir, source, tokenizer, keeper
        self.first = start.step
        self.evaluated = start.step if start.metrics else -1
        self.metrics = start.metrics
        self.window = MetricsWindow(start.window)
        self.best, self.record = Best.of(run), start.record
        self.saved_at = time.monotonic()
        self.votes = votes
        self.evaluation = evaluation
        self.adapted = adapted
        self.is_primary = hosts.is_primary()

    def __enter__(self) -> "Session":
        profiled: tuple[int, ...] = ()
        if self.is_primary:
            self.file = MetricsFile(self.workdir, self.first, self.run)
            self.terminal = Terminal(self.run.training.steps, self.first)
            self.show_progress(self.first)
            profiled = self.run.training.profile_steps
        folder = self.file.folder / "profile" if self.is_primary else self.workdir
        asked = self.workdir if self.is_primary else None
        self.profile = Profile(profiled, folder, self.first + 1, final=self.run.training.steps, workdir=asked)
        self.stop = StopSignals().__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with contextlib.ExitStack() as closing:  # Callbacks run in reverse; a save's error comes after the run's.
            closing.push(self.stop)
            if error is not None and not isinstance(error, Interrupted):
                closing.enter_context(contextlib.suppress(Explained))
            closing.callback(self._finish_saving, all_hosts=error is None or isinstance(error, Interrupted))
            if self.is_primary:
                closing.callback(self.file.close, succeeded=error is None)
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

    def report_progress(self, doing: str, pace: str = hosts.STEP) -> None:
        """Report progress. Every host must call this equally often."""
        hosts.report_progress(doing, pace)
        if self.is_primary:
            self.terminal.set_activity(doing)

    @property
    def out_of_patience(self) -> bool:
        """Return whether the metric of the best checkpoint has not improved for `training.patience` evaluations."""
        return self.best.out_of_patience(self.record)

    def print(self, *lines: str) -> None:
        """Print lines on host 0."""
        for line in lines if self.is_primary else ():
            self.terminal.print(line)

    def due(self, step: int, last: bool) -> Due:
        """Return the work due after a step, the same on every host."""
        training, checkpoint = self.run.training, self.run.checkpoint
        overdue = bool(checkpoint.minutes) and time.monotonic() - self.saved_at > checkpoint.minutes * 60
        stop, overdue = self.votes(self.stop.received or 0, overdue)
        return Due(
            log=step % training.log_every == 0 or last,
            evaluate=bool(training.evaluate_every) and step % training.evaluate_every == 0,
            save=bool(overdue or (checkpoint.every and step % checkpoint.every == 0)),
            stop=stop,
        )

    def add_stop(self, due: Due) -> Due:
        """Return `due` with the stop signal that may have arrived on some host during an evaluation."""
        return dataclasses.replace(due, stop=max(due.stop, self.votes(self.stop.received or 0, 0)[0]))

    def gather(self, pace: StepTimer, step: int) -> list[dict[str, float]]:
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

    def show(self, step: int, metrics: Mapping[str, float], pace: StepTimer, rates: "Rates") -> None:
        """Show the loss of a finished step that is not logged."""
        if self.is_primary:
            seconds, left = pace.seconds, self.run.training.steps - step
            # The time of the first step may include a wait for text.
            self.terminal.show_unlogged(
                step, metrics, (rates.tokens / seconds, left * seconds) if pace.steps > 1 else None
            )

    def log(self, step: int, metrics: dict[str, float], pace: StepTimer, rates: "Rates") -> None:
        """Log a step: means over the window, and the rates since the last logged step."""
        values = self.window.means()
        if self.is_primary:
            seconds = pace.seconds
            values["learning_rate"] = metrics["learning_rate"]
            values["tokens_per_second"] = rates.tokens / seconds
            values["model_flops_per_second"] = rates.flops / seconds
            values["mfu"] = rates.peak_flops.mfu(rates.flops / seconds)
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

        Returns:
            the state after the optimizer has received the loss.
        """
        if self.evaluated == step:
            return state
        self.report_progress(f"evaluating at step {step}", hosts.ACTIVITY)
        inputs = program.loss_inputs(state)
        program = self.adapted(program, inputs.params)
        limit = self.run.training.evaluation_batches
        means = self.evaluation(program, inputs, limit)
        values = {f"eval/{name}": value for name, value in means.items()}
        if self.is_primary and values:
            self.file.write(step, values)
            limited = f", {limit} batches at most" if limit else ""
            shown = "  ".join(f"{name} {means[name]:.4f}" for name in means)
            self.print(f"eval at step {step}{limited}  {shown}")
        self.evaluated, self.metrics = step, values
        self.record = self.best.after(self.record, values)
        if self.out_of_patience:
            self.print(f"stopped    {self.best.describe_wait(self.record)}")
        return program.on_evaluation(state, means["loss"]) if "loss" in means else state

    def save(self, state: TrainState, step: int, last: bool = False) -> None:
        """Start to save a checkpoint of this step. If it is the last one of the run, wait until it is finished."""
        self.report_progress(f"saving at step {step}", hosts.ACTIVITY)
        metrics = self.metrics if self.evaluated == step else {}
        description = Description(
            run=self.run,
            step=step,
            tokenizer=self.tokenizer,
            dataset=self.source.fingerprint,
            metrics=metrics,
            window=self.window.sums,
            record=self.record,
        )
        # A run that resumes at this step does not write earlier records again, so they are flushed first.
        before = self.file.flush if self.is_primary else lambda: None
        (self.keeper.save_last if last else self.keeper.save)(state, description, before)
        self.saved_at = time.monotonic()
