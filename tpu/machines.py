"""Jobs on TPU VMs that exist: started, followed and stopped by gcloud's ssh to all workers. No machine is deleted.

Each machine gets the startup script of the job (tpu/startup.py) and runs it as a service, by tpu/machine.sh.
docs.cloud.google.com/sdk/gcloud/reference/compute/tpus/tpu-vm/ssh.
"""

import base64
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plmjax.errors import Explained, Unavailable, UserError
from plmjax.parallel import topologies
from tpu import queue
from tpu.job import Job

GCLOUD = ("gcloud", "compute", "tpus", "tpu-vm", "ssh")
SAVE_SECONDS = 900
"""Seconds that a job has to save after SIGTERM before it is killed."""
SSH_SECONDS = SAVE_SECONDS + 600
"""Seconds after which a call of gcloud is given up. gcloud itself tries to connect for about a minute."""
BUSY = re.compile(r"^plmjax: busy ?(.*)$", re.M)


def check_options(name: str, zones: Sequence[str], requests: Mapping[str, object], unknown_slice: bool) -> None:
    """Raise UserError for options that do not apply to an existing machine.

    Args:
        requests: option -> its value, for all options of a request to Cloud TPU.
        unknown_slice: true if a dry run, which does not look at the machine, has no --accelerator.
    """
    allowed = ("--zone", "--project", "--tpu_vm", "--internal_ips")
    given = [option for option, value in requests.items() if value and option not in allowed]
    if given:
        raise UserError(
            f"Expected no {given[0]} with --tpu_vm, which names a machine that exists, found it for {name}; leave it "
            f"out, or leave out --tpu_vm."
        )
    if len(zones) > 1:
        raise UserError(
            f"Expected one --zone with --tpu_vm, that of {name}, found {', '.join(zones)}; leave out the others."
        )
    if unknown_slice:
        raise UserError(
            f"Expected --accelerator for a dry run with --tpu_vm, which does not look at {name}, found none; give it "
            f"as Cloud writes it, such as v4-32."
        )


def agree(found: topologies.Slice, accelerator: str, topology: str) -> tuple[str, str]:
    """Return the (accelerator, topology) of a machine.

    Raises:
        UserError: the options name another slice.
    """
    shape = "x".join(map(str, found.shape))
    own = {found.chip.name, found.chip.accelerator, found.accelerator_type}
    if (accelerator and accelerator not in own) or (topology and topology != shape):
        raise UserError(
            f"Expected the slice of the TPU VM, {found.name} ({found.accelerator_type}), found --accelerator "
            f"{accelerator or 'of it'} and --topology {topology or 'of it'}; leave both out."
        )
    return found.chip.name, shape


def node(project: str, zone: str, name: str) -> Any:
    """Return Cloud TPU's description of a TPU VM.

    Raises:
        UserError: there is no TPU VM of that name, or Cloud TPU refuses the call.
        Unavailable: Cloud TPU does not answer.
    """
    from google.api_core import exceptions

    client, options = queue.connect()
    try:
        return client.get_node(name=f"projects/{project}/locations/{zone}/nodes/{name}", **options)
    except exceptions.NotFound as error:
        reason = _reason(error)
        raise UserError(
            f"Expected a TPU VM named {name} in {zone} of {project}, found none ({reason}); a machine that is no TPU "
            f"cannot take a job, and gcloud compute tpus tpu-vm list --zone {zone} shows those that can."
        ) from error
    except (exceptions.GoogleAPICallError, exceptions.RetryError) as error:
        passing = isinstance(error, exceptions.ServerError | exceptions.TooManyRequests | exceptions.RetryError)
        raise (Unavailable if passing else UserError)(
            f"Expected Cloud TPU's description of {name} in {zone} of {project}, found {type(error).__name__} "
            f"({_reason(error)}); check --project, --zone and your permissions, and try again."
        ) from error


def _reason(error: Any) -> str:
    return (str(error.message).strip().splitlines() or ["no message"])[0].rstrip(".")


def slice_of(project: str, zone: str, name: str) -> topologies.Slice:
    """Return the slice of a TPU VM.

    Raises:
        UserError: it does not exist, is not READY, or is of a generation or a shape that plmjax does not know.
        Unavailable: Cloud TPU does not answer.
    """
    found = node(project, zone, name)
    if found.state.name != "READY":
        raise UserError(
            f"Expected the TPU VM {name} to be READY, found it {found.state.name}; start it with gcloud compute tpus "
            f"tpu-vm start {name} --zone {zone}, or name another."
        )
    usual = topologies.of_accelerator_type(found.accelerator_type) if found.accelerator_type else None
    shape = found.accelerator_config.topology
    if usual is None and not shape:
        raise UserError(f"Expected the accelerator of the TPU VM {name}, found that it names none; name another VM.")
    if usual is not None and shape in ("", "x".join(map(str, usual.shape))):
        return usual
    kind = found.accelerator_config.type_.name.lower().replace("v5lite_pod", "v5e")
    return topologies.parse(f"{usual.chip.name if usual else kind}:{shape}")


def command(job: Job, action: str, script: str = "") -> str:
    """Return the command that every machine of the job runs by ssh.

    action: start, stop or state.
    script: the startup script, for start.
    """
    body = Path(__file__).with_name("machine.sh").read_text(encoding="utf-8")
    settings = {"ACTION": action, "NAME": job.name, "PATIENCE": str(SAVE_SECONDS)}
    settings["SCRIPT"] = base64.b64encode(script.encode()).decode()
    text = "\n".join([*(f"{name}={shlex.quote(value)}" for name, value in settings.items()), body])
    packed = base64.b64encode(text.encode()).decode()  # so that no shell on the way expands any of it
    return f"run=bash; [ $(id -u) = 0 ] || run='sudo -n bash'; echo {packed} | base64 --decode | $run"


def arguments(job: Job, action: str, script: str = "") -> list[str]:
    """Return the command line of gcloud for an action on all workers."""
    reached = ["--internal-ip"] if job.internal_ips else []
    place = ["--zone", job.zone, "--project", job.project, "--worker=all", "--quiet", *reached]
    return [*GCLOUD, job.tpu_vm, *place, "--command", command(job, action, script)]


def _ssh(job: Job, action: str, script: str = "") -> str:
    """Run an action on all workers and return what they printed.

    Raises:
        UserError: gcloud is missing, or another job runs there.
        Unavailable: a worker cannot be reached, or its command fails.
    """
    try:
        done = subprocess.run(
            arguments(job, action, script), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
            timeout=SSH_SECONDS,
        )  # fmt: skip
    except FileNotFoundError:
        raise UserError(
            "Expected gcloud, which opens the connections to a TPU VM, found none; install the Google Cloud CLI, and "
            "run gcloud auth login."
        ) from None
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"Expected the workers of {job.tpu_vm} to answer within {SSH_SECONDS} s, found no end; try again."
        ) from None
    if busy := BUSY.search(done.stdout):
        raise UserError(
            f"Expected no other job on the TPU VM {job.tpu_vm}, found {busy[1] or 'one'} running; end it with "
            f"python -m tpu delete {busy[1] or 'NAME'}, or name another VM."
        )
    answers = len(re.findall(r"^plmjax: (?:started|stopped|running|idle)$", done.stdout, re.M))
    if done.returncode or answers < job.hosts:
        last = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        raise Unavailable(
            f"Expected an answer of all {job.hosts} workers of {job.tpu_vm} by ssh, found {answers} ({last[:300]}); "
            f"try {shlex.join(GCLOUD)} {job.tpu_vm} by hand, and then again."
        )
    return done.stdout


def start(job: Job, script: str) -> None:
    """Start a job on all workers. If one of them fails, stop the others.

    Raises:
        UserError: gcloud is missing, or another job runs there.
        Unavailable: a worker cannot be reached.
    """
    try:
        _ssh(job, "start", script)
    except Unavailable as error:
        try:
            stop(job)
        except Explained:
            raise type(error)(f"{error} Some workers may have started; python -m tpu delete stops them.") from error
        raise


def stop(job: Job) -> None:
    """Stop a job on all workers and wait until each has saved. Do nothing on a worker that does not have it.

    Raises:
        UserError: gcloud is missing.
        Unavailable: a worker cannot be reached.
    """
    _ssh(job, "stop")


def running(job: Job) -> bool:
    """Return whether a worker runs the job now.

    Raises:
        UserError, Unavailable: Cloud TPU, gcloud or a worker does not answer.
    """
    return state(job) == "READY" and "plmjax: running" in _ssh(job, "state")


def state(job: Job) -> str:
    """Return the state of the job's TPU VM, such as READY; ABSENT if it is gone."""
    from google.api_core import exceptions

    try:
        return node(job.project, job.zone, job.tpu_vm).state.name
    except UserError as error:
        if isinstance(error.__cause__, exceptions.NotFound):
            return "ABSENT"
        raise


class Machines:
    """The machines of a job, with the methods that a watch calls on slices. No machine is requested or deleted."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def state(self) -> queue.State:
        """Return the state of the TPU VM: FAILED if it is gone or stopped, because only its owner can start it.

        Raises:
            UserError, Unavailable: Cloud TPU refuses the call or does not answer.
        """
        found = state(self.job)
        if found in ("ABSENT", *queue.LOST_NODE):
            reason = f"the TPU VM {self.job.tpu_vm} is {found}; start or create it, and submit again to continue"
            return queue.State("FAILED", error=reason, mistaken=True)
        return queue.State("ACTIVE" if found == "READY" else found)


def calls(job: Job, script: str) -> Iterator[str]:
    """Yield every call that starting, following and stopping the job makes."""
    yield f"call    google.cloud.tpu.v2.Tpu/GetNode projects/{job.project}/locations/{job.zone}/nodes/{job.tpu_vm}"
    yield f"run     {shlex.join(arguments(job, 'start', script))}"
    yield "# the startup script in it:"
    yield script.rstrip()
    yield "# python -m tpu delete, or a failed start, stops it on all workers:"
    yield f"run     {shlex.join(arguments(job, 'stop'))}"
