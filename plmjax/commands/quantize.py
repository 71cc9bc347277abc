"""`plmjax compress quantize`: from a checkpoint to the run directory of the model in int8."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from tyro.conf import Positional, arg

from plmjax import experiment as experiments
from plmjax.commands.arguments import Overrides, Reference, default, load_classes
from plmjax.commands.command_line import Location
from plmjax.compression.quantization.aware import QuantizationAware
from plmjax.compression.quantization.calibration import calibrate, ranges_of
from plmjax.compression.quantization.products import with_int8_parameters
from plmjax.compression.quantization.weights import GRANULARITIES, comparison, shared_axes, stored_form
from plmjax.compression.run import TRAINING, Source, compose_experiment, hold_output, train, write
from plmjax.errors import UserError, check_choice, quoted
from plmjax.experiment import Experiment
from plmjax.files import storage
from plmjax.layers.int8 import INT8_DYNAMIC, INT8_STATIC
from plmjax.runs import epochs
from plmjax.training.checkpoints import checkpoints

OF_RUNS: dict[str, type[QuantizationAware] | None] = {"dynamic": None, "static": None, "aware": QuantizationAware}
"""Method -> class of its settings in a run, whose options the command takes too; None if it only reads examples."""
METHODS = ("weight_only", *OF_RUNS)
BATCHES = 16
"""Number of training batches from which static ranges are measured, if the command names none."""


@hold_output
def quantize(
    checkpoint: Positional[Annotated[str, arg(metavar="CHECKPOINT")]],
    output: Location,
    *,
    method: str = "weight_only",
    granularity: str = "channel",
    batches: Annotated[int | None, default(BATCHES)] = None,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Store weights in int8, and multiply in int8 too.

    Weights in int8 have a quarter of the size. dynamic, static and aware read the examples of the checkpoint's own run,
    whose options may follow, such as --data.train. aware trains on them, and takes another experiment too.

    Args:
        checkpoint: Run directory or checkpoint.
        output: Run directory to write, with one checkpoint.
        method: weight_only, which multiplies in float; dynamic, which scales the activations of each token by their
            largest value; static, by the largest value of some training batches; or aware, which trains the model with
            rounded values.
        granularity: channel for a scale for each output of a matrix, tensor for one scale for the whole matrix.
        batches: With static, the number of training batches.
        experiment: Experiment that trains the model, in place of that of its run; its file defines classes too.
    """
    load_classes(experiment)
    check_choice("--method", method, METHODS)
    check_choice("--granularity", granularity, GRANULARITIES)
    if batches is not None and method != "static":
        raise UserError(f"Expected --batches only with --method static, found --method {method}; leave it out.")
    batches = BATCHES if batches is None else batches
    if batches < 1:
        raise UserError(f"Expected --batches of at least 1, found {batches}; change it.")
    if experiment is not None and method != "aware":
        raise UserError(
            f"Expected no --experiment with --method {method}, which does not train, found {quoted(experiment)}; leave "
            f"it out, or take --method aware."
        )
    if method == "weight_only" and overrides:
        raise UserError(
            f"Expected no options of an experiment with --method weight_only, which reads no data, found "
            f"{quoted(overrides[0])}; leave it out."
        )
    source = Source.read(checkpoint)
    run, params, ranges = source.description.experiment, source.params, {}
    settings = {"method": method, "granularity": granularity} | ({"batches": batches} if method == "static" else {})
    if method == "aware":
        run = compose_experiment(source, QuantizationAware(granularity), experiment, overrides=overrides)
        granularity = settings["granularity"] = run.compression.granularity
        params, run = train(source, run, output)
        ranges = ranges_of(checkpoints.load_collections(checkpoints.find(storage.path(output) / TRAINING)))
    elif method in ("dynamic", "static"):
        read = with_overrides(run, overrides)
        ranges = calibrate(source, read, batches if method == "static" else 0)
        run = dataclasses.replace(run, data=read.data)
    shared = shared_axes({path: array.shape for path, array in params.items()}, run.model, granularity)
    params, line = stored_form(params, shared), "float"
    if method != "weight_only":
        params = with_int8_parameters(params, ranges, run.model, static=method != "dynamic")
        run = with_integers(run, INT8_DYNAMIC if method == "dynamic" else INT8_STATIC)
        line = f"int8 with {len(ranges) // 2} kernels of the layers"
    write(output, source, params, run=run, by="quantize", settings=settings)
    print(f"quantized  {comparison(source.params, params, shared)}; products in {line}; in {output}")


def with_integers(run: Experiment, precision: str) -> Experiment:
    """Return the experiment of a model that computes in int8."""
    return dataclasses.replace(run, training=dataclasses.replace(run.training, matmul_precision=precision))


def with_overrides(run: Experiment, overrides: Sequence[str]) -> Experiment:
    """Return the experiment with options of the command line. With options, a fine-tuning is changed to epochs."""
    if not overrides:
        return run
    run = run if run.finetuning is None else epochs.in_epochs(run)
    return experiments.override(run, overrides)
