"""The startup script as a host of the slice gets it, run for real: two hosts as processes, one of which dies.

Only what this machine cannot have is replaced, by the script's own settings for rehearsals: the environment takes its
libraries from this interpreter instead of the package registry (PLMJAX_INSTALL), the hosts find each other by JAX's own
variables instead of the slice's metadata, and Cloud TPU and Cloud Storage are servers of this machine.
"""

import dataclasses
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

from plmjax import storage
from plmjax.training import metrics
from plmjax.training.checkpoints import checkpoints
from tests.object_store import ObjectStore
from tests.small_runs import SMALL_BERT
from tests.tpu.jobs import job_of
from tests.tpu.service import CloudTpu
from tests.xla_flags import cpu_flags
from tpu import job as jobs
from tpu import package, queue, startup
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
    installed = list((tmp_path / "host1" / "plmjax").glob("*.venv/lib/*/site-packages/plmjax/cli.py"))
    assert len(installed) == 1


CURL = """#!/usr/bin/env bash
# A host's metadata server, Cloud Storage and Cloud TPU: says what it is asked, and writes down how.
address="${{@: -1}}"
echo "$*" >>{requests}
while [ $# -gt 1 ]; do
  case "$1" in --output) output="$2" ;; --data-binary) data="${{2#@}}" ;; esac
  shift
done
case "$address" in
  */service-accounts/default/token) echo '{{"access_token":"a.token","expires_in":3599,"token_type":"Bearer"}}' ;;
  */attributes/agent-worker-number) printf 1 ;;
  */attributes/tpu-env) printf "ACCELERATOR_TYPE: 'v4-16'\nMEGASCALE_SLICE_ID: '2'\nMEGASCALE_NUM_SLICES: '3'\n" ;;
  *alt=media) cp {archive} "$output" ;;
  */upload/*) cat "$data" >>{uploaded} ;;
esac
"""


def test_a_host_knows_itself_by_its_metadata_and_speaks_with_its_own_identity(
    tpu, cloud: CloudTpu, bucket: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(tpu, cloud, bucket, "--training.batch_size", 48)
    there = jobs.find(str(bucket), "dying")
    script = startup.render(dataclasses.replace(there, bucket=f"{BUCKET}/deep", slices=3))
    programs, requests, uploaded = tmp_path / "bin", tmp_path / "requests", tmp_path / "uploaded"
    programs.mkdir()
    archive = bucket / there.package
    (programs / "curl").write_text(CURL.format(requests=requests, archive=archive, uploaded=uploaded))
    (programs / "curl").chmod(0o755)
    home = tmp_path / "host"
    home.mkdir()
    settings = environment(home, PLMJAX_INSTALL="no_such_installer")
    settings["PATH"] = f"{programs}:{settings['PATH']}"
    assert subprocess.run(["bash", "-c", script], cwd=home, env=settings, timeout=300).returncode == 2
    asked = requests.read_text().splitlines()
    package_name = there.package.replace("/", "%2F")
    folder = "deep%2Fjobs%2Fdying%2F1%2F"
    objects = "https://storage.googleapis.com/storage/v1/b/my-bucket/o"
    uploads = "https://storage.googleapis.com/upload/storage/v1/b/my-bucket/o?uploadType=media&name="
    assert sum(line.endswith(f"{objects}/deep%2F{package_name}?alt=media") for line in asked) == 3
    assert sum(f"{uploads}{folder}logs%2F5%2F" in line for line in asked) == 3
    assert sum(line.endswith(f"{uploads}{folder}verdict.json") for line in asked) == 1
    assert asked[-1].endswith(f"--request DELETE https://tpu.googleapis.com/v2/{queue.resource(there)}?force=true")
    for line in asked:
        assert "--header Authorization: Bearer a.token " in line or "metadata.google.internal" in line
    assert '"Worker 5 could not install the project' in uploaded.read_text()
    assert "worker 5 of 6" in uploaded.read_text()


def test_an_old_python_is_replaced_by_uvs(tpu, cloud: CloudTpu, bucket: Path, project: Path, tmp_path: Path) -> None:
    script = submitted(tpu, cloud, bucket)
    home, programs = tmp_path / "host", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    (programs / "python3").write_text(
        "#!/usr/bin/env bash\n"
        '[ "$*" = "-m pip install --quiet --target $HOME/plmjax/uv uv" ] || exit 1\n'
        'mkdir -p "$HOME/plmjax/uv/bin"\n'
        'printf \'#!/usr/bin/env bash\\necho "$*" >>"$HOME/asked"\\n\' >"$HOME/plmjax/uv/bin/uv"\n'
        'chmod +x "$HOME/plmjax/uv/bin/uv"\n'
    )
    (programs / "python3").chmod(0o755)
    settings = environment(home, JAX_PROCESS_ID="0", PLMJAX_PYTHON="python3", PLMJAX_INSTALL="false")
    settings["PATH"] = f"{programs}:/usr/bin:/bin"
    assert subprocess.run(["bash", "-c", script.replace("RESOURCE=", "RESOURCE= #")], env=settings).returncode == 2
    venv = home / "plmjax" / f"{Path(jobs.find(str(bucket), 'dying').package).name.removesuffix('.tar.gz')}.venv"
    assert (home / "asked").read_text().splitlines() == [f"venv --seed --python 3.12 {venv}"] * 3


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
    (installed,) = (home / "plmjax").glob("*.venv/lib/*/site-packages/plmjax/cli.py")
    # The machine starts again: its environment is there, and the job has ended.
    installed.touch()
    before = installed.stat().st_mtime_ns
    assert subprocess.run(["bash", "-c", script], cwd=home, env=settings, timeout=300).returncode == 2
    assert installed.stat().st_mtime_ns == before and len(tpu("logs", "dying")[1]) > len(log)


def test_a_host_that_cannot_install_says_so_and_ends_the_job(
    tpu, cloud: CloudTpu, bucket: Path, project: Path, tmp_path: Path
) -> None:
    script = submitted(tpu, cloud, bucket).replace("RESOURCE=projects", "RESOURCE= #")
    home = tmp_path / "host"
    home.mkdir()
    settings = environment(home, JAX_PROCESS_ID="1") | {"PLMJAX_INSTALL": "no_such_installer"}
    done = subprocess.run(["bash", "-c", script], cwd=home, env=settings, timeout=300)
    assert done.returncode == 2
    ended = jobs.verdict(jobs.find(str(bucket), "dying"))
    assert ended == jobs.Verdict("failed", "Worker 1 could not install the project; its log says why.")
    log = tpu("logs", "dying", "--worker", 1)[1]
    assert "no_such_installer: command not found" in log and "try 3 of 3" in log


CALLS = """#!/usr/bin/env bash
# Writes down what it is asked, and answers as a host's metadata server.
echo "$*" >>"$HOME/asked"
while [ $# -gt 1 ]; do
  case "$1" in --output) output="$2" ;; esac
  shift
done
case "$1" in
  */service-accounts/default/token) echo '{"access_token":"a.token","expires_in":3599,"token_type":"Bearer"}' ;;
  */attributes/agent-worker-number) printf 1 ;;
  */attributes/tpu-env) printf "ACCELERATOR_TYPE: 'v4-16'\nMEGASCALE_SLICE_ID: '2'\nMEGASCALE_NUM_SLICES: '3'\n" ;;
  *alt=media) echo contents >"$output" ;;
esac
"""


@pytest.fixture
def shell(tmp_path: Path):
    """Runs a line of shell after the functions of a job's script, before its work: (exit code, what it printed).

    whole: run the work too.
    """
    home, programs = tmp_path / "home", tmp_path / "programs"
    for folder in (home, programs):
        folder.mkdir()
    (programs / "curl").write_text(CALLS)
    (programs / "curl").chmod(0o755)

    def run(line: str, job: jobs.Job, whole: bool = False, **settings: str) -> tuple[int, str]:
        script = startup.render(job)
        begin = script.index('WORKER="$(number)"')
        text = f"{script[:begin]}\n{line}\n{script[begin:] if whole else ''}"
        own = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "PLMJAX_HOME": str(home / "plmjax")}
        done = subprocess.run(["bash", "-c", text], cwd=home, env=own | settings, capture_output=True, text=True)
        return done.returncode, done.stdout

    run.home = home
    run.asked = lambda: (home / "asked").read_text().splitlines() if (home / "asked").exists() else []
    return run


@pytest.mark.parametrize(
    ("slices", "settings", "number"),
    [
        (1, {}, "1"),  # as the metadata server says
        (3, {}, "9"),  # two slices of four hosts are before it
        (3, {"TPU_WORKER_ID": "3", "MEGASCALE_SLICE_ID": "1"}, "7"),
        (1, {"TPU_WORKER_ID": "3"}, "3"),
        (3, {"JAX_PROCESS_ID": "5", "TPU_WORKER_ID": "3", "MEGASCALE_SLICE_ID": "1"}, "5"),
    ],
)
def test_a_worker_has_a_number_among_those_of_all_slices(shell, slices, settings, number, bucket: Path) -> None:
    assert shell("number", job_of(bucket, slices=slices), **settings) == (0, f"{number}\n")


@pytest.mark.parametrize(("root", "prefix"), [("gs://my-bucket", ""), ("gs://my-bucket/deep/er", "deep%2Fer%2F")])
def test_objects_are_read_and_written_by_the_machines_own_identity(shell, root: str, prefix: str, tmp_path) -> None:
    job, file = job_of(tmp_path, bucket=root), tmp_path / "file"
    assert shell(f"fetch a/b.tar.gz {file} && put {file} c/d.log", job) == (0, "")
    token, read, _, written = shell.asked()
    assert token.endswith("Metadata-Flavor: Google http://metadata.google.internal/computeMetadata/v1/instance/"
                          "service-accounts/default/token")  # fmt: skip
    own = "--header Authorization: Bearer a.token "
    service = "https://storage.googleapis.com"
    assert f"{own}--output {file} " in read and file.read_text() == "contents\n"
    assert read.endswith(f" {service}/storage/v1/b/my-bucket/o/{prefix}a%2Fb.tar.gz?alt=media")
    assert own in written and f"--data-binary @{file} " in written
    assert written.endswith(f" {service}/upload/storage/v1/b/my-bucket/o?uploadType=media&name={prefix}c%2Fd.log")


def test_an_emulator_needs_no_identity_and_a_folder_no_client(shell, bucket: Path, tmp_path: Path) -> None:
    job = job_of(tmp_path, bucket="gs://my-bucket")
    shell(f"fetch a {tmp_path / 'file'}", job, STORAGE_EMULATOR_HOST="http://localhost:1")
    (asked,) = shell.asked()
    assert asked.endswith("http://localhost:1/storage/v1/b/my-bucket/o/a?alt=media") and "Authorization" not in asked
    (bucket / "a").write_text("of a rehearsal")
    assert shell(f"fetch a {tmp_path / 'b'} && put {tmp_path / 'b'} deep/c", job_of(bucket)) == (0, "")
    assert (bucket / "deep" / "c").read_text() == "of a rehearsal" and len(shell.asked()) == 1


def test_the_project_is_installed_once_with_the_jax_of_the_submission(shell, bucket: Path, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("a project")
    name, archive = package.pack(["setup.py"], tmp_path)
    (bucket / "packages").mkdir()
    (bucket / name).write_bytes(archive)
    job = job_of(bucket, package=name, jax="0.9.1")
    line = 'environment() { echo "into $venv"; }\nones() { pwd; echo "$@"; }\nPLMJAX_INSTALL=ones\ninstall && install'
    code, said = shell(line, job)
    project = shell.home / "plmjax" / name.removeprefix("packages/").removesuffix(".tar.gz")
    assert code == 0 and said.splitlines() == [
        f"into {project}.venv", str(project), f"{project}.venv/bin/python .[tpu] jax[tpu]==0.9.1",
    ]  # fmt: skip
    assert (project / "setup.py").read_text() == "a project"
    (project / ".installed").unlink()
    (project / "left").touch()
    assert shell(f"{line.replace('pwd;', 'return 1;')} || echo failed", job)[1].splitlines()[-1] == "failed"
    assert not (project / ".installed").exists() and not (project / "left").exists()


def test_a_python_that_is_too_old_or_has_no_environments_is_passed_over(shell, bucket: Path, tmp_path: Path) -> None:
    """The first that will do makes the environment; without any uv brings one."""
    for name, version in (("old", (3, 10)), ("good", (3, 11)), ("other", (3, 12))):
        asked = f'"{sys.executable}" -c "import sys; sys.version_info = {version}; exec(sys.argv[1])" "$2"'
        (tmp_path / name).write_text(f'#!/usr/bin/env bash\n[ "$1" = -c ] && exec {asked}\necho "{name} $*"\n')
        (tmp_path / name).chmod(0o755)
    candidates = f"{tmp_path / 'none'} {tmp_path / 'old'} {tmp_path / 'good'} {tmp_path / 'other'}"
    job, venv = job_of(bucket), shell.home / "plmjax" / "a.venv"
    assert shell("environment", job, PLMJAX_PYTHON=candidates) == (0, f"good -m venv {venv}\n")
    uv = shell.home / "plmjax" / "uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text('#!/usr/bin/env bash\necho "uv $*"\n')
    uv.chmod(0o755)
    line = 'python3() { echo "python3 $*"; }\nenvironment'
    assert shell(line, job, PLMJAX_PYTHON=str(tmp_path / "old"))[1].splitlines() == [
        f"python3 -m pip install --quiet --target {shell.home / 'plmjax' / 'uv'} uv",
        f"uv venv --seed --python 3.12 {venv}",
    ]


def test_a_worker_that_cannot_install_tries_three_times_and_gives_everything_back(shell, bucket: Path) -> None:
    line, job = "install() { echo try; return 1; }", job_of(bucket, attempt=2)
    settings = {"JAX_PROCESS_ID": "1", "PLMJAX_WAIT": "0", "STORAGE_EMULATOR_HOST": "http://localhost:1"}
    assert shell(line, job, whole=True, **settings)[0] == 2
    assert jobs.verdict(job) == jobs.Verdict("failed", "Worker 1 could not install the project; its log says why.")
    log = (shell.home / "plmjax" / "startup.log").read_text().splitlines()
    assert [line.split(" ", 1)[-1] for line in log] == [
        "worker 1 of 4, job tiny, attempt 2",
        f"command: plmjax pretrain {job.experiment} --workdir {job.workdir} --join_seconds 1800",
        *(said for number in (1, 2, 3) for said in ("try", f"installation failed, try {number} of 3")),
    ]
    assert (bucket / "jobs" / "tiny" / "2" / "logs" / "1").is_dir()
    (deletion,) = shell.asked()
    assert deletion.endswith(f"--request DELETE https://tpu.googleapis.com/v2/{queue.resource(job)}?force=true")
    (shell.home / "asked").unlink()
    assert shell(line, job_of(bucket, project=""), whole=True, **settings)[0] == 2 and not shell.asked()


def test_a_worker_that_is_installed_at_the_second_try_works(shell, bucket: Path) -> None:
    job, tries = job_of(bucket, package="packages/a.tar.gz"), shell.home / "tries"
    python = shell.home / "plmjax" / "a.venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/usr/bin/env bash\npwd\necho "$@"\necho "$JAX_COMPILATION_CACHE_DIR"\n')
    python.chmod(0o755)
    line = f'install() {{ echo >>{tries}; mkdir -p "$project"; [ "$(wc -l <{tries})" -gt 1 ]; }}'
    settings = {"TPU_WORKER_ID": "2", "PLMJAX_WAIT": "0", "PLMJAX_WORK": "--every 7"}
    code, said = shell(line, job, whole=True, **settings)
    log = shell.home / "plmjax" / "startup.log"
    assert code == 0 and said.splitlines() == [
        str(shell.home / "plmjax" / "a"),
        f"-m tpu work tiny --bucket {bucket} --worker 2 --log {log} --every 7",
        f"{bucket}/compilation",
    ]
    assert log.read_text().endswith("installed\n") and "try 2 of 3" not in log.read_text()
    assert jobs.verdict(job) is None
