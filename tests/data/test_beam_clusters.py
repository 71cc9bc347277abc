"""Apache Beam on clusters of this machine: a master of Spark and a scheduler of Dask, each with two workers.

    pytest -m slow tests/data/test_beam_clusters.py

The environment is that of constraints/beam.txt with `pip install dask distributed pyspark==3.5.5` and
`pip install --no-deps beam-pyspark-runner==0.0.3`. Spark needs Java. Beam's own FlinkRunner and SparkRunner start a
server that is no Python package, so Spark is reached by the runner of another author.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plmjax.data import store, tokenizers
from plmjax.data.preparation import files
from tests.data.random_texts import CLEAN, document

pytestmark = pytest.mark.slow  # a cluster takes some ten seconds to start

ROOT = Path(__file__).parents[2]


def absent(*modules: str) -> bool:
    """Return True if one of the modules is not installed."""
    return any(importlib.util.find_spec(module) is None for module in ("apache_beam", *modules))


needs_dask = pytest.mark.skipif(absent("dask", "distributed"), reason="needs apache-beam, dask and distributed")
needs_spark = pytest.mark.skipif(
    absent("pyspark", "beam_pyspark_runner") or shutil.which("java") is None,
    reason="needs apache-beam, pyspark, beam-pyspark-runner and Java",
)


UNIT_BYTES = 6000
PROGRAM = f"""
from plmjax.commands import cli
from plmjax.data.preparation import conversion, run
run.UNIT_BYTES, run.SIZES = {UNIT_BYTES}, conversion.Sizes(compared_keys=200)
cli.main()
"""
"""A command that cuts a small text into many units, and their keys into many parts."""


class Cluster:
    """The processes of a cluster, and the options of the command that send work to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers, self.options, self._started = folder, [], [], []
        self.environment = dict(os.environ, PYTHONPATH=str(ROOT))

    def start(self, command: list[str], ready: str) -> subprocess.Popen:
        """Start a process and wait until its log has the text `ready`."""
        log = self.folder / f"{len(self._started)}.log"
        with log.open("w") as output:
            where = {"env": self.environment, "cwd": self.folder, "start_new_session": True}
            process = subprocess.Popen(command, stdout=output, stderr=output, **where)
        self._started.append(process)
        for _ in range(600):
            if ready in log.read_text():
                return process
            time.sleep(0.1)
        raise AssertionError(f"{command} is not ready:\n{log.read_text()}")

    def stop(self) -> None:
        for process in self._started:
            kill(process)

    def command(self, *words: object, options: list[str] | None = None) -> subprocess.Popen:
        """Start a command that works in units of UNIT_BYTES, on the cluster or with other options."""
        command = [sys.executable, "-c", PROGRAM, *map(str, words), *(self.options if options is None else options)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, env=self.environment, **pipes)


def kill(process: subprocess.Popen) -> None:
    """Kill a process and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start_dask(cluster: Cluster) -> None:
    """A scheduler and two workers of Dask."""
    python, port = [sys.executable, "-m"], free_port()
    scheduler = [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    worker = [*python, "distributed.cli.dask_worker", f"127.0.0.1:{port}", "--nthreads", "1", "--no-dashboard"]
    cluster.start(scheduler, "Scheduler at")
    cluster.workers = [cluster.start(worker, "Registered to") for _ in range(2)]
    runner = "apache_beam.runners.dask.dask_runner.DaskRunner"
    cluster.options = ["--runner", runner, "--runner_options", f"dask_client_address=127.0.0.1:{port}"]


def start_spark(cluster: Cluster) -> None:
    """Start a master and two workers of Spark."""
    home = Path(importlib.util.find_spec("pyspark").origin).parent
    cluster.environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    port, web = free_port(), ["--webui-port", "0"]
    spark, address = [f"{home}/bin/spark-class"], f"spark://127.0.0.1:{port}"
    master = [*spark, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port, *web]
    worker = [*spark, "org.apache.spark.deploy.worker.Worker", address, "--cores", "1", "--memory", "1g", *web]
    cluster.start(master, "I have been elected leader")
    cluster.workers = [
        cluster.start([*worker, "--work-dir", str(cluster.folder)], "Successfully registered with master")
        for _ in range(2)
    ]
    cluster.environment["PYSPARK_SUBMIT_ARGS"] = f"--master {address} pyspark-shell"
    cluster.options = ["--runner", "beam_pyspark_runner.pyspark_runner.PySparkRunner"]


STARTS = [
    pytest.param(start_dask, id="dask", marks=needs_dask),
    pytest.param(start_spark, id="spark", marks=needs_spark),
]


@pytest.fixture(scope="module", params=STARTS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster. The last test kills one of its workers."""
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        request.param(started)
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizers.train("word", 200, [document(seed) for seed in range(40)], folder)
    return folder


def printed(process: subprocess.Popen, code: int = 0) -> str:
    """Return the output of a command, which is to end with the exit code."""
    text = "".join(process.communicate(timeout=300))
    assert process.returncode == code, text
    return text


def manifest(folder: Path) -> dict:
    return json.loads((folder / store.MANIFEST).read_text())


ONE = ["--processes", "1"]


def test_the_dataset_is_that_of_one_process(cluster, tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(document(seed % 50) for seed in range(90)))
    words = ["prepare", "--input", tmp_path / "a.txt", "--tokenizer", tokenizer, "--clean", *CLEAN]
    printed(cluster.command(*words, "--output", tmp_path / "out"))
    printed(cluster.command(*words, "--output", tmp_path / "one", options=ONE))
    assert manifest(tmp_path / "out") == manifest(tmp_path / "one")
    assert len(manifest(tmp_path / "out")["splits"]["train"]["shards"]) > 4
    assert not (tmp_path / "out" / files.FOLDER).exists()


def test_an_error_of_a_task_is_its_sentence(cluster, tokenizer, tmp_path):
    lines = [json.dumps({"text": document(seed)}) for seed in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"txet": 1}', *lines]))
    words = ["prepare", "--input", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--output", tmp_path / "out"]
    text = printed(cluster.command(*words), code=2)
    assert re.search(r"a.jsonl \(from byte [\d,]+\) line \d, found the keys txet", text)


def test_a_killed_worker_changes_nothing(cluster, tokenizer, tmp_path):
    """The last test: a worker is missing after it."""
    (tmp_path / "a.txt").write_text("\n\n".join(document(seed) for seed in range(3000)))
    words = ["prepare", "--input", tmp_path / "a.txt", "--tokenizer", tokenizer]
    process = cluster.command(*words, "--output", tmp_path / "out")
    written = f"{files.FOLDER}/*/{files.WRITTEN}"
    while not (finished := len(list((tmp_path / "out").glob(written)))) and process.poll() is None:
        time.sleep(0.01)
    kill(cluster.workers[0])
    printed(process)
    printed(cluster.command(*words, "--output", tmp_path / "one", options=ONE))
    assert manifest(tmp_path / "out") == manifest(tmp_path / "one")
    assert 0 < finished < (tmp_path / "a.txt").stat().st_size / UNIT_BYTES / 2
