"""Pretraining end to end: text, tokenizer, prepared dataset, training, and a look at what was learned."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plmjax import __version__, learned, storage
from plmjax.errors import UserError
from plmjax.experiment import Data, Experiment, flatten
from plmjax.parallel import hosts
from plmjax.parallel import mesh as meshes
from plmjax.training import checkpoints, checks, loop, phases, start, tracking
from plmjax.training.evaluation import Unjudged
from plmjax.training.state import State
from plmjax.training.step import Program

TOKENIZER_SAMPLE = 64 * 2**20
"""Bytes of text a tokenizer is trained on; its merges and pieces hardly change with more."""


@hosts.hold_workdir
def pretrain(
    run: Experiment, workdir: str | Path, say: Callable[[str], None] = print, checkpoint: str | Path = start.RANDOM
) -> loop.Result:
    """Runs an experiment in `workdir`, from whatever is there already.

    checkpoint: a run directory or one checkpoint whose parameters, model config and tokenizer the run begins with, at
        step 0 and with a new optimizer; or "random". Heads that it lacks are drawn from the seed.

    Raises:
        UserError: anything the user can put right.
        loop.Interrupted: SIGTERM or Ctrl-C, after saving.
    """
    from plmjax.data import pipeline, store

    if not isinstance(run.data, Data):
        raise UserError(
            f"Expected an experiment on text, found one on {type(run.data).__name__}; run it with plmjax finetune."
        )
    workdir = storage.path(workdir)
    pretrained, description = None, None
    if str(checkpoint) != start.RANDOM:
        pretrained, description = checkpoints.load_parameters(checkpoint)
        run = start.with_model(run, description)
    elif run.model is None:
        raise UserError("Expected a model in the experiment, found none; set it there or name a checkpoint in --from.")
    checks.text(run, brought=description is not None)
    here = loop.devices(run.training.platform)
    checks.pretraining(run, len(here), meshes.slices(here))
    tracking.check(run)
    hosts.agree("the experiment", json.dumps(flatten(run) | {"the version of plmjax": __version__}))
    size = run.model.vocab_size
    dataset = store.open_dataset(run.data.path, vocab_size=size, say=say) if run.data.path else None
    with hosts.in_turn("the tokenizer and the dataset"):
        first = not (workdir / "experiment.json").exists()
        try:
            start.check(workdir, checkpoint, pretrained)
            loop.check_resume(workdir, run, say)
            brought = start.tokenizer(run, checkpoint, description) if description else None
            tokenizer = _tokenizer(run, workdir, brought, say)
            _check_padding(run, tokenizer.vocabulary.pad)
            directory = _dataset(run, workdir, tokenizer, say)
        except UserError:
            if first:  # nothing was trained: the command can be fixed and given again for the same folder
                storage.remove(workdir / "experiment.json")
                storage.remove(workdir / start.RECORD)
                storage.remove(workdir / "tokenizer")
            raise
    dataset = dataset or store.open_dataset(directory, vocab_size=size, say=say)
    if dataset.tokenizer_fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"Expected a dataset made with the tokenizer of {workdir}, found {directory} made with another; prepare "
            f"again with --tokenizer {workdir / 'tokenizer'}"
            + ("." if description else f" or take the dataset's own, --tokenizer.path {directory / 'tokenizer'}.")
        )
    source = pipeline.open_source(run.data, dataset, tokenizer.vocabulary, seed=run.training.seed)
    evaluation = None
    if not all(source.held_out(phase.sequence_length) for phase in phases.resolve(run)):
        evaluation = Unjudged()
        if hosts.speaks():
            say("evaluation none: no held-out text fills a row; hold out a larger share when the dataset is prepared")

    def begin(program: Program) -> State:
        state = program.initialize(run.training.seed)
        if pretrained is None:
            return state
        drawn = start.lacking(pretrained, state.params, run.model)
        if drawn and hosts.speaks():
            say(f"start      drawn anew, as {checkpoint} has none: {', '.join(drawn)}")
        return state.replace(params=start.transfer(pretrained, state.params, checkpoint, drawn.__contains__))

    files = checkpoints.tokenizer_files(workdir / "tokenizer")
    result = loop.train(run, workdir, source, files, begin, evaluation)
    if hosts.speaks():
        learned.show(result, source, workdir, say)
    hosts.agree("the end")
    return result


def _check_padding(run: Experiment, pad: int) -> None:
    """Raises UserError where the model takes another token for padding than the tokenizer fills rows with."""
    expected = getattr(run.model, "pad_token_id", pad)
    if pad >= 0 and pad != expected:
        raise UserError(
            f"Expected a tokenizer whose padding token is the model's, {expected}, found {pad}; set "
            f"--model.pad_token_id {pad} or take a tokenizer of the kind that the experiment names."
        )


def _inputs(run: Experiment) -> tuple[list[str], str]:
    """(inputs, format) of the run's text: what is named takes the place of the documentation."""
    from plmjax.data import formats

    named = bool(run.data.input) and run.data.format == formats.DOCUMENTATION
    return list(run.data.input), "auto" if named else run.data.format


def _tokenizer(run: Experiment, workdir: Path, brought: Any, say: Callable[[str], None]) -> Any:
    """The run's tokenizer: the one in WORKDIR, the one that a checkpoint has brought, the one it names, the dataset's,
    or one trained on its text."""
    from plmjax.data import formats, tokenizers

    own = workdir / "tokenizer"
    named = run.tokenizer.path or (f"{run.data.path}/tokenizer" if run.data.path else "")
    if not (own / tokenizers.LAST).is_file():
        if brought:
            brought.save(own)
        elif named:
            tokenizers.load(named).save(own)
        else:
            settings, (inputs, kind) = run.tokenizer, _inputs(run)
            say(f"tokenizer  training {settings.kind} with {settings.vocab_size} tokens on the input text")
            texts = formats.texts(inputs, kind, TOKENIZER_SAMPLE, run.data.text_key)
            tokenizers.train(settings.kind, settings.vocab_size, texts, own, lowercase=settings.lowercase)
    return tokenizers.load(own)


def _dataset(run: Experiment, workdir: Path, tokenizer, say: Callable[[str], None]) -> Path:
    """The run's prepared dataset: the one it names, or WORKDIR/dataset, prepared if it is not there."""
    from plmjax.data.prepare import prepare

    if run.data.path:
        return storage.path(run.data.path)
    directory = workdir / "dataset"
    inputs, kind = _inputs(run)
    if not (directory / "ledger.json").exists():
        say("dataset    preparing the input text")
        prepare(
            inputs,
            kind,
            tokenizer,
            directory,
            validation=run.data.held_out,
            language=run.data.language,
            text_key=run.data.text_key,
            max_unknown=run.data.max_unknown,
        )
    return directory
