"""Several hosts on one machine: processes of two simulated devices each, joined by their guards and gloo."""

import dataclasses
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from plmjax import experiment, platform
from plmjax.errors import SAVED, UNAVAILABLE, Unavailable
from plmjax.files import storage
from plmjax.parallel import guard, hosts
from plmjax.runs import folder
from plmjax.training import loop, metrics
from plmjax.training.checkpoints import checkpoints
from tests.paths import ROOT
from tests.small_runs import SMALL_BERT
from tests.third_party import experiments
from tests.third_party.source import ChainSource
from tests.xla_flags import cpu_flags

STRANGER = ("-m", "tests.third_party.train", "recurrent")
EVERY_TWO = (
    "--training.steps", "12", "--checkpoint.every", "2", "--checkpoint.keep", "0", "--training.log_every", "1",
)  # fmt: skip


@dataclasses.dataclass
class Ended:
    """The end of one host: its exit code, what it printed, and the seconds from the first end to this one."""

    code: int
    out: str
    err: str
    after: float


def free_port() -> int:
    """A port that nothing takes by itself: below those that the kernel gives to connections."""
    while True:
        port = random.SystemRandom().randrange(12_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)):
                return port


def start(*command: object, count: int = 2, devices: int = 2, only: dict[int, tuple] | None = None) -> list[Ended]:
    """Runs `python COMMAND` on every host; `only[host]` are further arguments, or an environment, of that host."""
    address = f"localhost:{free_port()}"
    processes = []
    for host in range(count):
        own = (only or {}).get(host, ())
        environment = os.environ | {"XLA_FLAGS": cpu_flags(devices)} | (own if isinstance(own, dict) else {})
        if count > 1:
            environment |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)}
            environment["JAX_PROCESS_ID"] = str(host)
        line = [sys.executable, *map(str, command), *([] if isinstance(own, dict) else map(str, own))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(line, cwd=ROOT, env=environment, **pipes))
    first, after = None, {}
    deadline = time.monotonic() + 300
    while len(after) < count:
        for host, process in enumerate(processes):
            if host not in after and process.poll() is not None:
                first = first or time.monotonic()
                after[host] = time.monotonic() - first
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(0.05)
    said = [process.communicate() for process in processes]
    return [Ended(process.returncode, *said[host], after[host]) for host, process in enumerate(processes)]


def train(workdir: Path, *arguments: object, **settings) -> list[Ended]:
    return start(*STRANGER, workdir, *arguments, *EVERY_TWO, **settings)


def train_alone(workdir: Path) -> None:
    """The same on one host of four devices: in this process, in which nothing is loaded anew."""
    run = experiment.override(experiments.recurrent(), EVERY_TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "devices", lambda platform: jax.devices()[:4])
        folder.record_experiment(storage.path(workdir), run)
        loop.train(run, workdir, ChainSource(run.data), tokenizer={})


def lost(ended: list[Ended], sentence: str) -> None:
    """Every host stopped as one that has lost another, before any time limit, and its last line names whom."""
    for host in ended:
        assert host.code == UNAVAILABLE, host.err
        assert host.after < guard.ENDING_SECONDS == experiment.Hosts().silent_seconds
    assert any(sentence in host.err.splitlines()[-1] for host in ended), [host.err[-500:] for host in ended]
    assert sum("Host " in host.err.splitlines()[-1] for host in ended) >= len(ended) - 1


def losses(workdir: Path) -> list[tuple[int, float]]:
    lines = metrics.read(workdir / "metrics.jsonl")
    return [(line["step"], line.get("train/loss", line.get("eval/loss"))) for line in lines]


def assert_same_run(expected: Path, found: Path) -> None:
    steps, values = zip(*losses(expected), strict=True)
    found_steps, found_values = zip(*losses(found), strict=True)
    assert found_steps == steps
    np.testing.assert_allclose(found_values, values, rtol=1e-5)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one host of four devices."""
    workdir = tmp_path_factory.mktemp("hosts") / "one"
    train_alone(workdir)
    return workdir


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on two hosts, undisturbed."""
    workdir = tmp_path_factory.mktemp("hosts") / "two"
    ended = train(workdir)
    assert [host.code for host in ended] == [0, 0], "\n".join(host.err for host in ended)
    assert "step 12/12" in ended[0].out and ended[1].out == ""  # host 0 speaks
    assert [host.err for host in ended] == [f"plmjax: process {index} of 2 is worker {index}\n" for index in (0, 1)]
    return workdir


def test_a_job_that_goes_on_with_more_hosts_and_with_fewer_loses_what_one_loses(one, tmp_path):
    """One host has it at step 4, then two hosts, of which one gets SIGTERM and both save the same step, then one.

    JAX numbers the two from the last to the first, as libtpu may: its process 0 prints and writes.
    """
    run = tmp_path / "run"
    shutil.copytree(one, run)
    for step in (6, 8, 10, 12):
        shutil.rmtree(run / "checkpoints" / str(step))
    exchanged = {"EXCHANGED": "1"}
    ended = train(run, only={0: exchanged, 1: exchanged | {"DOOMED": "7 SIGTERM"}})
    assert [host.code for host in ended] == [SAVED] * 2, "\n".join(host.err for host in ended)
    (saved,) = {int(host.err.rpartition("saved at step ")[2].split(".")[0]) for host in ended}
    for host, end in enumerate(ended):
        assert ("Stopped by SIGTERM and saved" if host == 1 else "SIGTERM on another host") in end.err
        assert f"plmjax: process {1 - host} of 2 is worker {host}\n" in end.err
    assert ended[0].out == "" and "step  6/12" in ended[1].out
    assert json.loads((run / "progress.json").read_text())["worker"] == 1
    assert checkpoints.describe(checkpoints.find(run)).step == saved >= 7
    train_alone(run)
    assert_same_run(one, run)


# Forty seconds each; by day test_guard.py has the trainer that is killed and the messages about either host, and two
# hosts go on from what another job saved.
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_job_of_a_host_that_died_names_it_and_started_again_ends_in_the_same_bits(two, tmp_path, victim):
    ended = train(tmp_path, only={victim: {"DOOMED": "5 SIGKILL"}})
    lost(ended, f"Host {victim} (worker {victim}, {socket.gethostname()}) stopped: its process was killed by SIGKILL.")
    ended = train(tmp_path)
    assert [host.code for host in ended] == [0, 0], "\n".join(host.err for host in ended)
    expected, found = (checkpoints.load_parameters(workdir)[0] for workdir in (two, tmp_path))
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    assert losses(tmp_path) == losses(two)


@pytest.mark.nightly
def test_a_host_that_hangs_is_named_with_every_stack(tmp_path):
    ended = train(tmp_path, "--hosts.silent_seconds", 10, only={1: {"DOOMED": "5 SIGSTOP"}})
    lost(ended, f"Host 1 (worker 1, {socket.gethostname()}) of 2 has not been heard from for 10 s")
    assert "most recent call first" in ended[0].err and "loop.py" in ended[0].err


@pytest.mark.nightly
@pytest.mark.parametrize("count", [2, 4])
def test_hosts_go_on_together_when_one_cannot_save(object_store, bucket, two, count):
    """The service refuses some of what the last host writes, and some of what host 0 does to complete a checkpoint."""
    refused = {f"process_{count - 1}": 3, "checkpoints/8/commit_success": 1}

    def weather(method: str, path: str) -> int | None:
        name = next((name for name, left in refused.items() if left and name in path and method == "POST"), None)
        if name:
            refused[name] -= 1
        return 403 if name else None

    object_store.weather = weather
    workdir = f"gs://{bucket}/run"
    variables = dict.fromkeys(range(count), object_store.variables())
    ended = train(workdir, count=count, devices=4 // count, only=variables)
    object_store.weather = None
    assert [host.code for host in ended] == [0] * count, "\n".join(host.err for host in ended)
    assert not any(refused.values())
    for host in ended:
        assert host.err.count("no checkpoint was saved, and it will be tried again") >= 2, host.err
    assert checkpoints.find(workdir).name == "12"
    expected, found = (checkpoints.load_parameters(run)[0] for run in (two, workdir))
    if count == 2:
        jax.tree.map(np.testing.assert_array_equal, expected, found)
    assert_same_run(two, storage.path(workdir))  # on another number of hosts sums have another order


@pytest.mark.nightly
def test_stacks_of_a_host_are_printed_and_it_goes_on(tmp_path):
    ended = train(tmp_path, only={1: {"DOOMED": "5 SIGUSR1"}})
    assert [host.code for host in ended] == [0, 0], "\n".join(host.err for host in ended)
    assert "plmjax: stacks of host 1\n" in ended[1].err and "most recent call first" in ended[1].err
    assert "loop.py" in ended[1].err and "most recent call first" not in ended[0].err


@pytest.mark.nightly
def test_other_data_is_refused_on_every_host(one, tmp_path):
    shutil.copytree(one, tmp_path / "run")
    ended = train(tmp_path / "run", only={1: {"CHAIN_FINGERPRINT": "newer"}})
    assert [host.code for host in ended] == [2, 2]
    sentence = "the dataset's fingerprint to be the same on every host, found newer on host 1 and chain on host 0"
    assert all(sentence in host.err for host in ended)


@pytest.mark.slow  # more than a minute: two hosts start twice from raw text
def test_the_command_line_prepares_once_and_trains_as_one_host_does(small_run, prose, tmp_path):
    command = ("-m", "plmjax", "pretrain", "experiments/bert_tiny.py", "--workdir", tmp_path / "run")
    text = ("--data.input", prose, *SMALL_BERT)
    ended = start(*command, *text, only={1: ("--training.seed", 5)})
    assert [host.code for host in ended] == [2, 2]
    assert all("training.seed = 5 on host 1 and 0 on host 0" in host.err for host in ended)
    ended = start(*command, *text)
    assert [host.code for host in ended] == [0, 0], "\n".join(host.err for host in ended)
    assert "preparing" in ended[0].out and ended[1].out == ""
    assert_same_run(small_run, tmp_path / "run")


@pytest.mark.nightly
def test_hosts_that_do_not_share_a_folder_are_told(tmp_path):
    ended = start(*STRANGER, only={host: (tmp_path / str(host), *EVERY_TWO) for host in (0, 1)})
    assert [host.code for host in ended] == [2, 2]
    assert all("what host 0 writes there; name a --workdir" in host.err for host in ended)


def watched(limits: str, *lines: str) -> subprocess.Popen:
    """A run on one host with these limits, which does this."""
    program = f"""
import time
from plmjax import experiment
from plmjax.parallel import hosts
def waits_for_ever():
    time.sleep(3)
with hosts.watch_for_stalls(experiment.Hosts({limits})):
    {"; ".join(lines)}
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], **pipes)


@pytest.mark.parametrize(
    ("limits", "pace", "seconds"),
    [
        ("stall_minutes=0.01, activity_minutes=0.02", "STEP", 0.6),
        pytest.param("stall_minutes=0.01, activity_minutes=0", "ACTIVITY", None, marks=pytest.mark.nightly),
        pytest.param("stall_minutes=0.01, activity_minutes=0.01", "UNLIMITED", None, marks=pytest.mark.nightly),
    ],
)
def test_a_stall_on_one_host_prints_every_stack_and_ends(limits, pace, seconds):
    """What has no limit before it takes longer than both limits."""
    restoring = f"hosts.report_progress('restoring', hosts.{pace})"
    waiting = ("hosts.report_progress('waiting', hosts.UNLIMITED)", "time.sleep(2)")
    process = watched(limits, *waiting, *[restoring, "time.sleep(0.4)"] * 3, "waits_for_ever()")
    _, errors = process.communicate(timeout=60)
    if seconds is None:
        assert (process.returncode, errors) == (0, "")
    else:
        assert process.returncode == UNAVAILABLE
        assert f"No progress for {seconds} s (restoring)" in errors and "waits_for_ever" in errors


def test_a_run_that_was_suspended_has_not_stalled():
    """As by Ctrl-Z, or a laptop that is closed."""
    computing = ("hosts.report_progress('computing')", "print('ready', flush=True)", "time.sleep(1.0)")
    process = watched("stall_minutes=0.05", *computing)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(4.5)
    process.send_signal(signal.SIGCONT)
    assert process.wait(20) == 0, process.stderr.read()


def test_a_host_alone_says_who_is_missing_and_an_option_comes_before_the_environment(fails, monkeypatch):
    """Also where it is 0."""
    address = f"localhost:{free_port()}"
    command = ("pretrain", "bert_tiny", "--join_seconds", "0.2")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", address)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    assert f"Expected host 0 at {address}" in fails(*command, code=UNAVAILABLE)
    own = f"localhost:{free_port()}"
    said = fails(*command, "--coordinator", own, "--hosts", 3, "--host", 0, code=UNAVAILABLE)
    assert "Expected 3 hosts within 0.2 s, found none for 1, 2;" in said
    assert f"Expected host 0 at {own}" in fails(*command, "--coordinator", own, code=UNAVAILABLE)
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS")
    assert "found no --coordinator;" in fails(*command)


def test_a_host_of_a_slice_knows_the_others_by_the_slice(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost,second")
    monkeypatch.setenv("TPU_WORKER_ID", "1")
    options = hosts.JoinOptions(join_seconds=0.1)
    hosts.join(options)  # without a TPU it is alone
    monkeypatch.setattr(platform, "has_tpu", lambda: True)
    with pytest.raises(Unavailable, match="Expected host 0 at localhost:8479"):
        hosts.join(options)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    hosts.join(options)


def test_messages_are_whole_whatever_pieces_they_arrive_in():
    ours, theirs = socket.socketpair()
    lines = guard.JsonConnection(ours)
    theirs.sendall(b'{"agreed": "a"}\n{"ag')
    assert lines.receive() == [{"agreed": "a"}]
    theirs.sendall(b'reed": "b"}')
    assert lines.receive() == []
    theirs.sendall(b'\n{"stop": 2}\n')
    assert lines.receive() == [{"agreed": "b"}, {"stop": 2}]
    ours.settimeout(0.01)
    assert lines.receive() == []  # nothing has come
    theirs.close()
    assert lines.receive() is None
    ours.close()


TIME = "1127 10:00:00.123456   4711"


def test_errors_of_a_trainer_are_passed_on_without_the_pages_of_an_abort(capfd, tmp_path, monkeypatch):
    """The last words of libtpu are passed on, and all words are kept; so is a last line without its end."""
    monkeypatch.setenv("TPU_LOG_DIR", str(tmp_path))
    read, write = os.pipe()
    relay = guard.Relay(read)
    os.write(write, b"first line\nplmjax: Expected a")
    assert relay.forward() and capfd.readouterr().err == "first line\n"
    words = [
        f"E{TIME} coordination_service_agent.cc:9] lost",
        f"W{TIME} client.cc:9] cancelled",
        f"E{TIME} allocator.cc:9] full",
        f"F{TIME} tpu_executor.cc:9] Core halted unexpectedly: assert failed",
        "    @     0x7f  tpu::Driver",
        f"F{TIME} client.h:9] terminated",
        "*** a stack of the client's own abort",
    ]
    os.write(write, "\n".join([" text.", *words]).encode())
    relay.drain()
    assert capfd.readouterr().err.splitlines() == ["plmjax: Expected a text.", *words[2:5]]
    assert (tmp_path / "stderr").read_text() == "\n".join(["first line", "plmjax: Expected a text.", *words])
    for end in (read, write):
        os.close(end)
    read, write = os.pipe()
    relay = guard.Relay(read)
    os.write(write, b"Killed")
    for _ in range(2):  # it is written once
        relay.drain()
    assert capfd.readouterr().err == "Killed"
    for end in (read, write):
        os.close(end)
