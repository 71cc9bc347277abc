"""Events of a job are told to a webhook of this machine, or to a command."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest

from plmjax.errors import Unavailable
from tests.tpu.jobs import job_of
from tests.tpu.service import CloudTpu
from tpu import job as jobs
from tpu import notes, notify, queue, startup, watch
from tpu.job import Verdict
from tpu.notify import Notice

pytestmark = pytest.mark.usefixtures("checked_once")


class Webhook(HTTPServer):
    """taken: the bodies that it accepted. refusals: statuses of its next answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: list[dict] = []
        self.refusals: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_port}/services/SECRET"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = self.server.refusals.pop(0) if self.server.refusals else 200
        if status == 200:
            self.server.taken.append(body)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server
        server.shutdown()


def live(service: CloudTpu, bucket: Path) -> jobs.Job:
    """A job that lacks capacity, loses a slice, stands still twice, and is done."""
    job = job_of(bucket, runtime="r")
    service.lives = [("FAILED:no capacity",), ("ACTIVE", "SUSPENDED"), tuple(["ACTIVE"] * 999)]
    jobs.save(job)
    queue.Queue(job).create(startup.render(job))
    (bucket / "jobs/tiny/2/logs").mkdir(parents=True)
    (bucket / "jobs/tiny/2/logs/0.log").touch()
    (bucket / "run").mkdir()
    answer, looks = service._get, []

    def get(request):
        found = answer(request)
        if jobs.find(str(bucket), "tiny").attempt == 2:
            looks.append(found)
            record = {"step": 1 + (len(looks) > 200), "steps": 9, "loss": None, "tokens_per_second": None}
            record |= {"seconds_left": None, "checkpoint": None, "time": 1.0, "worker": 0}
            (bucket / "run" / "progress.json").write_text(json.dumps(record))
            if len(looks) == 400:
                jobs.decide(jobs.find(str(bucket), "tiny"), Verdict("done"))
        return found

    service._get = get
    return job


EVENTS = ["waiting", "lost", "still", "still", "done"]


@pytest.mark.parametrize("way", [pytest.param("long", marks=pytest.mark.nightly), "scheduled"])
@pytest.mark.parametrize(
    "refusals", [pytest.param([], marks=pytest.mark.nightly), [500, 404, 200, 503, 200, 200, 429, 500, 500, 500]]
)
def test_every_event_is_told_exactly_once(service, bucket: Path, webhook: Webhook, way: str, refusals: list) -> None:
    job, said = live(service, bucket), []
    webhook.refusals = list(refusals)
    if way == "long":
        assert watch.until_ended(watch.Watch(job, said.append, webhook.url)) == Verdict("done")
    else:
        ended = None
        while ended is None or notes.read(jobs.find(job.bucket, job.name)).unsent:
            known = jobs.find(job.bucket, job.name)
            ended = watch.once(watch.Watch(known, said.append, webhook.url))
            watch.time.sleep(30)
    assert [body["event"] for body in webhook.taken] == EVENTS
    assert {body["job"] for body in webhook.taken} == {"tiny"} and set(webhook.taken[0]) == {"text", "job", "event"}
    assert webhook.taken[1]["text"] == "tiny lost its slice; another one is requested, attempt 2 of 3."
    assert webhook.taken[2]["text"] == "tiny stands still: no step for 60 minutes after step 1 of 9."
    assert webhook.taken[4]["text"] == "tiny is done."
    assert "SECRET" not in "".join(said) and not webhook.refusals
    assert any("HTTP status 500" in line for line in said) == bool(refusals)


def test_a_webhook_that_never_answers_does_not_hold_a_watch(service, bucket: Path, webhook: Webhook) -> None:
    job = live(service, bucket)
    webhook.refusals = [503] * 999
    assert watch.until_ended(watch.Watch(job, lambda line: None, webhook.url)) == Verdict("done")
    assert [notice["event"] for notice in notes.read(jobs.find(job.bucket, "tiny")).unsent] == EVENTS
    webhook.refusals = []
    assert watch.until_ended(watch.Watch(job, lambda line: None, webhook.url)) == Verdict(
        "done"
    )  # looked at again later
    assert [body["event"] for body in webhook.taken] == EVENTS


def test_a_job_that_fails_is_told_with_its_reason(service, bucket: Path, webhook: Webhook) -> None:
    job = job_of(bucket, runtime="r")
    jobs.save(job)
    service.lives = [("ACTIVE", "SUSPENDED")]
    queue.Queue(job).create("")
    service.refusals["CreateQueuedResource"] = [(grpc.StatusCode.INVALID_ARGUMENT, "runtime r was withdrawn")]
    assert watch.until_ended(watch.Watch(job, lambda line: None, webhook.url)).state == "failed"
    assert [body["event"] for body in webhook.taken] == ["lost", "failed"]
    assert "runtime r was withdrawn" in webhook.taken[1]["text"]


def test_a_command_has_the_event_in_its_environment(tmp_path: Path) -> None:
    command = f'printf "%s|%s|%s" "$PLMJAX_JOB" "$PLMJAX_EVENT" "$PLMJAX_TEXT" > {tmp_path}/told'
    notify.send(command, Notice("tiny", "lost", 'tiny lost "its slice"; $(false)'))
    assert (tmp_path / "told").read_text() == 'tiny|lost|tiny lost "its slice"; $(false)'
    with pytest.raises(Unavailable, match=r"Expected the command 'exit' to take the event 'lost', found: exit code 3"):
        notify.send("exit 3", Notice("tiny", "lost", "tiny lost its slice."))


def test_google_chat_gets_the_text_alone(monkeypatch: pytest.MonkeyPatch, webhook: Webhook) -> None:
    """It refuses fields that it does not know."""
    monkeypatch.setattr(notify, "_CHAT", "127.0.0.1")
    notify.send(webhook.url, Notice("tiny", "done", "tiny is done."))
    assert webhook.taken == [{"text": "tiny is done."}]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("https://", "https://HOST/PATH, found 'https://'"),
        ("htps://hooks.example/x", "https://HOST/PATH, found 'htps://hooks.example/x'"),
        ("https://host:port/x", "https://HOST/PATH"),
        ("hooks.example/services/x", "found 'hooks.example/services/x', which is neither here"),
        ("no-such-command", "which is neither here"),
        ("echo 'half", "No closing quotation"),
        (" ", "which is neither here"),
    ],
)
def test_a_target_that_is_none_is_a_sentence(tpu, service, bucket: Path, target: str, sentence: str) -> None:
    arguments = ["--project", "p", "--zone", "us-west4-a", "--accelerator", "v5e", "--topology", "4x4"]
    code, _, said = tpu("submit", "experiments/bert_tiny.py", *arguments, "--bucket", bucket, "--notify", target)
    assert code == 2 and sentence in said and "\n" not in said
    assert not service.requests and not list(bucket.iterdir())
    assert sentence in tpu("watch", "tiny", "--notify", target)[2]


def test_a_webhook_that_does_not_listen_is_found_before_anything_is_requested(submit, service, bucket: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as nobody:
        port = nobody.server_port
    code, _, said = submit("--notify", f"http://127.0.0.1:{port}/SECRET")
    assert code == 2 and "Expected a webhook for --notify that can be reached" in said and "SECRET" not in said
    assert not service.requests and not list(bucket.iterdir())


def test_a_submission_stores_its_target_and_watch_may_have_another(tpu, submit, service, bucket, webhook) -> None:
    assert submit("--detach", "--notify", webhook.url)[0] == 0
    assert jobs.find(str(bucket), "tiny").notify == webhook.url
    code, printed, _ = tpu("watch", "tiny", "--once")
    assert code == 0 and "events are told to the webhook of 127.0.0.1" in printed and "ACCEPTED" in printed
    assert "SECRET" not in printed
    jobs.decide(jobs.find(str(bucket), "tiny"), Verdict("failed", "no disk"))
    other = f"echo $PLMJAX_EVENT >> {bucket}/told"
    code, printed, _ = tpu("watch", "tiny", "--once", "--notify", other)
    assert code == 1 and "tiny: failed: no disk" in printed and not service.resources
    assert (bucket / "told").read_text() == "failed\n" and not webhook.taken
