"""The startup script of a job's machines: its settings, then startup.sh unchanged."""

import shlex
from pathlib import Path

from tpu import capacity, queue
from tpu.job import Job

HUGE_PAGES = ("v5e", "v6e", "7x")
"""Chips whose runtime starts and stops much faster with transparent huge pages, as JAX warns where they are off
(jax/_src/cloud_tpu_init.py: "Transparent hugepages are not enabled")."""


def settings(job: Job) -> dict[str, str]:
    """Return a dict from shell variable to value, for values that differ between jobs.

    All text of a user or an experiment enters the script here, and `render` quotes it. Without quotes a line break in
    an override would end a comment and start a command.
    """
    return {
        "NAME": job.name,
        "ATTEMPT": str(job.attempt),
        "BUCKET": job.bucket,
        "FOLDER": job.folder,
        "PACKAGE": job.package,
        "LIBRARY": job.library,
        "JAX": job.jax,
        "PYTHON": job.python,
        "HUGE_PAGES": "always" if job.accelerator in HUGE_PAGES else "",
        "SLICES": str(job.slices),
        "HOSTS": str(job.hosts),
        "WORKERS": str(job.workers),
        "COMMAND": shlex.join(job.command()),
        "DISKS": " ".join(f"{disk.name}:{disk.mode}" for disk in map(capacity.Disk.parse, job.data_disks)),
        "RESOURCE": queue.resource(job) if job.queued else "",
        "JAX_COMPILATION_CACHE_DIR": f"{job.bucket}/compilation",
    }


def render(job: Job) -> str:
    """Return the startup script of a job."""
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings(job).items()]
    body = Path(__file__).with_name("startup.sh").read_text(encoding="utf-8")
    exported = "export JAX_COMPILATION_CACHE_DIR"
    return "\n".join(["#!/usr/bin/env bash", *lines, exported, body])
