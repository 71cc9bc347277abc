"""Pretraining end to end: text, tokenizer, prepared dataset, training, and a summary of the result."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from plmjax import libraries
from plmjax.experiment import Experiment, flatten
from plmjax.files import storage
from plmjax.parallel import hosts
from plmjax.parallel import mesh as meshes
from plmjax.runs import checks, continuing, notes, summary, text
from plmjax.runs.init_from import RANDOM
from plmjax.runs.resolve import resolve
from plmjax.training import loop, switches
from plmjax.training.checkpoints import checkpoints


def pretrain(
    experiment: Experiment,
    workdir: str | Path,
    init_from: str | Path = RANDOM,
    *,
    continue_from: str | Path | None = None,
    overrides: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> loop.Result:
    """Run an experiment on text in `workdir`, or resume the run there.

    With `init_from`, a run that starts from a checkpoint begins at step 0 with a new optimizer state. Heads that the
    checkpoint lacks are initialized from the seed. A file of word vectors initializes the embedding table of the
    experiment's own model.

    With `continue_from`, a run keeps the optimizer state, the step and the place in the text of a checkpoint.

    The other arguments are those of `resolve`.

    Raises:
        UserError: the experiment, the checkpoint or the text is wrong.
        loop.Interrupted: SIGTERM or Ctrl-C arrived, and the state was saved.
    """
    # The run: its completed experiment, and its start.
    checks.kind(experiment, text=True)
    options = {"overrides": overrides, "report": report}
    run = resolve(experiment, init_from, continue_from=continue_from, **options)
    with hosts.hold_folder(workdir := storage.path(workdir), run.experiment.hosts):
        checks.text(run.experiment, has_tokenizer=run.init_from.description is not None)
        devices = loop.devices(run.experiment.training.platform)
        checks.on_devices(run.experiment, len(devices), meshes.slices(devices))
        switches.check_options(run.experiment, devices[0])
        hosts.agree("the experiment", json.dumps(flatten(run.experiment) | libraries.versions()))
        for line in notes.on_settings(run.experiment, experiment) if hosts.is_primary() else ():
            report(line)

        # Its folder and its inputs: the tokenizer and the dataset are made from the text, once.
        inputs = text.inputs(run, workdir, report)
        if run.init_from.description is None and hosts.is_primary():  # a checkpoint has a fixed number of rows
            for line in notes.on_vocabulary(inputs.experiment, inputs.tokenizer.vocabulary.size):
                report(line)

        # Training, from the last checkpoint in the folder if there is one.
        continued = run.init_from.continued
        if continued is not None and hosts.is_primary():
            report(continuing.line(run.experiment, run.init_from))
        initial = run.init_from.initialize(inputs.experiment, inputs.params, inputs.tokenizer, report=report)
        files = checkpoints.tokenizer_files(workdir / "tokenizer")
        result = loop.train(
            inputs.experiment,
            workdir,
            inputs.source,
            tokenizer=files,
            initial=initial,
            evaluation=inputs.evaluation,
            continued=continued,
        )

        # The summary of the result.
        if hosts.is_primary():
            summary.show(result, inputs.source, workdir, report)
        hosts.agree("the end")
        return result
