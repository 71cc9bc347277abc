"""The startup script as a host of the slice gets it, run for real: two hosts as processes, one of which dies.

Only what this machine cannot have is replaced, by the script's own settings for rehearsals: the environment takes its
libraries from this interpreter instead of the package registry (PLMJAX_INSTALL), the hosts find each other by JAX's own
variables instead of the slice's metadata, and Cloud TPU and Cloud Storage are servers of this machine.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from plmjax.files import storage
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints
from tests.object_store import ObjectStore
from tests.small_runs import SMALL_BERT
from tests.tpu.service import CloudTpu
from tests.xla_flags import cpu_flags
from tpu import job as jobs
from tpu import package
from tpu.bucket import Bucket

BUCKET = "gs://my-bucket"
DYING = '''
"""bert_tiny, of which one host dies once, after the second checkpoint."""

import os
import pathlib
import signal

from experiments.bert_tiny import experiment
from plmjax.training.checkpoints.checkpoints import Checkpoints

save, died, saved = Checkpoints.save, pathlib.Path(os.environ.get("DIED", "")), []


def save_and_die(self, *arguments):
    save(self, *arguments)
    saved.append(arguments)
    if os.environ.get("JAX_PROCESS_ID") == "1" and len(saved) == 2 and not died.exists():
        self.wait()
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if "DIED" in os.environ:
    Checkpoints.save = save_and_die
'''

INSTALL = """#!/usr/bin/env bash
# What pip does where there is a registry: first the libraries, then the project itself.
set -eu
echo {libraries} >"$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/libraries.pth"
"$1" -m pip install --quiet --no-index --no-deps --no-build-isolation .
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project as it is packed, with an experiment that dies."""
    root = tmp_path / "project"
    for name in package.select(package.ROOT).names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package.ROOT / name, root / name)
    (root / "experiments" / "dying.py").write_text(DYING)
    monkeypatch.setattr(package, "ROOT", root)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def store():
    with ObjectStore() as running, running.environment():
        running.create("my-bucket")
        yield running


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a host: nothing of this process but the path, and what the rehearsal replaces."""
    install = home.parent / "install"
    install.write_text(INSTALL.format(libraries=sysconfig.get_path("purelib")))
    install.chmod(0o755)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PLMJAX_HOME": str(home / "plmjax"),
        "PLMJAX_PYTHON": sys.executable,
        "PLMJAX_VENV": "--without-pip",
        "PLMJAX_INSTALL": str(install),
        "PLMJAX_WORK": "--every 0.2 --patience 60",
        "PLMJAX_WAIT": "0",
        "PLMJAX_PATIENCE": "0",
        "PLMJAX_SYSTEMD": str(home / "no systemd"),
        "PLMJAX_HUGE_PAGES": str(home / "no huge pages"),
        "TPU_SKIP_MDS_QUERY": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": cpu_flags(1),
        **{name: os.environ[name] for name in ("TPU_API_ENDPOINT",) if name in os.environ},
        **more,
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def submitted(tpu, cloud: CloudTpu, bucket: Path | str, *arguments: object) -> str:
    """The startup script of a job of two hosts, as the service was given it."""
    code, _, said = tpu(
        "submit", "experiments/dying.py", "--project", "p", "--zone", "us-west4-a", "--accelerator", "v4",
        "--topology", "2x2x2", "--bucket", bucket, "--name", "dying", "--detach", "--", *arguments,
    )  # fmt: skip
    assert code == 0, said
    (request,) = cloud.called("CreateQueuedResource")
    return request.queued_resource.tpu.node_spec[0].node.metadata["startup-script"]


@pytest.mark.slow  # two hosts start JAX twice each: three quarters of a minute
def test_two_hosts_train_to_the_end_though_one_is_killed(
    tpu, cloud: CloudTpu, store: ObjectStore, project: Path, small_run: Path, tmp_path: Path
) -> None:
    for file in (file for file in (small_run / "dataset").rglob("*") if file.is_file()):
        store.put("my-bucket", f"data/{file.relative_to(small_run / 'dataset').as_posix()}", file.read_bytes())
    overrides = [*SMALL_BERT, "--training.steps", 6, "--checkpoint.every", 2, "--data.path", f"{BUCKET}/data"]
    script = submitted(tpu, cloud, BUCKET, *overrides)
    address = f"127.0.0.1:{free_port()}"
    hosts = []
    for index in range(2):
        home = tmp_path / f"host{index}"
        home.mkdir()
        told = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(index)}
        settings = environment(home, DIED=str(tmp_path / "died"), **told, **store.variables())
        hosts.append(subprocess.Popen(["bash", "-c", script], cwd=home, env=settings, start_new_session=True))
    try:
        codes = [host.wait(timeout=400) for host in hosts]
    finally:
        for host in hosts:
            if host.poll() is None:
                os.killpg(host.pid, signal.SIGKILL)
    logs = [tpu("logs", "dying", "--bucket", BUCKET, "--worker", index)[1] for index in range(2)]
    assert codes == [0, 0], "\n".join(logs)
    job = jobs.find(BUCKET, "dying")
    assert jobs.verdict(job) == jobs.Verdict("done")
    assert (tmp_path / "died").exists()
    for log in logs:
        assert log.count("installed\n") == 1 and "starting it again" in log
        assert log.rstrip().endswith("job done")
    assert re.search(r"newest checkpoint [24]", logs[1])
    workdir = storage.path(f"{BUCKET}/runs/dying")
    steps = [line["step"] for line in metrics.read(workdir / "metrics.jsonl")]
    assert steps[-1] == 6 and checkpoints.find(workdir).name == "6"
    assert Bucket(BUCKET).names("compilation")
    assert Bucket(BUCKET).names("jobs/dying/1/workers") == ["0.json", "1.json"]
    assert len(cloud.called("DeleteQueuedResource")) == 1
    installed = list((tmp_path / "host1" / "plmjax").glob("*.venv/lib/*/site-packages/plmjax/commands/cli.py"))
    assert len(installed) == 1


@pytest.mark.nightly
def test_a_mistake_ends_the_job_with_its_sentence(
    tpu, cloud: CloudTpu, bucket: Path, project: Path, tmp_path: Path
) -> None:
    script = submitted(tpu, cloud, bucket, "--data.path", tmp_path / "nowhere")
    home = tmp_path / "host"
    home.mkdir()
    settings = environment(home, TPU_WORKER_ID="0", PLMJAX_WORK="--every 0.2 --patience 0")
    assert subprocess.run(["bash", "-c", script], cwd=home, env=settings, timeout=300).returncode == 2
    ended = jobs.verdict(jobs.find(str(bucket), "dying"))
    log = tpu("logs", "dying")[1]
    assert ended.state == "failed" and ended.reason.startswith("plmjax: Expected") and "nowhere" in ended.reason, log
    assert log.count("installed\n") == 1 and ended.reason in log and "starting it again" not in log
    assert len(cloud.called("DeleteQueuedResource")) == 1
    (installed,) = (home / "plmjax").glob("*.venv/lib/*/site-packages/plmjax/commands/cli.py")
    # The machine starts again: its environment is there, and the job has ended.
    installed.touch()
    before = installed.stat().st_mtime_ns
    assert subprocess.run(["bash", "-c", script], cwd=home, env=settings, timeout=300).returncode == 2
    assert installed.stat().st_mtime_ns == before and len(tpu("logs", "dying")[1]) > len(log)
