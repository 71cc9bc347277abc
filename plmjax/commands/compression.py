"""The commands of `plmjax compress`, which make smaller models from trained checkpoints."""

from typing import Annotated

from tyro.conf import Positional, arg

from plmjax.command_line import Location
from plmjax.commands.arguments import Overrides, Reference

Checkpoint = Annotated[str, arg(metavar="CHECKPOINT")]


def prune(
    checkpoint: Positional[Checkpoint],
    output: Location,
    method: str = "magnitude",
    sparsity: float = 0.5,
    rewind: Location | None = None,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Set weights of a model to 0, or remove heads and features, to make it smaller.

    gradual, movement, soft_movement, block_movement and lottery train the model, on the data of its own run or with
    another experiment, whose options may follow, such as --training.steps 1000 or --compression.begin 0.2.

    Args:
        checkpoint: Run directory or checkpoint.
        output: Run directory to write, with one checkpoint.
        method: magnitude, two_of_four or heads, which do not train; gradual, movement, soft_movement, block_movement
            or lottery.
        sparsity: Share of the layers' weights that become 0; with heads, the share of the heads that are removed.
        rewind: With lottery, the checkpoint whose weights the kept ones get before they are trained.
        experiment: Experiment that trains the model, in place of that of its run; its file defines classes too.
    """
    from plmjax.commands.arguments import load_classes
    from plmjax.compression.pruning.command import prune as run

    load_classes(experiment)
    print(run(checkpoint, output, method, sparsity, rewind, experiment, overrides))


def quantize(
    checkpoint: Positional[Checkpoint],
    output: Location,
    method: str = "weight_only",
    granularity: str = "channel",
    batches: int = 16,
    experiment: Reference | None = None,
    overrides: Overrides = (),
) -> None:
    """Store the weights of a model in int8, a quarter of the size; multiply in int8 too.

    dynamic, static and aware read the examples of the checkpoint's own run, whose options may follow, such as
    --data.train. aware trains on them, and takes another experiment too.

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
    from plmjax.commands.arguments import load_classes
    from plmjax.compression.quantization.command import quantize as run

    load_classes(experiment)
    print(run(checkpoint, output, method, granularity, batches, experiment, overrides))


def factorize(
    checkpoint: Positional[Checkpoint],
    output: Location,
    rank: int | None = None,
    energy: float | None = None,
    overrides: Overrides = (),
) -> None:
    """Replace the matrices of the layers by products of two smaller ones.

    Fine-tune the result with plmjax finetune --from.

    Args:
        checkpoint: Run directory or checkpoint of a BERT, RoBERTa, ALBERT, ELECTRA, GPT or GPT-2.
        output: Run directory to write, with one checkpoint.
        rank: Rank of every product; a matrix of which it would have no fewer weights stays whole.
        energy: In place of --rank, the least share of the sum of squared singular values that every product keeps.
    """
    from plmjax.compression.factorization import factorize as run
    from plmjax.compression.run import without_options

    without_options(overrides, "plmjax compress factorize")
    print(run(checkpoint, output, rank, energy))
