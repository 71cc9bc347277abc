"""Jobs for the tests of what follows a submission."""

from pathlib import Path

from tpu.job import Job

TINY = "experiments/bert_tiny.py"


def job_of(folder: Path | str, **fields: object) -> Job:
    """A job of at most three attempts."""
    usual = {"name": "tiny", "experiment": TINY, "overrides": (), "resolved": {}, "accelerator": "v5e"}
    usual |= {"topology": "4x4", "slices": 1, "spot": True, "bucket": str(folder), "workdir": f"{folder}/run"}
    usual |= {"package": "packages/a.tar.gz", "jax": "1", "attempts": 3, "project": "p", "zone": "us-west4-a"}
    return Job(**usual | fields)
