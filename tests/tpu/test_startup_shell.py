"""The parts of the startup script, each run by bash alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tpu.jobs import job_of
from tpu import job as jobs
from tpu import package, queue, startup

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
        begin = script.index("# Now the work.")
        text = f"{script[:begin]}\n{line}\n{script[begin:] if whole else ''}"
        own = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "PLMJAX_HOME": str(home / "plmjax")}
        own |= {"PLMJAX_SYSTEMD": str(home / "none"), "PLMJAX_HUGE_PAGES": str(home / "huge_pages")}
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
        (3, {"JAX_PROCESS_ID": "5", "TPU_WORKER_ID": "3", "MEGASCALE_SLICE_ID": "1"}, "5"),
    ],
)
def test_a_worker_has_a_number_among_those_of_all_slices(shell, slices, settings, number, bucket: Path) -> None:
    assert shell("number", job_of(bucket, slices=slices), **settings) == (0, f"{number}\n")


def test_objects_are_read_and_written_by_the_machines_own_identity(shell, tmp_path: Path) -> None:
    job, file, prefix = job_of(tmp_path, bucket="gs://my-bucket/deep/er"), tmp_path / "file", "deep%2Fer%2F"
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
        f"into {project}.venv", str(project),
        f"{project}.venv/bin/python -c .plmjax/versions.txt .[tpu] jax[tpu]==0.9.1",
    ]  # fmt: skip
    assert (project / "setup.py").read_text() == "a project"
    (project / ".installed").unlink()
    (project / "left").touch()
    assert shell(f"{line.replace('pwd;', 'return 1;')} || echo failed", job)[1].splitlines()[-1] == "failed"
    assert not (project / ".installed").exists() and not (project / "left").exists()


def test_the_environment_has_the_python_of_the_submitter_where_it_can(shell, bucket: Path, tmp_path: Path) -> None:
    """From the machine, else from uv; else any that will do, which is said."""
    for name, version in (("old", (3, 10)), ("good", (3, 11)), ("same", (3, 12))):
        asked = f'"{sys.executable}" -c "import sys; sys.version_info = {version}; exec(sys.argv[1])" "$2"'
        (tmp_path / name).write_text(f'#!/usr/bin/env bash\n[ "$1" = -c ] && exec {asked}\necho "{name} $*"\n')
        (tmp_path / name).chmod(0o755)
    job, venv = job_of(bucket, python="3.12"), shell.home / "plmjax" / "a.venv"
    all_four = " ".join(str(tmp_path / name) for name in ("none", "old", "good", "same"))
    assert shell("environment", job, PLMJAX_PYTHON=all_four) == (0, f"same -m venv {venv}\n")
    uv = shell.home / "plmjax" / "uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text('#!/usr/bin/env bash\necho "uv $*"\n')
    uv.chmod(0o755)
    line, others = 'python3() { echo "python3 $*"; }\nenvironment', " ".join(all_four.split()[:3])
    asked = [
        f"python3 -m pip install --quiet --target {shell.home / 'plmjax' / 'uv'} uv",
        f"uv venv --seed --python 3.12 {venv}",
    ]
    assert shell(line, job, PLMJAX_PYTHON=others)[1].splitlines() == asked
    uv.write_text("#!/usr/bin/env bash\nexit 1\n")
    _, said, made = shell(line, job, PLMJAX_PYTHON=others)[1].splitlines()
    assert said.endswith(
        f"no Python 3.12 can be had, which the submitting machine has: {tmp_path / 'good'} takes its place"
    )
    assert made == f"good -m venv {venv}"
    code, said = shell(line, job, PLMJAX_PYTHON=str(tmp_path / "old"))
    assert code == 1 and said.endswith("no Python 3.12 can be had, nor any from 3.11 on\n")


@pytest.mark.parametrize(("accelerator", "pages"), [("v6e", "always"), ("v3", "madvise")])
def test_huge_pages_are_on_where_the_runtime_profits(shell, bucket: Path, accelerator: str, pages: str) -> None:
    (shell.home / "huge_pages").write_text("madvise\n")
    settings = {"JAX_PROCESS_ID": "0", "PLMJAX_PATIENCE": "0"}
    shell("install() { return 1; }", job_of(bucket, accelerator=accelerator, project=""), whole=True, **settings)
    assert (shell.home / "huge_pages").read_text() == f"{pages}\n"


WAITING = 'sleep() { echo "slept $1" >>"$log"; SECONDS=$((SECONDS + $1)); }'
"""A clock of the shell that takes no time."""


def test_a_worker_that_cannot_install_tries_for_an_hour_and_gives_everything_back(shell, bucket: Path) -> None:
    pip = 'echo "ERROR: No matching distribution found for flax==9.9 (from \\"x\\")"'
    pip += "\necho ERROR: ResolutionImpossible"
    line, job = f"{WAITING}\ninstall() {{ {pip}; return 1; }}", job_of(bucket, attempt=2)
    settings = {"JAX_PROCESS_ID": "1", "STORAGE_EMULATOR_HOST": "http://localhost:1"}
    assert shell(line, job, whole=True, **settings)[0] == 2
    assert jobs.verdict(job) == jobs.Verdict(
        "failed",
        "Worker 1 could not install the project (ERROR: No matching distribution found for flax==9.9 (from x)); its "
        "log says why.",
    )
    log = (shell.home / "plmjax" / "startup.log").read_text().splitlines()
    said = [line.split(" ", 1)[-1] if line[:2] == "20" else line for line in log]
    assert said[:2] == [
        "worker 1 of 4, job tiny, attempt 2",
        f"command: plmjax pretrain {job.experiment} --workdir {job.workdir} --join_seconds 1800",
    ]
    waits = [int(line.removeprefix("slept ")) for line in said if line.startswith("slept ")]
    assert waits[:6] == [30, 60, 120, 240, 480, 600] and 3600 <= sum(waits) < 4200 and max(waits) == 600
    assert said.count("installation failed") == len(waits) + 1
    assert (bucket / "jobs" / "tiny" / "2" / "logs" / "1").is_dir()
    (deletion,) = shell.asked()
    assert deletion.endswith(f"--request DELETE https://tpu.googleapis.com/v2/{queue.resource(job)}?force=true")
    (shell.home / "asked").unlink()
    assert shell(line, job_of(bucket, project=""), whole=True, **settings)[0] == 2 and not shell.asked()


LSBLK = """#!/usr/bin/env bash
case "$*" in *PKNAME*) echo sda ;; *) printf '/dev/sda disk\n/dev/loop0 loop\n/dev/sdb disk\n/dev/sdc disk\n' ;; esac
"""


def test_disks_are_mounted_in_the_order_of_the_request(shell, bucket: Path, tmp_path: Path) -> None:
    programs = {"lsblk": LSBLK, "findmnt": "#!/bin/sh\necho /dev/sda1\n", "mount": '#!/bin/sh\necho "$@"\n'}
    programs["mountpoint"] = '#!/bin/sh\n[ -e "$2/there" ]\n'
    for name, text in programs.items():
        (tmp_path / "programs" / name).write_text(text)
        (tmp_path / "programs" / name).chmod(0o755)
    mounts = tmp_path / "disks"
    job = job_of(bucket, topology="2x2", data_disks=("words", "projects/q/zones/us-west4-a/disks/more:read-write"))
    code, printed = shell("mount_disks", job, PLMJAX_DISKS=str(mounts))
    assert (code, printed.splitlines()) == (
        0, [f"-o ro,noload /dev/sdb {mounts}/words", f"-o discard,defaults /dev/sdc {mounts}/more"],
    )  # fmt: skip
    (mounts / "words" / "there").touch()  # the machine starts again
    assert shell("mount_disks", job, PLMJAX_DISKS=str(mounts))[1].count("-o ") == 1
    assert shell("mount_disks", job_of(bucket)) == (0, "")
