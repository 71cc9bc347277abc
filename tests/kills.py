"""Commands that are killed at a chosen moment: before the k-th operation by which Python changes a folder.

`python -m tests.kills` is a server that has imported all that commands need. For each line of JSON that it reads it
forks; the child runs a command and kills itself by SIGKILL before operation `moment`, so that no `finally` tidies up
and nothing in a buffer is written. `moment` 0 lets the command end.
"""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.paths import ROOT

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
"""Python's audit events for changes of a folder, besides `open`."""


class Ended(NamedTuple):
    """The end of a command: its exit code, -9 if it was killed; how many operations it did; what it printed."""

    code: int
    moments: int
    said: str


class Commands:
    """The server, as a context manager."""

    def __enter__(self) -> Self:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
        self._requests = 0
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._server = subprocess.Popen([sys.executable, "-m", "tests.kills"], env=environment, cwd=ROOT, **pipes)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.communicate()

    def run(self, arguments: list[Any], folder: Path, moment: int = 0, largest: int = 0) -> Ended:
        """Run a command, and kill it before the operation `moment` in `folder`; operations are counted from 1.

        largest: number of bytes to which a file may grow, as on a full disk; 0 for no limit.
        """
        self._requests += 1
        request = {"arguments": [*map(str, arguments)], "folder": str(folder), "moment": moment}
        request |= {"largest": largest}
        self._server.stdin.write(json.dumps([self._requests, request]) + "\n")
        self._server.stdin.flush()
        for line in self._server.stdout:
            number, *ended = json.loads(line)
            if number == self._requests:  # not the answer for a test that did not wait for it
                return Ended(*ended)
        raise EOFError("The server of commands has ended.")


def _serve() -> None:
    import jax  # noqa: F401
    import orbax.checkpoint  # noqa: F401

    import plmjax.inference.embed
    import plmjax.interop.run_directories
    import plmjax.runs.pretraining  # noqa: F401

    for line in sys.stdin:
        number, request = json.loads(line)
        read, write = os.pipe()
        if not (child := os.fork()):
            _run(write, **request)
        os.close(write)
        with os.fdopen(read) as pipe:
            told = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        moments, said = json.loads(told) if told else (request["moment"] - 1, "")
        print(json.dumps([number, status, moments, said]), flush=True)


def _run(pipe: int, arguments: list[str], folder: str, *, moment: int, largest: int) -> None:
    from plmjax.commands import cli
    from plmjax.commands.command_line import exit_status

    count = 0

    def look(event: str, values: tuple) -> None:
        nonlocal count
        if event == "open":
            flags = values[2] if isinstance(values[2], int) else 0
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event not in CHANGES:
            return
        if str(values[0]).startswith(folder):
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    code, said = 0, io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        sys.addaudithook(look)
        if largest:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        try:
            cli.run(arguments)
        except BaseException as error:
            code, sentence = exit_status(error)
            print(sentence or repr(error))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with os.fdopen(pipe, "w") as file:
        json.dump([count, said.getvalue()], file)
    sys.stdout.flush()
    os._exit(code)


def moments(count: int, chosen: int) -> Iterator[int]:
    """Yield the moments of a command with `count` operations: all of them, or `chosen` ones, the last ones first."""
    yield from sorted({count - place * count // chosen for place in range(min(count, chosen))}, reverse=True)


if __name__ == "__main__":
    _serve()
