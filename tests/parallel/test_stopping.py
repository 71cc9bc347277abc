"""Signals that ask a run to stop, and requests that all hosts learn of at the same step."""

import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from plmjax.parallel.host_flags import HostFlags
from plmjax.parallel.stopping import StopSignals
from tests.paths import ROOT


def test_the_first_signal_is_remembered_and_a_ctrl_c_after_it_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    for first in (signal.SIGTERM, signal.SIGINT):
        with StopSignals() as stop:
            assert stop.received is None
            for number in (first, signal.SIGTERM):
                os.kill(os.getpid(), number)
                assert stop.received is first
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


BUSY = """
import hashlib, sys
from plmjax.parallel import stopping

stopping.watch("program")
with stopping.StopSignals() as stop:
    stop.unsaved = sys.argv[1] == "unsaved"
    print("ready", flush=True)
    if sys.argv[2] == "inside":  # C code that comes back to Python after many minutes
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    while stop.received is None:
        pass
    print(stop.received.name, flush=True)
    while True:
        pass
"""


def started(*arguments: str, ignored: str = "") -> subprocess.Popen:
    """BUSY, started by a shell that ignores some signals."""
    shell = ["sh", "-c", f'trap "" {ignored}; exec "$@"', "sh"] if ignored else []
    command = [*shell, sys.executable, "-c", BUSY, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def ended(*arguments: str, signals: tuple[signal.Signals, ...]) -> tuple[int, str, str]:
    """Exit code, output and errors of BUSY, sent the signals one after the other has been heard."""
    process, out = started(*arguments), ""
    for number in signals:
        out += process.stdout.readline()
        process.send_signal(number)
    rest, errors = process.communicate(timeout=300)
    return process.returncode, out + rest, errors


@pytest.mark.parametrize(("number", "code", "where"), [(signal.SIGTERM, 75, "inside"), (signal.SIGINT, 130, "outside")])
def test_a_watched_process_with_nothing_to_save_ends_at_once(number: signal.Signals, code: int, where: str) -> None:
    """Also where Python does not get to call its own handlers."""
    sentence = f"program: Stopped by {number.name} with nothing new to save; run the same command again.\n"
    assert ended("saved", where, signals=(number,)) == (code, "ready\n", sentence)


def test_a_watched_process_saves_first_and_a_second_ctrl_c_ends_it() -> None:
    code, out, errors = ended("unsaved", "outside", signals=(signal.SIGTERM, signal.SIGINT))
    assert (code, out) == (130, "ready\nSIGTERM\n")
    assert errors == "program: Stopped at once by a second signal, SIGINT; what is left is the last checkpoint.\n"


def test_a_signal_that_the_process_was_started_to_ignore_stays_ignored() -> None:
    """As nohup ignores a hangup, and a shell Ctrl-C for what it runs in the background."""
    process = started("saved", "outside", ignored="HUP INT")
    assert process.stdout.readline() == "ready\n"
    for number in (signal.SIGHUP, signal.SIGINT):
        process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.terminate()
    _, errors = process.communicate(timeout=300)
    assert errors == "program: Stopped by SIGTERM with nothing new to save; run the same command again.\n"
    assert process.returncode == 75


def test_a_vote_is_known_two_steps_later_and_at_once_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4, 1), ("data", "fsdp", "tensor"))
    vote = HostFlags(mesh)
    assert vote(15, 1) == (15, 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    found = [vote(*asked) for asked in ((15, 0), (0, 1), (2, 3), (0, 0), (0, 0))]
    assert found == [(0, 0), (0, 0), (15, 0), (0, 1), (2, 3)]
