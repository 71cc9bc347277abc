"""The output of a run: metrics.jsonl, TensorBoard, Weights & Biases and the terminal."""

import contextlib
import json
import math
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.files import json_text, storage
from plmjax.training import tracking


class MetricsFile:
    """WORKDIR/metrics.jsonl and WORKDIR/tensorboard, with one record per logged step, and the tracker of the run.

    A resumed run removes the lines after the restored step and writes them again.

    run: the experiment, whose `tracking` names the tracker.
    folder: local folder for the files of WORKDIR. Other files written there, such as a profile, appear in WORKDIR too.

    Raises:
        UserError: the tracker is not installed or cannot be reached.
    """

    def __init__(self, workdir: Path, step: int, run: Experiment | None = None) -> None:
        before = workdir / "metrics.jsonl"
        kept = [record for record in read(before) if record["step"] <= step] if before.exists() else []
        self._mirror = storage.Mirror(workdir)
        self.folder = self._mirror.folder
        path = self.folder / "metrics.jsonl"
        storage.write(path, "".join(to_line(record) for record in kept))
        self._file = path.open("a", encoding="utf-8")
        self._events = _Events(self.folder / "tensorboard", step)
        self._tracker = tracking.begin(run, workdir, self.folder) if run else None

    def write(self, step: int, values: dict[str, float]) -> None:
        """Append {"step", "time" (seconds since 1970), **values} and flush the file."""
        self._file.write(to_line({"step": step, "time": round(time.time(), 3), **values}))
        self._file.flush()
        self._events.write(step, values)
        if self._tracker:
            self._tracker.write(step, values)

    def flush(self) -> None:
        """Wait until every record is in WORKDIR.

        A run in a bucket that is killed before this may lose records.
        """
        self._mirror.flush()

    def close(self, succeeded: bool = True) -> None:
        """Close the files. `succeeded` is true if the run has ended; otherwise the tracker shows it as failed."""
        self._file.close()
        self._events.close()
        if self._tracker:
            self._tracker.close(succeeded)
        self._mirror.close(patient=succeeded)


def to_json(values: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a JSON object. A number that is not finite becomes null, since JSON has no such number."""
    return json.dumps(json_text.finite(values), indent=indent, allow_nan=False)


def write_evaluation(folder: Path, metrics: Mapping[str, Any], predictions: Mapping[str, str]) -> None:
    """Write evaluation.json, and the files of predictions: name -> contents."""
    for name, contents in predictions.items():
        storage.write(folder / name, contents)
    storage.write(folder / "evaluation.json", to_json(metrics, indent=2) + "\n")


CHECKSUM = "crc32"
"""Key of the checksum in a line of metrics.jsonl: CRC-32 of `to_json` of the record without this key."""


def to_line(record: dict[str, Any]) -> str:
    """Return a record as a line of metrics.jsonl, with its checksum."""
    return to_json(record | {CHECKSUM: zlib.crc32(to_json(record).encode())}) + "\n"


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a metrics.jsonl, each with its `step`.

    An incomplete last line, which a killed process leaves, is left out.

    Raises:
        UserError: the file is missing or is not UTF-8 text; a complete line is not a record; or a line differs from its
            checksum.
    """
    if not path.is_file():
        raise UserError(f"Expected the metrics of a run at {path}, found no such file; give the folder of a run.")
    records = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"Expected UTF-8 text in {path}, found {error.reason} at byte {error.start}; fix it.") from None
    for number, line in enumerate(lines, start=1):
        try:
            record = json_text.parse(line)
        except ValueError:
            if number < len(lines):
                raise UserError(
                    f"Expected JSON in line {number} of {path}, found none; fix or remove that line."
                ) from None
            continue
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            raise UserError(
                f"Expected a record with its step in line {number} of {path}, found another; remove that line."
            )
        if record.pop(CHECKSUM, None) != zlib.crc32(to_json(record).encode()):
            raise UserError(
                f"Expected line {number} of {path} as it was written, found another checksum; remove that line."
            )
        records.append(record)
    return records


class _Events:
    """A TensorBoard event file of this process, written by the tensorboard package if it is installed.

    step: records of earlier processes are kept up to this step.

    The records of the package are written to an ordinary Python file. Its EventFileWriter would open the file
    with TensorFlow, whose import takes longer than many runs on a CPU.
    """

    def __init__(self, directory: Path, step: int) -> None:
        try:
            from tensorboard.compat.proto import event_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            self._writer = None
        else:
            directory.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"  # read in the order of the names
            self._writer = RecordWriter((directory / name).open("xb"))
            self._add(file_version="brain.Event:2")
            # TensorBoard drops what an earlier process wrote from this step on.
            self._add(step=step + 1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def write(self, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            return
        from tensorboard.compat.proto import summary_pb2

        scalars = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step=step, summary=summary_pb2.Summary(value=scalars))

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto import event_pb2

        self._writer.write(event_pb2.Event(wall_time=time.time(), **fields).SerializeToString())
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def perplexity(loss: float) -> float:
    """Return exp(loss), or inf if it is too large for a float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def compact(value: float) -> str:
    """Return a short text for a column of a log: 42000 -> 42.0k, 0.00003 -> 3.0e-05, 2.34567 -> 2.346."""
    if not math.isfinite(value):
        return str(value)
    for limit, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (limit if suffix != 'k' else 1e3):.1f}{suffix}"
    return f"{value:.1e}" if value and abs(value) < 1e-3 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return seconds as text: 12 s, 3:04 min or 5:06 h."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes = seconds // 60
    return f"{minutes}:{seconds % 60:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


QUIET_SECONDS = 10.0
"""Maximum seconds without a new line in a log, or without new metrics under the bar of a terminal."""


@contextlib.contextmanager
def announced(activity: str) -> Iterator[None]:
    """Show an activity and its duration on standard error: a clock on a terminal, a line per minute in a log.

    A log gets its first line after QUIET_SECONDS, and no line if the activity ends earlier.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            progress.add_task(activity, total=None)
            yield
        return
    since, closed = time.monotonic(), threading.Event()

    def remind() -> None:
        pause = QUIET_SECONDS
        while not closed.wait(pause):
            pause = 6 * QUIET_SECONDS
            print(f"{activity}, {duration(time.monotonic() - since)} so far", file=sys.stderr, flush=True)

    thread = threading.Thread(target=remind, name="announced", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


class Terminal:
    """The terminal output of a run: its header, then a progress bar with the last metrics, or lines in a log file."""

    def __init__(self, steps: int, step: int) -> None:
        self._bar = None
        self._steps = steps
        self._shown = -math.inf  # the first step is shown at once
        if sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
            from rich.text import Text

            class Bar(Progress):
                """A progress bar with the metrics on a second line, because they do not fit beside the bar."""

                def get_renderables(self) -> Iterator[Any]:
                    yield from super().get_renderables()
                    yield Text(self.tasks[0].description if self.tasks else "")

            self._bar = Bar("step", MofNCompleteColumn(), BarColumn(None), TimeElapsedColumn(), expand=True)
            self._task = self._bar.add_task("compiling", total=steps, completed=step)
            self._bar.start()
        self._doing, self._closed = ("starting", time.monotonic()), threading.Event()
        self._thread = threading.Thread(target=self._remind, name="terminal", daemon=True)
        self._thread.start()

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is None:
            print(text, flush=True)
        else:
            self._bar.console.print(text, highlight=False)

    def set_activity(self, activity: str) -> None:
        """Set the current activity, which is shown if it lasts longer than QUIET_SECONDS."""
        self._doing = (activity, time.monotonic())

    def show_logged(self, step: int, values: dict[str, float], eta: float) -> None:
        """Show a logged step: loss, accuracies, learning rate, tokens per second, MFU and time left."""
        line = "  ".join([f"loss {values['train/loss']:7.4f}", *_accuracies(values), _pace(values, eta)])
        self._show(step, line)
        if self._bar is not None:  # the line stays, above the bar
            self.print(self._numbered(step, line))

    def show_unlogged(self, step: int, metrics: Mapping[str, float], pace: tuple[float, float] | None) -> None:
        """Move the bar after a step that is not logged; show its loss after QUIET_SECONDS without a line.

        Args:
            metrics: metrics of the step; read only when the loss is shown.
            pace: tokens per second and seconds left, or None if not known yet.
        """
        if time.monotonic() - self._shown >= QUIET_SECONDS:
            known = f"  {compact(pace[0]):>7} tok/s  eta {duration(pace[1])}" if pace else ""
            self._show(step, f"loss {metrics['loss']:7.4f}{known}")
        elif self._bar is not None:
            self._bar.update(self._task, completed=step)

    def _remind(self) -> None:
        """Show activities that take long: compilation, the first batch of a large text, an evaluation."""
        reported = -math.inf
        while not self._closed.wait(QUIET_SECONDS / 10):
            (doing, since), now = self._doing, time.monotonic()
            if now - max(since, reported) < QUIET_SECONDS:
                continue
            reported, line = now, f"{doing}, {duration(now - since)} so far"
            if self._bar is None:
                print(line, flush=True)
            else:
                self._bar.update(self._task, description=line)

    def _show(self, step: int, line: str) -> None:
        self._shown = time.monotonic()
        if self._bar is None:
            print(self._numbered(step, line), flush=True)
        else:
            self._bar.update(self._task, completed=step, description=line)

    def _numbered(self, step: int, line: str) -> str:
        return f"step {step:>{len(str(self._steps))}}/{self._steps}  {line}"

    def close(self) -> None:
        """Stop the bar, and leave its last state on the screen."""
        self._closed.set()
        self._thread.join()
        if self._bar is not None:
            self._bar.stop()


def _accuracies(values: dict[str, float]) -> list[str]:
    named = {name.removeprefix("train/"): value for name, value in values.items() if name.endswith("accuracy")}
    return [f"{name.removesuffix('accuracy').replace('_', ' ')}acc {value:6.2%}" for name, value in named.items()]


def _pace(values: dict[str, float], eta: float) -> str:
    rate = compact(values["tokens_per_second"])
    return f"lr {values['learning_rate']:.2e}  {rate:>7} tok/s  mfu {values['mfu']:6.1%}  eta {duration(eta)}"
