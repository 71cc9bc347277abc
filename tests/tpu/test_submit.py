"""The checks before the first request to the network, and the output of --dry_run."""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from plmjax import experiment as experiments
from plmjax.errors import UserError
from tests.tpu.jobs import TINY
from tpu import package, submission, versions

ROOT = package.ROOT
PLACE = ("--project", "p", "--zone", "us-west4-a")
SLICE = ("--accelerator", "v5e", "--topology", "4x4")
USUAL = (TINY, *PLACE, *SLICE, "--bucket", "gs://b")


@pytest.fixture
def fails(tpu):
    """Runs a submission that must end with exit code 2 and one sentence, and returns the sentence."""

    def run(*arguments: object) -> str:
        code, printed, said = tpu("submit", *arguments)
        assert code == 2 and not printed
        assert "\n" not in said and said.startswith("python -m tpu: ") and said.endswith((".", "?"))
        return said

    return run


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network and no credentials."""

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a dry run opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "TPU_API_ENDPOINT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)


def parts(printed: str) -> tuple[dict, dict, dict, dict[str, str]]:
    """What a dry run prints: the job, the requests to create and to delete, and the settings of the startup script."""
    blocks = re.findall(r"^((?:call|write) [^\n]*)\n(?:        [^\n]*\n)?(\{\n.*?^\})", printed, re.M | re.S)
    names = ("job.json", "CreateQueuedResource", "DeleteQueuedResource")
    job, create, delete = (next(json.loads(block) for line, block in blocks if name in line) for name in names)
    script = create["queuedResource"]["tpu"]["nodeSpec"][0]["node"]["metadata"]["startup-script"]
    assert script.strip() in printed
    settings = shlex.split(script.partition("\n# The rest is the same for every job.")[0], comments=True)
    return job, create, delete, dict(setting.split("=", 1) for setting in settings if "=" in setting)


def test_a_dry_run_prints_every_call_complete_and_needs_nothing(tpu, offline) -> None:
    code, printed, said = tpu(
        "submit", TINY, *PLACE, "--accelerator", "v4", "--topology", "2x2x4", "--slices", 3, "--bucket", "gs://b/",
        "--name", "three", "--workdir", "gs://other/run", "--runtime", "r", "--network", "n", "--subnetwork", "s",
        "--service_account", "a@b.c", "--reservation", "mine", "--valid_until", "6h", "--internal_ips", "--label",
        "team=nlp", "--data_disk", "words", "--data_disk", "projects/q/zones/us-west4-a/disks/more", "--selfcheck",
        "--dry_run", "--verbose", "--", "--data.path", "gs://b/wikipedia", "--training.batch_size", 96,
    )  # fmt: skip
    assert (code, said) == (0, "")
    job, create, delete, script = parts(printed)
    assert job["resolved"]["training"]["batch_size"] == 96 and job["selfcheck"] is True
    assert job["workdir"] == "gs://other/run"
    made = {versions.FILE: versions.constraints().encode()}
    name, contents = package.pack(package.select(ROOT).names, ROOT, made)
    assert f"pack    .plmjax/versions.txt  {len(made[versions.FILE]):,} bytes" in printed.splitlines()
    line = f"write   gs://b/{name}  {len(contents):,} bytes, sha256 {hashlib.sha256(contents).hexdigest()}"
    assert line in printed.splitlines()
    assert (create["parent"], create["queuedResourceId"]) == ("projects/p/locations/us-west4-a", "three")
    assert create["queuedResource"].keys() == {"tpu", "reservationName", "queueingPolicy"}
    assert create["queuedResource"]["reservationName"] == "projects/p/locations/us-west4-a/reservations/mine"
    assert create["queuedResource"]["queueingPolicy"] == {"validUntilDuration": "21600s"}
    (specification,) = create["queuedResource"]["tpu"]["nodeSpec"]
    assert "nodeId" not in specification
    assert specification["multisliceParams"] == {"nodeCount": 3, "nodeIdPrefix": "three"}
    node = specification["node"]
    assert (node["acceleratorType"], node["runtimeVersion"]) == ("v4-32", "r")
    assert node["networkConfig"] == {"network": "n", "subnetwork": "s"}
    assert node["labels"] == {"plmjax-job": "three", "plmjax-attempt": "1", "team": "nlp"}
    assert node["dataDisks"] == [  # read-only
        {"sourceDisk": "projects/p/zones/us-west4-a/disks/words", "mode": 2},
        {"sourceDisk": "projects/q/zones/us-west4-a/disks/more", "mode": 2},
    ]
    assert node["serviceAccount"]["email"] == "a@b.c"
    command = (
        "plmjax pretrain experiments/bert_tiny.py --workdir gs://other/run --join_seconds 1800 "
        "--data.path gs://b/wikipedia --training.batch_size 96"
    )
    expected = {"SLICES": "3", "HOSTS": "4", "WORKERS": "12", "BUCKET": "gs://b", "COMMAND": command, "PACKAGE": name}
    assert script.items() >= expected.items()
    assert "JAX_COMPILATION_CACHE_DIR=gs://b/compilation" in printed
    assert sum(line.startswith("call    google.cloud.tpu.v2.Tpu/GetNode") for line in printed.splitlines()) == 3
    assert delete == {"name": "projects/p/locations/us-west4-a/queuedResources/three", "force": True}


TEXT = ("--data.path", "gs://b/wikipedia")
TASK = ("finetune_sentences", *USUAL[1:])


@pytest.mark.usefixtures("checked_once")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("experiments/bert_tin.py", *USUAL[1:]), "did you mean 'experiments/bert_tiny.py'?"),
        ((*USUAL, *TEXT, "--", "--training.batchsize", 8), "did you mean '--training.batch_size'?"),
        ((*USUAL, *TEXT, "--topolgy", "4x4"), "did you mean '--topology'?"),
        ((*USUAL[:-1], "s3://b", *TEXT), "found 's3://b'"),
        ((*USUAL[:-1], "nowhere", *TEXT), "or a folder that exists for a rehearsal, found 'nowhere'"),
        ((*USUAL[:-1], ".", *TEXT), "which the hosts can read, found the folder ."),
        ((TINY, *PLACE, *SLICE, *TEXT), "--bucket"),
        ((TINY, *SLICE, *TEXT, "--bucket", "gs://b", "--zone", "z"), "--project"),
        ((TINY, *SLICE, *TEXT, "--bucket", "gs://b", "--project", "p"), "--zone"),
        ((*USUAL, *TEXT, "--name", "8x8"), "begins with a letter, found '8x8'"),
        ((*USUAL, *TEXT, "--attempts", 0), "--attempts of at least 1"),
        ((*USUAL, *TEXT, "--slices", 0), "--slices of at least 1"),
        ((*USUAL, *TEXT, "--workdir", "runs/mine"), "--workdir in a bucket"),
        ((*USUAL, *TEXT, "--price", "v6e=2"), "Expected --price for v5e, found one for v6e"),
        ((*USUAL, *TEXT, "--", "--from", "gs://b/runs/x"), "found --from, an option of python -m tpu submit; write it"),
        ((*USUAL, *TEXT, "--", "--mesh.tensor", 3), "number of devices"),
        (("bert_large_8x8", *USUAL[1:]), "--data.input"),
        ((*USUAL, "--", "--data.input", "my_text", "gs://b/more"), "found 'my_text' on this machine"),
        (
            (*USUAL, "--", "--data.mixture.sources", "a=gs://b/a", "books=my_books"),
            "--data.mixture.sources in a bucket, where every host can read it, found 'my_books'",
        ),
        ((*USUAL, *TEXT, "--", "--tokenizer.path", "my_words"), "--tokenizer.path in a bucket"),
        (TASK, "Expected --from for an experiment on a task, found none"),
        ((*TASK, "--from", "runs/x"), "Expected --from in a bucket, where every host can read it, found 'runs/x'"),
        (
            (*TASK, "--from", "gs://b/x", "--dry_run", "--data.validation", "gs://b/dev.tsv", "--data.train", "a.tsv"),
            "Expected --data.train in a bucket",
        ),
        (
            (TINY, *PLACE, "--accelerator", "v4", "--topology", "4x4x16", "--bucket", "gs://b", *TEXT),
            "Expected --topology 4x8x8, which Cloud TPU gives for v4-512, found 4x4x16; choose that one, or give --kub",
        ),
    ],
)
def test_mistakes_cost_nothing(fails, offline, arguments: tuple, sentence: str) -> None:
    assert sentence in fails(*arguments)


@pytest.mark.usefixtures("checked_once")
def test_slices_that_gke_alone_gives_are_not_requested(fails, tpu, tmp_path: Path, offline) -> None:
    usual = [TINY, "--accelerator", "7x", "--topology", "2x2x2", "--bucket", "gs://b", *TEXT]
    said = fails(*usual, *PLACE)
    assert "--accelerator of Cloud TPU's own API, found 7x, which is offered through GKE; give --kubernetes" in said
    code, printed, _ = tpu("submit", *usual, "--kubernetes", tmp_path / "job.yaml", "--dry_run")
    assert code == 0 and "gke-tpu-topology: 2x2x2" in printed


def test_unknown_verbs_and_jobs(tpu, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean 'submit'?" in tpu("submitt")[2]
    assert "holds no job at all" in tpu("status", "bert")[2]
    (bucket / "jobs" / "bert-base").mkdir(parents=True)
    assert "did you mean 'bert-base'?" in tpu("status", "bert")[2]
    (bucket / "other").mkdir()
    assert "holds no job at all" in tpu("status", "bert", "--bucket", bucket / "other")[2]  # before the environment
    monkeypatch.delenv("PLMJAX_BUCKET")
    assert "PLMJAX_BUCKET" in tpu("status")[2]


def project_of(folder: Path, **files: str) -> Path:
    """A small project in `folder` with further files, in git."""
    for name, text in {"setup.py": "", "plmjax/a.py": "", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    return folder


def test_equal_files_make_equal_archives_and_programs_stay_executable(tmp_path: Path) -> None:
    """Nothing else of a file's mode or time is packed."""
    names, (here, there) = ["a.sh", "b.py", "c.sh"], (tmp_path / "here", tmp_path / "there")
    for folder, modes in ((here, (0o744, 0o600, 0o777)), (there, (0o755, 0o644, 0o755))):
        folder.mkdir()
        for name, mode in zip(names, modes, strict=True):
            (folder / name).touch()
            (folder / name).chmod(mode)
    os.utime(there / "b.py", (0, 0))
    name, contents = package.pack(names, here)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(contents))) as archive:
        assert {entry.name: entry.mode for entry in archive} == {"a.sh": 0o755, "b.py": 0o644, "c.sh": 0o755}
    assert package.pack(names[::-1], there) == (name, contents)
    frozen = [package.pack(names, here, {versions.FILE: pins})[0] for pins in (b"jax==1", b"jax==1", b"jax==2")]
    assert frozen[0] == frozen[1] and len({name, *frozen}) == 3
    (there / "b.py").write_text("changed")
    assert package.pack(names, there)[0] != name


def test_what_git_does_not_track_is_not_packed(tmp_path: Path) -> None:
    for name in ("setup.py", "plmjax/a.py", "plmjax/notes.txt", "data/corpus.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert package.select(tmp_path).names == ["plmjax/a.py", "plmjax/notes.txt", "setup.py"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "setup.py", "plmjax/a.py"], cwd=tmp_path, check=True)
    assert package.select(tmp_path).names == ["plmjax/a.py", "setup.py"]
    own = package.select(ROOT)
    assert {"plmjax/commands/cli.py", "experiments/bert_tiny.py", "tpu/startup.sh", "setup.py"} <= set(own.names)
    assert not any("__pycache__" in name for name in own.names) and own.left_out == ()


def test_a_link_out_of_the_project_is_refused_and_one_inside_is_packed_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("private")
    project = project_of(tmp_path / "project")
    (project / "plmjax" / "same.py").symlink_to("a.py")
    subprocess.run(["git", "add", "--all"], cwd=project, check=True)
    assert package.select(project).names == ["plmjax/a.py", "plmjax/same.py", "setup.py"]
    (project / "plmjax" / "notes.py").symlink_to(tmp_path / "outside.txt")
    subprocess.run(["git", "add", "--all"], cwd=project, check=True)
    with pytest.raises(UserError, match=r"found the link plmjax/notes\.py to .*outside.txt outside; put a copy"):
        package.select(project)
    shutil.rmtree(project / ".git")
    with pytest.raises(UserError, match=r"found the link plmjax/notes\.py"):
        package.select(project)


BEGIN = "-----BEGIN"  # apart from what follows it in a key, or this file would itself be taken for one
CREDENTIALS = {
    "service.env": "",
    "plmjax/.env": "",
    "experiments/my-service-account.json": "",
    "experiments/named_innocently.py": f"KEY = '''{BEGIN} RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA75u'''",
    "experiments/cloud.json": json.dumps({"type": "service_account", "private_key": f"{BEGIN} PRIVATE KEY-----"}),
}


def test_credentials_are_left_out_unless_they_are_asked_for(tmp_path: Path) -> None:
    project, expected = project_of(tmp_path, **CREDENTIALS), set(CREDENTIALS)
    for in_git in (True, False):
        selected = package.select(project)
        assert selected.names == ["plmjax/a.py", "setup.py"] and set(selected.left_out) == expected
        left = [line for line in selected.lines(verbose=False) if "looks like credentials; --include" in line]
        assert len(left) == len(expected)
        asked = package.select(project, include=["plmjax/.env"])
        assert asked.names == ["plmjax/.env", "plmjax/a.py", "setup.py"]
        assert set(asked.left_out) == expected - {"plmjax/.env"}
        with pytest.raises(UserError, match=r"file that is left out, found 'plmjax/a.py'; left out: "):
            package.select(project, include=["plmjax/a.py"])
        if in_git:
            shutil.rmtree(project / ".git")
            expected.remove("service.env")  # none of the files of a checkout without git


@pytest.mark.usefixtures("checked_once")
def test_a_task_is_fine_tuned_from_a_run_in_the_bucket(tpu, offline) -> None:
    code, printed, said = tpu(
        "submit", "finetune_glue:mrpc", *USUAL[1:], "--from", "gs://b/runs/bert", "--dry_run",
        "--price", 1.5, "--spot", "--", "--data.folder", "gs://b/mrpc",
    )  # fmt: skip
    assert code == 0, said
    *_, script = parts(printed)
    command = (
        "plmjax finetune experiments/finetune_glue.py:mrpc --from gs://b/runs/bert --workdir gs://b/runs/finetune-glue "
        "--join_seconds 1800 --data.folder gs://b/mrpc"
    )
    assert script["COMMAND"] == command and script["LIBRARY"] == ".[tpu]"
    *_, run, where, cost = printed.splitlines()
    assert run == f"run     {command}"
    assert where == "where   v5e:4x4, 16 chips of 4 hosts in us-west4-a, spot"
    assert cost.startswith("cost    24.00 an hour at 1.5 a chip-hour; plmjax plan experiments/finetune_glue.py:mrpc ")


@pytest.mark.usefixtures("checked_once")
def test_a_folder_of_a_users_own_is_packed_with_plmjax_beside_it(tpu, offline, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", "beside.py", "notes.txt", "venv/lib/x.py", ".hidden/y.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("from experiments_of import *\n")
    Path("venv/pyvenv.cfg").touch()
    Path("mine.py").write_text(
        "from plmjax import experiment as e\n\ndef experiment():\n    return e.load('bert_tiny')\n"
    )
    arguments = (*USUAL[1:], "--data.path", "gs://b/text")
    code, printed, said = tpu("submit", "mine.py", *arguments, "--dry_run", "--verbose")
    assert code == 0, said
    packed = {line.split()[1] for line in printed.splitlines() if line.startswith("pack ")}
    library = {f".plmjax/{name}" for name in package.select(ROOT).names}
    assert packed == {"mine.py", "beside.py", ".plmjax/versions.txt"} | library
    job, *_, script = parts(printed)
    assert script["LIBRARY"] == job["library"] == "./.plmjax[tpu]"
    assert script["COMMAND"].startswith("plmjax pretrain mine.py --workdir gs://b/runs/mine ")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "notes.txt"], check=True)
    selected = package.select(tmp_path, "mine.py")
    assert selected.names == ["mine.py", "notes.txt"] and len(list(selected.lines(verbose=False))) == 1


@pytest.mark.usefixtures("checked_once")
def test_no_text_of_a_user_runs_as_shell_on_the_workers(tpu, offline, tmp_path: Path) -> None:
    marks = [tmp_path / f"ran{number}" for number in range(3)]
    path = f"gs://b/x\ntouch {marks[0]}\n# '; touch {marks[1]}; $(touch {marks[2]})"
    _, printed, _ = tpu("submit", *USUAL, "--dry_run", "--workdir", path, "--data.path", path)
    script = parts(printed)[1]["queuedResource"]["tpu"]["nodeSpec"][0]["node"]["metadata"]["startup-script"]
    settings = script.partition("\n# The rest is the same for every job.")[0]
    shell = ["bash", "-c", f'{settings}\nprintf %s "$COMMAND"']
    shown = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert shlex.split(shown.stdout)[-1] == path
    assert not any(mark.exists() for mark in marks)


def test_text_that_the_hosts_have_is_accepted(tmp_path: Path) -> None:
    """Files of the project are packed; a folder for rehearsals is on the same machine."""
    run = experiments.load(TINY)
    for paths, wrong in ((("packed/words.txt", "packed/", "packed"), False), (("pack",), True)):
        given = dataclasses.replace(run, data=dataclasses.replace(run.data, input=paths))
        submission._check_text(given, str(tmp_path), [])
        with pytest.raises(UserError, match=r"--data\.input in a bucket") if wrong else contextlib.nullcontext():
            submission._check_text(given, "gs://b", ["packed/words.txt"])
