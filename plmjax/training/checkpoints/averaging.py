"""The mean of the parameters of several checkpoints of a run (Vaswani et al. 2017, section 6.1)."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from plmjax import experiment
from plmjax.errors import UserError
from plmjax.files import storage
from plmjax.training.checkpoints import checkpoints, items
from plmjax.training.checkpoints.best import Best


def average(run: str | Path, output: str | Path, last: int = 5, best: int = 0) -> list[int]:
    """Average the parameters of some checkpoints of a run, and write them as step 0 of a new run directory.

    Running statistics are averaged too. The mean is computed in float64 and stored in float32. The new run directory
    has the experiment and the tokenizer of the run, so its checkpoint can be evaluated, fine-tuned and exported like
    any other.

    Args:
        run: a run directory.
        output: the folder to write, which must not have a run.
        last: number of the newest checkpoints to average.
        best: number of earlier checkpoints to add, those with the best evaluations by the run's `checkpoint.best`.
            ModernBERT is the mean of the three best and the last one (Warner et al., arXiv 2412.13663, appendix A.4).

    Returns:
        the steps of the checkpoints.

    Raises:
        UserError: the run has fewer checkpoints or evaluations, or the output folder has a run.
    """
    if min(last, best) < 0 or last + best < 1:
        raise UserError(
            f"Expected --last and --best of at least 0, and one checkpoint in all, found {last} and {best}; change "
            f"them."
        )
    folder = storage.path(run) / "checkpoints"
    if not storage.finished_steps(folder):
        raise UserError(
            f"Expected a run directory with checkpoints at {run}, found no finished checkpoint; name the workdir of a "
            f"run."
        )
    known = sorted(storage.finished_steps(folder))
    steps = known[len(known) - last :]
    if last > len(known):
        raise UserError(
            f"Expected {last} checkpoints in {run}, found {len(known)}; lower --last, or keep more of a new run "
            f"(plmjax pretrain --checkpoint.keep)."
        )
    steps = sorted([*steps, *_best(run, known[: len(known) - last], best)])
    total = None
    for step in steps:
        directory = storage.absolute(folder) / str(step)
        found = items.restore(directory, "params", None), checkpoints.load_collections(directory)
        found = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)
        total = found if total is None else jax.tree.map(np.add, total, found)
    mean = jax.tree.map(lambda leaf: (leaf / len(steps)).astype(np.float32), total)
    description = checkpoints.describe(storage.absolute(folder) / str(steps[-1]))
    params, collections = mean
    checkpoints.save_parameters(
        storage.path(output), params, description.experiment, tokenizer=description.tokenizer, collections=collections
    )
    return steps


def _best(run: str | Path, steps: Sequence[int], count: int) -> list[int]:
    """Return the `count` steps with the best evaluations."""
    if not count:
        return []
    folder = storage.absolute(storage.path(run) / "checkpoints")
    compared = Best(experiment.read(storage.path(run) / "experiment.json").checkpoint.best)
    scores = {step: compared.score(checkpoints.describe(folder / str(step)).metrics) for step in steps}
    known = {step: score for step, score in scores.items() if score is not None}
    if len(known) < count:
        found = f"{len(known)} by {compared.name}" if compared.name else "no --checkpoint.best in the run"
        raise UserError(
            f"Expected {count} evaluated checkpoints before the last ones in {run}, found {found}; lower --best, or "
            f"evaluate at every checkpoint of a new run (--checkpoint.every and --training.evaluate_every)."
        )
    return sorted(known, key=lambda step: (known[step], step))[:count]
