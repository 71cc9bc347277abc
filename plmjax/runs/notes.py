"""Notes on a run that may not be what its user wants: valid but unusual settings, and suspicious results."""

import csv
import io
from collections.abc import Iterator, Mapping

from plmjax.experiment import Experiment, in_phase
from plmjax.finetuning.batches.source import TaskSource
from plmjax.training.optimizers.schedules import WarmedUp

MORE = 1.5
"""Ratio of the tokens of a run to those of its unchanged experiment, above which there is a note."""
MANY_ROWS = 1.1
"""Ratio of embedding rows to tokens of the tokenizer, above which there is a note. A few more are usual, as padding."""
PREDICTIONS = "predictions.tsv"


def on_settings(run: Experiment, composed: Experiment) -> Iterator[str]:
    """Yield notes on the settings of a run on text.

    run: the resolved experiment. composed: the experiment as composed by its file, without options.
    """
    steps, phases = run.training.steps, run.resolved_phases
    for phase in (one for one in phases if one.first_step == one.schedule_start):
        schedule, lasting = in_phase(run, phase).optimizer.schedule, phase.schedule_steps
        warmup = schedule.warmup_steps if isinstance(schedule, WarmedUp) else 0
        if warmup > lasting:
            where, option = "the run", "--"
            if phase.first_step:
                where, option = f"the schedule of phase {phase.declared}", f"--phases.{phase.declared}.changes "
            yield (
                f"note       the warm-up of {warmup:,} steps is longer than the {lasting:,} steps of {where}, which "
                f"ends at {lasting / warmup:.0%} of its learning rate; lower {option}optimizer.schedule.warmup_steps"
            )
    planned, read = (tokens(one) for one in (composed, run))
    if planned and read > MORE * planned and composed.training.steps == steps:
        yield (
            f"note       reads {read / planned:.1f} times the tokens of the experiment, as its steps are larger and as "
            f"many; --training.steps {round(steps * planned / read)} reads as many tokens"
        )


def on_vocabulary(run: Experiment, size: int) -> Iterator[str]:
    """Yield a note if the model's embedding table has many more rows than the tokenizer has tokens.

    size: number of tokens of the tokenizer.
    """
    rows = run.model.vocab_size
    if rows > MANY_ROWS * size:
        yield (
            f"note       the model has {rows:,} rows of words for the {size:,} tokens of its tokenizer; "
            f"--model.vocab_size {size} leaves out those that no token uses"
        )


def tokens(run: Experiment) -> int:
    """Return the number of tokens in all steps of a run on text; 0 if its layout or number of steps is not set."""
    if not run.training.steps or getattr(run.data, "layout", None) is None:
        return 0
    phases = run.resolved_phases
    return sum(phase.steps * run.data.tokens(phase.batch_size, phase.sequence_length) for phase in phases)


def on_packing(run: Experiment, source: TaskSource) -> Iterator[str]:
    """Yield a note on the number of examples in a step of a fine-tuning, if rows are packed."""
    rows, each = run.training.batch_size, source.examples_per_row
    if each > 1:
        yield (
            f"rows       a step of {rows} rows has about {rows * each:.0f} examples, packed; --data.pack 1 gives each "
            f"a row of its own"
        )


def on_predictions(predictions: Mapping[str, str]) -> Iterator[str]:
    """Yield a note if a task's predictions are all one label. predictions: name of a file -> its contents."""
    rows = list(csv.DictReader(io.StringIO(predictions.get(PREDICTIONS, "")), delimiter="\t", quoting=csv.QUOTE_NONE))
    predicted, labels = ({row.get(column) for row in rows} for column in ("prediction", "label"))
    if len(predicted) == 1 and len(labels) > 1:
        yield (
            f"note       every prediction is {predicted.pop()!r}: the model tells no example from another; train "
            f"longer, change the learning rate, or start from a pretrained model"
        )
