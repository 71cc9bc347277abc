"""The mixture of datasets of a run: its history in mixture.json of the run directory, and its lines in the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from plmjax.data.mixing import Mixture, Portion
from plmjax.data.mixture import Datasets, History, MixtureSource, fractions
from plmjax.errors import UserError
from plmjax.experiment.phases import ResolvedPhase
from plmjax.files import storage

RECORD = "mixture.json"


def history(workdir: Path, mixture: Mixture, datasets: Datasets) -> History | None:
    """Return the history of the mixture of a run that starts or resumes in WORKDIR; None for a run on one dataset.

    Raises:
        UserError: the run in WORKDIR cannot continue with this mixture.
    """
    steps = storage.finished_steps(workdir / "checkpoints")
    if not mixture.sources:
        if steps and (workdir / RECORD).exists():
            raise UserError(
                f"Expected --data.mixture.sources for the run in {workdir}, which reads a mixture, found none; name "
                f"its sources, or another --workdir."
            )
        return None
    now = History.new(mixture, datasets)
    if not steps:
        return now
    if not (workdir / RECORD).exists():
        raise UserError(
            f"Expected a run on a mixture in {workdir}, with a {RECORD}, found none; resume a run on one dataset "
            f"without --data.mixture.sources, or name another --workdir, and the run in --from."
        )
    return read(workdir).resume(max(steps), now, f"the run in {workdir}")


def read(workdir: Path) -> History:
    """Return the history in WORKDIR/mixture.json.

    Raises:
        UserError: the file is missing, or has other contents.
    """
    return History.read(workdir / RECORD, "restore the file, or name another --workdir")


def write(workdir: Path, history: History | None) -> None:
    """Write WORKDIR/mixture.json; for a run on one dataset, remove the file of an earlier command."""
    if history is None:
        storage.remove(workdir / RECORD)
    else:
        storage.write(workdir / RECORD, history.to_json())


def header(source: MixtureSource, phases: Sequence[ResolvedPhase], step: int) -> list[str]:
    """Return the lines about a mixture to print before the first step; `step` is the number of finished steps."""
    portions = source.portions(phases, step)
    now = {name: Portion(fraction, portions[name].epochs) for name, fraction in source.history.fractions.items()}
    changed = step and source.history.stages[-1].first_step == step
    return [*([_change(source.history)] if changed else []), _line(now)]


def summary(source: MixtureSource, phases: Sequence[ResolvedPhase], step: int) -> str:
    """Return a line with the fraction and the epochs of each source in a run of `step` steps."""
    return _line(source.portions(phases, step))


def _change(history: History) -> str:
    """Return a line about the last change of a mixture."""
    before, after = (fractions(stage.rows) for stage in history.stages[-2:])
    parts = []
    for name in dict.fromkeys((*before, *after)):
        if name not in after:
            parts.append(f"{name} leaves with {before[name]:.2%}")
        elif name not in before:
            parts.append(f"{name} joins with {after[name]:.2%}")
        else:
            parts.append(f"{name} {before[name]:.2%} -> {after[name]:.2%}")
    return f"mixture    changed after step {history.stages[-1].first_step}: {', '.join(parts)}"


def _line(portions: Mapping[str, Portion]) -> str:
    parts = (
        f"{name} {fraction:.2%} of the rows, {epochs:.3g} epochs read" for name, (fraction, epochs) in portions.items()
    )
    return f"mixture    {'; '.join(parts)}"
