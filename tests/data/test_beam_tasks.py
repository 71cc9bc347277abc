"""Tasks on a runner of Apache Beam, with a stand-in for the library: what it is asked for, and what it may answer."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from plmjax.errors import UserError
from tests.data.mistakes import refused


class Step:
    """A transform: a function of the values before it."""

    def __init__(self, apply: Callable[[Any], Any]) -> None:
        self.apply = apply

    def __rrshift__(self, label: str) -> "Step":
        return self


class Values:
    def __init__(self, values: Any) -> None:
        self.values = values

    def __or__(self, step: Step) -> "Values":
        return Values(step.apply(self.values))


class Pipeline(Values):
    """Works on everything at once, in the reverse order of its creation; `failure` is raised at its end."""

    options: ClassVar[list[Any]] = []
    failure: ClassVar[Exception | None] = None

    def __init__(self, options: Any) -> None:
        super().__init__(None)
        self.options.append(options)

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *error: object) -> None:
        if self.failure is not None:
            raise self.failure


class Options:
    """Flags; `parallelism` and `switch` are known."""

    def __init__(self, flags: list[str]) -> None:
        self.flags = flags

    def get_all_options(self, retain_unknown_options: bool = False) -> dict[str, Any]:
        given = {flag.removeprefix("--").partition("=")[0]: "" for flag in self.flags}
        return dict.fromkeys(("runner", "parallelism", "switch"), "") | (given if retain_unknown_options else {})


def worked(function: Any) -> Step:
    def apply(groups: list[tuple]) -> None:
        function.setup()
        for group in reversed(groups):
            function.process(group)

    return Step(apply)


@pytest.fixture
def beam(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, with the stand-in."""
    names = ["DirectRunner", "FlinkRunner", "TestFlinkRunner"]
    runner = type("PipelineRunner", (), {})
    library = {
        "": {
            "Pipeline": Pipeline, "DoFn": object, "ParDo": worked, "Create": lambda every: Step(lambda _: list(every)),
            "GroupByKey": lambda: Step(lambda pairs: [(key, [value]) for key, value in pairs]),
        },
        ".options": {},
        ".options.pipeline_options": {
            "PipelineOptions": Options, "StandardOptions": SimpleNamespace(KNOWN_RUNNER_NAMES=names)
        },
        ".runners": {},
        ".runners.runner": {"PipelineRunner": runner},
        ".mine": {"Mine": type("Mine", (runner,), {}), "Other": int},
    }  # fmt: skip
    for name, contents in library.items():
        module = ModuleType(f"apache_beam{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Pipeline, "options", [])
    monkeypatch.setattr(Pipeline, "failure", None)
    monkeypatch.setitem(sys.modules, "plmjax.data.beam", ModuleType("another"))
    del sys.modules["plmjax.data.beam"]
    yield importlib.import_module("plmjax.data.beam")


class Adder:
    """Writes the sums of its number and those of tasks; negative ones are a user's mistake."""

    def __init__(self, number: int, sums: list[int]) -> None:
        self.number, self.sums = number, sums

    def add(self, first: int, second: int) -> None:
        if first < 0:
            raise UserError(f"Expected no negative number, found {first}; \udcff change it.")
        self.sums.append(self.number + first + second)


def test_every_task_is_done_by_an_object_of_the_arguments(beam: ModuleType, tmp_path: Path) -> None:
    sums: list[int] = []
    (tmp_path / beam.FAILURES).mkdir()
    (tmp_path / beam.FAILURES / "000000001.txt").write_text("of an earlier attempt")
    options = ["parallelism=a=b", "switch"]
    with beam.Beam("DirectRunner", options, Adder, 100, sums, output=tmp_path) as workers:
        assert list(workers.results(Adder.add, [(1, 2), (3, 4), (5, 6)])) == [None] * 3
    assert sorted(sums) == [103, 107, 111] and not (tmp_path / beam.FAILURES).exists()
    (given,) = Pipeline.options
    assert given.flags == ["--runner=DirectRunner", "--parallelism=a=b", "--switch"]


def test_the_sentence_of_the_first_task_that_fails_reaches_the_user(beam: ModuleType, tmp_path: Path) -> None:
    sums: list[int] = []
    workers = beam.Beam("DirectRunner", (), Adder, 100, sums, output=tmp_path)
    tasks = [(1, 2), (-1, 0), (-2, 0), (3, 4)]
    refused(lambda: workers.results(Adder.add, tasks), "no negative number, found -1; \udcff change it")
    assert sorted(sums) == [103, 107] and not (tmp_path / beam.FAILURES).exists()


def test_a_runner_that_fails_says_why_without_the_lines_of_its_stack(beam: ModuleType, tmp_path, monkeypatch) -> None:
    reason = "java.lang.OutOfMemoryError: no heap " + "x" * 400
    monkeypatch.setattr(Pipeline, "failure", RuntimeError(f"the job ended\n{reason}\n\tat org.apache.beam\n  at java"))
    workers = beam.Beam("DirectRunner", (), Adder, 1, [], output=tmp_path)
    said = refused(lambda: workers.results(Adder.add, [(1, 2)]), "runner of Apache Beam .. java.lang.Out")
    assert 200 < said.count("x") < 280 and "\tat" not in said


RUNNERS = [
    ("FlinkRuner", (), "'FlinkRuner' .. did you mean 'FlinkRunner'"),
    ("TestFlinkRunner", (), "'TestFlinkRunner'"),
    ("apache_beam.mine.Mine", (), ""),
    ("apache_beam.mine.Other", (), "not a runner"),
    ("apache_beam.mine.Absent", (), "Absent"),
    ("apache_beam.absent.Mine", (), "apache_beam.absent"),
    ("DirectRunner", ("paralelism=2",), "DirectRunner .. 'paralelism' .. did you mean"),
    ("DirectRunner", ("--parallelism=2",), "NAME=VALUE, or NAME for a switch .. '--parallelism=2'"),
    ("FlinkRunner", ("flink_master=localhost:8081",), ""),
    ("apache_beam.mine.Mine", ("paralelism=2",), "apache_beam.mine.Mine"),
]


@pytest.mark.parametrize(("runner", "options", "parts"), RUNNERS, ids=[" ".join((row[0], *row[1])) for row in RUNNERS])
def test_runners_and_options_are_checked_before_any_work(beam, tmp_path, runner: str, options, parts: str) -> None:
    if parts:
        refused(lambda: beam.Beam(runner, options, Adder, 1, [], output=tmp_path), parts)
    else:
        beam.Beam(runner, options, Adder, 1, [], output=tmp_path)
