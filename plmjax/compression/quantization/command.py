"""`plmjax compress quantize`: from a checkpoint to the run directory of the model in int8."""

from pathlib import Path

from plmjax.compression.quantization.weights import GRANULARITIES, comparison, shared_axes, stored_form
from plmjax.compression.run import Source, write
from plmjax.errors import check_choice


def quantize(checkpoint: str | Path, output: Path, granularity: str) -> str:
    """Quantize a checkpoint, and return a line about the result.

    Args:
        checkpoint: a run directory or a checkpoint.
        output: the run directory to write.
        granularity: `tensor` for a scale for each matrix, `channel` for a scale for each output of it.

    Raises:
        UserError: the granularity is unknown, the checkpoint is quantized already, its model has no weights to
            quantize, or the output has a run.
    """
    check_choice("--granularity", granularity, GRANULARITIES)
    source = Source.read(checkpoint)
    run, settings = source.description.experiment, {"granularity": granularity}
    shared = shared_axes({path: array.shape for path, array in source.params.items()}, run.model, granularity)
    params = stored_form(source.params, shared)
    write(output, source, params, run, "quantize", settings)
    return f"quantized  {comparison(source.params, params, shared)} in {output}"
