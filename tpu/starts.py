"""Apply the limit --attempts to a job on Kubernetes, where plmjax does not request the slices itself.

A JobSet starts all its pods again when a slice is lost. It can only count all restarts of a job, not the restarts in a
row without a new checkpoint. So worker 0 counts them in BUCKET/jobs/NAME/ATTEMPT/starts.json, and decides when the job
has failed.
"""

import json

from plmjax.errors import UserError
from plmjax.files import json_text
from tpu import job as jobs
from tpu import worker
from tpu.bucket import Bucket
from tpu.job import Job, Verdict


def count(job: Job) -> None:
    """Count a start of worker 0. If the job has used up its attempts, decide that it has failed.

    Raises:
        UserError: starts.json in the bucket has other contents than a count.
    """
    bucket, name = Bucket(job.bucket), f"{job.folder}/starts.json"
    step = worker.checkpoint(job.workdir)
    text = bucket.read(name)
    try:
        before = json_text.parse(text or b'{"starts": 0, "step": null}')
        json_text.check(before, {"starts": json_text.COUNT, "step": (json_text.COUNT, type(None))})
    except ValueError as error:
        raise UserError(
            f"Expected the number of starts in {job.bucket}/{name}, found another file ({json_text.reason(error)}); "
            f"remove it."
        ) from None
    # Since the new checkpoint, only one slice has been lost: the one before this start.
    starts = min(before["starts"], 1) if step != before["step"] else before["starts"]
    if starts >= job.attempts:
        jobs.decide(job, Verdict("failed", job.lost_too_often(step)))
        return
    bucket.write(name, (json.dumps({"starts": starts + 1, "step": step}) + "\n").encode())
