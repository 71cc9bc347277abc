"""The checks before the first request to the network, and the output of --dry_run."""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
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
from plmjax.experiment import Mixture
from tests.tpu.jobs import job_of
from tpu import job as jobs
from tpu import package, queue, submission, versions

ROOT = package.ROOT
LARGE, TINY = "experiments/bert_large_8x8.py", "experiments/bert_tiny.py"
SLICE = ["--accelerator", "v5e", "--topology", "8x8"]
PLACE = ["--project", "p", "--zone", "us-west4-a"]


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


def parts(printed: str) -> dict[str, dict]:
    """The JSON after each `call` or `write` of a dry run, by the line before it."""
    blocks = re.findall(r"^((?:call|write) [^\n]*)\n(?:        [^\n]*\n)?(\{\n.*?^\})", printed, re.M | re.S)
    return {line: json.loads(block) for line, block in blocks}


@pytest.mark.nightly
def test_a_dry_run_prints_every_call_complete_and_needs_nothing(tpu, offline) -> None:
    code, printed, _ = tpu(
        "submit", LARGE, *PLACE, *SLICE, "--bucket", "gs://b/", "--spot", "--selfcheck", "--dry_run", "--verbose", "--",
        "--data.path", "gs://b/wikipedia", "--training.batch_size", 512,
    )  # fmt: skip
    assert code == 0
    found = parts(printed)
    job = next(block for line, block in found.items() if "job.json" in line)
    create = next(block for line, block in found.items() if "CreateQueuedResource" in line)
    delete = next(block for line, block in found.items() if "DeleteQueuedResource" in line)
    assert job["resolved"]["training"]["batch_size"] == 512 and job["selfcheck"] is True
    assert job["workdir"] == "gs://b/runs/bert-large-8x8"
    made = {versions.FILE: versions.constraints().encode()}
    name, contents = package.pack(package.select(ROOT).names, ROOT, made)
    assert f"pack    .plmjax/versions.txt  {len(made[versions.FILE]):,} bytes" in printed.splitlines()
    line = f"write   gs://b/{name}  {len(contents):,} bytes, sha256 {hashlib.sha256(contents).hexdigest()}"
    assert line in printed.splitlines()
    assert create["parent"] == "projects/p/locations/us-west4-a"
    assert create["queuedResourceId"] == "bert-large-8x8"
    assert create["queuedResource"]["spot"] == {}
    (specification,) = create["queuedResource"]["tpu"]["nodeSpec"]
    assert specification["nodeId"] == "bert-large-8x8"
    node = specification["node"]
    assert (node["acceleratorType"], node["runtimeVersion"]) == ("v5litepod-64", "v2-alpha-tpuv5-lite")
    assert node["networkConfig"] == {"network": "default", "enableExternalIps": True}
    script = node["metadata"]["startup-script"]
    assert script.strip() in printed
    for line in (
        "JAX_COMPILATION_CACHE_DIR=gs://b/compilation",
        "COMMAND='plmjax pretrain experiments/bert_large_8x8.py --workdir gs://b/runs/bert-large-8x8 "
        "--join_seconds 1800 --data.path gs://b/wikipedia --training.batch_size 512'",
        f"PACKAGE={name}",
        "WORKERS=16",
    ):
        assert line in script.splitlines()
    assert delete == {"name": "projects/p/locations/us-west4-a/queuedResources/bert-large-8x8", "force": True}


@pytest.mark.nightly
def test_an_experiment_is_submitted_by_its_name(tpu, offline) -> None:
    code, printed, said = tpu(
        "submit", "bert_large_8x8:lamb_4096", *PLACE, *SLICE, "--bucket", "gs://b", "--dry_run",
        "--data.path", "gs://b/wikipedia",
    )  # fmt: skip
    assert code == 0, said
    assert "plmjax pretrain experiments/bert_large_8x8.py:lamb_4096 --workdir gs://b/runs/bert-large-8x8 " in printed


def test_several_slices_and_every_setting_reach_the_request(tpu, offline) -> None:
    code, printed, _ = tpu(
        "submit", "experiments/bert_tiny.py", *PLACE, "--accelerator", "v4", "--topology", "2x2x4", "--slices", 3,
        "--bucket", "gs://b", "--name", "three", "--workdir", "gs://other/run", "--runtime", "r", "--network", "n",
        "--subnetwork", "s", "--service_account", "a@b.c", "--dry_run", "--training.batch_size", 96,
    )  # fmt: skip
    assert code == 0
    create = next(block for line, block in parts(printed).items() if "CreateQueuedResource" in line)
    assert "spot" not in create["queuedResource"] and "guaranteed" not in create["queuedResource"]
    (specification,) = create["queuedResource"]["tpu"]["nodeSpec"]
    assert "nodeId" not in specification
    assert specification["multisliceParams"] == {"nodeCount": 3, "nodeIdPrefix": "three"}
    node = specification["node"]
    assert (node["acceleratorType"], node["runtimeVersion"]) == ("v4-32", "r")
    assert node["networkConfig"] == {"network": "n", "subnetwork": "s", "enableExternalIps": True}
    assert node["serviceAccount"]["email"] == "a@b.c"
    script = node["metadata"]["startup-script"].splitlines()
    assert {"SLICES=3", "HOSTS=4", "WORKERS=12", "BUCKET=gs://b"} <= set(script)
    assert sum(line.startswith("call    google.cloud.tpu.v2.Tpu/GetNode") for line in printed.splitlines()) == 3


@pytest.mark.nightly
@pytest.mark.usefixtures("checked_once")
def test_mistakes_cost_nothing(fails, tmp_path: Path, offline, monkeypatch: pytest.MonkeyPatch) -> None:
    without_text = [LARGE, *PLACE, *SLICE, "--bucket", "gs://b"]
    usual = [*without_text, "--data.path", "gs://b/wikipedia"]

    def replaced(option: str, value: object) -> list:
        at = usual.index(option) + 1
        return [*usual[:at], value, *usual[at + 1 :]]

    assert "did you mean 'experiments/bert_large_8x8.py'?" in fails("experiments/bert_large_8x.py", *usual[1:])
    assert "did you mean '--training.batch_size'?" in fails(*usual, "--", "--training.batchsize", 8)
    assert "did you mean '--training.batch_size'?" in fails(*usual, "--training.batchsize", 8)
    assert "Expected a value of type int for --training.steps, found 'many'" in fails(
        *usual, "--", "--training.steps", "many"
    )
    assert "did you mean 'v6e'?" in fails(*replaced("--accelerator", "v6"))
    assert "8x8" in fails(*replaced("--topology", "8x9"))
    assert "found 's3://b'" in fails(*replaced("--bucket", "s3://b"))
    assert "gs://NAME" in fails(*replaced("--bucket", tmp_path / "nowhere"))
    assert "did you mean '--topology'?" in fails(*usual, "--topolgy", "4x4")
    assert "--project" in fails(LARGE, *SLICE, "--bucket", "gs://b", "--zone", "z")
    assert "--zone" in fails(LARGE, *SLICE, "--bucket", "gs://b", "--project", "p")
    assert "drop it" in fails(*usual, "--kubernetes", tmp_path / "job.yaml")
    assert "begins with a letter, found '8x8'" in fails(*usual, "--name", "8x8")
    assert "--attempts of at least 1" in fails(*usual, "--attempts", 0)
    assert "--slices of at least 1" in fails(*usual, "--slices", 0)
    assert "found 'my_text' on this machine" in fails(*without_text, "--", "--data.input", "my_text", "gs://b/more")
    sources = ("--data.mixture.sources", "wikipedia=gs://b/wikipedia", "books=my_books")
    assert "found 'my_books' on this machine" in fails(*without_text, "--", *sources)
    words = ("--data.input", "gs://b/text", "--tokenizer.path", "my_words")
    assert "--tokenizer.path in a bucket" in fails(*without_text, "--", *words)
    assert "divides by 64 devices" in fails(
        *usual, "--", "--training.batch_size", 1000, "--mesh.fsdp", 1, "--mesh.tensor", 1
    )
    assert "number of devices" in fails(*usual, "--", "--mesh.tensor", 3)
    assert "--workdir in a bucket" in fails(*usual, "--workdir", "runs/mine")
    assert "found the folder" in fails(*replaced("--bucket", tmp_path))
    assert "Expected --price for v5e, found one for v6e" in fails(*usual, "--price", "v6e=2")
    assert "found --from, an option of python -m tpu submit; write it before the --" in fails(
        *usual, "--", "--from", "gs://b/runs/x"
    )
    task = ["finetune_sentences", *usual[1:-2]]
    assert "Expected --from for an experiment on a task, found none" in fails(*task)
    assert "Expected --from in a bucket, where every host can read it, found 'runs/x'" in fails(
        *task, "--from", "runs/x"
    )
    start = [*task, "--from", "gs://b/runs/x", "--dry_run", "--", "--data.validation", "gs://b/dev.tsv"]
    assert "Expected --data.train in a bucket" in fails(*start, "--data.train", "train.tsv")
    assert "number of devices" in fails(*start, "--data.train", "gs://b/train.tsv", "--mesh.tensor", 3)
    assert "--bucket" in fails(LARGE, *PLACE, *SLICE)
    assert "--data.input" in fails(*without_text)


@pytest.mark.usefixtures("checked_once")
@pytest.mark.parametrize(
    ("accelerator", "topology", "said"),
    [
        ("7x", "2x2x4", "Expected an --accelerator of Cloud TPU's own API, found 7x, which is offered through GKE"),
        ("v4", "4x4x16", "Expected --topology 4x8x8, which Cloud TPU gives for v4-512, found 4x4x16"),
        ("v2", "2x4", "found '2x4'; choose one, such as 2x2, 4x4, 8x8 or 8x16."),
    ],
)
def test_slices_that_the_service_does_not_give_are_not_requested(
    fails, tpu, tmp_path: Path, offline, accelerator: str, topology: str, said: str
) -> None:
    """GKE gives some of them: their nodes are chosen by the shape."""
    usual = [TINY, "--accelerator", accelerator, "--topology", topology, "--bucket", "gs://b"]
    found = fails(*usual, *PLACE, "--data.path", "gs://b/wikipedia")
    assert said in found and ("--kubernetes FILE" in found) is (accelerator != "v2")
    file = ["--kubernetes", tmp_path / "job.yaml", "--dry_run", "--data.path", "gs://b/wikipedia"]
    code, printed, _ = tpu("submit", *usual, *file, "--training.batch_size", 4096)
    assert (code == 0 and f"gke-tpu-topology: {topology}" in printed) is (accelerator != "v2")


def test_unknown_verbs_and_jobs(tpu, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "did you mean 'submit'?" in tpu("submitt")[2]
    assert "holds no job at all" in tpu("status", "bert")[2]
    (bucket / "jobs" / "bert-base").mkdir(parents=True)
    assert "did you mean 'bert-base'?" in tpu("status", "bert")[2]
    (bucket / "other").mkdir()
    assert "holds no job at all" in tpu("status", "bert", "--bucket", bucket / "other")[2]  # before the environment
    monkeypatch.delenv("PLMJAX_BUCKET")
    assert "PLMJAX_BUCKET" in tpu("status")[2]


@pytest.mark.nightly
def test_equal_files_make_equal_archives_wherever_they_lie(tmp_path: Path) -> None:
    names = package.select(ROOT).names
    assert {"plmjax/commands/cli.py", "experiments/bert_tiny.py", "tpu/startup.sh", "setup.py"} <= set(names)
    assert not any("__pycache__" in name for name in names)
    first = package.pack(names, ROOT)
    copy = tmp_path / "copy"
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(first[1]))) as archive:
        archive.extractall(copy, filter="data")
    assert package.pack(names, copy) == first
    frozen = [package.pack(names, ROOT, {versions.FILE: pins}) for pins in (b"jax==1", b"jax==1", b"jax==2")]
    assert frozen[0] == frozen[1] and len({first[0], *(name for name, _ in frozen)}) == 3
    (copy / "setup.py").write_text("changed")
    assert package.pack(names, copy)[0] != first[0]


def test_programs_stay_executable_and_nothing_else_of_a_mode_is_packed(tmp_path: Path) -> None:
    for name, mode in (("a.sh", 0o744), ("b.py", 0o600), ("c.sh", 0o777)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    _, contents = package.pack(["a.sh", "b.py", "c.sh"], tmp_path)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(contents))) as archive:
        assert {entry.name: entry.mode for entry in archive} == {"a.sh": 0o755, "b.py": 0o644, "c.sh": 0o755}


def project_of(folder: Path, **files: str) -> Path:
    """A small project in `folder` with further files, in git."""
    for name, text in {"setup.py": "", "plmjax/a.py": "", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    return folder


def test_what_git_does_not_track_is_not_packed(tmp_path: Path) -> None:
    for name in ("setup.py", "plmjax/a.py", "plmjax/notes.txt", "data/corpus.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert package.select(tmp_path).names == ["plmjax/a.py", "plmjax/notes.txt", "setup.py"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "setup.py", "plmjax/a.py"], cwd=tmp_path, check=True)
    assert package.select(tmp_path).names == ["plmjax/a.py", "setup.py"]


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
    "plmjax/.credentials": "",
    "experiments/my-service-account.json": "",
    "tpu/deploy_key.pem": "",
    "experiments/named_innocently.py": f"KEY = '''{BEGIN} RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA75u'''",
    "experiments/cloud.json": json.dumps({"type": "service_account", "private_key": f"{BEGIN} PRIVATE KEY-----"}),
}


@pytest.mark.parametrize("in_git", [True, False])
def test_credentials_are_left_out_unless_they_are_asked_for(tmp_path: Path, in_git: bool) -> None:
    project = project_of(tmp_path, **CREDENTIALS)
    if not in_git:
        shutil.rmtree(project / ".git")
    expected = {name for name in CREDENTIALS if in_git or "/" in name}
    selected = package.select(project)
    assert selected.names == ["plmjax/a.py", "setup.py"] and set(selected.left_out) == expected
    assert sum("looks like credentials; --include" in line for line in selected.lines(verbose=False)) == len(expected)
    asked = package.select(project, include=["plmjax/.env"])
    assert asked.names == ["plmjax/.env", "plmjax/a.py", "setup.py"] and set(asked.left_out) == expected - {
        "plmjax/.env"
    }
    with pytest.raises(UserError, match=r"--include to name a file that is left out, found 'plmjax/a.py'; left out: "):
        package.select(project, include=["plmjax/a.py"])


def test_no_file_of_the_project_itself_looks_like_credentials() -> None:
    assert package.select(ROOT).left_out == ()


def job_and_script(printed: str) -> tuple[dict, dict[str, str]]:
    """The job of a dry run, and the settings of its startup script."""
    found = parts(printed)
    job = next(block for line, block in found.items() if "job.json" in line)
    create = next(block for line, block in found.items() if "CreateQueuedResource" in line)
    script = create["queuedResource"]["tpu"]["nodeSpec"][0]["node"]["metadata"]["startup-script"]
    settings = (shlex.split(line)[0].partition("=") for line in script.splitlines() if re.match("[A-Z_]+=", line))
    return job, {name: value for name, _, value in settings}


@pytest.mark.usefixtures("checked_once")
def test_a_task_is_fine_tuned_from_a_run_in_the_bucket(tpu, offline) -> None:
    code, printed, said = tpu(
        "submit", "finetune_glue:mrpc", *PLACE, *SLICE, "--bucket", "gs://b", "--from", "gs://b/runs/bert", "--dry_run",
        "--price", 1.5, "--spot", "--", "--data.folder", "gs://b/mrpc",
    )  # fmt: skip
    assert code == 0, said
    _, script = job_and_script(printed)
    command = (
        "plmjax finetune experiments/finetune_glue.py:mrpc --from gs://b/runs/bert --workdir gs://b/runs/finetune-glue "
        "--join_seconds 1800 --data.folder gs://b/mrpc"
    )
    assert script["COMMAND"] == command and script["LIBRARY"] == ".[tpu]"
    *_, run, where, cost = printed.splitlines()
    assert run == f"run     {command}"
    assert where == "where   v5e:8x8, 64 chips of 16 hosts in us-west4-a, spot"
    assert cost.startswith("cost    96.00 an hour at 1.5 a chip-hour; plmjax plan experiments/finetune_glue.py:mrpc ")


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
    arguments = [
        *PLACE,
        "--accelerator",
        "v5e",
        "--topology",
        "4x4",
        "--bucket",
        "gs://b",
        "--data.path",
        "gs://b/text",
    ]
    code, printed, said = tpu("submit", "mine.py", *arguments, "--dry_run", "--verbose")
    assert code == 0, said
    packed = {line.split()[1] for line in printed.splitlines() if line.startswith("pack ")}
    library = {f".plmjax/{name}" for name in package.select(ROOT).names}
    assert packed == {"mine.py", "beside.py", ".plmjax/versions.txt"} | library
    job, script = job_and_script(printed)
    assert script["LIBRARY"] == job["library"] == "./.plmjax[tpu]"
    assert script["COMMAND"].startswith("plmjax pretrain mine.py --workdir gs://b/runs/mine ")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "notes.txt"], check=True)
    assert package.select(tmp_path, "mine.py").names == ["mine.py", "notes.txt"]
    code, printed, _ = tpu("submit", "mine.py", *arguments, "--dry_run")
    assert code == 0 and sum(line.startswith("pack ") for line in printed.splitlines()) == 1


@pytest.mark.usefixtures("checked_once")
def test_no_text_of_a_user_runs_as_shell_on_the_workers(tpu, offline, tmp_path: Path) -> None:
    marks = [tmp_path / f"ran{number}" for number in range(3)]
    path = f"gs://b/x\ntouch {marks[0]}\n# '; touch {marks[1]}; $(touch {marks[2]})"
    _, printed, _ = tpu(
        "submit", TINY, *PLACE, "--accelerator", "v5e", "--topology", "4x4", "--bucket", "gs://b", "--dry_run",
        "--workdir", path, "--data.path", path,
    )  # fmt: skip
    create = next(block for line, block in parts(printed).items() if "CreateQueuedResource" in line)
    script = create["queuedResource"]["tpu"]["nodeSpec"][0]["node"]["metadata"]["startup-script"]
    settings = script.partition("\n# The rest is the same for every job.")[0]
    shown = subprocess.run(
        ["bash", "-c", f'{settings}\nprintf %s "$COMMAND"'], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert shlex.split(shown.stdout)[-1] == path
    assert not any(mark.exists() for mark in marks)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"data": {"path": "mine"}}, "data.path"),
        ({"data": {"input": ("gs://b/text", "mine")}}, "data.input"),
        ({"data": {"mixture": Mixture(("a=gs://b/a", "b=mine"))}}, "data.mixture.sources"),
        ({"data": {"path": "gs://b/data"}, "tokenizer": {"path": "mine"}}, "tokenizer.path"),
        ({"data": {"input": ("packed/words.txt", "packed/", "packed")}}, ""),
        ({"data": {"input": ("pack",)}}, "data.input"),
    ],
)
def test_text_that_the_hosts_cannot_read_is_named(changed: dict, field: str, tmp_path: Path) -> None:
    """Files of the project are packed; a folder for rehearsals is on the same machine."""
    run = experiments.load(LARGE)
    for group, values in changed.items():
        run = dataclasses.replace(run, **{group: dataclasses.replace(getattr(run, group), **values)})
    submission._check_text(run, str(tmp_path), [])
    with pytest.raises(UserError, match=rf"--{field} in a bucket") if field else contextlib.nullcontext():
        submission._check_text(run, "gs://b", ["packed/words.txt"])


def test_a_job_goes_on_with_its_own_experiment_where_it_has_no_slice(service, bucket: Path) -> None:
    run = experiments.load("experiments/bert_tiny.py")
    job = job_of(bucket, resolved=experiments.to_dict(run), runtime="r", attempt=2, first=2)
    asked = submission.Submission(dataclasses.replace(job, attempt=1, first=1), b"", "", package.Selection({}))
    assert submission.next_attempt(asked) is asked
    jobs.save(job)
    free = dataclasses.replace(run, checkpoint=dataclasses.replace(run.checkpoint, keep=9))
    kept = dataclasses.replace(asked, job=dataclasses.replace(asked.job, resolved=experiments.to_dict(free)))
    found = submission.next_attempt(kept)
    assert (found.job.attempt, found.job.first, found.job.resolved) == (3, 3, experiments.to_dict(free))
    assert "ATTEMPT=3\n" in found.script and "FOLDER=jobs/tiny/3\n" in found.script
    other = dataclasses.replace(run, model=dataclasses.replace(run.model, num_hidden_layers=3))
    changed = dataclasses.replace(asked, job=dataclasses.replace(asked.job, resolved=experiments.to_dict(other)))
    with pytest.raises(UserError, match=r"Expected model\.num_hidden_layers = 2, .* found 3; submit it unchanged"):
        submission.next_attempt(changed)
    queue.Queue(job).create("")
    with pytest.raises(UserError, match="Expected no slice of a job named tiny, found one"):
        submission.next_attempt(kept)
