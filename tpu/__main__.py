"""The command line, with one function per command."""

import dataclasses
import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from tyro.conf import Positional, Suppress, UseAppendAction, arg

from plmjax.commands import command_line, help
from plmjax.errors import UserError, nearest

if TYPE_CHECKING:
    from tpu.job import Job

PROGRAM = "python -m tpu"
Overrides = Suppress[tuple[str, ...]]
Name = Annotated[str, arg(metavar="NAME")]


def submit(
    experiment: Positional[Annotated[str, arg(metavar="EXPERIMENT")]],
    bucket: str,
    *,
    from_: Annotated[str, arg(name="from")] = "",
    accelerator: str = "",
    topology: str = "",
    project: str = "",
    zone: UseAppendAction[tuple[str, ...]] = (),
    name: str = "",
    slices: int = 1,
    spot: bool = False,
    reserved: bool = False,
    reservation: str = "",
    flex_start: bool = False,
    max_run_duration: str = "",
    valid_until: str = "",
    tpu_vm: str = "",
    workdir: str = "",
    attempts: int = 5,
    runtime: str = "",
    network: str = "",
    subnetwork: str = "",
    internal_ips: bool = False,
    label: UseAppendAction[tuple[str, ...]] = (),
    data_disk: UseAppendAction[tuple[str, ...]] = (),
    service_account: str = "",
    kubernetes: Path | None = None,
    image: str = "python:3.12",
    detach: bool = False,
    price: str = "",
    dry_run: bool = False,
    verbose: bool = False,
    include: tuple[str, ...] = (),
    notify: str = "",
    selfcheck: bool = False,
    overrides: Overrides = (),
) -> None:
    """Run an experiment on a TPU slice, and follow it until it ends. If it is submitted again, it resumes.

    An experiment on text is pretrained, one on a task is fine-tuned.

    Args:
        experiment: Name that plmjax experiments lists, or path/to/file.py[:FUNCTION]; its own options follow after --.
        bucket: gs://NAME or gs://NAME/FOLDER for the run, its logs and the state of the job.
        from_: Run directory or checkpoint in a bucket that the run starts from; a fine-tuning may name `random`.
        accelerator: Chip (v2, v3, v4, v5e, v5p, v6e or 7x), or Cloud's name of a slice, such as v4-32 or v5litepod-16.
        topology: Shape of the slice in chips, such as 8x8 or 2x2x4; the usual one of Cloud's name by default.
        project: Google Cloud project that pays.
        zone: Zone of the slice, such as us-west4-a. Several are tried in turn.
        name: Name of the job; that of the experiment by default.
        slices: Number of slices that share the batch.
        spot: Use spot slices, which are cheaper and can be preempted at any moment.
        reserved: Use whatever is reserved for the project.
        reservation: Name of the reservation to use, or its full name if it belongs to another project.
        flex_start: Use flex-start slices, which run without a break for as long as --max_run_duration says.
        max_run_duration: Longest duration of a flex-start slice, such as 24h; at most 7d.
        valid_until: Duration such as 6h, or time such as 2027-01-31T18:00:00Z, after which a slice is not wanted.
        tpu_vm: Name of a TPU VM that exists: run on it, by gcloud's ssh to all its workers, and request no slice.
        workdir: Folder of the run; BUCKET/runs/NAME by default.
        attempts: Maximum number of slices that are lost in a row, without a new checkpoint between them.
        runtime: Software version of the TPU's machines; the chip's own by default.
        network: VPC network of the machines; the project's default one by default.
        subnetwork: Subnetwork of the machines.
        internal_ips: Give the machines no external addresses; their subnetwork needs Private Google Access.
        label: Label KEY=VALUE of the slice, for bills and searches.
        data_disk: Persistent disk to mount read-only at /mnt/disks/NAME: NAME, NAME:read-write, or its full name.
        service_account: Identity of the machines, with the bucket and roles/tpu.admin, or a name on Kubernetes.
        kubernetes: Write a JobSet for kubectl to this file instead of calling Cloud TPU.
        image: Container image for --kubernetes; any image with bash, curl and Python 3.11 or later.
        detach: Return when the slice is requested; python -m tpu watch follows the job later.
        price: Price of a chip-hour, such as 1.2 or v5e=1.2, for the cost of an hour of the job.
        dry_run: Print every call instead of making it; needs no credentials and no network.
        verbose: List every file that the hosts receive.
        include: Files to pack although they look like credentials; such files are left out by default.
        notify: Webhook (https://...) or command that is told when the job fails, ends, loses its slice, waits for one
            or stands still; needs watch, here or elsewhere.
        selfcheck: Run plmjax selfcheck on every slice first; the job goes on only if it passes.
    """
    from plmjax.planning.estimate import price_of, prices
    from tpu import capacity, jobset, machines, regions
    from tpu import notify as notices
    from tpu import submission as submissions

    notices.check(notify)
    terms = {
        "--zone": zone, "--project": project, "--reserved": reserved, "--reservation": reservation,
        "--flex_start": flex_start, "--max_run_duration": max_run_duration, "--valid_until": valid_until,
        "--internal_ips": internal_ips, "--label": label, "--data_disk": data_disk, "--tpu_vm": tpu_vm,
        "--notify": notify,
    }  # fmt: skip
    for option, value in terms.items():
        if kubernetes and value:
            raise UserError(f"Expected no {option} with --kubernetes, whose cluster has one, found {value!r}; drop it.")
        if not kubernetes and not value and option in ("--project", "--zone"):
            raise UserError(f"Expected {option} for Cloud TPU, found none; give it, or --kubernetes FILE.")
    if tpu_vm:
        requests = {**terms, "--spot": spot, "--runtime": runtime, "--network": network, "--subnetwork": subnetwork}
        requests |= {"--service_account": service_account, "--slices": slices > 1}
        machines.check_options(tpu_vm, zone, requests, dry_run and not accelerator)
        if not dry_run:
            found = machines.slice_of(project, zone[0], tpu_vm)
            accelerator, topology = machines.agree(found, accelerator, topology)
    slice_ = submissions.resolve(accelerator, topology, slices)
    of_chip = price_of(slice_, prices([price] if price else [], {slice_.chip.name}))
    capacity.check(
        spot=spot, reserved=reserved, reservation=reservation, flex_start=flex_start,
        max_run_duration=max_run_duration, valid_until=valid_until, label=label, data_disk=data_disk, zones=zone,
        hosts=slice_.hosts,
    )  # fmt: skip
    submission = submissions.prepare(
        experiment, overrides, init_from=from_, dry_run=dry_run,
        name=name, slice_=slice_, bucket=bucket, workdir=workdir, project=project,
        zone=zone[0] if zone else "", zones=zone, tpu_vm=tpu_vm, spot=spot, attempts=attempts, runtime=runtime,
        reservation=capacity.ANY_RESERVATION if reserved else reservation,
        max_run_seconds=capacity.seconds("--max_run_duration", max_run_duration) if flex_start else 0,
        valid_until=valid_until, internal_ips=internal_ips, labels=label, data_disks=data_disk, network=network,
        subnetwork=subnetwork, service_account=service_account, include=include, notify=notify,
        selfcheck=selfcheck,
    )  # fmt: skip
    manifest = jobset.to_yaml(submission.job, image) if kubernetes else ""
    if dry_run:
        print("\n".join(submissions.calls(submission, kubernetes, manifest, verbose=verbose)))
        mark = "# " if kubernetes else ""  # comments, so that the manifest stays YAML
        print("\n".join(f"{mark}{line}" for line in submissions.summary(submission, of_chip)))
        return
    notices.reach(notify)
    submission = submissions.next_attempt(submission)
    if "-" in accelerator and not topology:
        print(f"{accelerator} is the shape {submission.job.topology} by default; --topology chooses another")
    print("\n".join((*submission.files.lines(verbose), *submissions.summary(submission, of_chip))))
    job = submission.job
    if kubernetes:
        submissions.upload(submission)
        kubernetes.write_text(jobset.to_yaml(job, image), encoding="utf-8")
        print(f"{job.name}: {job.workers} hosts of {job.slice.name}; run kubectl apply -f {kubernetes}")
        return
    for warning in regions.warnings(job.bucket, job.zones):
        print(f"warning: {warning}")
    job = submissions.ask(submission)
    what = f"started on {job.tpu_vm}, {job.slice.name}" if job.tpu_vm else f"requested {job.slice.name}"
    print(f"{job.name}: {what} in {job.zone}, {job.workers} hosts, run in {job.workdir}")
    if not detach:
        _follow(job)


def watch(name: Positional[Name], *, bucket: str = "", once: bool = False, notify: str = "", still: float = 60) -> None:
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

    for text in following.logs(lambda: jobs.find(bucket, name), worker, follow, say=say):
        print(text, end="", flush=True)


def profile(
    name: Positional[Name],
    *,
    bucket: str = "",
    steps: int = 5,
    from_: Annotated[int, arg(name="from", metavar="STEP")] = 0,
    minutes: float = 60,
) -> None:
    """Record a trace of a few steps of a running job, and say where it is.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted; $PLMJAX_BUCKET by default.
        steps: Number of steps.
        from_: First step; the next one by default.
        minutes: Time to wait for the trace. Then the request is withdrawn.
    """
    from tpu import job as jobs
    from tpu import profiles

    job = jobs.find(_bucket(bucket), name)
    done, folder = profiles.profile(job, steps, from_, report=functools.partial(print, flush=True), limit=minutes * 60)
    print(f"steps {done.first} to {done.last} are in {folder}")
    print(f"Open it with pip install xprof && xprof --logdir {shlex.quote(f'{job.workdir}/profile')}")


def debug(name: Positional[Name], bucket: str = "", seconds: float = 90) -> None:
    """Print the stacks of all hosts of a running job, to see where it stands still.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted; $PLMJAX_BUCKET by default.
        seconds: Time to wait for the answers.
    """
    from tpu import job as jobs
    from tpu import stacks

    for text in stacks.ask(jobs.find(_bucket(bucket), name), seconds):
        print(text, flush=True)


def delete(name: Positional[Name], bucket: str = "") -> None:
    """Delete a job and its slices. Its run directory is kept.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted; $PLMJAX_BUCKET by default.
    """
    from tpu import job as jobs
    from tpu import machines
    from tpu.bucket import Bucket
    from tpu.queue import Queue

    job = jobs.find(_bucket(bucket), name)
    jobs.decide(job, jobs.Verdict("failed", "The job was deleted."))  # before a watch requests another slice
    if job.queued:
        print("deleting the slice", flush=True)
        Queue(job).delete()
    if job.tpu_vm and machines.state(job) == "READY":
        print(f"stopping it on {job.tpu_vm}, which stays", flush=True)
        machines.stop(job)
    Bucket(job.bucket).remove(f"jobs/{name}")
    print(f"{name} is deleted; its run is in {job.workdir}")
    if not job.project:
        print(f"On the cluster: kubectl delete jobset {name}")


def work(
    name: Positional[Name],
    bucket: str,
    worker: int,
    *,
    attempt: int,
    log: Path,
    every: float = 10,
    patience: float = 300,
) -> None:
    """Run a job on one host of its slice. The startup script calls this command.

    Args:
        name: Name of the job.
        bucket: Bucket to which it was submitted.
        worker: Number of this host, from 0.
        attempt: Number of this host's slice; job.json has it only after the request for the slice was answered.
        log: Local log, which is copied to the bucket.
        every: Seconds between two checks of the run and the bucket.
        patience: Seconds to wait for the other hosts.
    """
    from plmjax.files.patience import insist
    from tpu import job as jobs
    from tpu import starts
    from tpu.restarts import HOUR, STOPPED
    from tpu.worker import Worker

    job = insist(lambda: jobs.find(bucket, name), "reading the job", HOUR * STOPPED.hours)
    job = dataclasses.replace(job, attempt=attempt)
    if worker == 0 and not job.project:
        insist(lambda: starts.count(job), "counting the starts of the job", HOUR * STOPPED.hours)
    sys.exit(Worker(job, worker, log, every=every, patience=patience).run())


VERBS: dict[str, Callable] = {
    "submit": submit,
    "watch": watch,
    "status": status,
    "logs": logs,
    "profile": profile,
    "debug": debug,
    "delete": delete,
}
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
    asked = help.asked([word for word in rest if word != "--"])
    if asked is not None:
        _show_help(*asked)
    own, overrides = command_line.split_arguments(rest[: rest.index("--")] if "--" in rest else rest)
    behind = rest[rest.index("--") + 1 :] if "--" in rest else []
    own_names = {f"--{name.strip('_')}" for name in command_line.option_names(submit)}
    for word in behind:
        if word.partition("=")[0] in own_names:
            raise UserError(
                f"Expected options of the experiment after --, found {word}, an option of {PROGRAM} submit; write it "
                "before the --."
            )
    overrides += behind
    further = functools.partial(command_line.experiment_options, own[0] if own else "")
    command_line.parse(submit, f"{PROGRAM} submit", own, further)(overrides=tuple(overrides))


def _show_help(words: list[str], everything: bool) -> NoReturn:
    """Print the options of submit, and those of the experiment that the words name, and exit."""
    own, overrides = command_line.split_arguments(words)
    if not own or own[0].startswith("-"):
        help.show(submit, f"{PROGRAM} submit", everything=True)
    from plmjax import experiment as experiments

    groups = help.of_experiment(experiments.load(own[0]), overrides, everything=everything)
    help.show(submit, f"{PROGRAM} submit {own[0]}", groups, everything=everything)


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
