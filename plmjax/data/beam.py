"""Parallel tasks on a runner of Apache Beam, such as a cluster. It replaces `Workers`.

Every machine of the cluster must reach the paths of the input and of the output, in a bucket or a shared folder.
"""

import importlib
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from plmjax.errors import UserError, nearest, quoted
from plmjax.files import storage

logging.disable(logging.WARNING)  # Beam names each client of a cloud service that is not installed.
try:
    import apache_beam
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.runners.runner import PipelineRunner
except ImportError:
    raise UserError(
        "Expected Apache Beam for --runner, found it not installed; pip install 'plmjax[beam]' -c "
        "constraints/beam.txt, or leave the option out to use the processes of this machine."
    ) from None
finally:
    logging.disable(logging.NOTSET)

FAILURES = "failures"
"""Folder in the output folder, with the errors of tasks."""
DESCRIBED_ELSEWHERE = ("FlinkRunner", "SparkRunner", "PortableRunner", "PrismRunner")
"""Runners whose server has further options, so that unknown options are not refused."""


class Beam:
    """Tasks on a runner of Beam, with the interface of `Workers`.

    make, arguments: every process creates the object `make(*arguments)`.
    output: folder that the tasks write to. Errors of tasks are passed through it.
    """

    def __init__(self, runner: str, options: Sequence[str], make: Callable, *arguments: Any, output: Path) -> None:
        self._options = _parse_options(runner, options)
        self._make, self._arguments, self._output = make, arguments, output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: a pipeline ends with its tasks."""

    def results(self, function: Callable, tasks: Iterable[tuple]) -> Iterator[None]:
        """Call function(object, *task) for every task. Yield None for each when all are done.

        Raises:
            UserError: a task raised it; or the runner failed.
        """
        every = list(enumerate(tasks))
        failures = self._output / FAILURES
        storage.remove(failures)
        logging.getLogger("apache_beam").setLevel(logging.ERROR)
        try:
            with apache_beam.Pipeline(options=self._options) as pipeline:
                # Groups of one task each: elements that are created together would all go to one process.
                groups = pipeline | "tasks" >> apache_beam.Create(every) | "spread" >> apache_beam.GroupByKey()
                _ = groups | "work" >> apache_beam.ParDo(_Task(function, self._make, self._arguments, failures))
        except Exception as error:  # each runner has its own
            lines = traceback.format_exception_only(error)[-1].strip().splitlines()
            reason = next(line for line in reversed(lines) if not line[:1].isspace())[
                :300
            ]  # no line of a Java stack trace
            raise UserError(
                f"Expected the runner of Apache Beam to finish, found that it failed ({reason}); see its log. Run the "
                "command again to continue: what is finished is kept."
            ) from error
        if failures.is_dir() and (found := sorted(storage.files(failures))):
            text = storage.contents(failures / found[0]).decode("utf-8", "surrogatepass")
            storage.remove(failures)
            raise UserError(text)
        yield from (None for _ in every)


class _Task(apache_beam.DoFn):
    """Calls a function on an object that every process creates once."""

    def __init__(self, function: Callable, make: Callable, arguments: tuple, failures: Path) -> None:
        self._function, self._make, self._arguments, self._failures = function, make, arguments, failures
        self._own = None

    def setup(self) -> None:
        self._own = self._make(*self._arguments)

    def process(self, group: tuple[int, Iterable[tuple]]) -> None:
        """Do one task. Write the message of a UserError to a file for the process that started the pipeline."""
        number, (task,) = group
        try:
            self._function(self._own, *task)
        except UserError as error:
            if not storage.in_bucket(self._failures):
                self._failures.mkdir(exist_ok=True)
            storage.write(self._failures / f"{number:09d}.txt", str(error).encode("utf-8", "surrogatepass"))


def _check_class(runner: str) -> None:
    """Import the class of a runner that Beam does not know by name, so that Beam knows its options.

    Raises:
        UserError: there is no such module or class, or the class is not a runner.
    """
    module, _, name = runner.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
        reason = "" if isinstance(found, type) and issubclass(found, PipelineRunner) else "not a runner"
    except (ImportError, AttributeError, ValueError) as error:
        reason = str(error)
    if reason:
        raise UserError(
            f"Expected the module and class of a runner of Apache Beam, found {quoted(runner)} ({reason}); install its "
            "package on every machine, and write for example apache_beam.runners.dask.dask_runner.DaskRunner."
        )


def _parse_options(runner: str, options: Sequence[str]) -> PipelineOptions:
    """Return Beam's options from a runner's name and options NAME=VALUE or NAME.

    Raises:
        UserError: a runner or an option that Beam does not know.
    """
    known = [name for name in StandardOptions.KNOWN_RUNNER_NAMES if not name.startswith("Test")]
    if "." in runner:
        _check_class(runner)
    elif runner not in known:
        raise UserError(
            f"Expected a runner of Apache Beam, or the module and class of another one, found {quoted(runner)}; "
            f"{nearest(runner, known)}"
        )
    flags = []
    for option in options:
        name, separator, value = option.partition("=")
        if not name.isidentifier():
            raise UserError(
                f"Expected --runner_options of the form NAME=VALUE, or NAME for a switch, found {quoted(option)}; "
                "write for example --runner_options flink_master=localhost:8081 parallelism=8."
            )
        flags.append(f"--{name}{separator}{value}")
    found = PipelineOptions([f"--runner={runner}", *flags])
    if runner not in DESCRIBED_ELSEWHERE:
        known = found.get_all_options()
        if unknown := sorted(found.get_all_options(retain_unknown_options=True).keys() - known.keys()):
            raise UserError(
                f"Expected options of Apache Beam's {runner} in --runner_options, found {quoted(unknown[0])}; "
                f"{nearest(unknown[0], known)}"
            )
    return found
