"""The mean of the parameters of several checkpoints of a run (Vaswani et al. 2017, section 6.1)."""

from pathlib import Path

import jax
import numpy as np

from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.training.checkpoints import checkpoints, items


def average(run: str | Path, output: str | Path, last: int = 5) -> list[int]:
    """Write the mean of the parameters of a run's last checkpoints as step 0 of a new run directory.

    Running statistics are averaged too.

    The mean is computed in float64 and stored in float32. The new run directory has the experiment and the tokenizer of
    the run, so its checkpoint can be evaluated, fine-tuned and exported like any other.

    Args:
        run: a run directory.
        output: the folder to write, which must not have a run.
        last: number of checkpoints, the last ones of the run.

    Returns:
        the steps of the checkpoints.

    Raises:
        UserError: there are fewer checkpoints, or the folder has a run.
    """
    if last < 1:
        raise UserError(f"Expected --last of at least 1, found {last}; change it.")
    folder = storage.path(run) / "checkpoints"
    if not storage.finished_steps(folder):
        raise UserError(
            f"Expected a run directory with checkpoints at {run}, found no finished checkpoint; name the workdir of a "
            f"run."
        )
    steps = sorted(storage.finished_steps(folder))[-last:]
    if len(steps) < last:
        raise UserError(
            f"Expected {last} checkpoints in {run}, found {len(steps)}; lower --last, or keep more of a new run "
            f"(plmjax pretrain --checkpoint.keep)."
        )
    total = None
    for step in steps:
        directory = storage.absolute(folder) / str(step)
        found = items.restore(directory, "params", None), checkpoints.load_collections(directory)
        found = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)
        total = found if total is None else jax.tree.map(np.add, total, found)
    mean = jax.tree.map(lambda leaf: (leaf / last).astype(np.float32), total)
    description = checkpoints.describe(storage.absolute(folder) / str(steps[-1]))
    params, collections = mean
    checkpoints.save_parameters(
        storage.path(output), params, description.experiment, tokenizer=description.tokenizer, collections=collections
    )
    return steps
