"""One model from several checkpoints of a run: the mean of their parameters (Vaswani et al. 2017, section 6.1)."""

from pathlib import Path

import jax
import numpy as np

from plmjax import storage
from plmjax.errors import UserError
from plmjax.training.checkpoints import checkpoints, items


def average(run: str | Path, output: str | Path, last: int = 5) -> list[int]:
    """Writes the mean of the parameters of a run's last checkpoints as step 0 of a new run directory.

    Running statistics are averaged with them.

    The mean is taken in float64 and stored in float32. The result has the experiment and the tokenizer of the run, so
    that it is evaluated, fine-tuned and exported as any checkpoint.

    Args:
        run: a run directory.
        output: the folder to write, which must have no run.
        last: how many checkpoints, the last ones.

    Returns:
        the steps of the checkpoints.

    Raises:
        UserError: fewer checkpoints than that, or a run in the folder.
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
        storage.path(output), params, description.experiment, description.tokenizer, collections
    )
    return steps
