"""The command line, with one function per command."""

import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, Suppress, arg

from plmjax import command_line
from plmjax.errors import UserError, nearest

if TYPE_CHECKING:
    from tpu.job import Job

PROGRAM = "python -m tpu"
Overrides = Suppress[tuple[str, ...]]
Name = Annotated[str, arg(metavar="NAME")]


def submit(
    experiment: Positional[Annotated[str, arg(metavar="EXPERIMENT")]],
    accelerator: str,
    topology: str,
    bucket: str,
    project: str = "",
    zone: str = "",
    name: str = "",
    slices: int = 1,
    spot: bool = False,
    workdir: str = "",
    attempts: int = 5,
    runtime: str = "",
    network: str = "",
    subnetwork: str = "",
    service_account: str = "",
    kubernetes: Path | None = None,
    image: str = "python:3.12",
    detach: bool = False,
    dry_run: bool = False,
    include: tuple[str, ...] = (),
    notify: str = "",
    overrides: Overrides = (),
) -> None:
    """Pretrain an experiment on a TPU slice, and follow it until it ends. If it is submitted again, it resumes.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; its own options follow after --.
        accelerator: Chip: v2, v3, v4, v5e, v5p, v6e or 7x.
        topology: Shape of the slice in chips, such as 8x8 or 2x2x4.
        bucket: gs://NAME or gs://NAME/FOLDER for the run, its logs and the state of the job.
        project: Google Cloud project that pays.
        zone: Zone of the slice, such as us-west4-a.
        name: Name of the job; that of the experiment by default.
        slices: Number of slices that share the batch.
        spot: Use spot slices, which are cheaper and can be preempted at any moment.
        workdir: Folder of the run; BUCKET/runs/NAME by default.
        attempts: Maximum number of slices that are lost in a row, without a new checkpoint between them.
        runtime: Software version of the TPU's machines; the chip's own by default.
        network: VPC network of the machines; the project's default one by default.
        subnetwork: Subnetwork of the machines.
        service_account: Identity of the machines, with the bucket and roles/tpu.admin, or a name on Kubernetes.
        kubernetes: Write a JobSet for kubectl to this file instead of calling Cloud TPU.
        image: Container image for --kubernetes; any image with bash, curl and Python 3.11 or later.
        detach: Return when the slice is requested; python -m tpu watch follows the job later.
        dry_run: Print every call instead of making it; needs no credentials and no network.
        include: Files to pack although they look like credentials; such files are left out by default.
        notify: Webhook (https://...) or command that is told when the job fails, ends, loses its slice, waits for one
            or stands still; needs watch, here or elsewhere.
    """
    from tpu import jobset
    from tpu import notify as notices
    from tpu import submission as submissions

    notices.check(notify)
    if kubernetes and notify:
        raise UserError(
            f"Expected no --notify with --kubernetes, whose jobs watch does not follow, found {notify!r}; drop it."
        )
    for option, value in (("--project", project), ("--zone", zone)):
        if kubernetes and value:
            raise UserError(f"Expected no {option} with --kubernetes, whose cluster has one, found {value!r}; drop it.")
        if not kubernetes and not value:
            raise UserError(f"Expected {option} for Cloud TPU, found none; give it, or --kubernetes FILE.")
    submission = submissions.prepare(
        experiment, overrides, name=name, accelerator=accelerator, topology=topology, bucket=bucket, workdir=workdir,
        project=project, zone=zone, slices=slices, spot=spot, attempts=attempts, runtime=runtime, network=network,
        subnetwork=subnetwork, service_account=service_account, include=include, notify=notify,
    )  # fmt: skip
    manifest = jobset.to_yaml(submission.job, image) if kubernetes else ""
    if dry_run:
        print("\n".join(submissions.calls(submission, kubernetes, manifest)))
        return
    notices.reach(notify)
    submission = submissions.continued(submission)
    print("\n".join((*submission.files.by_folder(), *submission.files.explain_left_out())))
    job = submission.job
    if kubernetes:
        submissions.upload(submission)
        kubernetes.write_text(jobset.to_yaml(job, image), encoding="utf-8")
        print(f"{job.name}: {job.workers} hosts of {job.slice.name}; run kubectl apply -f {kubernetes}")
        return
    submissions.ask(submission)
    print(f"{job.name}: requested {job.slice.name} in {zone}, {job.workers} hosts, run in {job.workdir}")
    if not detach:
        _follow(job)


def watch(name: Positional[Name], bucket: str = "", once: bool = False, notify: str = "", still: float = 60) -> None:
    """Follow a job until it ends. Request lost slices again, and delete the last slice.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted; $PLMJAX_BUCKET by default.
        once: Look once, do what is due and return, for cron or Cloud Scheduler.
        notify: Webhook (https://...) or command that is told about events; that of the submission by default.
        still: Minutes without a new step after which the run stands still.
    """
    from tpu import job as jobs
    from tpu import notify as notices

    notices.check(notify)
    if not still > 0:
        raise UserError(f"Expected --still above 0, found {still:g}; correct it.")
    job = jobs.find(_bucket(bucket), name)
    if not job.project:
        raise UserError(f"Expected a job on Cloud TPU, found {name} on Kubernetes; run kubectl get jobset {name} -w.")
    _follow(job, notify, still, once)


def _follow(job: "Job", notify: str = "", still: float = 60, once: bool = False) -> None:
    from tpu import notify as notices
    from tpu import watch as watching

    def report(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    if target := notify or job.notify:
        report(f"events are told to {notices.describe(target)}")
    try:
        one = watching.Watch(job, report, target, still)
        ended = watching.once(one) if once else watching.until_ended(one)
    except KeyboardInterrupt:
        print(f"The job continues; follow it again with {PROGRAM} watch {job.name} --bucket {shlex.quote(job.bucket)}")
        sys.exit(130)
    if ended is None:
        return
    print(f"{job.name}: {ended.state}{': ' if ended.reason else ''}{ended.reason}")
    if ended.state == "failed":
        print(f"Its logs: {PROGRAM} logs {job.name} --bucket {shlex.quote(job.bucket)}")
        sys.exit(1)


def status(name: Positional[Name] = "", bucket: str = "") -> None:
    """Show the status of a job: state, step, loss, throughput, time left. Without a name, show every job of the bucket.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted; $PLMJAX_BUCKET by default.
    """
    from tpu import follow
    from tpu import job as jobs

    bucket = _bucket(bucket)
    if name:
        print("\n".join(follow.status(jobs.find(bucket, name))))
        return
    for known in jobs.names(bucket):
        if (job := jobs.read(bucket, known)) is not None:  # a host may write its log after the job was deleted
            print(follow.summary(job))


def logs(name: Positional[Name], bucket: str = "", worker: int | None = None, follow: bool = False) -> None:
    """Print the output of a worker, with its installation.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted; $PLMJAX_BUCKET by default.
        worker: Number of the host, from 0; the one that prints the losses by default.
        follow: Continue until the job has ended.
    """
    from tpu import follow as following
    from tpu import job as jobs

    bucket = _bucket(bucket)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    for text in following.logs(lambda: jobs.find(bucket, name), worker, follow, say):
        print(text, end="", flush=True)


def delete(name: Positional[Name], bucket: str = "") -> None:
    """Delete a job and its slices. Its run directory is kept.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted; $PLMJAX_BUCKET by default.
    """
    from tpu import job as jobs
    from tpu.bucket import Bucket
    from tpu.queue import Queue

    job = jobs.find(_bucket(bucket), name)
    if job.project:
        print("deleting the slice", flush=True)
        Queue(job).delete()
    Bucket(job.bucket).remove(f"jobs/{name}")
    print(f"{name} is deleted; its run is in {job.workdir}")
    if not job.project:
        print(f"On the cluster: kubectl delete jobset {name}")


def work(name: Positional[Name], bucket: str, worker: int, log: Path, every: float = 10, patience: float = 300) -> None:
    """Run a job on one host of its slice. The startup script calls this command.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted.
        worker: Number of this host, from 0.
        log: Local log, which is copied to the bucket.
        every: Seconds between two checks of the run and the bucket.
        patience: Seconds to wait for the other hosts.
    """
    from tpu import job as jobs
    from tpu import starts
    from tpu.worker import Worker

    job = jobs.find(bucket, name)
    if worker == 0 and not job.project:
        starts.count(job)
    sys.exit(Worker(job, worker, log, every, patience).run())


VERBS: dict[str, Callable] = {"submit": submit, "watch": watch, "status": status, "logs": logs, "delete": delete}
ON_THE_SLICE: dict[str, Callable] = {"work": work}


def usage() -> str:
    """Return the list of commands, one line each."""
    rows = "\n".join(f"  {name:<8} {verb.__doc__.splitlines()[0]}" for name, verb in (VERBS | ON_THE_SLICE).items())
    return f"usage: {PROGRAM} COMMAND ...    ({PROGRAM} COMMAND --help shows its options)\n\n{rows}"


def run(arguments: Sequence[str]) -> None:
    """Run one command. Raise UserError for a mistake of the user."""
    name, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if name in ("--help", "-h"):
        print(usage())
        return
    verbs = VERBS | ON_THE_SLICE
    if name not in verbs:
        raise UserError(f"Expected a known command, found {name!r}; {nearest(name, VERBS)}")
    if name != "submit":
        command_line.parse(verbs[name], f"{PROGRAM} {name}", rest)()
        return
    own, overrides = command_line.split_arguments(rest[: rest.index("--")] if "--" in rest else rest)
    overrides += rest[rest.index("--") + 1 :] if "--" in rest else []
    further = functools.partial(command_line.experiment_options, own[0] if own else "")
    command_line.parse(submit, f"{PROGRAM} submit", own, further)(overrides=tuple(overrides))


def _bucket(given: str) -> str:
    bucket = given or os.environ.get("PLMJAX_BUCKET", "")
    if not bucket:
        raise UserError("Expected the job's --bucket, found none; give it, or set PLMJAX_BUCKET.")
    return bucket.rstrip("/")


def main() -> None:
    """Run `python -m tpu`."""
    command_line.run_command(lambda: run(sys.argv[1:]), PROGRAM)


if __name__ == "__main__":
    main()
