"""Pretraining end to end: text, tokenizer, prepared dataset, training, and a summary of the result."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from plmjax import experiment as experiments
from plmjax import libraries
from plmjax.files import json_text, seals, storage
from plmjax.errors import UserError, options_named
from plmjax.experiment import Data, Experiment, flatten
from plmjax.runs.origin import Origin
from plmjax.parallel import hosts
from plmjax.parallel import mesh as meshes
from plmjax.runs import mixtures, summary
from plmjax.experiment import phases
from plmjax.training import checks, loop, switches, tracking
from plmjax.training.checkpoints import checkpoints, start
from plmjax.training.evaluation import NoEvaluation

NAMES = {
    **{
        f"--{name}": f"--data.{name}"
        for name in ("format", "input", "streams", "text_key", "max_unknown", "clean", "bad_words", "special_names")
    },
    "--vocab_size": "--tokenizer.vocab_size",
}
"""Options of the commands that read text -> their names in an experiment."""
TEXT = "text.json"
"""File in a run directory with the state of the text of its own tokenizer and dataset."""


def check_kind(run: Experiment) -> None:
    """Raise UserError if an experiment is not one on text."""
    if not isinstance(run.data, Data):
        raise UserError(
            f"Expected an experiment on text, found one on {type(run.data).__name__}; run it with plmjax finetune."
        )


@hosts.hold_workdir
def pretrain(
    run: Experiment, workdir: str | Path, report: Callable[[str], None] = print, checkpoint: str | Path = start.RANDOM
) -> loop.Result:
    """Run an experiment in `workdir`, or resume the run there.

    Args:
        checkpoint: a run directory or one checkpoint, for the initial parameters, the model config and the tokenizer,
            and for the objective and the layout if the experiment has none; the run starts at step 0 with a new
            optimizer. Heads that the checkpoint lacks are sampled from the seed. Or "random". Or a file of word
            vectors, which initialize the embedding table of the experiment's own model.

    Raises:
        UserError: an error that the user can correct.
        loop.Interrupted: SIGTERM or Ctrl-C arrived, and the state was saved.
    """
    check_kind(run)
    workdir = storage.path(workdir)
    run, origin = started(run, checkpoint)
    _check(run, origin)
    hosts.agree("the experiment", json.dumps(flatten(run) | libraries.versions()))
    source, tokenizer = _prepare(run, origin, workdir, report)
    files = checkpoints.tokenizer_files(workdir / "tokenizer")
    initial = origin.initial_parameters(run, tokenizer, report=report)
    if run.data.mixture.sources and hosts.is_primary():
        done = storage.finished_steps(workdir / "checkpoints")
        for line in mixtures.header(source, run.resolved_phases, max(done, default=0)):
            report(line)
    result = loop.train(run, workdir, source, files, initial, _evaluation(run, source, report))
    if hosts.is_primary():
        summary.show(result, source, workdir, report)
    hosts.agree("the end")
    return result


def started(run: Experiment, checkpoint: str | Path) -> tuple[Experiment, Origin]:
    """Return the run with its model and its task, and the origin with the parameters of that model.

    Raises:
        UserError: the checkpoint is damaged, or of another kind.
    """
    origin = Origin.find(checkpoint)
    if origin.description is None:
        return run, origin
    run = start.with_task(start.with_model(run, origin.description), origin.description)
    return run, origin.mapped(run)


def _check(run: Experiment, origin: Origin) -> None:
    """Raise UserError if the settings of a run do not fit each other, or this machine."""
    checks.complete(run)
    checks.text(run, has_tokenizer=origin.description is not None)
    here = loop.devices(run.training.platform)
    checks.pretraining(run, len(here), meshes.slices(here))
    switches.check_options(run, here[0])
    tracking.check(run)


def _prepare(run: Experiment, origin: Origin, workdir: Path, report: Callable[[str], None]) -> tuple[Any, Any]:
    """Return (source, tokenizer) of the run.

    The tokenizer and the dataset are those in WORKDIR or those that the run names, or are made from the run's text. The
    source is a plmjax.data.pipeline.RowSource, the tokenizer a plmjax.data.tokenizers.Tokenizer.

    Raises:
        UserError: they do not fit each other or the model, or the run in WORKDIR is another one.
    """
    from plmjax.data import mixture, pipeline, remote, store

    size = run.model.vocab_size
    opened = functools.partial(remote.open_dataset, limit=run.data.cache_bytes, vocab_size=size, report=report)
    dataset = opened(run.data.path) if run.data.path else None
    datasets = mixture.open_sources(run.data.mixture, run.data.cache_bytes, size, report)
    hosts.progressed("preparing the text", hosts.UNLIMITED)
    with hosts.in_turn("the tokenizer and the dataset"):
        first = not (workdir / "experiment.json").exists()
        try:
            other = start.check(workdir, origin.name, origin.recorded)
            _remove_outdated(run, workdir, other, report)
            history = mixtures.history(workdir, run.data.mixture, datasets)
            loop.check_resume(workdir, run, report)
            if hosts.is_primary():
                mixtures.write(workdir, history)
                _name_text(run, workdir)
            found_tokenizer = origin.tokenizer(run)
            with options_named(NAMES):
                tokenizer = _tokenizer(run, workdir, found_tokenizer, report)
            checks.special_tokens(run.model, tokenizer.vocabulary)
            origin.check(run, tokenizer, _batch(run))
            if not datasets:
                with options_named(NAMES):
                    directory = _dataset(run, workdir, tokenizer, report)
                dataset = dataset or opened(directory)
            prepared = list(datasets.values()) or [dataset]
            for one in prepared:
                run.data.layout.prepare(one, tokenizer.vocabulary)
        except UserError:
            # The next command may name other text. A finished dataset and the options of its text are kept.
            if first and not (workdir / "dataset" / store.LEDGER).exists():
                storage.remove(workdir / "experiment.json")
                storage.remove(workdir / start.RECORD)
                storage.remove(workdir / mixtures.RECORD)
                storage.remove(workdir / "tokenizer")
            raise
    hosts.progressed("starting", hosts.ACTIVITY)
    for one in prepared:
        for line in run.data.layout.remarks(one) if hosts.is_primary() else ():
            report(line)
        advice = f"prepare again by plmjax prepare --tokenizer {workdir / 'tokenizer'}"
        if origin.description is None:
            advice += f" or take the dataset's own, --tokenizer.path {one.directory / 'tokenizer'}"
        one.check_tokenizer(tokenizer.fingerprint, f"{workdir}'s", advice)
    if pipeline.by_python() and hosts.is_primary():
        report("batches    from a thread of Python: TensorFlow is not installed")
    layout, vocabulary, seed = run.data.layout, tokenizer.vocabulary, run.training.seed
    if history is None:
        return remote.source(layout, dataset, vocabulary, seed, run.data.shuffle_window), tokenizer
    hosts.agree("the history of the mixture", history.to_json())
    window = run.data.shuffle_window
    return mixture.MixtureSource(layout, datasets, history, vocabulary, seed, window), tokenizer


def _evaluation(run: Experiment, source: Any, report: Callable[[str], None]) -> NoEvaluation | None:
    """Return no evaluation if the held-out text of a phase fills no row; None takes that of the loop."""
    if all(source.held_out(phase.evaluation.sequence_length) for phase in run.resolved_phases):
        return None
    if hosts.is_primary():
        report("evaluation none: no held-out text fills a row; hold out a larger share when the dataset is prepared")
    return NoEvaluation()


def _batch(run: Experiment) -> dict[str, jax.ShapeDtypeStruct]:
    """Return a dict from field to shape and dtype of a batch of the first phase."""
    phase = run.resolved_phases[0]
    return run.data.layout.batch(phase.batch_size, phase.sequence_length)


def _remove_outdated(run: Experiment, workdir: Path, other_start: bool, report: Callable[[str], None]) -> None:
    """Remove the tokenizer and the dataset of other options from WORKDIR, before any step is trained.

    The folders that the run names, in --tokenizer.path, --data.path or --data.mixture.sources, are not removed.

    other_start: true if the earlier command started from other parameters, and so with another tokenizer.
    """
    record = workdir / "experiment.json"
    if not hosts.is_primary() or not record.exists() or storage.finished_steps(workdir / "checkpoints"):
        return
    changed = experiments.differences(experiments.read(record), run)
    changed = [name for name in changed if name.startswith(experiments.PREPARED)]
    if not changed and not other_start and not _other_text(run, workdir):
        return
    paths = (run.tokenizer.path, run.data.path, *run.data.mixture.paths.values())
    named = [storage.absolute(storage.path(path)) for path in paths if path]
    for folder in (workdir / "tokenizer", workdir / "dataset"):
        own = storage.absolute(folder)
        if folder.exists() and not any(own == path or own in path.parents for path in named):
            storage.remove(folder)
            found = f"options: {', '.join(changed) or '--from'}" if changed or other_start else "text in the same files"
            report(f"{folder.name:<10} prepared again, as an earlier command had other {found}")


def _text(run: Experiment) -> str:
    """Return a digest that changes when a file of the run's text is written again.

    It is empty for a run that names a dataset, or whose text is not there any more.
    """
    from plmjax.data import formats, tokenizer_folder

    inputs, kind = _inputs(run)
    named = run.data.path or run.data.mixture.sources
    in_files = kind != formats.DOCUMENTATION and not kind.startswith(formats.TFDS)
    if named or (in_files and not all(storage.path(path).exists() for path in inputs)):
        return ""
    return seals.digest(tokenizer_folder.state_of(inputs, kind))


def _name_text(run: Experiment, workdir: Path) -> None:
    """Write the state of the text of which WORKDIR's tokenizer and dataset are made, before any step is trained."""
    if not storage.finished_steps(workdir / "checkpoints") and (text := _text(run)):
        storage.write(workdir / TEXT, json.dumps({"state": text}) + "\n")


def _other_text(run: Experiment, workdir: Path) -> bool:
    """Return whether WORKDIR names another state of the text."""
    if not (workdir / TEXT).is_file():
        return False
    known = json_text.read_object(workdir / TEXT, "the state of a run's text", "remove the file")
    return known.get("state") != (_text(run) or known.get("state"))


def _inputs(run: Experiment) -> tuple[list[str], str]:
    """Return (inputs, format) of the run's text; text that is named replaces the documentation."""
    from plmjax.data import formats

    named = bool(run.data.input) and run.data.format == formats.DOCUMENTATION
    return list(run.data.input), "auto" if named else run.data.format


def _tokenizer(run: Experiment, workdir: Path, found_tokenizer: Any, report: Callable[[str], None]) -> Any:
    """Return the run's tokenizer.

    It is the one in WORKDIR, that of a checkpoint, the one that the run names, that of the dataset or of the first
    source of a mixture, or one trained on the run's text.
    """
    from plmjax.data import cleaning, formats, tokenizers
    from plmjax.data.formats import records

    own = workdir / "tokenizer"
    prepared = [path for path in (run.data.path, *run.data.mixture.paths.values()) if path]
    named = run.tokenizer.path or (f"{prepared[0]}/tokenizer" if prepared else "")
    if not (own / tokenizers.LAST).is_file():
        if found_tokenizer:
            found_tokenizer.save(own)
        elif named:
            tokenizers.load(named).save(own)
        else:
            settings, (inputs, kind) = run.tokenizer, _inputs(run)
            report(f"tokenizer  training {settings.kind} with {settings.vocab_size} tokens on the input text")
            parts = records.Parts(records.streams(run.data.streams)) if run.data.streams else None
            texts = formats.texts(inputs, kind, tokenizers.sample(settings.kind), run.data.text_key, parts)
            cleaner = cleaning.cleaner(run.data.clean, run.data.bad_words, run.data.language, kind, parts)
            texts = cleaner.texts(texts) if cleaner.names else texts
            tokenizers.train(settings.kind, settings.vocab_size, texts, own, lowercase=settings.lowercase)
    return tokenizers.load(own)


def _dataset(run: Experiment, workdir: Path, tokenizer, report: Callable[[str], None]) -> Path:
    """Return the folder of the run's dataset: the one that it names, or WORKDIR/dataset, prepared if needed."""
    from plmjax.data.formats import records
    from plmjax.data.preparation import prepare

    if run.data.path:
        return storage.path(run.data.path)
    directory = workdir / "dataset"
    inputs, kind = _inputs(run)
    if not (directory / "ledger.json").exists():
        report("dataset    preparing the input text")
        prepare(
            inputs,
            kind,
            tokenizer,
            directory,
            validation=run.data.held_out,
            language=run.data.language,
            text_key=run.data.text_key,
            streams=records.streams(run.data.streams),
            max_unknown=run.data.max_unknown,
            clean=run.data.clean,
            bad_words=run.data.bad_words,
            special_names=run.data.special_names,
        )
    return directory
