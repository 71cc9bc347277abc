"""Jobs for the tests of what follows a submission."""

import re
from pathlib import Path

from tests.tpu.service import CloudTpu
from tpu import job as jobs
from tpu.job import Job, Verdict

TINY = "experiments/bert_tiny.py"


def job_of(folder: Path | str, **fields: object) -> Job:
    """A job of at most three attempts."""
    usual = {"name": "tiny", "experiment": TINY, "overrides": (), "resolved": {}, "accelerator": "v5e"}
    usual |= {"topology": "4x4", "slices": 1, "spot": True, "bucket": str(folder), "workdir": f"{folder}/run"}
    usual |= {"package": "packages/a.tar.gz", "jax": "1", "attempts": 3, "project": "p", "zone": "us-west4-a"}
    return Job(**usual | fields)


def ends(service: CloudTpu, bucket: Path | str, after: int, verdict: Verdict) -> None:
    """Has the hosts of the job end it when its resource was looked at so often."""
    answer = service._get
    left = [after]

    def counted(request):
        left[0] -= 1
        if left[0] == 0:
            jobs.decide(jobs.find(str(bucket), "tiny"), verdict)
        return answer(request)

    service._get = counted


def states(printed: str) -> list[str]:
    """The states of the resource in what was printed."""
    return [line.split()[1] for line in printed.splitlines() if re.match(r"\d\d:\d\d:\d\d  [A-Z_]+", line)]
