"""Every command of docs/tpu.md, in its order: submissions in dry-run first, then all of it on this machine.

The bucket is an object store and Cloud TPU a gRPC server of this machine; the run itself is one that is finished.
"""

import functools
import re
import shlex
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax import experiment as experiments
from plmjax.commands import cli, command_line, planning
from plmjax.files import storage
from plmjax.parallel import topologies
from plmjax.training.checkpoints import checkpoints
from tests.object_store import ObjectStore
from tests.tpu.service import CloudTpu
from tpu import __main__ as program
from tpu import job as jobs
from tpu import package
from tpu.job import Verdict

PAGE = (package.ROOT / "docs" / "tpu.md").read_text(encoding="utf-8").replace("\\\n", " ")
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [shlex.split(line) for block in BLOCKS for line in block.strip().splitlines()]
SUBMISSIONS = [command[3:] for command in COMMANDS if command[:4] == ["python", "-m", "tpu", "submit"]]
SHORTER = {"tokenizer": ["--vocab_size", "1024"]}
"""Options that turn minutes into seconds; nothing else is added to a command."""
BUCKET = "gs://my-bucket"


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", SUBMISSIONS, ids=lambda arguments: "-".join(arguments[1:10:2]))
def test_a_submission_in_dry_run(arguments: list[str], capsys: pytest.CaptureFixture) -> None:
    if "--dry_run" not in arguments:
        arguments = [*arguments[:2], "--dry_run", *arguments[2:]]
    program.run(arguments)
    printed = capsys.readouterr().out
    assert "write   gs://my-bucket/packages/" in printed
    assert ("google.cloud.tpu.v2.Tpu/CreateQueuedResource" in printed) != ("--kubernetes" in arguments)


@pytest.mark.nightly
def test_the_walk_on_this_machine(
    tmp_path: Path, prose: Path, small_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "experiments").symlink_to(package.ROOT / "experiments")
    (tmp_path / "wikipedia").mkdir()
    shutil.copy(prose, tmp_path / "wikipedia")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tpu.follow.time.sleep", lambda seconds: None)
    planned = []

    @functools.wraps(planning.plan)
    def dry(experiment: str, topology: tuple[str, ...], **others: object) -> None:
        """A plan without the compiler, with which the tests in tests/planning make theirs."""
        planned.extend((experiments.load(experiment), topologies.parse(name)) for name in topology)

    monkeypatch.setattr(planning, "plan", dry)
    with ObjectStore() as store, store.environment(), CloudTpu() as service:
        service.zones = ("us-west4-a", "europe-west4-a")
        store.create("my-bucket")
        monkeypatch.setenv("TPU_API_ENDPOINT", service.address)
        for name in ("bert-base-4x4", "bert-large-8x8"):
            for file in (file for file in small_run.rglob("*") if file.is_file()):
                store.put("my-bucket", f"runs/{name}/{file.relative_to(small_run).as_posix()}", file.read_bytes())
        ended = ends(service)
        for command in COMMANDS:
            if command[0] == "plmjax":
                cli.run([*command[1:], *SHORTER.get(command[1], [])])
            else:
                assert command[:3] == ["python", "-m", "tpu"]
                if command[3] == "watch":
                    ended.add("bert-large-8x8")
                program.run(command[3:])
            if command[3:4] == ["submit"] and "--detach" in command:
                capsys.readouterr()
                program.run(["status", "bert-large-8x8", "--bucket", BUCKET])
                assert re.search(r"^progress +step 6 of 6", capsys.readouterr().out, re.M)
        assert [piece.name for _, piece in planned] == ["v5e:4x4", "v5e:8x8", "v6e:8x8"]
        assert not service.resources
        assert jobs.names(BUCKET) == ["bert-base-4x4", "two-slices"]
        assert jobs.verdict(jobs.find(BUCKET, "bert-base-4x4")) == Verdict("done")
        assert (tmp_path / "bert-large" / "model.safetensors").is_file()
        assert storage.path(f"{BUCKET}/wikipedia/manifest.json").is_file()


def ends(service: CloudTpu) -> set[str]:
    """Has the hosts of the named jobs end them, as if the run were complete; BERT-Base from the beginning."""
    named, answer, asked = {"bert-base-4x4"}, service._get, []

    def end(request):
        name = request.name.rpartition("/")[2]
        asked.append(name)
        if name in named and asked.count(name) > 5:
            jobs.decide(jobs.find(BUCKET, name), Verdict("done"))
        return answer(request)

    service._get = end
    return named


OPERATIONS = (package.ROOT / "docs" / "operations.md").read_text(encoding="utf-8").replace("\\\n", " ")
OPERATED = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", OPERATIONS, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.nightly
def test_the_operations_of_a_job_on_this_machine(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """In the order of the page: a job is submitted, watched, looked at. What needs chips or hosts is read alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(package.ROOT / "experiments")
    read, ran = [], []
    with ObjectStore() as store, store.environment(), CloudTpu() as service:
        service.zones = ("us-west4-a",)
        store.create("my-bucket")
        monkeypatch.setenv("TPU_API_ENDPOINT", service.address)
        monkeypatch.setattr("tpu.notify.reach", lambda target: None)  # there is no such host
        for command in OPERATED:
            if command[0] == "plmjax":
                read.append(command_line.parse(cli.verb(command[1]), "plmjax", command[2:]))
            elif command[3] in ("profile", "debug") or "--selfcheck" in command:
                own = command[4 : command.index("--")] if "--" in command else command[4:]
                read.append(command_line.parse(program.VERBS[command[3]], "tpu", own))
            else:
                program.run(command[3:])
                ran.append(command[3])
        assert ran == ["submit", "watch", "logs", "submit"] and len(read) == 4
        assert jobs.find(BUCKET, "bert-base-4x4").notify.startswith("https://hooks.example.com/")
        printed = capsys.readouterr().out
        assert "tpu-vm ssh" in printed or "gcloud" in printed  # the last one is a dry run on machines that exist


def test_orbax_alone_reads_a_checkpoint(small_run: Path) -> None:
    (lines,) = re.findall(r"```python\n(.*?)```", OPERATIONS, re.DOTALL)
    names: dict[str, object] = {}
    exec(lines.replace("RUN/checkpoints/STEP", str(small_run / "checkpoints" / "6")), names)
    parameters, _ = checkpoints.load_parameters(small_run)
    jax.tree.map(np.testing.assert_array_equal, names["params"], parameters)
