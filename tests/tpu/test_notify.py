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


STILL = 5
"""Minutes of these tests without a new step."""
EVENTS = ["waiting", "lost", "still", "still", "done"]


def live(service: CloudTpu, bucket: Path) -> jobs.Job:
    """A job that lacks capacity, loses a slice, stands still twice, and is done."""
    job = job_of(bucket, runtime="r")
    service.lives = [("FAILED:no capacity",), ("ACTIVE", "SUSPENDED"), tuple(["ACTIVE"] * 99)]
    jobs.save(job)
    queue.Queue(job).create(startup.render(job))
    (bucket / "run").mkdir()
    answer, looks = service._get, []

    def get(request):
        found = answer(request)
        if jobs.find(str(bucket), "tiny").attempt == 2:
            looks.append(found)
            record = {"step": 1 + (len(looks) > 16), "steps": 9, "loss": None, "tokens_per_second": None}
            record |= {"seconds_left": None, "checkpoint": None, "time": 1.0, "worker": 0}
            (bucket / "run" / "progress.json").write_text(json.dumps(record))
            if len(looks) == 32:
                jobs.decide(jobs.find(str(bucket), "tiny"), Verdict("done"))
        return found

    service._get = get
    return job


def test_every_event_is_told_exactly_once(service, bucket: Path, webhook: Webhook) -> None:
    """By single looks, of a webhook that takes some of them at a later try."""
    job, said, ended = live(service, bucket), [], None
    webhook.refusals = [500, 404, 200, 503, 200, 200, 429, 500, 500, 500]
    while ended is None or notes.read(jobs.find(job.bucket, job.name)).unsent:
        ended = watch.once(watch.Watch(jobs.find(job.bucket, job.name), said.append, webhook.url, STILL))
        watch.time.sleep(30)
    assert [body["event"] for body in webhook.taken] == EVENTS
    assert {body["job"] for body in webhook.taken} == {"tiny"} and set(webhook.taken[0]) == {"text", "job", "event"}
    assert webhook.taken[1]["text"] == "tiny lost its slice; another one is requested, attempt 2 of 3."
    assert webhook.taken[2]["text"] == "tiny stands still: no step for 5 minutes after step 1 of 9."
    assert webhook.taken[4]["text"] == "tiny is done."
    assert "SECRET" not in "".join(said) and not webhook.refusals
    assert any("HTTP status 500" in line for line in said)


def test_a_webhook_that_never_answers_does_not_hold_a_watch(service, bucket: Path, webhook: Webhook) -> None:
    job = live(service, bucket)
    one = watch.Watch(job, lambda line: None, webhook.url, STILL)
    webhook.refusals = [503] * 999
    assert watch.until_ended(one) == Verdict("done")
    assert [notice["event"] for notice in notes.read(jobs.find(job.bucket, "tiny")).unsent] == EVENTS
    webhook.refusals = []
    assert watch.until_ended(watch.Watch(job, lambda line: None, webhook.url)) == Verdict("done")  # later
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


def test_a_command_has_the_event_in_its_environment_and_google_chat_gets_the_text_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, webhook: Webhook
) -> None:
    command = f'printf "%s|%s|%s" "$PLMJAX_JOB" "$PLMJAX_EVENT" "$PLMJAX_TEXT" > {tmp_path}/told'
    notify.send(command, Notice("tiny", "lost", 'tiny lost "its slice"; $(false)'))
    assert (tmp_path / "told").read_text() == 'tiny|lost|tiny lost "its slice"; $(false)'
    with pytest.raises(Unavailable, match=r"Expected the command 'exit' to take the event 'lost', found: exit code 3"):
        notify.send("exit 3", Notice("tiny", "lost", "tiny lost its slice."))
    monkeypatch.setattr(notify, "_CHAT", "127.0.0.1")
    notify.send(webhook.url, Notice("tiny", "done", "tiny is done."))
    assert webhook.taken == [{"text": "tiny is done."}]


def test_a_target_that_is_none_is_a_sentence_before_anything_is_requested(tpu, submit, service, bucket: Path) -> None:
    for target, sentence in (
        ("htps://hooks.example/x", "https://HOST/PATH, found 'htps://hooks.example/x'"),
        ("https://host:port/x", "https://HOST/PATH"),
        ("no-such-command", "which is neither here"),
        ("echo 'half", "No closing quotation"),
    ):
        code, _, said = submit("--notify", target)
        assert code == 2 and sentence in said and "\n" not in said
        assert sentence in tpu("watch", "tiny", "--notify", target)[2]
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
