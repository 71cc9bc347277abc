"""A run on Cloud TPU: submit it to a slice, follow it, read its logs, delete it.

`python -m tpu submit EXPERIMENT ...` packs the project, puts it into a bucket and asks for a slice whose machines
all run `plmjax pretrain EXPERIMENT`. What is remembered of a job between commands lies in the bucket, not on this
machine.
"""
