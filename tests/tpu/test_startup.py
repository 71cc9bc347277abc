"""The startup script as a host of the slice gets it, run for real: two hosts as processes, one of which is killed.

Only what this machine cannot have is replaced, by the script's own settings for rehearsals: the environment takes its
libraries from this interpreter instead of the package registry (PLMJAX_INSTALL), the hosts find each other by JAX's own
variables instead of the slice's metadata, and Cloud TPU and Cloud Storage are servers of this machine.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from plmjax.files import storage
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints
from tests.object_store import ObjectStore
from tests.small_runs import SMALL_BERT
from tests.tpu.jobs import TINY
from tests.tpu.service import CloudTpu
from tests.xla_flags import cpu_flags
from tpu import job as jobs
from tpu.bucket import Bucket

BUCKET = "gs://my-bucket"
INSTALL = """#!/usr/bin/env bash
# What pip does where there is a registry: first the libraries, then the project itself.
set -eu
echo {libraries} >"$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/libraries.pth"
"$1" -m pip install --quiet --no-index --no-deps --no-build-isolation .
"""


def environment(home: Path) -> dict[str, str]:
    """The environment of a host: nothing of this process but the path, and what the rehearsal replaces."""
    install = home.parent / "install"
    install.write_text(INSTALL.format(libraries=sysconfig.get_path("purelib")))
    install.chmod(0o755)
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "TPU_API_ENDPOINT": os.environ["TPU_API_ENDPOINT"]}
    own |= {"PLMJAX_HOME": str(home / "plmjax"), "PLMJAX_PYTHON": sys.executable, "PLMJAX_VENV": "--without-pip"}
    own |= {"PLMJAX_INSTALL": str(install), "PLMJAX_WORK": "--every 0.2 --patience 60", "PLMJAX_WAIT": "0"}
    own |= {"PLMJAX_PATIENCE": "0", "PLMJAX_SYSTEMD": str(home / "none"), "PLMJAX_HUGE_PAGES": str(home / "none")}
    return own | {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": cpu_flags(1)}


def kill_trainer(host: subprocess.Popen) -> None:
    """Kill the training of a host, which is a process group of its session."""
    found = subprocess.run(["ps", "-ewwo", "pgid=,sess=,args="], capture_output=True, text=True, check=True).stdout
    trainers = [line.split(maxsplit=2) for line in found.splitlines() if " -m plmjax pretrain " in line]
    (group,) = {int(group) for group, session, _ in trainers if int(session) == host.pid}
    os.killpg(group, signal.SIGKILL)


@pytest.mark.slow  # two hosts start JAX twice each: three quarters of a minute
def test_two_hosts_train_to_the_end_though_one_is_killed(
    tpu, cloud: CloudTpu, object_store: ObjectStore, small_run: Path, tmp_path: Path
) -> None:
    object_store.create("my-bucket")
    for file in (file for file in (small_run / "dataset").rglob("*") if file.is_file()):
        object_store.put("my-bucket", f"data/{file.relative_to(small_run / 'dataset').as_posix()}", file.read_bytes())
    code, _, said = tpu(
        "submit", TINY, "--project", "p", "--zone", "us-west4-a", "--accelerator", "v4", "--topology", "2x2x2",
        "--bucket", BUCKET, "--name", "tiny", "--detach", "--", *SMALL_BERT, "--data.path", f"{BUCKET}/data",
        "--training.steps", 600, "--checkpoint.every", 50, "--training.evaluate_every", 300,
    )  # fmt: skip
    assert code == 0, said
    (request,) = cloud.called("CreateQueuedResource")
    script = request.queued_resource.tpu.node_spec[0].node.metadata["startup-script"]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    hosts, workdir = [], storage.path(f"{BUCKET}/runs/tiny")
    for index in range(2):
        home = tmp_path / f"host{index}"
        home.mkdir()
        told = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(index)}
        settings = environment(home) | told | object_store.variables()
        hosts.append(subprocess.Popen(["bash", "-c", script], cwd=home, env=settings, start_new_session=True))
    try:
        deadline = time.monotonic() + 300
        while not storage.finished_steps(workdir / "checkpoints") and time.monotonic() < deadline:
            time.sleep(0.1)
        kill_trainer(hosts[1])
        codes = [host.wait(timeout=400) for host in hosts]
    finally:
        for host in hosts:
            if host.poll() is None:
                os.killpg(host.pid, signal.SIGKILL)
    logs = [tpu("logs", "tiny", "--bucket", BUCKET, "--worker", index)[1] for index in range(2)]
    assert codes == [0, 0], "\n".join(logs)
    assert jobs.verdict(jobs.find(BUCKET, "tiny")) == jobs.Verdict("done")
    for log in logs:
        assert log.count("installed\n") == 1 and "starting it again" in log
        assert log.rstrip().endswith("job done")
    assert re.search(r"newest checkpoint \d+", logs[1])
    steps = [line["step"] for line in metrics.read(workdir / "metrics.jsonl")]
    assert steps[-1] == 600 and checkpoints.find(workdir).name == "600"
    assert Bucket(BUCKET).names("compilation")
    assert Bucket(BUCKET).names("jobs/tiny/1/workers") == ["0.json", "1.json"]
    assert len(cloud.called("DeleteQueuedResource")) == 1
    assert len(list((tmp_path / "host1" / "plmjax").glob("*.venv/lib/*/site-packages/plmjax/commands/cli.py"))) == 1
