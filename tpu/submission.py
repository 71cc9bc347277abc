"""Make a job from the name of an experiment. All errors are found here, before anything costs money."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from plmjax import experiment as experiments
from plmjax.errors import Explained, Unavailable, UserError
from plmjax.experiment import Data, Experiment, catalogue
from plmjax.files import storage
from plmjax.parallel import mesh as meshes
from plmjax.parallel import topologies
from plmjax.runs import checks
from plmjax.runs.init_from import RANDOM
from plmjax.runs.resolve import resolve as resolve_run
from tpu import capacity, events, flex_start, machines, package, queue, startup, versions
from tpu import job as jobs
from tpu.bucket import Bucket
from tpu.job import Job

TEXT = re.compile(r"(data\.(path|input|mixture\.sources|(tasks\.\d+\.)?(task\.)?(train|validation))|tokenizer\.path)")
"""Fields of an experiment that name files, which every host must be able to read."""


@dataclasses.dataclass(frozen=True)
class Submission:
    """A job with the archive of its files and its startup script."""

    job: Job
    archive: bytes
    script: str
    files: package.Selection


def resolve(accelerator: str, topology: str, slices: int) -> topologies.Slice:
    """Return the slices that the options name.

    accelerator: a chip, such as v4, or Cloud's name of a slice, such as v4-32.
    topology: the shape in chips; empty for the usual shape of a slice of that name.

    Raises:
        UserError: there is no such slice, its size differs from that of the shape, or Cloud does not join such slices.
    """
    if slices < 1:
        raise UserError(f"Expected --slices of at least 1, found {slices}; correct it.")
    if not accelerator:
        raise UserError("Expected --accelerator, found none; name a chip such as v5e, or a slice such as v4-32.")
    if "-" in accelerator:
        usual = topologies.of_accelerator_type(accelerator)
        named = topologies.parse(f"{usual.chip.name}:{topology}") if topology else usual
        if named.accelerator_type != usual.accelerator_type:
            raise UserError(
                f"Expected a --topology of {accelerator}, such as {'x'.join(map(str, usual.shape))}, found {topology}, "
                f"which is {named.accelerator_type}; correct one of them, or leave --topology out."
            )
    elif not topology:
        raise UserError(
            f"Expected --topology, or a size in --accelerator, found {accelerator} alone; give both, such as "
            f"--accelerator v5e --topology 4x4 or --accelerator v5litepod-16."
        )
    else:
        named = topologies.parse(f"{accelerator}:{topology}")
    return topologies.several(named, slices)


def prepare(
    experiment: str,
    overrides: Sequence[str],
    *,
    name: str,
    slice_: topologies.Slice,
    bucket: str,
    workdir: str,
    init_from: str = "",
    dry_run: bool = False,
    runtime: str = "",
    include: Sequence[str] = (),
    **settings: object,
) -> Submission:
    """Check the experiment and its text for the slices, and pack the files for the hosts.

    slice_: all slices of the job, as `resolve` returns them.
    init_from: the run or checkpoint from which the job starts; empty for random parameters.
    dry_run: true to leave a checkpoint in a bucket unread, because a dry run needs no network.
    include: files that are packed although they look like credentials.
    settings: the other fields of Job.

    Raises:
        UserError: any mistake in the arguments.
    """
    file, function = catalogue.find(experiment)
    if settings.get("project") and not settings.get("tpu_vm"):
        check_service(slice_)
    bucket = bucket.rstrip("/")
    _check_bucket(bucket)
    _check_start(init_from, bucket)
    loaded = experiments.load(experiment)
    on_text = isinstance(loaded.data, Data)
    if not on_text and not init_from:
        raise UserError(
            "Expected --from for an experiment on a task, found none; name the run that it starts from, or random."
        )
    if dry_run and storage.in_bucket(init_from):
        run = experiments.override(loaded, overrides)
    else:
        run = resolve_run(loaded, init_from or RANDOM, overrides=overrides).experiment
    if not os.environ.get("JAX_PLATFORMS"):
        jax.config.update("jax_platforms", "cpu")  # the step is only traced, which needs no accelerator
    devices = slice_.chips * slice_.chip.devices
    if on_text:
        checks.text(run, has_tokenizer=bool(init_from) and init_from != RANDOM)
        if run.model is not None:  # None for the model of a checkpoint that a dry run does not read
            checks.on_devices(run, devices, slice_.slices)
    else:
        checks.kind(run, text=False)
        meshes.candidates(run.mesh, devices, slice_.slices)
    source = package.source(file.resolve(), include)
    workdir = workdir.rstrip("/")
    if workdir and not Bucket(bucket).local and not storage.in_bucket(workdir):
        raise UserError(f"Expected --workdir in a bucket, where every host can write, found {workdir!r}; correct it.")
    disks = [capacity.Disk.parse(text).folder for text in settings.get("data_disks", ())]
    _check_text(run, bucket, source.files.names, disks)
    made = {**source.made, versions.FILE: versions.constraints().encode()}
    packed, archive = package.pack(source.files.names, source.root, made)
    name = name or file.stem.replace("_", "-").lower()
    if not jobs.NAME.fullmatch(name):
        raise UserError(
            f"Expected a --name of a to z, 0 to 9 and dashes, 40 at most, that begins with a letter, found {name!r}; "
            f"choose another."
        )
    job = Job(
        name=name,
        experiment=source.experiment if function == catalogue.FUNCTION else f"{source.experiment}:{function}",
        verb="pretrain" if on_text else "finetune",
        init_from=init_from,
        library=source.library,
        overrides=tuple(overrides),
        resolved=experiments.to_record(run),
        accelerator=slice_.chip.name,
        topology="x".join(map(str, slice_.shape)),
        slices=slice_.slices,
        bucket=bucket,
        workdir=workdir or f"{bucket}/runs/{name}",
        package=packed,
        jax=importlib.metadata.version("jax"),
        python=versions.python(),
        runtime=runtime or slice_.chip.runtime,
        **settings,
    )
    if job.attempts < 1:
        raise UserError(f"Expected --attempts of at least 1, found {job.attempts}; correct it.")
    return Submission(job, archive, startup.render(job), source.files.with_made(made))


def check_service(slice_: topologies.Slice) -> None:
    """Raise UserError for slices that GKE offers, but not Cloud TPU's own API."""
    chip = slice_.chip
    if not chip.in_service:
        raise UserError(
            f"Expected an --accelerator of Cloud TPU's own API, found {chip.name}, which is offered through GKE; give "
            f"--kubernetes FILE in place of --project and --zone."
        )
    shape = "x".join(map(str, slice_.shape))
    if shape != slice_.usual_shape:
        raise UserError(
            f"Expected --topology {slice_.usual_shape}, which Cloud TPU gives for {slice_.accelerator_type}, "
            f"found {shape}; choose that one, or give --kubernetes FILE in place of --project and --zone."
        )


def _check_bucket(bucket: str) -> None:
    other = bucket.partition("://")[0] if "://" in bucket else ""
    if (other and other != "gs") or bucket in ("", "gs:", "gs:/"):
        raise UserError(f"Expected --bucket gs://NAME, found {bucket or 'nothing'!r}; name a bucket of Cloud Storage.")
    if Bucket(bucket).local and not Path(bucket).is_dir():
        raise UserError(
            f"Expected --bucket gs://NAME, or a folder that exists for a rehearsal, found {bucket!r}; correct it."
        )


def _check_start(init_from: str, bucket: str) -> None:
    if init_from in ("", RANDOM) or Bucket(bucket).local or storage.in_bucket(init_from):
        return
    raise UserError(
        f"Expected --from in a bucket, where every host can read it, found {init_from!r}; copy it with gcloud storage "
        f"cp -r {init_from} {bucket}/start and name it there."
    )


def _check_text(run: Experiment, bucket: str, files: list[str], disks: Sequence[str] = ()) -> None:
    """Raise UserError for text on this machine, which the slice could not read. disks: folders of the slice's disks."""
    if Bucket(bucket).local:
        return
    flat = experiments.flatten(run)
    for field in filter(TEXT.fullmatch, flat):
        value, folder = flat[field] or (), flat.get(f"{field.rpartition('.')[0]}.folder")
        for path in [value] if isinstance(value, str) else value:
            if field == "data.mixture.sources":
                path = path.partition("=")[2]
            path = f"{folder.rstrip('/')}/{path}" if folder else path
            packed = path in files or any(name.startswith(f"{path.rstrip('/')}/") for name in files)
            mounted = any(Path(path).is_relative_to(disk) for disk in disks)
            if not path.startswith("gs://") and not packed and not mounted:
                raise UserError(
                    f"Expected --{field} in a bucket, where every host can read it, found {path!r} on this machine; "
                    f"copy it with gcloud storage cp -r {path} {bucket}/data and name it there."
                )


def next_attempt(submission: Submission) -> Submission:
    """Return the submission with its next attempt number: the first, or the one after the attempts in the bucket.

    Raises:
        UserError: the bucket is a folder; the name belongs to another experiment, or to a job that still has its slice.
    """
    job = submission.job
    if Bucket(job.bucket).local and not os.environ.get(queue.ENDPOINT):
        raise UserError(
            f"Expected --bucket gs://NAME, which the hosts can read, found the folder {job.bucket}; a folder is for "
            f"--dry_run, and for rehearsals with {queue.ENDPOINT}."
        )
    before = jobs.read(job.bucket, job.name)
    if before is None:
        return submission
    old, new = (experiments.from_record(each.resolved, each.file) for each in (before, job))
    changed = experiments.differences(old, new, experiments.FREE)
    for field, (old, new) in changed.items():
        raise UserError(
            f"Expected {field} = {old}, which the job named {job.name} in {job.bucket} has, found {new}; submit it "
            f"unchanged, or choose another --name."
        )
    if before.tpu_vm and jobs.verdict(before) is None and machines.running(before):
        raise UserError(
            f"Expected no running job named {job.name}, found it on the TPU VM {before.tpu_vm}; follow it with "
            f"python -m tpu watch {job.name} --bucket {job.bucket}, or end it with python -m tpu delete {job.name}."
        )
    if before.queued and (state := queue.Queue(before).state()).name != "ABSENT":
        raise UserError(
            f"Expected no slice of a job named {job.name}, found one ({state}); follow it with python -m tpu watch "
            f"{job.name} --bucket {job.bucket}, or choose another --name."
        )
    job = dataclasses.replace(job, attempt=before.attempt + 1, first=before.attempt + 1)
    return dataclasses.replace(submission, job=job, script=startup.render(job))


def upload(submission: Submission) -> None:
    """Write the files for the hosts: the archive, if it is not there yet, and the job."""
    job, bucket = submission.job, Bucket(submission.job.bucket)
    folder, _, name = job.package.rpartition("/")
    if name not in bucket.names(folder):
        bucket.write(job.package, submission.archive)
    jobs.save(job)


def ask(submission: Submission, report: Callable[[str], None] = print) -> Job:
    """Upload the files and request the slices, or start the job on its machines. Return the job, with its zone.

    If a zone has too little quota or capacity, the slices are requested in the job's next zone. After the last refusal
    the bucket's record of the job is restored.

    Raises:
        UserError: Cloud TPU refuses in every zone. This includes a lack of quota, because the quota may be 0.
        Unavailable: Cloud TPU does not answer.
    """
    job = submission.job
    before = jobs.read(job.bucket, job.name)
    for left in reversed(range(len(job.zones) or 1)):
        slices = queue.Queue(job) if job.queued else None  # raises without credentials, before an upload
        try:
            upload(dataclasses.replace(submission, job=job))
            if slices is None:
                machines.start(job, startup.render(job))
            else:
                _request(slices, job, report)
            return job
        except Explained as error:
            if left and isinstance(error, queue.NoCapacity):
                report(f"{error} Trying {job.in_next_zone().zone}.")
                job = job.in_next_zone()
                continue
            if isinstance(error, Unavailable) and not isinstance(error, queue.NoCapacity) and _may_exist(slices):
                raise
            if before is None:
                Bucket(job.bucket).remove(f"jobs/{job.name}")
            else:
                jobs.save(before)
            if isinstance(error, queue.NoCapacity):
                raise UserError(str(error)) from error
            raise
    raise AssertionError("the last zone returns or raises")


def _request(slices: queue.Queue, job: Job, report: Callable[[str], None]) -> None:
    """Request the slices. If Cloud TPU has accepted the request but its result is missing, leave that to the watch."""
    operation = slices.begin(startup.render(job))
    events.event(job, "requested")
    try:
        slices.wait_for(operation)
    except queue.NoCapacity:
        raise
    except Unavailable as error:
        report(f"{error} The request was taken; the watch shows what comes of it.")


def _may_exist(slices: queue.Queue | None) -> bool:
    """Return whether a request without an answer may have created a resource; if so, its record must be kept."""
    try:
        return slices is not None and slices.state().name != "ABSENT"
    except Explained:
        return True


def summary(submission: Submission, price: float | None) -> Iterator[str]:
    """Yield what runs, where, and what it may cost.

    price: price of a chip-hour; None if it is not known.
    """
    job, slice_ = submission.job, submission.job.slice
    terms = (
        f"on {job.tpu_vm}" if job.tpu_vm
        else "spot" if job.spot
        else "flex-start" if job.max_run_seconds
        else f"reservation {job.reservation}" if job.reservation
        else "on demand"
    )  # fmt: skip
    zones = " or ".join(job.zones) if job.zones else "Kubernetes"
    yield f"run     {shlex.join(job.command())}"
    hosts = "1 host" if job.workers == 1 else f"{job.workers} hosts"
    yield f"where   {slice_.name}, {slice_.chips} chips of {hosts} in {zones}, {terms}"
    start = ["--from", job.init_from] if job.init_from else []
    plan = shlex.join(["plmjax", "plan", job.experiment, *start, "--topology", slice_.name, *job.overrides])
    if price:
        yield f"cost    {slice_.chips * price:,.2f} an hour at {price:g} a chip-hour; {plan} estimates the hours"
    else:
        yield f"cost    give --price, that of a chip-hour, for the price of an hour; {plan} estimates the hours"


def calls(submission: Submission, file: Path | None, manifest: str, *, verbose: bool) -> Iterator[str]:
    """Yield every call that submitting and following the job makes, complete and in order.

    file, manifest: JobSet file and its contents, for a job on Kubernetes. verbose: true to list every packed file.
    """
    job, bucket = submission.job, Bucket(submission.job.bucket)
    yield f"# {job.experiment} on {job.slice.name}: {job.workers} hosts, workdir {job.workdir}"
    yield from submission.files.lines(verbose)
    if storage.in_bucket(job.init_from):
        yield f"# {job.init_from} is read when the job is submitted, not in a dry run"
    yield f"read    {bucket.url(f'jobs/{job.name}/job.json')} (shown below as if there were none)"
    for name, contents in ((job.package, submission.archive), (f"jobs/{job.name}/job.json", job.to_json())):
        digest = hashlib.sha256(contents).hexdigest()
        yield f"write   {bucket.url(name)}  {len(contents):,} bytes, sha256 {digest}"
    yield job.to_json().decode().rstrip()
    if file is not None:
        yield f"write   {file}, for kubectl apply -f {file}"
        yield manifest.rstrip()
        return
    if job.tpu_vm:
        yield from machines.calls(job, submission.script)
        return
    service, request = "google.cloud.tpu.v2.Tpu", queue.create_request(job, submission.script)
    if job.max_run_seconds:
        yield f"call    POST {flex_start.address(job)}"
        yield json.dumps(flex_start.body(job, request), indent=2)
    else:
        yield f"call    {service}/CreateQueuedResource"
        yield queue.show(request)
    if len(job.zones) > 1:
        yield f"# the same in {', '.join(job.zones[1:])} in turn, if a zone has too little quota or capacity"
    yield "# the startup script in it:"
    yield submission.script.rstrip()
    yield f"call    {service}/GetQueuedResource, every 30 seconds until the job has ended"
    yield queue.show(queue.get_request(job))
    for node in queue.nodes(job):
        yield f"call    {service}/GetNode {node}, while the resource is ACTIVE"
    yield f"call    {service}/DeleteQueuedResource, when the job has ended or the slice is lost; lost slices are "
    yield f"        requested again as above, {job.attempts} in a row without a new checkpoint between them"
    yield queue.show(queue.delete_request(job))
