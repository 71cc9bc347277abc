"""The training loop: build, restore, and for every step: step, log, evaluate, save.

The order at a step is fixed. The checkpoint comes last, so a run that is killed anywhere and started again repeats
whatever of the step's logging and evaluation it had not finished, and ends in the same parameters.
"""

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from plmjax import experiment as experiments
from plmjax import storage
from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.parallel import hosts, peak
from plmjax.parallel.stopping import Interrupted, StopSignals
from plmjax.parallel.votes import Votes
from plmjax.training import checkpoints, checks, extension, header, memory, phases, placement
from plmjax.training.checkpoints import Checkpoints, Description
from plmjax.training.evaluation import Evaluation, HeldOut, unigram_nats
from plmjax.training.feed import Source, on_device, places
from plmjax.training.metrics import MetricsFile, Terminal
from plmjax.training.state import State
from plmjax.training.step import Program, build


@dataclasses.dataclass
class Result:
    """What is left of a run: its last state, the program that made it, its last evaluation."""

    state: State
    program: Program
    metrics: dict[str, float]


def devices(platform: str) -> list[jax.Device]:
    """The devices to run on.

    Raises:
        UserError: the platform asked for is not here.
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


def check_resume(workdir: Path, run: Experiment, say: Callable[[str], None] = print) -> None:
    """Writes WORKDIR/experiment.json, or compares it with what is there.

    Before the first checkpoint there is nothing to go on from: only what the tokenizer and the dataset in WORKDIR were
    made by must be the same, so that a command whose first try failed can be fixed. After it, a run may be given more
    steps; what they mean is said.

    On several hosts only host 0 writes; the others must find what it wrote.

    Raises:
        UserError: the folder belongs to a run that would be changed, naming the first difference.
    """
    path = workdir / "experiment.json"
    if not hosts.speaks() and not path.exists():
        raise UserError(
            f"Expected to see in {workdir} what host 0 writes there, found nothing; name a --workdir that all hosts "
            f"share, such as a bucket."
        )
    if path.exists():
        known = experiments.read(path)
        changed = experiments.differences(known, run, experiments.FREE)
        trained = storage.finished_steps(workdir / "checkpoints")
        longer = bool(trained) and run.training.steps > known.training.steps
        if longer:
            del changed["training.steps"]
        for name, (before, after) in changed.items():
            if not trained and not name.startswith(experiments.PREPARED):
                continue
            raise UserError(
                f"{workdir} holds a run with {name} = {before}, found {after}; resume it unchanged or name another "
                f"--workdir."
            )
        if longer:
            sentence = extension.check(known, run, max(trained), workdir)
            if hosts.speaks():
                say(sentence)
    if hosts.speaks():
        workdir.mkdir(parents=True, exist_ok=True)
        experiments.write(run, path)


def train(
    run: Experiment,
    workdir: str | Path,
    source: Source,
    tokenizer: dict[str, bytes],
    begin: Callable[[Program], State] | None = None,
    evaluation: Evaluation | None = None,
) -> Result:
    """Trains a run to its last step, from its last checkpoint if there is one.

    tokenizer: file name -> contents, kept in every checkpoint.
    begin: makes the first state when it is not the random initialisation (fine-tuning).
    evaluation: what the run is judged by, the held-out rows of its source by default.

    Raises:
        UserError: anything the user can put right; nothing that was saved is lost.
        Interrupted: SIGTERM or Ctrl-C, after saving.
    """
    workdir = storage.path(workdir)
    with hosts.in_turn("experiment.json"):
        check_resume(workdir, run)
    hosts.agree("the dataset's fingerprint", source.fingerprint)
    placed = placement.place(run, devices(run.training.platform), source.vocabulary, source.batch)
    unigram = unigram_nats(source.unigram_counts, run.model.vocab_size)
    plan = phases.resolve(run)
    programs = [build(run, phase, placed.mesh, source.vocabulary, source.batch(phase), unigram) for phase in plan]
    evaluation = evaluation or HeldOut(source, run.training.seed, run.objective.coefficients())
    checks.rhythm(run, evaluation.names(programs[0]))
    keeper = Checkpoints(workdir / "checkpoints", run.checkpoint)
    latest = keeper.latest()
    if latest is None:
        state = begin(programs[0]) if begin else programs[0].initialize(run.training.seed)
        description = Description(run, 0, tokenizer, source.fingerprint)
    else:
        made_by = next((program for program in programs if latest <= program.phase.last_step), programs[-1])
        state, description = keeper.restore(latest, made_by.state)
        if description.dataset != source.fingerprint:
            raise UserError(
                f"{workdir} was trained on a dataset with fingerprint {description.dataset}, found "
                f"{source.fingerprint}; resume with the data it began with or name another --workdir."
            )
    session = _Session(run, workdir, source, tokenizer, keeper, description, Votes(placed.mesh), evaluation)
    with hosts.watched(run.hosts) as session.watch, session:
        if session.speaks:
            session.terminal.say(header.mesh(placed))
        step = description.step
        for program in programs:
            if step >= program.phase.last_step or session.exhausted:
                continue
            if step == program.phase.first_step:
                state = state.replace(carry=program.start_carry())
            with memory.exhaustion_named(run, program.phase):
                state, step = session.phase(program, state, step)
        metrics = session.evaluate(programs[-1], state, step)
        session.save(state, step)
    if session.stop.received and jax.process_count() == 1:  # after the last step; on several hosts the run is done
        raise Interrupted(f"Stopped by {session.stop.received.name} and saved at step {step}, the last.")
    return Result(state=state, program=programs[-1], metrics=metrics)


class _Session:
    """One invocation of a run: its files, its terminal, its signals.

    speaks: whether this host writes them, which is host 0 alone.
    watch: is told whenever the run gets on (`hosts.watched`).
    """

    watch: Callable[..., None]

    def __init__(
        self,
        run: Experiment,
        workdir: Path,
        source: Source,
        tokenizer: dict[str, bytes],
        keeper: Checkpoints,
        start: Description,
        votes: Votes,
        evaluation: Evaluation,
    ) -> None:
        self.run, self.workdir, self.source, self.tokenizer, self.keeper = run, workdir, source, tokenizer, keeper
        self.first = start.step
        self.evaluated = (start.step if start.metrics else -1, start.metrics)
        self.window = dict(start.window)
        self.record = start.record
        self.saved_at = time.monotonic()
        self.profiling = False
        self.votes = votes
        self.judge = evaluation
        self.speaks = hosts.speaks()

    def __enter__(self) -> "_Session":
        if self.speaks:
            self.file = MetricsFile(self.workdir, self.first, self.run)
            self.terminal = Terminal(self.run.training.steps, self.first)
        self.stop = StopSignals().__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with contextlib.ExitStack() as closing:  # the last first; a failed save is told after what stopped the run
            closing.push(self.stop)
            if error is not None and not isinstance(error, Interrupted):
                closing.enter_context(contextlib.suppress(UserError))
            closing.callback(self.keeper.close)  # a save that is under way is finished whatever stopped the run
            if self.speaks:
                closing.callback(self.file.close, whole=error is None)
                closing.callback(self.terminal.close)
            if self.profiling:
                jax.profiler.stop_trace()

    def moved(self, doing: str, timed: bool = True) -> None:
        """To be called whenever the run gets on, equally often on every host."""
        self.watch(doing, timed)
        if self.speaks:
            self.terminal.doing(doing)

    @property
    def exhausted(self) -> bool:
        """Whether the metric that the run is judged by has not improved for too long."""
        patience = self.run.training.patience
        return bool(patience and self.record and self.record[1] >= patience)

    def phase(self, program: Program, state: State, done: int) -> tuple[State, int]:
        """The state after the steps from `done` to the end of the program's phase, or to an early one; and its step."""
        training, phase = self.run.training, program.phase
        self.moved("compiling", timed=False)
        if self.speaks:
            self.terminal.say(f"compile  the step of phase {phase.index}, for {program.mesh.size} device(s)")
        start = time.perf_counter()
        compiled = program.train.lower(state, program.batch).compile()
        compile_seconds = time.perf_counter() - start
        tokens = phase.batch_size * phase.sequence_length
        flops = self.run.objective.train_flops(self.run.model, program.batch)
        if self.speaks:
            yardstick = peak.Yardstick(program.mesh)
            for line in header.lines(self.run, program, compiled, flops, yardstick, compile_seconds, done):
                self.terminal.say(line)
        memory.check(self.run, program, compiled)
        hosts.agree(f"the start of phase {phase.index}")
        batches = on_device(self.source.train(phase, done - phase.first_step, places(program)), program)

        def told(step: int, metrics: dict[str, jax.Array], seconds: float, steps: int) -> None:
            if self.speaks:
                pace = (tokens * steps / seconds, (training.steps - step) * seconds / steps)
                self.terminal.between(
                    step, metrics["loss"], pace if steps > 1 else None
                )  # one alone may have waited for text

        pending: list[dict[str, jax.Array]] = []
        mark, waited, elapsed, steps = time.perf_counter(), 0.0, 0.0, 0
        for step in range(done + 1, phase.last_step + 1):
            self._profile(step)
            if len(pending) > 1:  # two steps are enough to be ahead of the device
                jax.block_until_ready(pending[-2])
                # Done by now, so that its loss can be read without holding up the step under way.
                told(step - 2, pending[-2], elapsed + time.perf_counter() - mark, steps + len(pending) - 1)
            self.moved(f"waiting for the batch of step {step}", timed=step > done + 1)  # the first may index the text
            asked = time.perf_counter()
            batch = next(batches)
            if not pending or pending[-1]["loss"].is_ready():  # nothing was left to compute while it was waited for
                waited += time.perf_counter() - asked
            self.moved(f"computing step {step}", timed=step > done + 1)
            self.stop.unsaved = True
            state, metrics = compiled(state, batch)
            pending.append(metrics)
            self._profile(step, state)
            last = step == phase.last_step
            logging = step % training.log_every == 0 or last
            evaluating = training.evaluate_every and step % training.evaluate_every == 0
            saving = self.run.checkpoint.every and step % self.run.checkpoint.every == 0
            minutes = self.run.checkpoint.minutes
            due = bool(minutes) and time.monotonic() - self.saved_at > minutes * 60
            stop, due = self.votes(self.stop.received or 0, due)
            if logging or evaluating or saving or due or stop:
                self._fetch(pending, step)
                elapsed, steps = elapsed + time.perf_counter() - mark, steps + len(pending)
                if logging and self.speaks:
                    values = {f"train/{name}": total / count for name, (total, count) in self.window.items()}
                    values["learning_rate"] = float(metrics["learning_rate"])
                    seconds = elapsed / steps
                    values["tokens_per_second"] = tokens / seconds
                    values["mfu"] = yardstick.share(flops / seconds)
                    values["input_wait"] = waited / elapsed
                    self.file.write(step, values)
                    self.terminal.step(step, values, (training.steps - step) * seconds)
                if logging:
                    self.window, waited, elapsed, steps = {}, 0.0, 0.0, 0
                else:
                    told(step, metrics, elapsed, steps)
                if evaluating:
                    self.evaluate(program, state, step)
                    last = last or self.exhausted
                    stop = max(stop, self.votes(self.stop.received or 0, due)[0])
                # The checkpoint of the run's last step waits for the last evaluation.
                if (saving or due or stop) and step < training.steps and not self.exhausted:
                    self.save(state, step)
                pending, mark = [], time.perf_counter()
            if stop and step < training.steps and not self.exhausted:
                batches.close()
                whose = "" if self.stop.received else " on another host"
                raise Interrupted(f"Stopped by {signal.Signals(stop).name}{whose} and saved at step {step}.")
            if last:
                break
        batches.close()
        return state, step

    def _fetch(self, pending: list[dict[str, jax.Array]], step: int) -> None:
        """Adds steps to the window of the next line; stops a run whose loss is no number, before it is saved."""
        values = jax.device_get(pending)
        for number, metrics in enumerate(values, start=step - len(values) + 1):
            if not math.isfinite(metrics["loss"]):
                self.keeper.wait()
                kept = self.keeper.latest()
                raise UserError(
                    f"Expected a finite loss, found {metrics['loss']} at step {number}; lower "
                    f"--optimizer.learning_rate or look at that batch (the last checkpoint is of "
                    f"{'step ' + str(kept) if kept is not None else 'no step yet'})."
                )
            for name in (name for name in metrics if name != "learning_rate"):
                total, count = self.window.get(name, (0.0, 0))
                self.window[name] = (total + float(metrics[name]), count + 1)

    def evaluate(self, program: Program, state: State, step: int) -> dict[str, float]:
        """Evaluates once a step, logs it, and returns {"eval/...": ...}."""
        if self.evaluated[0] != step:
            self.moved(f"evaluating at step {step}", timed=False)
            means = self.judge(program, state.params, self.run.training.evaluation_batches)
            values = {f"eval/{name}": value for name, value in means.items()}
            if self.speaks and values:
                self.file.write(step, values)
                self.terminal.say(f"eval at step {step}  " + "  ".join(f"{name} {means[name]:.4f}" for name in means))
            self.evaluated = (step, values)
            self._judge(step)
        return self.evaluated[1]

    def _judge(self, step: int) -> None:
        """Notes the best score so far and how many evaluations have come after it."""
        score = checkpoints.score(self.run.checkpoint.best, self.evaluated[1])
        if score is None:
            return
        best, since = self.record or (math.inf, 0)
        self.record = (score, 0) if score < best else (best, since + 1)
        if self.exhausted and self.speaks:
            self.terminal.say(
                f"stopped    {self.run.checkpoint.best.removeprefix('-')} has not been better than {abs(best):.4f} for "
                f"{self.record[1]} evaluations"
            )

    def save(self, state: State, step: int) -> None:
        """Begins a checkpoint of this step."""
        if self.speaks:
            self.file.flush()  # what was logged up to this step is not written again by a run that goes on from it
        self.moved(f"saving at step {step}")
        metrics = self.evaluated[1] if self.evaluated[0] == step else {}
        description = Description(
            self.run, step, self.tokenizer, self.source.fingerprint, metrics, self.window, self.record
        )
        self.keeper.save(state, description)
        self.saved_at = time.monotonic()

    def _profile(self, step: int, state: State | None = None) -> None:
        """Begins the profile before its first step; ends it when the last one, whose state is given, is computed."""
        steps = self.run.training.profile_steps
        if self.speaks and steps and state is None and step == max(steps[0], self.first + 1) and step <= steps[-1]:
            jax.profiler.start_trace(str(self.file.folder / "profile"))
            self.profiling = True
        if self.profiling and state is not None and step in (steps[-1], self.run.training.steps):
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self.profiling = False
