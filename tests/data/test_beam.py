"""Apache Beam: the dataset of processes, byte for byte; errors as one sentence.

The library has an environment of its own (constraints/beam.txt). Elsewhere a stand-in shows what it is asked for.
"""

import functools
import importlib
import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from plmjax.commands import cli
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import cooccurrence, store
from plmjax.data.preparation import files, prepare, run
from plmjax.errors import UserError
from tests.data import corpora
from tests.data.mistakes import refused
from tests.data.random_texts import CLEAN, document

needs_beam = pytest.mark.skipif(
    importlib.util.find_spec("apache_beam") is None,
    reason="apache-beam wants an older protobuf: pip install '.[beam]' -c constraints/beam.txt",
)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Documents in several units."""
    monkeypatch.setattr(run, "UNIT_BYTES", 6000)
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(document(seed % 50) for seed in range(90)))
    return path


@pytest.fixture(scope="module")
def job_service():
    """Beam's own server of jobs, which runs pipelines as the servers of Flink and Spark do. Return its address."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            time.sleep(0.1)
            with socket.socket() as client:
                if client.connect_ex(("localhost", port)) == 0:
                    break
        yield f"localhost:{port}"
    finally:
        process.kill()
        process.wait()


def manifest(folder):
    return json.loads((folder / store.MANIFEST).read_text())


@needs_beam
@pytest.mark.parametrize("clean", [(), CLEAN])
def test_the_dataset_is_that_of_processes(corpus, tokenizer, tmp_path, clean):
    for name, how in (("processes", {"processes": 1}), ("beam", {"runner": "DirectRunner"})):
        prepare([corpus], "auto", tokenizer, tmp_path / name, clean=clean, progress=False, **how)
    assert manifest(tmp_path / "beam") == manifest(tmp_path / "processes")
    assert len(manifest(tmp_path / "beam")["splits"]["train"]["shards"]) > 4
    assert not (tmp_path / "beam" / files.FOLDER).exists()


@needs_beam
def test_a_job_server_gives_the_same_dataset(corpus, tokenizer, tmp_path, job_service):
    """The portable path: the pipeline is sent to a server, and its tasks run in another process."""
    prepare([corpus], "auto", tokenizer, tmp_path / "processes", processes=1, progress=False)
    options = [f"job_endpoint={job_service}", "environment_type=LOOPBACK"]
    how = {"runner": "PortableRunner", "runner_options": options, "progress": False}
    prepare([corpus], "auto", tokenizer, tmp_path / "beam", **how)
    assert manifest(tmp_path / "beam") == manifest(tmp_path / "processes")


@needs_beam
def test_cooccurrences_are_those_of_processes(tmp_path):
    texts = corpora.documents(30, 60, sentences=6, words=30)
    dataset = corpora.write(tmp_path / "set", texts, corpora.documents(2, 60, seed=1), vocab_size=60)
    special = Vocabulary.placeholder(60).special
    found = []
    for name, how in (("processes", {"processes": 1}), ("beam", {"runner": "DirectRunner"})):
        cooccurrence.count(dataset, special, tmp_path / name, report=lambda line: None, **how)
        found.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.is_file()})
    assert found[0] == found[1] and len(found[0]) > 1


@needs_beam
def test_an_error_of_a_task_is_its_sentence(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "UNIT_BYTES", 2000)
    lines = [json.dumps({"text": document(seed)}) for seed in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"txet": 1}', *lines]))
    output, settings = tmp_path / "out", {"runner": "DirectRunner", "progress": False}
    refused(
        lambda: prepare([tmp_path / "a.jsonl"], "auto", tokenizer, output, **settings), "(from byte .. line .. txet"
    )
    # What was finished is kept, and the error is not.
    assert len(list((tmp_path / "out").glob(f"units/*/{files.WRITTEN}"))) > 10
    assert not (tmp_path / "out" / "failures").exists()


def test_contradictions_and_an_absent_library(corpus, tokenizer, tmp_path, monkeypatch):
    command = ["prepare", "--input", str(corpus), "--tokenizer", str(tmp_path), "--output", str(tmp_path / "out")]
    refused(
        lambda: cli.run([*command, "--runner", "DirectRunner", "--processes", "2"]), "--processes .. --runner .. both"
    )
    refused(lambda: cli.run([*command, "--runner_options", "parallelism=2"]), "--runner with --runner_options .. none")
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "plmjax.data.beam", raising=False)
    settings = {"runner": "FlinkRunner"}
    for count in (
        lambda: prepare([corpus], "auto", tokenizer, tmp_path / "out", **settings),
        lambda: cooccurrence.count(
            corpora.write(tmp_path / "set", [[[7, 8]] * 9], [], vocab_size=60), (0,), tmp_path / "a", **settings
        ),
    ):
        refused(count, "Apache Beam for --runner .. not installed; pip install")


class Step:
    """A transform: a function of the values before it."""

    def __init__(self, apply: Callable[[Any], Any]) -> None:
        self.apply = apply

    def __rrshift__(self, label: str) -> "Step":
        return self


class Pipeline:
    """Works on everything at once, in the reverse order of its creation; `failure` is raised at its end."""

    failure: ClassVar[Exception | None] = None

    def __init__(self, options: Any, values: Any = None) -> None:
        self.values = values
        Pipeline.options = options

    def __or__(self, step: Step) -> "Pipeline":
        return Pipeline(self.options, step.apply(self.values))

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


def test_every_task_is_done_and_the_sentence_of_the_first_that_fails_reaches_the_user(beam, tmp_path: Path) -> None:
    sums: list[int] = []
    (tmp_path / beam.FAILURES).mkdir()
    (tmp_path / beam.FAILURES / "000000001.txt").write_text("of an earlier attempt")
    with beam.Beam("DirectRunner", ["parallelism=a=b", "switch"], Adder, 100, sums, output=tmp_path) as workers:
        assert list(workers.results(Adder.add, [(1, 2), (3, 4), (5, 6)])) == [None] * 3
        assert sorted(sums) == [103, 107, 111] and not (tmp_path / beam.FAILURES).exists()
        tasks = [(1, 1), (-1, 0), (-2, 0), (2, 2)]
        refused(lambda: workers.results(Adder.add, tasks), "no negative number, found -1; \udcff change it")
    assert sorted(sums) == [102, 103, 104, 107, 111] and not (tmp_path / beam.FAILURES).exists()
    assert Pipeline.options.flags == ["--runner=DirectRunner", "--parallelism=a=b", "--switch"]


def test_a_runner_that_fails_says_why_without_the_lines_of_its_stack(beam: ModuleType, tmp_path, monkeypatch) -> None:
    reason = "java.lang.OutOfMemoryError: no heap " + "x" * 400
    monkeypatch.setattr(Pipeline, "failure", RuntimeError(f"the job ended\n{reason}\n\tat org.apache.beam\n  at java"))
    workers = beam.Beam("DirectRunner", (), Adder, 1, [], output=tmp_path)
    said = refused(lambda: workers.results(Adder.add, [(1, 2)]), "runner of Apache Beam .. java.lang.Out")
    assert 200 < said.count("x") < 280 and "\tat" not in said


def test_runners_and_options_are_checked_before_any_work(beam: ModuleType, tmp_path: Path) -> None:
    for runner, options in (("apache_beam.mine.Mine", ()), ("FlinkRunner", ("flink_master=localhost:8081",))):
        beam.Beam(runner, options, Adder, 1, [], output=tmp_path)
    for runner, options, parts in (
        ("FlinkRuner", (), "'FlinkRuner' .. did you mean 'FlinkRunner'"),
        ("TestFlinkRunner", (), "'TestFlinkRunner'"),
        ("apache_beam.mine.Other", (), "not a runner"),
        ("apache_beam.absent.Mine", (), "apache_beam.absent"),
        ("DirectRunner", ("paralelism=2",), "DirectRunner .. 'paralelism' .. did you mean"),
        ("DirectRunner", ("--parallelism=2",), "NAME=VALUE, or NAME for a switch .. '--parallelism=2'"),
    ):
        refused(functools.partial(beam.Beam, runner, options, Adder, 1, [], output=tmp_path), parts)


@needs_beam
def test_the_library_itself_knows_its_runners_and_options(corpus, tokenizer, tmp_path):
    for runner, options, parts in (
        ("FlinkRuner", (), "'FlinkRuner' .. did you mean 'FlinkRunner'"),
        ("pathlib.Path", (), "'pathlib.Path' .. not a runner"),
        ("DirectRunner", ("direct_num_worker=2",), "did you mean 'direct_num_workers'"),
    ):
        how = {"runner": runner, "runner_options": options}
        refused(lambda how=how: prepare([corpus], "auto", tokenizer, tmp_path / "out", **how), parts)
