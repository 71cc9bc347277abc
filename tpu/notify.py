"""Notifications about events of a job, by a webhook or by a command of the user.

A webhook gets a POST of {"text": sentence, "job": name, "event": event}, which the incoming webhooks of Slack and
Mattermost take. Google Chat refuses unknown fields, and gets the text alone. A command is run by the shell, with
PLMJAX_JOB, PLMJAX_EVENT and PLMJAX_TEXT in its environment.
"""

import dataclasses
import http.client
import json
import os
import shlex
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from plmjax.errors import Unavailable, UserError

Kind = Literal["failed", "done", "lost", "waiting", "still"]
SECONDS = 30
"""Time limit of a webhook and of a command."""
_CHAT = "chat.googleapis.com"


@dataclasses.dataclass(frozen=True)
class Notice:
    """An event of a job to send."""

    job: str
    event: Kind
    text: str
    """One sentence, with the name of the job."""


def check(target: str) -> None:
    """Raise UserError unless `target` is empty, an http(s) URL, or a command that this machine has."""
    if _is_url(target):
        parts = _split(target)
        if parts is None or parts.scheme not in ("https", "http") or not parts.hostname:
            raise UserError(
                f"Expected --notify of a webhook as https://HOST/PATH, found {target!r}; correct it, or name a command."
            )
        return
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise UserError(f"Expected --notify of a URL or a command, found {target!r} ({error}); correct it.") from None
    if target and (not words or (len(words) == 1 and shutil.which(words[0]) is None)):
        raise UserError(
            f"Expected --notify of an https:// URL or a command, found {target!r}, which is neither here; correct it."
        )


def reach(target: str) -> None:
    """Raise UserError if `target` is a webhook whose host does not exist or does not listen."""
    if not _is_url(target):
        return
    parts = urlsplit(target)
    try:
        socket.create_connection((parts.hostname, _port(parts)), timeout=10).close()
    except OSError as error:
        raise UserError(
            f"Expected a webhook for --notify that can be reached, found none at {describe(target)} "
            f"({error.strerror or error}); correct it."
        ) from None


def describe(target: str) -> str:
    """Return a target for a message: without the path of a webhook or the arguments of a command, which are secret."""
    if _is_url(target):
        return f"the webhook of {urlsplit(target).hostname}"
    return f"the command {shlex.split(target)[0]!r}"


def send(target: str, notice: Notice) -> None:
    """Send one notice.

    Raises:
        Unavailable: the webhook did not take it, or the command failed.
    """
    try:
        if _is_url(target):
            _post(target, notice)
        else:
            _run(target, notice)
    except (OSError, http.client.HTTPException, subprocess.SubprocessError, ValueError) as error:
        raise Unavailable(
            f"Expected {describe(target)} to take the event {notice.event!r}, found: {_reason(error)}; correct "
            f"--notify of python -m tpu watch."
        ) from error


def _post(url: str, notice: Notice) -> None:
    fields = dataclasses.asdict(notice)
    body = {"text": notice.text} if urlsplit(url).hostname == _CHAT else fields
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json; charset=UTF-8"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=SECONDS).close()


def _run(command: str, notice: Notice) -> None:
    variables = {"PLMJAX_JOB": notice.job, "PLMJAX_EVENT": notice.event, "PLMJAX_TEXT": notice.text}
    subprocess.run(command, shell=True, check=True, timeout=SECONDS, env=os.environ | variables)


def _reason(error: Exception) -> str:
    """Return the reason without the target, which can be a secret."""
    match error:
        case urllib.error.HTTPError():
            return f"HTTP status {error.code}"
        case subprocess.CalledProcessError():
            return f"exit code {error.returncode}"
        case subprocess.TimeoutExpired():
            return f"no end within {SECONDS} seconds"
        case urllib.error.URLError():
            return " ".join(str(error.reason).split())
    return " ".join(str(error).split()) or type(error).__name__


def _is_url(target: str) -> bool:
    return "://" in target and not any(character.isspace() for character in target)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _port(parts)
    except ValueError:
        return None
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
