"""Run an experiment on Cloud TPU: submit it to a slice, follow it, read its logs, delete it.

`python -m tpu submit EXPERIMENT ...` packs the project, uploads it to a bucket and requests a slice. All machines of
the slice run `plmjax pretrain EXPERIMENT`. The state of a job between commands is stored in the bucket, not on this
machine.
"""
