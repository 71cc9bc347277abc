"""The inputs of a run on text: its tokenizer and its dataset, which are made once, and the source of its rows.

A run directory stores the tokenizer and the dataset made from raw text, in tokenizer/ and dataset/, and the state of
that text in text.json. Before the first checkpoint they are made again if the options or the text have changed.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from plmjax import experiment as experiments
from plmjax.data import mixture, pipeline, remote
from plmjax.data.phases import PhasesSource
from plmjax.data.store import Dataset
from plmjax.errors import options_named
from plmjax.experiment import Data, Experiment
from plmjax.files import json_text, seals, storage
from plmjax.parallel import hosts
from plmjax.runs import checks, folder, mixtures
from plmjax.runs.inputs import Inputs
from plmjax.runs.resolve import Run
from plmjax.training import feed
from plmjax.training.evaluation import NoEvaluation

NAMES = {
    **{
        f"--{name}": f"--data.{name}"
        for name in ("format", "input", "streams", "text_key", "max_unknown", "clean", "bad_words", "special_names")
    },
    "--vocab_size": "--tokenizer.vocab_size",
}
"""Option of the commands that read text -> its name in an experiment."""
TEXT = "text.json"
"""File in a run directory with the state of the text from which its tokenizer and dataset were made."""


def inputs(run: Run, workdir: Path, report: Callable[[str], None]) -> Inputs:
    """Return the inputs of a run in WORKDIR.

    The tokenizer and the dataset are taken from WORKDIR or from the folders that the run names, or made from its text.

    Raises:
        UserError: they do not fit each other or the model, or WORKDIR has another run.
    """
    experiment, data, report_once = run.experiment, run.experiment.data, report if hosts.is_primary() else _say_nothing
    size = experiment.model.vocab_size
    opened = functools.partial(remote.open_dataset, limit=data.cache_bytes, vocab_size=size, report=report)
    dataset = opened(data.path) if data.path else None
    datasets = mixture.open_sources(data.mixture, data.cache_bytes, size, report)
    hosts.report_progress("preparing the text", hosts.UNLIMITED)
    with hosts.host_0_first("the tokenizer and the dataset"), folder.forget_after_mistakes(workdir):
        history = _record(run, workdir, datasets, report)
        found = run.init_from.tokenizer(experiment)
        with options_named(NAMES):
            tokenizer = _tokenizer(experiment, workdir, found, report)
        checks.special_tokens(experiment.model, tokenizer.vocabulary)
        run.init_from.check(experiment, tokenizer, _first_batch(experiment))
        if not datasets:
            with options_named(NAMES):
                directory = _dataset(experiment, workdir, tokenizer, report)
            dataset = dataset or opened(directory)
        prepared = list(datasets.values()) or [dataset]
        for one in prepared:
            data.layout.prepare(one, tokenizer.vocabulary)
        others = _texts_of_phases(experiment, datasets or {"": dataset}, opened)
        for text in others:
            for one in text.datasets.values():
                text.data.layout.prepare(one, tokenizer.vocabulary)
        prepared += [one for text in others for one in text.datasets.values() if one not in prepared]
    hosts.report_progress("starting", hosts.ACTIVITY)
    for one in prepared:
        for line in data.layout.remarks(one):
            report_once(line)
        advice = f"prepare again by plmjax prepare --tokenizer {workdir / 'tokenizer'}"
        if run.init_from.description is None:
            advice += f" or take the dataset's own, --tokenizer.path {one.directory / 'tokenizer'}"
        one.check_tokenizer(tokenizer.fingerprint, f"{workdir}'s", advice)
    if pipeline.by_python():
        report_once("batches    from a thread of Python: TensorFlow is not installed")
    settings = {
        "vocabulary": tokenizer.vocabulary,
        "seed": experiment.training.seed,
        "window": data.shuffle_window,
    }
    if history is None:
        source = remote.source(data.layout, dataset, **settings)
    else:
        hosts.agree("the history of the mixture", history.to_json())
        source = mixture.MixtureSource(data.layout, datasets, history, **settings)
        done = storage.finished_steps(workdir / "checkpoints")
        for line in mixtures.header(source, experiment.resolved_phases, max(done, default=0)):
            report_once(line)
    if others:
        own = {text.phase: text.source(**settings) for text in others}
        source = PhasesSource([own.get(number, source) for number in range(len(experiment.phases))])
    return Inputs(experiment, run.params, tokenizer, source, _evaluation(experiment, source, report_once))


@dataclasses.dataclass(frozen=True)
class _Text:
    """The text of a phase that changes options of `data`.

    phase: index of the phase in the experiment.
    datasets: those of a mixture by name, or one without a name.
    """

    phase: int
    data: Data
    datasets: Mapping[str, Dataset]

    def source(self, **settings: Any) -> pipeline.RowSource:
        """Return the source of the rows of the phase. settings: as for `remote.source`."""
        if self.data.mixture.sources:
            return mixture.new_source(self.data.layout, self.data.mixture, self.datasets, **settings)
        (dataset,) = self.datasets.values()
        return remote.source(self.data.layout, dataset, **settings)


def _texts_of_phases(
    experiment: Experiment, datasets: Mapping[str, Dataset], opened: Callable[[str], Dataset]
) -> list[_Text]:
    """Return the texts of the phases that change options of `data`. datasets: those of the run."""
    found = []
    for phase in {each.declared: each for each in experiment.resolved_phases}.values():
        data = experiments.in_phase(experiment, phase).data
        if data == experiment.data:
            continue
        if data.mixture != experiment.data.mixture and data.mixture.sources:
            mixture.check_layout(data.layout)
            own = mixture.open_sources(data.mixture, data.cache_bytes, experiment.model.vocab_size)
        elif data.path != experiment.data.path and data.path:
            own = {"": opened(data.path)}
        else:
            own = datasets
        found.append(_Text(phase.declared, data, own))
    return found


def _say_nothing(line: str) -> None:
    """Print nothing: another host prints the line."""


def _record(run: Run, workdir: Path, datasets: Any, report: Callable[[str], None]) -> Any:
    """Write the records of the run, or compare it with those in WORKDIR. Return the history of its mixture, or None."""
    option = "--from" if run.init_from.continued is None else "--continue_from"
    other_start = folder.record_start(workdir, run.init_from.name, run.start_arrays, option)
    _remove_outdated(run.experiment, workdir, other_start, report)
    history = mixtures.history(workdir, run.experiment.data.mixture, datasets)
    folder.record_experiment(workdir, run.experiment, report)
    if hosts.is_primary():
        mixtures.write(workdir, history)
        _record_text(run.experiment, workdir)
    return history


def _first_batch(experiment: Experiment) -> dict[str, jax.ShapeDtypeStruct]:
    """Return a dict from field to shape and dtype of a batch of the first phase."""
    phase = experiment.resolved_phases[0]
    return experiment.data.layout.batch(phase.batch_size, phase.sequence_length)


def _evaluation(experiment: Experiment, source: Any, report: Callable[[str], None]) -> NoEvaluation | None:
    """Return NoEvaluation if the held-out text of a phase fills no row; None for the loop's default evaluation."""
    phases = experiment.resolved_phases
    if all(feed.source_in_phase(source, phase).held_out(phase.evaluation.sequence_length) for phase in phases):
        return None
    report("evaluation none: no held-out text fills a row; hold out a larger share when the dataset is prepared")
    return NoEvaluation()


def _remove_outdated(experiment: Experiment, workdir: Path, other_start: bool, report: Callable[[str], None]) -> None:
    """Remove the tokenizer and the dataset from WORKDIR if they were made with other options or from other text.

    After the first checkpoint nothing is removed. Folders that the run names, in --tokenizer.path, --data.path or
    --data.mixture.sources, are never removed.

    other_start: true if the earlier command started from other parameters, and so had another tokenizer.
    """
    record = workdir / folder.EXPERIMENT
    if not hosts.is_primary() or not record.exists() or storage.finished_steps(workdir / "checkpoints"):
        return
    changed = experiments.differences(experiments.read(record), experiment)
    changed = [name for name in changed if name.startswith(experiments.PREPARED)]
    if not changed and not other_start and not _has_other_text(experiment, workdir):
        return
    paths = (experiment.tokenizer.path, experiment.data.path, *experiment.data.mixture.paths.values())
    named = [storage.absolute(storage.path(path)) for path in paths if path]
    for made in (workdir / "tokenizer", workdir / "dataset"):
        own = storage.absolute(made)
        if made.exists() and not any(own == path or own in path.parents for path in named):
            storage.remove(made)
            found = f"options: {', '.join(changed) or '--from'}" if changed or other_start else "text in the same files"
            report(f"{made.name:<10} prepared again, as an earlier command had other {found}")


def _state(experiment: Experiment) -> str:
    """Return a digest that changes when a file of the run's text changes.

    It is empty if the run names a prepared dataset, or if its text does not exist any more.
    """
    from plmjax.data import formats, tokenizer_folder

    files, kind = _files(experiment)
    named = experiment.data.path or experiment.data.mixture.sources
    in_files = kind != formats.DOCUMENTATION and not kind.startswith(formats.TFDS)
    if named or (in_files and not all(storage.path(path).exists() for path in files)):
        return ""
    return seals.digest(tokenizer_folder.state_of(files, kind))


def _record_text(experiment: Experiment, workdir: Path) -> None:
    """Write the state of the run's text to WORKDIR/text.json, unless a checkpoint exists."""
    if not storage.finished_steps(workdir / "checkpoints") and (state := _state(experiment)):
        storage.write(workdir / TEXT, json.dumps({"state": state}) + "\n")


def _has_other_text(experiment: Experiment, workdir: Path) -> bool:
    """Return whether WORKDIR/text.json has another state of the text."""
    if not (workdir / TEXT).is_file():
        return False
    known = json_text.read_object(workdir / TEXT, "the state of a run's text", "remove the file").get("state")
    return known != (_state(experiment) or known)


def _files(experiment: Experiment) -> tuple[list[str], str]:
    """Return (inputs, format) of the run's text; by default the docstrings of installed libraries."""
    from plmjax.data import formats

    data = experiment.data
    named = bool(data.input) and data.format == formats.DOCUMENTATION
    return list(data.input), "auto" if named else data.format


def _tokenizer(experiment: Experiment, workdir: Path, found: Any, report: Callable[[str], None]) -> Any:
    """Return the run's tokenizer, and save it in WORKDIR/tokenizer.

    It is the first that exists: the one in WORKDIR; that of a checkpoint, `found`; that of --tokenizer.path; that of
        the dataset, or of the first source of a mixture. Otherwise a new one is trained on the run's text.
    """
    from plmjax.data import cleaning, formats, tokenizers
    from plmjax.data.formats import records

    own, data, settings = workdir / "tokenizer", experiment.data, experiment.tokenizer
    prepared = [path for path in (data.path, *data.mixture.paths.values()) if path]
    named = settings.path or (f"{prepared[0]}/tokenizer" if prepared else "")
    if (own / tokenizers.LAST).is_file():
        return tokenizers.load(own)
    if found:
        found.save(own)
    elif named:
        tokenizers.load(named).save(own)
    else:
        files, kind = _files(experiment)
        report(f"tokenizer  training {settings.kind} with {settings.vocab_size} tokens on the input text")
        parts = records.Parts(records.streams(data.streams)) if data.streams else None
        texts = formats.texts(
            files, format=kind, limit_bytes=tokenizers.sample(settings.kind), text_key=data.text_key, parts=parts
        )
        cleaner = cleaning.cleaner(
            data.clean, bad_words=data.bad_words, language=data.language, format=kind, parts=parts
        )
        texts = cleaner.texts(texts) if cleaner.names else texts
        tokenizers.train(settings.kind, settings.vocab_size, texts, own, lowercase=settings.lowercase)
    return tokenizers.load(own)


def _dataset(experiment: Experiment, workdir: Path, tokenizer: Any, report: Callable[[str], None]) -> Path:
    """Return the folder of the run's dataset: that of --data.path, or WORKDIR/dataset, which is prepared if missing."""
    from plmjax.data import store
    from plmjax.data.formats import records
    from plmjax.data.preparation import prepare

    data = experiment.data
    if data.path:
        return storage.path(data.path)
    directory = workdir / "dataset"
    if not (directory / store.MANIFEST).exists():
        report("dataset    preparing the input text")
        files, kind = _files(experiment)
        prepare(
            files,
            kind,
            tokenizer,
            directory,
            validation=data.held_out,
            language=data.language,
            text_key=data.text_key,
            streams=records.streams(data.streams),
            max_unknown=data.max_unknown,
            clean=data.clean,
            bad_words=data.bad_words,
            special_names=data.special_names,
        )
    return directory
