"""Apache Beam: the dataset of processes, byte for byte; errors as one sentence.

The library has an environment of its own (constraints/beam.txt).
"""

import importlib
import importlib.util
import json
import socket
import subprocess
import sys
import time

import pytest

from plmjax.commands import cli
from plmjax.contracts.vocabulary import Vocabulary
from plmjax.data import cooccurrence, store
from plmjax.data.preparation import files, prepare, run
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


@needs_beam
def test_the_library_itself_knows_its_runners_and_options(corpus, tokenizer, tmp_path):
    for runner, options, parts in (
        ("FlinkRuner", (), "'FlinkRuner' .. did you mean 'FlinkRunner'"),
        ("pathlib.Path", (), "'pathlib.Path' .. not a runner"),
        ("TestFlinkRunner", (), "'TestFlinkRunner'"),
        ("apache_beam.absent.Mine", (), "apache_beam.absent"),
        ("DirectRunner", ("direct_num_worker=2",), "did you mean 'direct_num_workers'"),
        ("DirectRunner", ("--direct_num_workers=2",), "NAME=VALUE, or NAME for a switch"),
    ):
        how = {"runner": runner, "runner_options": options}
        refused(lambda how=how: prepare([corpus], "auto", tokenizer, tmp_path / "out", **how), parts)
