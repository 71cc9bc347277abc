"""Several runs of one task that differ only in the seed, and the mean and standard deviation of their metrics."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plmjax.errors import UserError
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.parallel import hosts
from plmjax.runs.finetuning import finetune
from plmjax.training.metrics import to_json

Results = dict[int, dict[str, float]]
"""Seed -> metric -> value."""


def finetune_seeds(
    experiment: Experiment, init_from: str | Path, workdir: Path, seeds: Sequence[int], **options: Any
) -> Results:
    """Fine-tune once per seed, in WORKDIR/seed_N. Write all metrics, means and deviations to WORKDIR/seeds.json.

    The seed determines the head's initial values, the order of the examples and dropout. A stopped run is resumed by
    the same call.

    options: further arguments of `finetune`.

    Raises:
        UserError: a seed is given twice, or `finetune` raises it.
    """
    if len(set(seeds)) < len(seeds):
        raise UserError(f"Expected --seeds that differ, found {' '.join(map(str, seeds))}; leave one out.")
    results = {}
    with hosts.hold_folder(storage.path(workdir)):
        for seed in seeds:
            named = [*options.get("overrides", ()), "--training.seed", str(seed)]
            folder = storage.path(workdir) / f"seed_{seed}"
            results[seed] = finetune(experiment, init_from, folder, **options | {"overrides": named})
        if hosts.is_primary():
            means = {name: summary(results, name) for name in results[seeds[0]]}
            record = {
                "seeds": {str(seed): metrics for seed, metrics in results.items()},
                "mean": {name: mean for name, (mean, _) in means.items()},
                "deviation": {name: deviation for name, (_, deviation) in means.items()},
            }
            storage.write(storage.path(workdir) / "seeds.json", to_json(record, indent=2) + "\n")
    return results


def summary(results: Mapping[int, Mapping[str, float]], metric: str) -> tuple[float, float]:
    """Return the mean and the sample standard deviation of a metric over the seeds. The deviation of one seed is 0.

    Both are NaN if a value is not finite, such as the correlation with constant predictions.
    """
    values = [metrics[metric] for metrics in results.values()]
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def table(results: Results) -> str:
    """Return one line per metric: its value for every seed, then mean and deviation."""
    names = list(next(iter(results.values())))
    width = max(map(len, names))
    lines = [f"{'metric':<{width}}" + "".join(f"  seed {seed:<6}" for seed in results) + "  mean ± deviation"]
    for name in names:
        mean, deviation = summary(results, name)
        values = "".join(f"  {metrics[name]:<11.4f}" for metrics in results.values())
        lines.append(f"{name:<{width}}{values}  {mean:.4f} ± {deviation:.4f}")
    return "\n".join(lines)
