"""`plmjax compress prune`: from a checkpoint to the run directory of the pruned model."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from plmjax.compression.compression import Compression
from plmjax.compression.pruning.one_shot import by_magnitude, by_pattern
from plmjax.compression.pruning.pruned import Pruning, check_sparsity
from plmjax.compression.run import Source, composed, train, write
from plmjax.errors import UserError, nearest, quoted

WITHOUT_TRAINING = ("magnitude", "two_of_four")


def prune(
    checkpoint: str | Path,
    output: Path,
    method: str,
    sparsity: float,
    rewind: Path | None = None,
    experiment: str | None = None,
    overrides: Sequence[str] = (),
) -> str:
    """Prune a checkpoint, and return a line about the result.

    Args:
        checkpoint: a run directory or a checkpoint.
        output: the run directory to write.
        method: `magnitude`, `two_of_four` or the name of a `Pruning`.
        sparsity: share of the layers' weights that become 0.
        rewind: with `lottery`, the checkpoint whose weights are trained.
        experiment: the experiment that trains the model, if not that of the checkpoint.
        overrides: options of the experiment.

    Raises:
        UserError: the method, the sparsity or an option does not fit the checkpoint, or the output has a run.
    """
    trained = {name: found for name, found in Compression.choices().items() if issubclass(found, Pruning)}
    known = (*WITHOUT_TRAINING, *trained)
    if method not in known:
        raise UserError(f"Expected a known --method, found {quoted(method)}; {nearest(method, known)}")
    check_sparsity(sparsity)
    source = Source.read(checkpoint)
    settings = {"method": method} | ({} if method == "two_of_four" else {"sparsity": sparsity})
    if method in trained:
        run = composed(source, trained[method](sparsity=sparsity), experiment, overrides, "plmjax compress prune")
        settings |= dataclasses.asdict(run.compression)
        params, run = train(source, run, output)
    else:
        if overrides or experiment is not None:
            raise UserError(
                f"Expected no experiment and none of its options with --method {method}, which does not train, found "
                f"{quoted(experiment or overrides[0])}; leave it out, or take --method gradual."
            )
        run = source.description.experiment
        model = run.model
        of_pattern = method == "two_of_four"
        params = by_pattern(source.params, model) if of_pattern else by_magnitude(source.params, model, sparsity)
    return f"pruned     {write(output, source, params, run, 'prune', settings)} in {output}"
